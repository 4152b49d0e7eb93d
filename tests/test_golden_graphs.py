"""`golden/*.rlx`: a graph, the passes named on the first line, and the graph they make.  `pytest --bless` rewrites the second half."""
from __future__ import annotations

from pathlib import Path

import pytest

from rlxpy import parse, show
from rlxpy.backends.reference import Reference
from rlxpy.fusion.pipeline import passes_named, run

FILES = sorted((Path(__file__).parent / "golden").glob("*.rlx"))
CUT = "\n// becomes\n"


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_golden(path: Path, request: pytest.FixtureRequest) -> None:
    before, _, after = path.read_text("utf-8").partition(CUT)
    names = before.splitlines()[0].removeprefix("// run: ").split(", ")
    got = show(run(parse(before), passes_named(names, Reference().spec))[0])
    if request.config.getoption("--bless"):
        path.write_text(f"{before}{CUT}{got}\n", "utf-8")
        return
    assert got == after.strip(), "if the new text is right: pytest --bless"
    assert parse(after) == parse(got)


def test_there_are_goldens() -> None:
    assert len(FILES) >= 6

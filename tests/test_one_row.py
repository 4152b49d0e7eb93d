"""The law of one row: an op added to the table, in a copy of the package, is there everywhere at once."""
from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROW = '    CUBED = unary(lambda x: x * x * x, "({0}*{0}*{0})", slope=lambda y, x: x * x * 3.0, doc="x * x * x")\n'
LAWS = ("test_rows.py", "test_derivatives.py", "test_owed.py")

USE = """
import numpy as np
import random_graphs
from rlxpy import Builder, CompileOptions, Op, compile, parse, show
from rlxpy.ir.verify import verify

b = Builder()
x = b.input("x", (3, 5))
g = b.finish((x.cubed() + 1.0).relu(), Op.CUBED(x * 2.0).sum(axes=(1,)))
text = show(g)
assert "= cubed %0 : f32[3,5]" in text, text
assert parse(text) == g
verify(parse(text))

c = compile(g, options=CompileOptions(debug=True))
kinds = {n.kind: [m.op for _, body in n.attrs.graphs() for m in body] for n in c.plan.graph if n.op is Op.FUSED}
assert set(kinds) == {"elementwise", "reduce"}, kinds
assert all(Op.CUBED in ops for ops in kinds.values()), kinds
given = np.linspace(-2, 2, 15, dtype=np.float32).reshape(3, 5)
first, second = c.run(given)
np.testing.assert_allclose(first, np.maximum(given.astype(float) ** 3 + 1, 0), rtol=1e-5, atol=1e-6)
np.testing.assert_allclose(second, ((2 * given.astype(float)) ** 3).sum(1), rtol=1e-5, atol=1e-5)
plain = compile(b.finish(x.cubed()), options=CompileOptions(optimise=False))
assert [s.choice.name for s in plain.plan.steps] == ["reference/cubed"]
np.testing.assert_array_equal(plain.run(given), given * given * given)
three = Builder()
assert compile(three.finish(three.const(3.0).cubed())).run() == 27
assert Op.CUBED in random_graphs.MAKERS
print("used")
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package and the tests its table is held to, with one line more in ir/op.py."""
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "rlxpy", folder / "rlxpy", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "tests").mkdir()
    for path in (ROOT / "tests").glob("*.py"):
        shutil.copy(path, folder / "tests")
    shutil.copytree(ROOT / "tests" / "golden", folder / "tests" / "golden")
    table = folder / "rlxpy" / "ir" / "op.py"
    before, after = re.split(r"^(?=    RECIP = )", table.read_text("utf-8"), maxsplit=1, flags=re.MULTILINE)
    table.write_text(before + ROW + after, "utf-8")
    return folder


def child(copy: Path, *args: str) -> str:
    env = {**os.environ, "PYTHONPATH": f"{copy}{os.pathsep}{copy / 'tests'}", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, *args], cwd=copy, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_is_the_copy_that_is_tested(copy: Path) -> None:
    assert Path(child(copy, "-c", "import rlxpy; print(rlxpy.__file__)").strip()).is_relative_to(copy)


def test_it_is_printed_parsed_verified_fused_folded_and_run(copy: Path) -> None:
    assert child(copy, "-c", USE) == "used\n"


@pytest.mark.parametrize("file", LAWS)
def test_it_is_held_to_the_laws_of_rows(copy: Path, file: str) -> None:
    said = child(copy, "-m", "pytest", f"tests/{file}", "-k", "cubed or owed_cells", "-p", "no:cacheprovider", "-o", "addopts=", "-v", "--rootdir", str(copy))
    passed = re.search(r"(\d+) passed", said)
    assert passed
    assert int(passed[1]) == said.count(" PASSED")
    assert {"test_rows.py": 7, "test_derivatives.py": 2, "test_owed.py": 3}[file] <= int(passed[1]), said


def test_it_is_listed_by_the_command(copy: Path) -> None:
    assert re.search(r"\bcubed\b.*x \* x \* x", child(copy, "-m", "rlxpy", "ops"))

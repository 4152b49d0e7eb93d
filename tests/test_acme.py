"""A downstream package from its wheel: both are built, installed into a fresh environment, found by entry points, and used."""
from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from rlxpy.backends.cpu.compilers import find_compiler

ROOT = Path(__file__).parents[1]
ACME = ROOT / "examples" / "acme"
reason = find_compiler()
GROUPS = ("backends", "encodings", "kernels", "ops", "passes", "quantisers")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of its own with the two wheels.  What rlxpy itself depends on is lent by this one, so that no network is needed."""
    folder = tmp_path_factory.mktemp("fresh")
    for project in (ROOT, ACME):
        subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "wheels")], cwd=project, check=True, capture_output=True)
    wheels = sorted(map(str, (folder / "wheels").glob("*.whl")))
    assert len(wheels) == 2
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")], check=True)
    made = folder / "env" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "pip", "--python", str(made), "install", "--quiet", "--no-index", "--no-deps", "--no-compile", *wheels], check=True)
    packages = subprocess.run([made, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], check=True, capture_output=True, text=True).stdout.strip()
    (Path(packages) / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")  # an editable install is a .pth file there, which is not followed from here
    return made


def run(python: Path, *command: str, **more: str) -> str:
    """In a folder with nothing of ours, and without our PYTHONPATH."""
    outside = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "RLX_"))}
    done = subprocess.run([python, *command], cwd=python.parent, env={**outside, "RLX_WAIT": "1", **more}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_both_come_from_their_wheels(python: Path) -> None:
    places = run(python, "-c", "import acme, rlxpy; print(acme.__file__, rlxpy.__file__)").split()
    assert all(Path(p).is_relative_to(python.parents[1]) for p in places)


def test_nothing_of_it_is_loaded_before_it_is_needed(python: Path) -> None:
    assert run(python, "-c", "import sys, rlxpy; from rlxpy.plugins import plugins; print(*{p.state for p in plugins()}, 'acme' in sys.modules)") == "not loaded False\n"


@pytest.mark.skipif(isinstance(reason, str), reason=f"a C kernel did not run: {reason}")
def test_every_seam_works_together(python: Path) -> None:
    said = dict(line.split(": ", 1) for line in run(python, str(ACME / "try_it.py")).splitlines() if ": " in line)
    assert said["devices"] == "reference cpu exact"
    assert [said[f"softcap by {route} on cpu"] for route in ("lowering", "numpy", "c")] == ["cpu/fused.elementwise", "host/acme.softcap.numpy", "host/acme.softcap.c"]
    assert said["found by pass"] == "acme.softcap"
    assert said["exp"] == "acme/exp_once"
    assert said["block"] == "y gate"
    assert said["nearer than rtn"] == "True"
    assert {said[f"plug-in rlxpy.{g}"] for g in GROUPS} == {"acme-rlx 0.3.0 loaded"}


def test_a_graph_may_name_its_op_before_anything_is_imported(python: Path) -> None:
    """The text of a graph is enough: who reads it finds the package."""
    text = 'import rlxpy; b = rlxpy.Builder("m"); g = b.finish(b.custom_op("acme.softcap", b.input("x", (3,)))); print(rlxpy.parse(rlxpy.show(g)) == g)'
    assert run(python, "-c", text) == "True\n"


def test_the_command_line_knows_it(python: Path) -> None:
    assert "exact" in run(python, "-m", "rlxpy", "devices")
    assert "acme.softcap" in run(python, "-m", "rlxpy", "ops", "acme.softcap")
    assert [(p["group"], p["package"], p["state"]) for p in json.loads(run(python, "-m", "rlxpy", "plugins", "--json"))] == [(f"rlxpy.{g}", "acme-rlx", "loaded") for g in GROUPS]


def test_its_backend_keeps_the_laws_of_all(python: Path) -> None:
    assert "0 broken" in run(python, "-m", "rlxpy", "conform", "exact", "--ops", "add,matmul,sum,softmax,gather,kv_append")


# ---- rlxpy and a package worked on together ------------------------------------------------------------------------
def tree(folder: Path, version: str, more: str = "") -> Path:
    """A working tree: what a clone has, under another version."""
    shutil.copytree(ROOT / "rlxpy", folder / "rlxpy", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "templates", folder / "templates")
    init = folder / "rlxpy" / "__init__.py"
    init.write_text(re.sub(r"__version__ = .*", f'__version__ = "{version}"{more}', init.read_text("utf-8")), "utf-8")
    return folder


def rlx(python: Path, *words: str) -> tuple[int, str, str]:
    outside = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run([python, "-m", "rlxpy", *words], cwd=python.parent, env=outside, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_an_environment_is_linked_to_a_working_tree_and_back(python: Path, tmp_path: Path) -> None:
    released = run(python, "-m", "rlxpy", "dev", "status")
    mine = tree(tmp_path / "it's mine", "9.9")
    assert run(python, "-m", "rlxpy", "dev", "link", str(mine)) == f"rlxpy 9.9 of {mine}; `rlx dev unlink` goes back\n"
    try:
        assert run(python, "-c", "import rlxpy; print(rlxpy.__version__)") == "9.9\n"
        assert run(python, "-m", "rlxpy", "--version") == "rlxpy 9.9\n"
        assert json.loads(run(python, "-m", "rlxpy", "dev", "status", "--json"))["tree"] == str(mine)
        assert "acme/exp_once" in run(python, str(ACME / "try_it.py")), "the package runs on the working tree"
        broken = tree(tmp_path / "broken", "9.8", "\nimport nothing_of_that_name")
        code, _, said = rlx(python, "dev", "link", str(broken))
        assert (code, "No module named 'nothing_of_that_name'" in said) == (1, True)
        assert run(python, "-c", "import rlxpy; print(rlxpy.__version__)") == "9.9\n", "the link from before stands"
        shutil.rmtree(mine)
        code, _, said = rlx(python, "dev", "status")
        assert (code, f"linked to {mine}, which has no rlxpy" in said) == (1, True)
    finally:
        assert run(python, "-m", "rlxpy", "dev", "unlink") == released
    assert rlx(python, "dev", "unlink")[0] == 1


def test_what_is_no_working_tree_is_refused(python: Path, tmp_path: Path) -> None:
    code, _, said = rlx(python, "dev", "link", str(tmp_path))
    assert code == 1
    assert f"{tmp_path} is no working tree of rlxpy" in said
    assert "as installed" in run(python, "-m", "rlxpy", "dev", "status")

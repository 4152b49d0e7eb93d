"""A downstream package from its wheel: both are built, installed into a fresh environment, found by entry points, and used."""
from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from rlxpy.backends.cpu.compilers import find_compiler

ROOT = Path(__file__).parents[1]
ACME = ROOT / "examples" / "acme"
reason = find_compiler()
GROUPS = ("backends", "encodings", "kernels", "ops", "passes")


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
    assert {said[f"plug-in rlxpy.{g}"] for g in GROUPS} == {"acme-rlx 0.3.0 loaded"}


def test_a_graph_may_name_its_op_before_anything_is_imported(python: Path) -> None:
    """The text of a graph is enough: who reads it finds the package."""
    text = 'import rlxpy; b = rlxpy.Builder("m"); g = b.finish(b.custom_op("acme.softcap", b.input("x", (3,)))); print(rlxpy.parse(rlxpy.show(g)) == g)'
    assert run(python, "-c", text) == "True\n"


def test_the_command_line_knows_it(python: Path) -> None:
    assert "exact" in run(python, "-m", "rlxpy", "devices")
    assert "acme.softcap" in run(python, "-m", "rlxpy", "ops", "acme.softcap")
    assert [(p["group"], p["package"], p["state"]) for p in json.loads(run(python, "-m", "rlxpy", "plugins", "--json"))] == [(f"rlxpy.{g}", "acme-rlx", "loaded") for g in GROUPS]

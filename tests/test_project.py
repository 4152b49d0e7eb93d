"""The project's outside: the wheel, the two commands, the README.  Its inside is held by tests/test_layers.py."""
from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], cwd=ROOT, check=True, capture_output=True)
    return zipfile.ZipFile(next(folder.glob("*.whl")))


def test_the_wheel_holds_the_package_its_types_and_its_templates_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    package = {str(p.relative_to(ROOT)) for p in (ROOT / "rlxpy").rglob("*") if p.is_file() and p.suffix != ".pyc"}
    templates = {f"rlxpy/{p.relative_to(ROOT)}" for p in (ROOT / "templates").rglob("*") if p.is_file()}
    assert "rlxpy/py.typed" in package
    assert {n for n in names if ".dist-info/" not in n} == package | templates
    assert any(n.endswith("/licenses/LICENSE") for n in names)


def test_the_wheel_is_pure_and_brings_the_command(wheel: zipfile.ZipFile) -> None:
    import rlxpy

    info = f"rlxpy-{rlxpy.__version__}.dist-info"
    assert wheel.read(f"{info}/entry_points.txt").decode().split("\n")[:2] == ["[console_scripts]", "rlx = rlxpy.cli:main"]
    assert "Tag: py3-none-any" in wheel.read(f"{info}/WHEEL").decode()
    metadata = wheel.read(f"{info}/METADATA").decode()
    assert "Requires-Python: >=3.11" in metadata
    assert set(re.findall(r"^Provides-Extra: (.*)", metadata, re.MULTILINE)) == {"models", "cc", "cuda", "cublas", "rocm", "dev"}


def test_no_package_is_asked_for_twice_so_extras_cannot_conflict(wheel: zipfile.ZipFile) -> None:
    metadata = next(wheel.read(n).decode() for n in wheel.namelist() if n.endswith("METADATA"))
    names = re.findall(r"^Requires-Dist: ([\w.-]+)", metadata, re.MULTILINE)
    assert len(names) == len(set(names))


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.parametrize(("text", "words"), [
    ('case "$1" in --version) echo Python 3.9.2;; *) case "$2" in *version_info*) exit 1;; esac;; esac', "Python 3.9.2, and rlxpy needs Python 3.11"),
    ('case "$2" in *ensurepip*) exit 1;; esac', "cannot make virtual environments"),
    ("exit 127", "does not run: install Python 3.11"),
])
def test_an_unfit_python_gets_one_sentence(text: str, words: str, tmp_path: Path) -> None:
    python = script(tmp_path / "python", text)
    done = subprocess.run(["make", "--silent", "python", f"PYTHON={python}"], cwd=ROOT, capture_output=True, text=True, check=False)
    said, *rest = done.stderr.splitlines()
    assert done.returncode != 0
    assert words in said
    assert all(line.startswith("make") for line in rest)


def test_this_python_is_fit() -> None:
    subprocess.run(["make", "--silent", "python", f"PYTHON={sys.executable}"], cwd=ROOT, capture_output=True, check=True)


def test_make_test_ends_with_pytest_and_make_run_with_the_demo() -> None:
    def last(goal: str) -> str:
        outside = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}  # the tests may run inside make themselves
        done = subprocess.run(["make", "--dry-run", goal], cwd=ROOT, capture_output=True, text=True, check=True, env=outside)
        return done.stdout.splitlines()[-1]

    assert last("test") == ".venv/bin/pytest -n auto"
    assert last("run") == ".venv/bin/rlx demo"


def test_ci_is_a_script_that_parses_and_stops_at_errors() -> None:
    path = ROOT / ".ci" / "run"
    assert os.access(path, os.X_OK)
    assert subprocess.run(["bash", "-n", path], check=False).returncode == 0
    assert "set -euo pipefail" in path.read_text()


def test_the_readme_has_every_command_and_no_other() -> None:
    help_text = subprocess.run([sys.executable, "-m", "rlxpy", "--help"], capture_output=True, text=True, check=True).stdout
    commands = set(re.findall(r"^  ([a-z-]+) {2,}\S", help_text.partition("Commands:")[2], re.MULTILINE))
    rows = set(re.findall(r"^\| `rlx ([a-z-]+)", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE))
    assert rows == commands

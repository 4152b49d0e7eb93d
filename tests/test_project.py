"""The project's outside and its house rules: layers, imports, modules, the wheel, the two commands, the README."""
from __future__ import annotations

import ast
import os
import re
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "rlxpy").rglob("*.py"))

# Lowest first: a module may import from rows above its own, never from its own row's neighbours.
LAYERS = (
    {"errors", "exports"},
    {"settings"},
    {"ir"},
    {"extend"},
    {"fusion", "flow", "backends"},
    {"compiler", "autodiff"},
    {"generate", "hub", "tools"},
    {"cli"},
)
DOORS = {"__init__.py", "__main__.py", "extend/__init__.py"}  # offer names of every layer, imported at first use
LONGEST_FILE = 450  # lines; the op table is the one exception
VAGUE = {"common", "helper", "helpers", "misc", "util", "utils"}

modules = pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))


def room(name: str) -> str:
    """`rlxpy.flow.weights` -> `flow`."""
    return name.split(".")[1] if "." in name else "__init__"


def imported(tree: ast.AST) -> set[str]:
    """Rooms of rlxpy that a module names in an import statement, at its top or inside a function."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {room(a.name) for a in node.names if a.name.split(".")[0] == "rlxpy"}
        elif isinstance(node, ast.ImportFrom) and node.module == "rlxpy":
            found |= {a.name for a in node.names if not a.name.startswith("__")}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rlxpy."):
            found.add(room(str(node.module)))
    return found


@modules
def test_layers(path: Path) -> None:
    inside = path.relative_to(ROOT / "rlxpy")
    if inside.as_posix() in DOORS:
        return
    own = inside.parts[0].removesuffix(".py")
    level = {name: i for i, row in enumerate(LAYERS) for name in row}
    assert own in level, f"{own} is in no layer: place it in LAYERS"
    for other in imported(ast.parse(path.read_text("utf-8"))) - {own, "__init__"}:
        assert level[other] < level[own], f"{own} imports {other}"


@modules
def test_every_module_says_its_job_in_its_first_line(path: Path) -> None:
    text = path.read_text("utf-8")
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "no docstring"
    assert text.startswith('"""')
    assert len(tree.body) == 1 or "from __future__ import annotations" in text.splitlines()


@modules
def test_modules_are_rooms_with_a_name(path: Path) -> None:
    assert not VAGUE & {part.removesuffix(".py") for part in path.parts}
    assert len(path.read_text("utf-8").splitlines()) <= LONGEST_FILE or path.parent.name == "ir"


def test_relative_imports_do_not_hide_from_the_layer_test() -> None:
    assert not [p for p in MODULES for n in ast.walk(ast.parse(p.read_text("utf-8"))) if isinstance(n, ast.ImportFrom) and n.level]


def test_import_needs_numpy_alone_and_says_nothing() -> None:
    code = "import sys, rlxpy; print(sorted({m.split('.')[0] for m in sys.modules} - set(sys.stdlib_module_names) - {'__main__'}))"
    done = subprocess.run([sys.executable, "-I", "-X", "frozen_modules", "-c", code], capture_output=True, text=True, check=True)
    loaded = set(ast.literal_eval(done.stdout))
    by_the_environment = set(ast.literal_eval(subprocess.run(
        [sys.executable, "-I", "-c", code.replace(", rlxpy", "")], capture_output=True, text=True, check=True).stdout))
    assert loaded - by_the_environment <= {"rlxpy", "numpy"}
    assert done.stderr == ""


def test_only_settings_reads_the_environment_for_rlxpy() -> None:
    reads = re.compile(r"(environ|getenv)[^\n]*RLX_")
    assert [p.name for p in MODULES if reads.search(p.read_text("utf-8"))] in ([], ["settings.py"])


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
    assert set(re.findall(r"^Provides-Extra: (.*)", metadata, re.MULTILINE)) == {"models", "cc", "cuda", "rocm", "dev"}


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
        done = subprocess.run(["make", "--dry-run", goal], cwd=ROOT, capture_output=True, text=True, check=True)
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

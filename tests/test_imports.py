"""What importing costs: NumPy alone, nothing printed, and everything else at first use."""
from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rlxpy
import rlxpy.extend

PACKAGE = Path(rlxpy.__file__).parent
HEAVY = {"ml_dtypes", "tokenizers", "jinja2", "typer", "click", "rich", "networkx", "gguf", "safetensors", "cuda", "hip", "torch", "hypothesis", "pytest"}
FIRST_RESULT = """
b = rlxpy.Builder()
x = b.input("x", (rlxpy.sym("B", 1, 8), 4))
y = (x @ b.param("w", (4, 4)) + 1.0).relu().layer_norm(eps=1e-5)
run = rlxpy.compile(b.finish(y), {"w": [[1, 0, 0, 2]] * 4})
run([[1, 2, 3, 4]])
"""
USE = f"{FIRST_RESULT}run.explain(), rlxpy.show(run.source), rlxpy.backend_report()"
MOST_MODULES = 100  # of rlxpy's own, for a first result on the reference; a millisecond each
SPARED = {"asyncio", "email", "fractions", "hashlib", "http", "importlib.metadata", "json", "multiprocessing", "numpy.fft", "socket", "tempfile", "unittest", "zipfile"}


def loaded(code: str) -> set[str]:
    """Top-level packages that a fresh interpreter holds after `code`, beyond those it always holds."""
    def after(source: str) -> set[str]:
        ask = f"{source}\nimport sys, json; print(json.dumps(sorted({{m.split('.')[0] for m in sys.modules}})))"
        done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
        assert done.stderr == ""
        said, = done.stdout.splitlines()  # nothing else is printed
        return set(json.loads(said))

    return after(code) - after("") - set(sys.stdlib_module_names)


@pytest.mark.parametrize("code", [
    "import rlxpy", "import rlxpy.extend", "import rlxpy; rlxpy.compile", "import rlxpy; dir(rlxpy)", "from rlxpy import Builder, Session, sym", f"import rlxpy{USE}",
], ids=lambda code: code.splitlines()[0])
def test_numpy_is_all_it_takes(code: str) -> None:
    assert loaded(code) <= {"rlxpy", "numpy"}


def test_types_that_numpy_lacks_bring_ml_dtypes_and_nothing_more() -> None:
    code = 'import rlxpy; b = rlxpy.Builder(); rlxpy.compile(b.finish(b.input("x", (2,), "bf16") + 1.0))([1, 2])'
    assert loaded(code) == {"rlxpy", "numpy", "ml_dtypes"}


def test_the_compiler_is_not_loaded_by_import_alone() -> None:
    code = "import sys, rlxpy; print(sorted(m for m in sys.modules if m.startswith('rlxpy')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(ast.literal_eval(done.stdout)) <= {"rlxpy", "rlxpy.exports"}


def test_a_first_result_takes_few_modules_and_no_slow_ones() -> None:
    """What a process waits for before it has anything: each of these is milliseconds, and none is needed yet."""
    code = f"import sys, numpy; before = set(sys.modules); import rlxpy{FIRST_RESULT}print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(ast.literal_eval(done.stdout))
    assert modules & SPARED == set()
    assert len([m for m in modules if m.startswith("rlxpy")]) <= MOST_MODULES
    assert not any(m.startswith(("rlxpy.backends.cpu.", "rlxpy.backends.gpu.", "rlxpy.flow", "rlxpy.tools", "rlxpy.targets", "rlxpy.cli")) for m in modules)


def test_without_a_compiler_nobody_imports_what_writes_c() -> None:
    code = f"import sys, rlxpy{FIRST_RESULT}print(sorted(m for m in sys.modules if m.startswith('rlxpy.backends.')))"
    env = os.environ | {"RLX_DEVICE": "auto", "RLX_CC": "/nowhere/cc", "RLX_QUIET": "1"}
    modules = set(ast.literal_eval(subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout))
    assert "rlxpy.backends.cpu.compilers" in modules, "it was asked"
    assert modules & {"rlxpy.backends.cpu.library", "rlxpy.backends.cpu.kernel", "rlxpy.backends.gpu.backend"} == set()


COUNTED = """
import dataclasses
standard, made = dataclasses.dataclass, []
def dataclass(cls=None, /, **options):
    made.extend([cls.__qualname__] if cls and options.get("init", True) else [])
    return standard(cls, **options)
dataclasses.dataclass = dataclass
"""


def test_few_classes_are_left_to_the_standard_library() -> None:
    """It takes most of a millisecond for each, `rlxpy.frozen` a tenth."""
    done = subprocess.run([sys.executable, "-c", f"{COUNTED}import rlxpy{FIRST_RESULT}print(made)"], capture_output=True, text=True, check=True)
    left = ast.literal_eval(done.stdout)
    assert "Node" in left, "it counts"
    assert len(left) <= 15


def heavy_imports(path: Path) -> set[str]:
    """Heavy packages that a module imports when it is imported itself."""
    def visit(node: ast.AST) -> set[str]:
        found: set[str] = set()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                found |= {a.name.split(".")[0] for a in child.names}
            elif isinstance(child, ast.ImportFrom):
                found.add((child.module or "").split(".")[0])
            elif not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) and "TYPE_CHECKING" not in ast.unparse(child).split("\n")[0]:
                found |= visit(child)
        return found & HEAVY

    return visit(ast.parse(path.read_text("utf-8")))


INSIDE = "template_code.py"  # is itself imported inside a function: its class derives from one of Jinja's
BELOW = [p for p in sorted(PACKAGE.rglob("*.py")) if p.relative_to(PACKAGE).parts[0] not in ("cli", "generate") and p.name != INSIDE]


@pytest.mark.parametrize("path", BELOW, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_below_the_commands_heavy_packages_are_imported_inside_functions(path: Path) -> None:
    assert heavy_imports(path) == set()


IMPORT_EACH_ALONE = """
import sys
from importlib import import_module
from pathlib import Path
root = Path(sys.argv[1])
for path in sorted(p for layer in ("ir", "extend", "fusion") for p in (root / "rlxpy" / layer).rglob("*.py")):
    name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
    for loaded in [m for m in sys.modules if m.split(".")[0] == "rlxpy"]:
        del sys.modules[loaded]
    try:
        import_module(name)
    except Exception as e:
        print(f"{name}: {type(e).__name__}: {e}")
"""


def test_every_module_of_the_core_can_be_the_first_to_be_imported() -> None:
    """A circle shows only from one of its ends.  tests/test_layers.py looks for circles everywhere; this looks at what really happens."""
    done = subprocess.run([sys.executable, "-c", IMPORT_EACH_ALONE, str(PACKAGE.parent)], capture_output=True, text=True, check=True)
    assert done.stdout == ""


@pytest.mark.parametrize("package", [rlxpy, rlxpy.extend], ids=lambda p: p.__name__)
def test_every_public_name_is_there_and_type_checkers_see_the_same(package: object) -> None:
    names = set(package.__all__) - {"__version__"}  # type: ignore[attr-defined]
    assert all(getattr(package, name) is not None for name in names)
    assert set(dir(package)) >= names
    tree = ast.parse(Path(package.__file__).read_text("utf-8"))  # type: ignore[attr-defined]
    for_types, = (n for n in tree.body if isinstance(n, ast.If))
    assert {a.asname for n in for_types.body if isinstance(n, ast.ImportFrom) for a in n.names} == names


def test_a_name_that_is_not_there_says_so() -> None:
    with pytest.raises(AttributeError, match="'rlxpy' has no attribute 'compyle'"):
        rlxpy.compyle  # noqa: B018

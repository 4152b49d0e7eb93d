"""The house: which layer may know which, no circles among modules, files of a readable size, rooms with a name."""
from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "rlxpy"
LONGEST = 400  # lines
LONG_ON_PURPOSE = {"ir/op.py"}
VAGUE = {"common", "helper", "helpers", "misc", "util", "utils"}

# Lowest first.  A layer imports only from those before its own; neighbours on one row never import one another.
ORDER = (
    {"errors", "exports", "frozen", "pages"},
    {"settings", "installed"},
    {"notes"},
    {"plugins"},
    {"registries"},
    {"ir"},
    {"extend"},
    {"fusion", "flow", "backends"},
    {"compiler", "autodiff"},
    {"generate", "hub", "tools"},
    {"targets"},
    {"cli"},
)
LEVEL = {layer: i for i, row in enumerate(ORDER) for layer in row}
DOORS = {"rlxpy", "rlxpy.__main__", "rlxpy.extend"}  # offer names of every layer, imported at first use

# Who reads the environment, beside settings.py: what it asks for is not ours to name.
READERS = {
    "hub/pip.py": "the child's environment is the user's, less what belongs to this Python",
    "cli/progress.py": "TERM is the terminal's word for what it can draw",
    "cli/env.py": "tells apart the environment and the default",
    "backends/cpu/compilers.py": "PATH is where compilers are looked for",
}


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(p): p for p in sorted(PACKAGE.rglob("*.py"))}
modules = pytest.mark.parametrize("name", MODULES)


@cache
def tree(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text("utf-8"))


def targets(node: ast.AST) -> Iterator[str]:
    """Modules of the package that one import statement names."""
    if isinstance(node, ast.Import):
        yield from (a.name for a in node.names if a.name.split(".")[0] == "rlxpy")
    elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "rlxpy":
        for alias in node.names:
            inner = f"{node.module}.{alias.name}"
            yield inner if inner in MODULES else str(node.module)


def for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def at_import(node: ast.AST) -> Iterator[ast.AST]:
    """Statements that run when the module is imported."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) and not for_types_only(child):
            yield child
            yield from at_import(child)


def layer(name: str) -> str:
    return name.split(".")[1] if "." in name else ""


@modules
def test_every_module_is_in_a_layer(name: str) -> None:
    assert name in DOORS or layer(name) in LEVEL, f"place {layer(name)} in ORDER"


@modules
def test_layers_look_down(name: str) -> None:
    """At the top, inside functions and for types alike."""
    if name in DOORS:
        return
    for node in ast.walk(tree(name)):
        for other in targets(node):
            assert layer(other) == layer(name) or other == "rlxpy" or LEVEL[layer(other)] < LEVEL[layer(name)], f"{name} imports {other}"


def test_the_doors_import_other_layers_at_first_use() -> None:
    for name in DOORS - {"rlxpy.__main__"}:
        assert {t for node in at_import(tree(name)) for t in targets(node)} == {"rlxpy.exports"}


def test_no_module_imports_itself_through_others() -> None:
    """A module needs the packages that it lies in, and what its own import statements name."""
    needs = {name: {t for node in at_import(tree(name)) for t in targets(node) if t != name} for name in MODULES}
    for name in MODULES:
        parent = name.rpartition(".")[0]
        if parent in needs and not any(t.startswith(f"{parent}.") for t in needs[parent]):  # a package that gathers its own modules is no circle
            needs[name].add(parent)
    try:
        order = list(TopologicalSorter(needs).static_order())
    except CycleError as e:
        pytest.fail(" -> ".join(e.args[1]))
    assert set(order) == set(MODULES)


@modules
def test_imports_are_absolute_so_that_this_file_sees_them(name: str) -> None:
    assert not [n for n in ast.walk(tree(name)) if isinstance(n, ast.ImportFrom) and n.level]


@modules
def test_the_first_line_says_the_modules_one_job(name: str) -> None:
    text = MODULES[name].read_text("utf-8")
    said = ast.get_docstring(tree(name))
    assert said
    assert text.startswith('"""')
    assert len(said.splitlines()[0]) > 10
    assert len(tree(name).body) == 1 or "from __future__ import annotations" in text.splitlines()


@modules
def test_files_can_be_read_in_one_go_and_rooms_have_a_name(name: str) -> None:
    path = MODULES[name].relative_to(PACKAGE).as_posix()
    lines = len(MODULES[name].read_text("utf-8").splitlines())
    assert lines <= LONGEST or path in LONG_ON_PURPOSE, f"{lines} lines"
    assert not VAGUE & set(name.split("."))


def test_the_environment_is_read_in_settings_and_where_a_reason_is_written() -> None:
    asks = re.compile(r"\b(os\.environ|environ\b(?!ment)|getenv)[^#\n]*$", re.MULTILINE)  # a comment on the line is a reason too
    found = {p.relative_to(PACKAGE).as_posix() for p in MODULES.values() if asks.search(p.read_text("utf-8"))}
    assert not found - {"settings.py", *READERS}, "read it in settings.py, or write the reason beside it"
    assert set(READERS) <= found, "no reason is needed any more"


@modules
def test_only_settings_knows_our_variables(name: str) -> None:
    """Others may speak of RLX_* in text, never look one up."""
    asks = re.compile(r"(environ|getenv)[^\n]*RLX_")
    assert name == "rlxpy.settings" or not asks.search(MODULES[name].read_text("utf-8"))

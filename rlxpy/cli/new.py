"""`rlx new-op`, `new-model`, `new-kernel`, `new-backend`: the beginning of a package of your own, with tests that pass."""
from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from rlxpy.cli.app import command
from rlxpy.cli.report import note
from rlxpy.errors import InputError


class Route(Enum):
    lower = "lower"
    numpy = "numpy"
    c = "c"


NewName = Annotated[str, typer.Argument(metavar="NAME", help="As in gated_mlp, HTTPGate or acme.softcap.")]
Into = Annotated[Path, typer.Option("--into", metavar="FOLDER", help="Where its folder goes.")]
Stdout = Annotated[bool, typer.Option("--stdout", help="Print the files, write none.")]


@command("new-op")
def new_op(name: NewName, route: Annotated[Route, typer.Option("--route", help="A composition (lower), or a kernel in NumPy or C.")] = Route.lower,
           into: Into = Path(), stdout: Stdout = False) -> None:
    """Begin a package with an op.  Shows first which ops have names like it."""
    begin("op", name, into, stdout, route=route.value)


@command("new-model")
def new_model(name: NewName, into: Into = Path(), stdout: Stdout = False) -> None:
    """Begin a package with a block and a model made of it."""
    begin("model", name, into, stdout)


@command("new-kernel")
def new_kernel(name: NewName, op: Annotated[str | None, typer.Option("--op", metavar="OP", help="The op it runs; default: the op of that name.")] = None,
               into: Into = Path(), stdout: Stdout = False) -> None:
    """Begin a package with a kernel library of one row, which comes before the bundled ones."""
    from rlxpy.errors import nearest
    from rlxpy.tools.cases import OPS
    from rlxpy.tools.scaffold import KINDS, name_for

    serves = op if op is not None else name_for(KINDS["kernel"], name).snake
    known = [o.text for o in OPS]
    if serves not in known:
        raise InputError(f"no built-in op {serves!r}", why=f"there are {len(known)} that a row can serve; a kernel of your own op is registered with it",
                         fix=f"name one by --op; near it: {nearest(serves, known)}")
    begin("kernel", name, into, stdout, serves=serves)


@command("new-backend")
def new_backend(name: NewName, into: Into = Path(), stdout: Stdout = False) -> None:
    """Begin a package with a backend, its device under that name."""
    begin("backend", name, into, stdout)


def begin(kind_name: str, text: str, into: Path, stdout: bool, *, route: str = "lower", serves: str = "") -> None:
    from rlxpy.tools.scaffold import KINDS, files, free, name_for, near, vocabulary, write

    kind = KINDS[kind_name]
    name = free(kind, name_for(kind, text))
    if alike := near(name, vocabulary(kind)):
        note(f"there is already: {', '.join(alike)}" + ("  (rlx ops NAME tells more)" if kind.name in ("op", "kernel") else ""))
    if kind.vendored and "." not in text:
        note(f"named {name.dotted}: give VENDOR.NAME for a vendor of your own")
    made = files(kind, name, route=route, serves=serves)
    if stdout:
        typer.echo("\n".join(f"# ---- {path}\n{content}" for path, content in made.items()), nl=False)
        return
    for path in write(made, into / name.module):
        typer.echo(path)
    note(f"its tests: pytest {into / name.module}; to install it: pip install -e {into / name.module}")

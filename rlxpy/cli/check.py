"""`rlx check`: an op held to its laws, on every backend."""
from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlxpy.cli.app import command
from rlxpy.cli.options import Devices, device_names
from rlxpy.cli.report import Json, show
from rlxpy.errors import InputError

if TYPE_CHECKING:
    from rlxpy.tools.samples import Case


@command()
def check(
    name: Annotated[str, typer.Argument(metavar="NAME", help="An op, built-in or yours: softmax, acme.softcap.")],
    module: Annotated[list[str] | None, typer.Option("--module", "-m", metavar="FILE|MODULE", help="Python that registers it, run first; may be repeated.")] = None,
    shapes: Annotated[list[str] | None, typer.Option("--shapes", metavar="3x5,5", help="Check it on inputs of these shapes, with commas between, instead of those tried; may be repeated.")] = None,
    given: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A parameter, with --shapes; may be repeated.")] = None,
    device: Devices = None,
    as_json: Json = False,
) -> None:
    """Check an op: types, text form, gradients, lowering, and every kernel on every backend against its meaning.

    Kernels run on batches, odd sizes, zero sizes, operands that are views and poisoned memory, in several types.  What did not run
    is listed with the reason.  Exits 1 when something failed."""
    from rlxpy.tools.check import check_op
    from rlxpy.tools.modules import load

    asked = device_names(device)
    for source in module or ():
        load(source)
    dossier = check_op(name, cases=cases(shapes or [], given or []), devices=asked)
    show(dossier.to_json(), str(dossier), as_json)
    if not dossier.ok:
        raise typer.Exit(1)


def cases(shapes: list[str], given: list[str]) -> tuple[Case, ...]:
    """Raises InputError for text that is none."""
    from rlxpy.tools.samples import Case

    if given and not shapes:
        raise InputError(f"--set {given[0]} has no inputs to go with", why="calls that are tried by themselves have parameters of their own", fix="add --shapes")
    attrs = dict(map(_parameter, given))
    return tuple(Case(tuple(map(_shape, s.split(",")) if s else ()), attrs) for s in shapes)


def _shape(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"scalar|\d+(x\d+)*", text):
        raise InputError(f"--shapes {text!r}", why="a shape is sizes with x between, or scalar", fix="as in --shapes 3x5,5")
    return () if text == "scalar" else tuple(map(int, text.split("x")))


def _parameter(text: str) -> tuple[str, Any]:
    name, found, value = text.partition("=")
    if not found or not name.isidentifier():
        raise InputError(f"--set {text!r}", why="NAME=VALUE is wanted", fix="as in --set axis=-1")
    try:
        return name, float(value) if value.strip("+-") in ("nan", "inf") else ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value  # text needs no quotes

"""`rlx emit`: the source that a backend generates."""
from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlxpy.cli.app import command
from rlxpy.cli.options import ForceRow, Kernels, Numerics
from rlxpy.cli.reading import any_graph, any_model
from rlxpy.cli.report import Json, note, show
from rlxpy.cli.writing import write


@command()
def emit(
    source: Annotated[str, typer.Argument(metavar="FILE|MODEL", help="A graph as text (- reads stdin), or a model as `rlx run` takes it.")],
    backend: Annotated[str, typer.Option("--backend", metavar="NAME", help="Whose source.")] = "cpu",
    isa: Annotated[str, typer.Option("--isa", metavar="NAME", help="Instruction set or chip, this machine's or not, as in avx2, avx512+vnni, gfx942 or sm_90.  Default: the best here.")] = "",
    kernel: Annotated[str | None, typer.Option("--kernel", metavar="NAME", help="Only kernels with this in their name.")] = None,
    target: Annotated[str | None, typer.Option("--target", metavar="NAME", help="Write a project of files instead, as c99, hip, systemverilog, dot or html; --out is its folder.")] = None,
    params: Annotated[Path | None, typer.Option("--params", metavar="FILE", help="Weights of a graph that is a file, for --target: what `rlx inspect` reads.")] = None,
    out: Annotated[str, typer.Option("--out", "-o", metavar="FILE", help="Write to a file, or with --target to a folder; - is stdout.")] = "-",
    numerics: Numerics = None,
    kernels: Kernels = None,
    force_row: ForceRow = None,
    as_json: Json = False,
) -> None:
    """Print the source that a backend generates for a graph, or write a project that needs no rlxpy.

    Kernels are named for what they compute, weights for your names, and every call tells the line of yours that it comes from."""
    if target is not None:
        _project(source, target, params, out, as_json)
        return
    from rlxpy.compiler.options import CompileOptions
    from rlxpy.settings import setting
    from rlxpy.tools.emit import emit as made_for

    options = CompileOptions(numerics=numerics.value if numerics else setting("numerics"))
    made = made_for(any_graph(source), backend, isa=isa, options=options)
    text = made.text if kernel is None else made.kernel(kernel)
    if out != "-":
        write(out, text)
    show({"device": made.device, "kernels": list(made.kernels), "launches": made.launches, "source": text}, text if out == "-" else "", as_json)
    note(f"{len(made.kernels)} kernels, {len(made.launches)} calls, {len(made.text.splitlines()):,} lines")


def _project(source: str, target: str, params: Path | None, out: str, as_json: bool) -> None:
    from rlxpy.targets import projects

    if out == "-":
        raise typer.BadParameter("is a folder with --target, and must be given", param_hint="--out")
    made = projects.target(target)
    graph, weights = any_model(source, params)
    paths = [str(path) for path in projects.write(graph, weights, made, out)]
    show({"target": made.name, "files": paths}, "\n".join(paths), as_json)
    note(f"{made.name}: {made.doc}")

"""`rlx viz`: drawings of a graph before and after each pass."""
from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlxpy.cli.app import command
from rlxpy.cli.opt import PassNames, picked, pipeline
from rlxpy.cli.options import Devices, device_names
from rlxpy.cli.progress import progress
from rlxpy.cli.reading import is_graph_file, model_graph, read_graph
from rlxpy.cli.report import note
from rlxpy.errors import InputError

if TYPE_CHECKING:
    from rlxpy.extend.backend import BackendSpec
    from rlxpy.ir.graph import Graph
    from rlxpy.tools.trace import Stage

FEWEST_BOXES, BOXES, MOST_BOXES = 10, 150, 2000


@command()
def viz(
    source: Annotated[str, typer.Argument(metavar="FILE|MODEL", help="A graph as text (- reads stdin), or a model as `rlx run` takes it.")],
    html: Annotated[str | None, typer.Option(metavar="OUT", help="Write one page that needs nothing but a browser; - is stdout.")] = None,
    dot: Annotated[str | None, typer.Option(metavar="OUT", help="Write Graphviz text, one digraph for each pass that changed something; - is stdout, the default.")] = None,
    passes: PassNames = None,
    after: Annotated[str | None, typer.Option(metavar="PASS", help="Draw only the graph after this pass, its last run.")] = None,
    boxes: Annotated[int, typer.Option(min=FEWEST_BOXES, max=MOST_BOXES, metavar="N", help="Boxes at most: beyond, equal and inner blocks become one.")] = BOXES,
    device: Devices = None,
) -> None:
    """Draw a graph before and after each pass.

    Colours tell kinds, frames the blocks of a model.  The page also tells each node's type, origin, kernel and bytes, shows what is
    inside a fused node, and lists near misses."""
    from rlxpy.compiler.devices import choose
    from rlxpy.settings import setting
    from rlxpy.tools.trace import trace

    if html == dot == "-":
        raise typer.BadParameter("only one of --html and --dot can be stdout", param_hint="--html")
    spec = choose(device_names(device) or setting("device")).backend.spec
    chosen = pipeline(passes, spec)
    graph = _graph(source)
    stages = trace(graph, chosen)
    shown = stages if after is None else picked(stages, after, final=False)
    title = graph.name if source == "-" else Path(source).name
    if html is not None:
        from rlxpy.tools.draw.page import page

        _write(html, page(shown, spec, title, boxes))
    if dot is not None or html is None:
        _write(dot or "-", _dot(shown, spec, title, boxes))


def _graph(source: str) -> Graph:
    from rlxpy import hub

    if source == "-" or is_graph_file(Path(source)):
        return read_graph(source)
    with progress() as tell:
        return model_graph(hub.resolve(source, tell))


def _dot(stages: Sequence[Stage], spec: BackendSpec, title: str, boxes: int) -> str:
    from rlxpy.tools.draw.dot import dot
    from rlxpy.tools.draw.picture import pictures

    drawn = pictures(stages, spec, boxes)
    for sentence in dict.fromkeys(f for p in drawn.values() for f in p.folded):
        note(f"folded: {sentence}")
    return "\n\n".join(dot(drawn[k], f"{title}: {s.name}") if k in drawn else f"// {s.name}: unchanged" for k, s in enumerate(stages)) + "\n"


def _write(out: str, text: str) -> None:
    """A name appears when its file is complete.  Raises InputError."""
    if out == "-":
        typer.echo(text, nl=False)
        return
    path = Path(out)
    try:
        if path.exists() and not path.is_file():  # a device or a pipe: nothing can take its place
            path.write_text(text, "utf-8")
        else:
            _replace(path, text)
    except (OSError, ValueError) as e:
        raise InputError(f"cannot write {out!r}", why=getattr(e, "strerror", None) or str(e), fix="name a file in a folder that you may write") from None
    note(f"wrote {out}")


def _replace(path: Path, text: str) -> None:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(text, "utf-8")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)

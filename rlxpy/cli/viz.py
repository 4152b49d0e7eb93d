"""`rlx viz`: drawings of a graph before and after each pass."""
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlxpy.cli.app import command
from rlxpy.cli.opt import PassNames, picked, pipeline
from rlxpy.cli.options import Devices, ForceRow, Kernels, device_names
from rlxpy.cli.reading import any_graph
from rlxpy.cli.report import note
from rlxpy.cli.writing import write

if TYPE_CHECKING:
    from rlxpy.extend.backend import BackendSpec
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
    kernels: Kernels = None,
    force_row: ForceRow = None,
) -> None:
    """Draw a graph before and after each pass.

    Colours tell kinds, frames the blocks of a model.  The page also tells each node's type, origin, kernel and bytes, shows what is
    inside a fused node, and lists near misses."""
    from rlxpy.compiler.devices import choose
    from rlxpy.compiler.options import CompileOptions
    from rlxpy.compiler.session import served
    from rlxpy.settings import setting
    from rlxpy.tools.trace import trace

    if html == dot == "-":
        raise typer.BadParameter("only one of --html and --dot can be stdout", param_hint="--html")
    spec = served(choose(device_names(device) or setting("device")).backend.spec, CompileOptions())
    chosen = pipeline(passes, spec)
    graph = any_graph(source)
    stages = trace(graph, chosen)
    shown = stages if after is None else picked(stages, after, final=False)
    title = graph.name if source == "-" else Path(source).name
    if html is not None:
        from rlxpy.tools.draw.page import page

        write(html, page(shown, spec, title, boxes))
    if dot is not None or html is None:
        write(dot or "-", _dot(shown, spec, title, boxes))


def _dot(stages: Sequence[Stage], spec: BackendSpec, title: str, boxes: int) -> str:
    from rlxpy.tools.draw.dot import dot
    from rlxpy.tools.draw.picture import pictures

    drawn = pictures(stages, spec, boxes)
    for sentence in dict.fromkeys(f for p in drawn.values() for f in p.folded):
        note(f"folded: {sentence}")
    return "\n\n".join(dot(drawn[k], f"{title}: {s.name}") if k in drawn else f"// {s.name}: unchanged" for k, s in enumerate(stages)) + "\n"

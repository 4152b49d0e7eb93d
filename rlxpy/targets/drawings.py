"""Drawings as targets: a graph and what each pass makes of it, as Graphviz text or as one page."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlxpy.compiler.devices import choose
from rlxpy.extend.backend import BackendSpec
from rlxpy.extend.target import Content, Example
from rlxpy.frozen import dataclass
from rlxpy.fusion.pipeline import standard
from rlxpy.ir.dtypes import Array
from rlxpy.ir.graph import Graph
from rlxpy.tools.draw.dot import dot
from rlxpy.tools.draw.page import page
from rlxpy.tools.draw.picture import pictures
from rlxpy.tools.trace import Stage, trace


def _stages(graph: Graph) -> tuple[tuple[Stage, ...], BackendSpec]:
    spec = choose("auto").backend.spec
    return trace(graph, standard(spec)), spec


@dataclass(frozen=True)
class Dot:
    name: str = "dot"
    doc: str = "Graphviz text, one file for the graph and one for each pass that changed it"
    boxes: int = 150

    def files(self, graph: Graph, params: Mapping[str, Array], examples: Sequence[Example]) -> Mapping[str, Content]:
        stages, spec = _stages(graph)
        return {f"{k:02d}-{stages[k].name}.dot": dot(picture, f"{graph.name}: {stages[k].name}") + "\n" for k, picture in pictures(stages, spec, self.boxes).items()}


@dataclass(frozen=True)
class Html:
    name: str = "html"
    doc: str = "one page with a drawing for each pass, that needs nothing but a browser"
    boxes: int = 150

    def files(self, graph: Graph, params: Mapping[str, Array], examples: Sequence[Example]) -> Mapping[str, Content]:
        stages, spec = _stages(graph)
        return {"index.html": page(stages, spec, graph.name, self.boxes)}

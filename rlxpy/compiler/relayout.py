"""Weights in the order that the chosen kernel wants: made from the stored bytes at load, and again by set_param."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rlxpy.compiler.hoist import Hoisted
from rlxpy.errors import RegistryError
from rlxpy.extend.backend import BackendSpec
from rlxpy.extend.hooks import ask
from rlxpy.extend.kernels import Choice, LayoutAnswer, WeightLayout, operand_index
from rlxpy.frozen import dataclass
from rlxpy.fusion.rebuild import rebuild
from rlxpy.ir.builder import Builder, Value
from rlxpy.ir.dtypes import Array
from rlxpy.ir.graph import Graph, Node, Ref
from rlxpy.ir.op import LEAVES


@dataclass(frozen=True)
class Relaid:
    """The weight `source` as the row `row` wants it, which the graph reads as the param `name`.  made: how the source itself is computed."""

    name: str
    source: str
    row: str
    layout: WeightLayout
    made: Hoisted | None = None

    @property
    def params(self) -> tuple[str, ...]:
        return self.made.params if self.made else (self.source,)

    def compute(self, params: Mapping[str, Array]) -> Array:
        """Raises RegistryError when the row's functions change bytes instead of moving them."""
        stored = np.asarray(self.made.compute(params) if self.made else params[self.source], order="C")
        moved = np.asarray(ask(self.row, "relayout", self.layout.relayout, stored), order="C")
        for what, got in (("relayout", moved), ("unrelayout", np.asarray(ask(self.row, "unrelayout", self.layout.unrelayout, moved)))):
            if (got.shape, got.dtype) != (stored.shape, stored.dtype):
                raise RegistryError(f"row {self.row}: {what} of {self.source!r} gives {got.dtype}{list(got.shape)}", why=f"the weight is {stored.dtype}{list(stored.shape)}",
                                    fix="move bytes inside an array of the same shape and type")
        if got.tobytes() != stored.tobytes():
            raise RegistryError(f"row {self.row}: unrelayout does not undo relayout of {self.source!r}", why="bytes that were moved and moved back are others",
                                fix="a layout may move bytes, never change or drop them")
        return moved


def lay_out(graph: Graph, spec: BackendSpec, hoisted: Sequence[Hoisted]) -> tuple[Graph, tuple[Relaid, ...]]:
    """The graph with a param of its own for every weight that its kernel lays out anew."""
    wanted: dict[Ref, dict[int, str]] = {}
    made: dict[str, Relaid] = {}
    sources = {h.name: h for h in hoisted}
    if not any(r.weights for lib in spec.kernels.libraries for r in lib.rows):
        return graph, ()
    for n in graph:
        choice = spec.verdict(graph, n) if n.op not in LEAVES else None
        row = choice.row if isinstance(choice, Choice) else None
        for w in row.weights if row else ():
            at = operand_index(row, spec.kernels.schema(n.op, n.kind), w.operand)  # type: ignore[arg-type]
            if w.layout(graph.type(n.inputs[at])) is LayoutAnswer.OK:
                source, name = graph[n.inputs[at]].name, choice.name  # type: ignore[union-attr]
                r = Relaid(f"{source}@{name}", source, name, w, sources.get(source))
                made[r.name] = r
                wanted.setdefault(n.refs[0], {})[at] = r.name
    new: dict[str, Value] = {}

    def replace(b: Builder, n: Node, xs: Sequence[Value], _: dict[Ref, Value]) -> tuple[Value, ...] | None:
        if not (names := wanted.get(n.refs[0]) if n.op not in LEAVES else None):
            return None
        operands = list(xs)
        for at, name in names.items():
            if name not in new:
                new[name] = b.param(name, *operands[at].type)
            operands[at] = new[name]
        return b.copy(n, operands)

    return rebuild(graph, replace, "relayout"), tuple(made.values())

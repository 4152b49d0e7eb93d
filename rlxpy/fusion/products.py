"""Products of one left operand become one node: what is done to it is done once, and all columns are shared out together."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rlxpy.extend.passes import Note, NotingPass, note
from rlxpy.frozen import dataclass
from rlxpy.ir.attrs import Fused, Packed
from rlxpy.ir.builder import Builder, Value
from rlxpy.ir.graph import Graph, Node, Ref
from rlxpy.ir.op import LEAVES, Op

CORES = (Op.MATMUL, Op.QMATMUL)


@dataclass(frozen=True)
class FuseProducts(NotingPass):
    """Products of one left operand with several weights, each with its epilogue, become one node, of kind products, with a result for each.

    They stand side by side in the graph, with leaves and views alone between them: no value lives longer than it did."""

    apart: Callable[[Graph, Node], bool] | None = None  # nodes that are to stay what they are
    name: str = "fuse-products"

    def noted(self, graph: Graph) -> tuple[Graph, tuple[Note, ...]]:
        runs = {run[0].id: run for run in self._runs(graph) if len(run) > 1}
        if not runs:
            return graph, ()
        notes: list[Note] = []
        bodies: dict[Graph, Graph] = {}  # one object for equal chains, so that they compare at once
        b, new = Builder(graph.name), dict[Ref, Value]()
        for nodes in _order(graph, runs):
            if len(nodes) == 1:
                new |= zip(nodes[0].refs, b.copy(nodes[0], [new[r] for r in nodes[0].inputs]), strict=True)
                continue
            reads, body = _body(graph, nodes)
            b.loc, b.made_by = nodes[-1].loc, nodes[-1].through(self.name)
            made = b.emit(Op.FUSED, *(new[r] for r in reads), kind="products", body=bodies.setdefault(body, body))
            new |= zip((n.refs[0] for n in nodes), made, strict=True)
            left = graph.type(_key(graph, nodes[0])[1])
            notes.append(note(self.name, "fused", "products", nodes[-1], ", ".join(f"{n.label} : {n.type}" for n in nodes), (len(nodes) - 1) * left.max_nbytes))
        return b.finish(*(new[r] for r in graph.outputs), names=graph.output_names, updates=[(new[s], new[v]) for s, v in graph.updates]), tuple(notes)

    def _runs(self, graph: Graph) -> Iterator[list[Node]]:
        """Products side by side that may become one."""
        run, key = list[Node](), None
        for n in graph:
            if n.op in LEAVES or n.row.view is not None:
                continue
            mine = None if self.apart and self.apart(graph, n) else _key(graph, n)
            if mine is None or mine != key or any(_origin(graph, r) in run for r in n.inputs):
                yield run
                run, key = [], mine
            if mine is not None:
                run.append(n)
        yield run


def _product(n: Node) -> tuple[Node, tuple[Ref, ...]] | None:
    """The product in a node, alone or with its epilogue, and the operands that it reads."""
    if n.op in CORES:
        return n, n.inputs
    if not isinstance(n.attrs, Fused) or n.kind != "matmul" or len(n.types) > 1:
        return None
    outer = dict(zip((i.refs[0] for i in n.attrs.body.inputs), n.inputs, strict=True))
    core = next(m for m in n.attrs.body if m.op in CORES)
    return core, tuple(outer[r] for r in core.inputs)


def _key(graph: Graph, n: Node) -> Any:
    """What products have in common that one kernel computes; None for what is none, or has no weight that all rows share."""
    found = _product(n)
    if found is None or n.type.rank < 2:
        return None
    core, (left, *rights) = found
    packing = core.attrs.encoding if isinstance(core.attrs, Packed) else ""
    fits = graph.type(rights[0]).rank == 2 and all(_origin(graph, r).op in (Op.PARAM, Op.CONST) for r in rights)
    return (core.op, left, graph.type(rights[0]).dtype, core.type.dtype, n.type.dtype, packing) if fits else None


def _origin(graph: Graph, r: Ref) -> Node:
    """The node whose bytes a value shows."""
    n = graph[r]
    while n.row.view is not None:
        n = graph[n.inputs[0]]
    return n


def _order(graph: Graph, runs: dict[int, list[Node]]) -> Iterator[Sequence[Node]]:
    """Every node once, those of a run together: before them the leaves and views between them, behind them the views of what they give."""
    i = 0
    while i < len(graph):
        run = runs.get(i, [graph[i]])
        given, later = {n.id for n in run}, list[Node]()
        for n in graph.nodes[i:run[-1].id]:
            if n in run:
                continue
            if given.isdisjoint(r.node for r in n.inputs):
                yield (n,)
            else:
                given.add(n.id)
                later.append(n)
        yield run
        yield from ((n,) for n in later)
        i = run[-1].id + 1


def _body(graph: Graph, run: Sequence[Node]) -> tuple[tuple[Ref, ...], Graph]:
    """What the products read, and all their chains in one graph."""
    reads = tuple(dict.fromkeys(r for n in run for r in n.inputs))
    b = Builder("products")
    b.loc = run[-1].loc
    new = {r: b.input(f"in{k}", *graph.type(r)) for k, r in enumerate(reads)}
    made = []
    for n in run:
        xs = [new[r] for r in n.inputs]
        made.append(b.inline(n.attrs.body, xs) if isinstance(n.attrs, Fused) else b.copy(n, xs)[0])
    return reads, b.finish(*made)

"""Fuse runs of elementwise ops with the product or reduction they belong to: one loop and one write instead of many.

Kinds of fused node, each a chain of plain ops in its `body`:
    elementwise   two or more elementwise ops of one shape
    matmul        a matmul or qmatmul with its epilogue (bias, activation, residual, ..)
    conv          a convolution with its epilogue
    gated_mlp     two products of one input, joined elementwise: act(x @ g) * (x @ u)
    reduce        a reduction with the elementwise ops that feed it
"""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rlxpy.extend.passes import Note, NotingPass, note
from rlxpy.ir.builder import Builder, Value
from rlxpy.ir.graph import Graph, Node, Ref
from rlxpy.ir.op import ELEMENTWISE, Op

PRODUCTS = {Op.MATMUL: "matmul", Op.QMATMUL: "matmul", Op.CONV: "conv"}  # and the kind of one with its epilogue
REDUCTIONS = frozenset({Op.SUM, Op.PROD, Op.MEAN, Op.MAX, Op.MIN, Op.ANY, Op.ALL})


@dataclass(frozen=True)
class Fuse(NotingPass):
    """A node joins a region when every reader is in it, so nothing is computed twice and nothing else needs its value.
    What feeds a product stays outside: a product reads its operands many times, not once for each element it makes.

    The gain of each join is the traffic it saves: the joined value is neither written nor read."""

    kinds: frozenset[str] = frozenset({"elementwise", "matmul", "gated_mlp", "conv", "reduce"})
    max_ops: int = 48
    max_operands: int = 16
    name: str = "fuse"

    def noted(self, graph: Graph) -> tuple[Graph, tuple[Note, ...]]:
        home = self._homes(graph)
        groups: dict[int, list[Node]] = {}
        for i in sorted(home):
            groups.setdefault(home[i], []).append(graph[i])
        notes: list[Note] = []
        kept = {root: self._fit(graph, root, members, notes) for root, members in groups.items()}
        return _build(graph, {root: m for root, m in kept.items() if m}, self.name, notes), tuple(notes)

    def _homes(self, graph: Graph) -> dict[int, int]:
        """Node to the root of its region, users before producers so that a node's region is known when we reach it."""
        home: dict[int, int] = {}
        size: dict[int, int] = {}
        for n in reversed(graph.nodes):
            starts = n.op in ELEMENTWISE or (n.op in REDUCTIONS and "reduce" in self.kinds)
            if not starts and n.op not in PRODUCTS:
                continue
            roots = {-1 if graph[u].op in PRODUCTS else home.get(u, -1) for u in graph.users[n.id]}
            root = roots.pop() if len(roots) == 1 and n.id not in graph.escaping else -1
            joins = root >= 0 and n.op not in REDUCTIONS and self._joins(graph, n, graph[root], size[root])
            if joins or starts:
                home[n.id] = root if joins else n.id
                size[home[n.id]] = size.get(home[n.id], 0) + 1
        return home

    def _joins(self, graph: Graph, n: Node, root: Node, size: int) -> bool:
        loop = graph.type(root.inputs[0]).shape if root.op in REDUCTIONS else root.type.shape
        return n.type.shape == loop and size < self.max_ops and not (n.op in PRODUCTS and root.op in REDUCTIONS)

    def _fit(self, graph: Graph, root: int, members: list[Node], notes: list[Note]) -> list[Node]:
        """The members that make one kernel of a known kind, or none."""
        products = [m for m in members if m.op in PRODUCTS]
        if not (_gated(products) and "gated_mlp" in self.kinds):
            left = products[:-1] if products and PRODUCTS[products[-1].op] in self.kinds else products
            notes += [note(self.name, "near miss", PRODUCTS[p.op], p, f"its reader already has the product at {products[-1].where}") for p in left if p is not products[-1]]
            members = [m for m in members if m not in left]
        kind, operands = _kind(members), len(_reads(graph, members))
        if len(members) < 2 or kind not in self.kinds or operands == 0:
            return []
        if operands > self.max_operands:
            notes.append(note(self.name, "near miss", kind, graph[root], f"{operands} operands, a fused node takes {self.max_operands}"))
            return []
        return members


def _gated(products: list[Node]) -> bool:
    return (len(products) == 2 and products[0].inputs[0] == products[1].inputs[0] and products[0].op is products[1].op
            and PRODUCTS[products[0].op] == "matmul")


def _kind(members: list[Node]) -> str:
    products = [m.op for m in members if m.op in PRODUCTS]
    if members and members[-1].op in REDUCTIONS:
        return "reduce"
    return "gated_mlp" if len(products) > 1 else PRODUCTS[products[0]] if products else "elementwise"


def _reads(graph: Graph, members: Iterable[Node]) -> tuple[Ref, ...]:
    """Values the group takes from outside, constants excepted: those move into the body."""
    inside = {m.id for m in members}
    reads = dict.fromkeys(r for m in members for r in m.inputs if r.node not in inside)
    return tuple(r for r in reads if not _is_scalar(graph[r]))


def _is_scalar(node: Node) -> bool:
    return node.op is Op.CONST and node.type.shape == ()


def _build(graph: Graph, groups: dict[int, list[Node]], name: str, notes: list[Note]) -> Graph:
    inside = {m.id: root for root, members in groups.items() for m in members}
    bodies: dict[Graph, Graph] = {}  # one object for equal chains, so that they compare at once
    b, new = Builder(graph.name), dict[Ref, Value]()
    for n in graph:
        root = inside.get(n.id)
        if root is not None and root != n.id:
            continue
        if root is None:
            new |= zip(n.refs, b.copy(n, [new[r] for r in n.inputs]), strict=True)
            continue
        members = groups[root]
        reads, kind = _reads(graph, members), _kind(members)
        b.loc, b.made_by = n.loc, n.through(name)
        body = _body(graph, kind, members, reads)
        new[Ref(n.id)] = b.emit(Op.FUSED, *(new[r] for r in reads), kind=kind, body=bodies.setdefault(body, body))
        saved = 2 * sum(m.type.max_nbytes for m in members[:-1])
        notes.append(note(name, "fused", kind, n, f"{' '.join(m.label for m in members)} : {n.type}", saved))
    result = b.finish(*(new[r] for r in graph.outputs), names=graph.output_names, updates=[(new[s], new[v]) for s, v in graph.updates])
    return graph if not groups else result


def _body(graph: Graph, kind: str, members: list[Node], reads: tuple[Ref, ...]) -> Graph:
    """The chain with its own inputs; names are positions, so that equal chains are equal bodies and share one kernel."""
    b = Builder(kind)
    b.loc = members[-1].loc
    new = {r: b.input(f"in{k}", *graph.type(r)) for k, r in enumerate(reads)}
    for m in members:
        for r in m.inputs:
            if r not in new:
                new[r] = b.copy(graph[r], ())[0]
        new |= zip(m.refs, b.copy(m, [new[r] for r in m.inputs]), strict=True)
    return b.finish(new[Ref(members[-1].id)])

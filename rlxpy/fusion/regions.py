"""Fuse runs of elementwise ops with the product, reduction or row function they belong to: one loop and one write instead of many.

Kinds of fused node, each a chain of plain ops in its `body`:
    elementwise   two or more elementwise ops of one shape
    matmul        a matmul or qmatmul with its epilogue (bias, activation, residual, ..)
    conv          a convolution with its epilogue
    gated_mlp     two products of one input, joined elementwise: act(x @ g) * (x @ u)
    reduce        a reduction with the elementwise ops that feed it and those that follow
    rows          softmax or a norm over the last axis with what feeds it and what follows; a value made on the way that others read
                  later, as a residual sum, is a further output
"""
from __future__ import annotations

from collections.abc import Callable, Iterable

from rlxpy.extend.passes import Note, NotingPass, note
from rlxpy.frozen import dataclass
from rlxpy.ir.builder import Builder, Value
from rlxpy.ir.dims import Shape
from rlxpy.ir.graph import Graph, Node, Ref
from rlxpy.ir.op import ELEMENTWISE, Op

PRODUCTS = {Op.MATMUL: "matmul", Op.QMATMUL: "matmul", Op.CONV: "conv"}  # and the kind of one with its epilogue
REDUCTIONS = frozenset({Op.SUM, Op.PROD, Op.MEAN, Op.MAX, Op.MIN, Op.ANY, Op.ALL})
ROWS = frozenset({Op.SOFTMAX, Op.LOG_SOFTMAX, Op.LAYER_NORM, Op.RMS_NORM})
KIND = {**PRODUCTS, **dict.fromkeys(REDUCTIONS, "reduce"), **dict.fromkeys(ROWS, "rows")}  # of a region with such a core

Apart = Callable[[Graph, Node], bool]


@dataclass
class Region:
    """What grows upwards from `root`, the node that the others lead to.  core: its product, reduction or row function."""

    root: Node
    core: Node | None = None
    size: int = 0

    def add(self, node: Node) -> None:
        self.size += 1
        self.core = self.core or (node if node.op in KIND else None)


@dataclass(frozen=True)
class Fuse(NotingPass):
    """Runs of ops that one kernel may compute become one node.

    A node joins a region when every reader is in it, so nothing is computed twice and nothing else needs its value; what feeds a
    row function may have later readers too.  What feeds a product stays outside: a product reads its operands many times, not once
    for each element it makes.

    apart says which nodes are to stay what they are.

    The gain of each join is the traffic it saves: the joined value is neither written nor read, or at least not read."""

    kinds: frozenset[str] = frozenset({"elementwise", "matmul", "gated_mlp", "conv", "reduce", "rows"})
    apart: Apart | None = None
    max_ops: int = 48
    max_operands: int = 16
    name: str = "fuse"

    def noted(self, graph: Graph) -> tuple[Graph, tuple[Note, ...]]:
        home = self._homes(graph)
        groups: dict[int, list[Node]] = {}
        for i in sorted(home):
            groups.setdefault(home[i].root.id, []).append(graph[i])
        notes: list[Note] = []
        kept = {root: self._fit(graph, root, members, notes) for root, members in groups.items()}
        return _build(graph, {root: m for root, m in kept.items() if m}, self.name, notes), tuple(notes)

    def _homes(self, graph: Graph) -> dict[int, Region]:
        """Node to its region, users before producers so that a node's region is known when we reach it."""
        home: dict[int, Region] = {}
        epilogues = _epilogues(graph, frozenset(op for op, kind in PRODUCTS.items() if kind in self.kinds))
        for n in reversed(graph.nodes):
            starts = n.op in ELEMENTWISE or (_is_core(graph, n) and KIND[n.op] in self.kinds)
            if (not starts and n.op not in PRODUCTS) or (self.apart is not None and self.apart(graph, n)):
                continue
            near = {id(r): r for u in graph.users[n.id] if (r := home.get(u))}
            region = next((r for r in near.values() if self._joins(graph, n, r, home, epilogues)), Region(n) if starts else None)
            if region is not None:
                home[n.id] = region
                region.add(n)
        return home

    def _joins(self, graph: Graph, n: Node, region: Region, home: dict[int, Region], epilogues: frozenset[int]) -> bool:
        core, users = region.core, graph.users[n.id]
        inside = [u for u in users if home.get(u) is region]
        if region.size >= self.max_ops or any(_loop(graph, graph[u]) != n.type.shape for u in inside):
            return False
        if len(inside) < len(users) or n.id in graph.escaping:
            feeds_row = core is not None and core.op in ROWS and n.op in ELEMENTWISE
            if not feeds_row or any(u < region.root.id for u in users if u not in inside):
                return False
        if n.op in KIND:  # one core for each region; a second product may make it a gated_mlp
            return core is None or (n.op in PRODUCTS and core.op in PRODUCTS)
        return core is None or core.op in PRODUCTS or n.id not in epilogues

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
    cores = [m for m in members if m.op in KIND]
    return "elementwise" if not cores else KIND[cores[0].op] if len(cores) == 1 else "gated_mlp"


def _is_core(graph: Graph, n: Node) -> bool:
    """A row function over another axis than the last has no rows."""
    return n.op in KIND and (n.op not in ROWS or getattr(n.attrs, "axis", -1) % max(n.type.rank, 1) == n.type.rank - 1)


def _loop(graph: Graph, n: Node) -> Shape | None:
    """The shape whose every element n reads its operands for, once; None for products, which read them again and again."""
    return None if n.op in PRODUCTS else graph.type(n.inputs[0]).shape if n.op in KIND else n.type.shape


def _epilogues(graph: Graph, products: frozenset[Op]) -> frozenset[int]:
    """Elementwise nodes that one of `products` takes into its own loop: they are free there, so no later region need make them."""
    found: set[int] = set()
    for n in graph:
        if n.op in ELEMENTWISE and any((graph[r].op in products or r.node in found) and graph.users[r.node] == (n.id,) and r.node not in graph.escaping
                                       and graph.type(r).shape == n.type.shape for r in n.inputs):
            found.add(n.id)
    return frozenset(found)


def _outputs(graph: Graph, members: list[Node]) -> list[Node]:
    """The root, then what others read."""
    inside = {m.id for m in members}
    return [members[-1], *(m for m in members[:-1] if m.id in graph.escaping or not inside.issuperset(graph.users[m.id]))]


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
        outputs = _outputs(graph, members)
        made = b.emit(Op.FUSED, *(new[r] for r in reads), kind=kind, body=bodies.setdefault(body, body))
        new |= zip((Ref(m.id) for m in outputs), made if len(outputs) > 1 else (made,), strict=True)
        saved = sum(m.type.max_nbytes * (1 if m in outputs else 2) for m in members[:-1])
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
    return b.finish(*(new[Ref(m.id)] for m in _outputs(graph, members)))

"""Bands: a range of sizes cut where a constraint's answer changes, so that each part has the row that suits it."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

from rlxpy.extend.constraints import EDGED
from rlxpy.extend.kernels import Choice, KernelSearchPath, Refusal, When, when_text
from rlxpy.extend.schema import CallSite
from rlxpy.frozen import dataclass
from rlxpy.ir.dims import Dim, Symbol, SymDim, at, sym
from rlxpy.ir.graph import Graph, Node
from rlxpy.ir.types import TensorType

MOST_BANDS = 64  # of one node; a node with more of them is resolved for its whole range


def edges(path: KernelSearchPath, graph: Graph, node: Node, device: Mapping[str, Any]) -> dict[Symbol, tuple[int, ...]]:
    """For each symbol the sizes at which a band begins.  Cut are sizes that depend on one symbol and never fall as it grows; a size of
    several symbols is not cut: its constraints must hold for the whole range.  A row that serves none of the sizes cuts nothing."""
    cuts: dict[Symbol, set[int]] = {}
    if not any(isinstance(d, SymDim) for d in _sizes(graph, node)):
        return {}
    site = CallSite(graph, node, path.schema(node.op, node.kind), device)
    rows = [r for lib in path.libraries for r in lib.by_op.get((node.op, node.kind), ()) if any(c.test in EDGED for c in r.constraints)]
    for row in rows:
        facts = site.facts(row.args)
        if any(c.test not in EDGED and c.refusal(facts) for c in row.constraints):
            continue
        for c in row.constraints:
            d = facts.get(c.key)
            if c.test not in EDGED or not isinstance(d, SymDim) or not isinstance(c.value, int) or len(own := set(d.symbols())) != 1:
                continue
            (s,) = own
            if at(d, {s.name: s.lo}) > at(d, {s.name: s.hi}):
                continue
            least = c.value if c.test != "LE" else c.value + 1
            for limit in {least, c.value + 1} if c.test == "EQ" else {least}:
                if (first := _first(d, s, limit)) is not None and first > s.lo:
                    cuts.setdefault(s, set()).add(first)
    return {s: tuple(sorted(found)) for s, found in cuts.items()}


def _first(d: Dim, s: Symbol, limit: int) -> int | None:
    """The least size of the symbol, in its steps, at which d reaches a limit."""
    lo, hi = -(-s.lo // s.step), s.hi // s.step
    if at(d, {s.name: hi * s.step}) < limit:
        return None
    while lo < hi:
        middle = (lo + hi) // 2
        lo, hi = (lo, middle) if at(d, {s.name: middle * s.step}) >= limit else (middle + 1, hi)
    return lo * s.step


def cut(symbol: Symbol, starts: Sequence[int]) -> Iterator[tuple[str, int, int]]:
    begins = (symbol.lo, *starts)
    for lo, after in zip(begins, (*starts, symbol.hi + 1), strict=True):
        yield symbol.name, lo, after - 1


Resolve = Callable[[Graph, Node], "Choice | Refusal"]


@dataclass(frozen=True)
class Band:
    when: When
    choice: Choice | Refusal


def bands(path: KernelSearchPath, graph: Graph, node: Node, device: Mapping[str, Any], resolve: Resolve) -> tuple[Band, ...]:
    """The node's range in parts, each resolved for all of its sizes; () where nothing cuts it, or too much does."""
    found = edges(path, graph, node, device)
    if not found or prod(len(v) + 1 for v in found.values()) > MOST_BANDS:
        return ()
    parts = product(*(tuple(cut(s, starts)) for s, starts in found.items()))
    return tuple(Band(when, resolve(*within(graph, node, when))) for when in parts)


def banded(whole: Choice | Refusal, found: Sequence[Band]) -> Choice | Refusal:
    """One choice of a node from that for its whole range and those for its parts.

    A row that lays out weights serves every size or none, since a weight lies in memory once."""
    if not found or (isinstance(whole, Choice) and whole.row is not None and whole.row.weights):
        return whole
    chosen: list[tuple[When, Choice]] = []
    for b in found:
        c = b.choice if isinstance(b.choice, Choice) and not (b.choice.row and b.choice.row.weights) else whole
        if isinstance(c, Refusal):
            return Refusal(tuple(f"{when_text(b.when)}: {r}" for b in found if isinstance(b.choice, Refusal) for r in b.choice.reasons) or c.reasons)
        chosen.append((b.when, c))
    general = whole if isinstance(whole, Choice) else chosen[-1][1]
    other = tuple((when, c) for when, c in _joined(chosen) if (c.row, c.library, c.params) != (general.row, general.library, general.params))
    return replace(general, bands=other)


def _joined(chosen: Sequence[tuple[When, Choice]]) -> list[tuple[When, Choice]]:
    """Neighbours along the only symbol with one winner are one band."""
    out: list[tuple[When, Choice]] = []
    for when, c in chosen:
        if out and len(when) == 1 and (out[-1][1].row, out[-1][1].params) == (c.row, c.params):
            (name, lo, _), = out[-1][0]
            out[-1] = ((name, lo, when[0][2]),), out[-1][1]
        else:
            out.append((when, c))
    return out


def _sizes(graph: Graph, node: Node) -> Iterator[Dim]:
    for t in (*(graph.type(r) for r in node.inputs), *node.types):
        yield from t.shape


def within(graph: Graph, node: Node, when: When) -> tuple[Graph, Node]:
    """The same call for some of its sizes only."""
    symbols = {s.name: s for d in _sizes(graph, node) if isinstance(d, SymDim) for s in d.symbols()}
    sizes: dict[str, Any] = {name: SymDim((((s,), 1),)) for name, s in symbols.items()}
    for name, lo, hi in when:
        step = symbols[name].step
        least, most = -(-lo // step) * step, hi // step * step
        sizes[name] = sym(name, least, most, step) if least <= most else least
    return narrowed(graph, node, sizes)


def narrowed(graph: Graph, node: Node, sizes: Mapping[str, Any]) -> tuple[Graph, Node]:
    """The same call at other sizes: numbers, or symbols of another range."""
    def typed(t: TensorType) -> TensorType:
        return TensorType(tuple(at(d, sizes) if isinstance(d, SymDim) else d for d in t.shape), t.dtype)

    changed = replace(node, types=tuple(map(typed, node.types)), attrs=node.attrs.bind(sizes))
    nodes = list(graph.nodes)
    for i in {r.node for r in node.inputs}:
        nodes[i] = replace(nodes[i], types=tuple(map(typed, nodes[i].types)))
    nodes[node.id] = changed
    return replace(graph, nodes=tuple(nodes)), changed

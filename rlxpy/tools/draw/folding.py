"""What a drawing leaves out: equal blocks are drawn once, and a graph too large for a page is drawn in coarser pieces."""
from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

from rlxpy.ir.attrs import Named
from rlxpy.ir.graph import Graph, Node

Path = tuple[str, ...]
DEEPEST = 8  # frames within frames; blocks further inside are told by their whole names


class Fold(NamedTuple):
    """Nodes drawn as one box: what it says, and one sentence about what is not shown."""

    title: str
    sentence: str
    scope: Path


def scope_path(scope: str) -> Path:
    """"layers.3.mlp" is the block "mlp" in the block "layers.3": a number belongs to the word before it."""
    return tuple(re.split(r"\.(?!\d+(?:\.|$))", scope, maxsplit=DEEPEST - 1)) if scope else ()


def foldings(graph: Graph, shown: Sequence[int], limit: int) -> Iterator[dict[int, Fold]]:
    """Which of the nodes `shown` vanish into a common box, finer choices first: none; blocks that repeat; blocks as such, from the
    innermost; stretches of neighbouring nodes, of which there are never more than `limit`."""
    yield {}
    folded = dict(_repeats(graph, shown))
    yield folded
    scopes = {i: scope_path(graph[i].loc.scope) for i in shown}
    for depth in range(max(map(len, scopes.values()), default=0) - 1, -1, -1):
        folded = folded | _blocks(shown, scopes, folded, depth)
        yield folded
    yield dict(_stretches(shown, limit))


# ---- blocks that repeat ---------------------------------------------------------------------------------------------
def _repeats(graph: Graph, shown: Sequence[int]) -> Iterator[tuple[int, Fold]]:
    """Of neighbours like layers.3 and layers.4 with the same nodes, all but the first."""
    blocks: dict[tuple[Path, str], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for i in shown:
        path = scope_path(graph[i].loc.scope)
        found = next(((k, m) for k, name in enumerate(path) if (m := re.fullmatch(r"(.*)\.(\d+)", name))), None)
        if found:
            depth, m = found
            blocks[path[:depth], m[1]][int(m[2])].append(i)
    for (outside, stem), members in blocks.items():
        first: dict[Hashable, int] = {}
        for numbers in _runs({k: _signature(graph, ids) for k, ids in sorted(members.items())}):
            like = first.setdefault(_signature(graph, members[numbers[0]]), numbers[0])
            hidden = [k for k in numbers if k != like]
            if hidden:
                yield from _repeat(outside, stem, hidden, like, [i for k in hidden for i in members[k]])


def _runs(signatures: Mapping[int, Hashable]) -> list[list[int]]:
    """Consecutive numbers with equal signatures."""
    runs: list[list[int]] = []
    for k, signature in signatures.items():
        if runs and runs[-1][-1] == k - 1 and signatures[k - 1] == signature:
            runs[-1].append(k)
        else:
            runs.append([k])
    return runs


def _repeat(outside: Path, stem: str, hidden: Sequence[int], like: int, nodes: Sequence[int]) -> Iterator[tuple[int, Fold]]:
    name = f"{stem}.{hidden[0]}" + (f" .. {stem}.{hidden[-1]}" if len(hidden) > 1 else "")
    count = f"{len(hidden)} block{'s' * (len(hidden) > 1)}, {len(nodes)} nodes"
    made = Fold(name, f"{name} ({count}): the same as {stem}.{like}", outside)
    return ((i, made) for i in nodes)


def _signature(graph: Graph, ids: Sequence[int]) -> Hashable:
    """What a block computes, whatever its weights are called and wherever it stands."""
    inside = {i: k for k, i in enumerate(ids)}
    return tuple((graph[i].op, _nameless(graph[i]), graph[i].types,
                  tuple((inside[r.node], r.out) if r.node in inside else (-1, graph.type(r)) for r in graph[i].inputs)) for i in ids)


def _nameless(node: Node) -> Any:
    return None if isinstance(node.attrs, Named) else node.attrs


# ---- coarser pieces -------------------------------------------------------------------------------------------------
def _blocks(shown: Iterable[int], scopes: Mapping[int, Path], folded: Mapping[int, Fold], depth: int) -> dict[int, Fold]:
    """Every block that is `depth` blocks deep, whole."""
    members: dict[Path, list[int]] = defaultdict(list)
    for i in shown:
        path = (*folded[i].scope, folded[i].title) if i in folded else scopes[i]
        if len(path) > depth:
            members[path[:depth + 1]].append(i)
    made = {path: Fold(path[-1], f"{'.'.join(path)}: {len(ids)} nodes in one box", path[:-1]) for path, ids in members.items()}
    return {i: made[path] for path, ids in members.items() for i in ids if len(ids) > 1}


def _stretches(shown: Sequence[int], limit: int) -> Iterator[tuple[int, Fold]]:
    """Neighbours in the graph's own order, so the pieces cannot wait for each other in a circle."""
    size = -(-len(shown) // limit)
    for at in range(0, len(shown), size):
        part = shown[at:at + size]
        made = Fold(f"%{part[0]} .. %{part[-1]}", f"every box is a stretch of {size} neighbouring nodes", ())
        yield from ((i, made) for i in part)


# ---- no circles -----------------------------------------------------------------------------------------------------
Piece = tuple[Hashable, int]


def convex(order: Sequence[int], sources: Callable[[int], Iterable[int]], group: Mapping[int, Hashable], most: float = inf) -> dict[int, Piece]:
    """Groups cut into numbered pieces that never wait for each other in a circle; {} when it takes more than `most`.

    order: members, sources before readers; one without a group is its own.  A piece takes its group's next member unless that would close a circle: then the
    group goes on in another piece."""
    piece: dict[int, Piece] = {}
    readers: dict[Piece, set[Piece]] = {}
    newest: dict[Hashable, int] = {}
    for i in order:
        name = group.get(i, i)
        own, near = (name, newest.setdefault(name, 0)), {piece[s] for s in sources(i)}
        if any(own not in readers[p] and _leads(own, p, readers) for p in near - {own}):
            newest[name] += 1
            own = (name, newest[name])
        readers.setdefault(own, set())
        if len(readers) > most:
            return {}
        for p in near - {own}:
            readers[p].add(own)
        piece[i] = own
    return piece


def _leads(start: Piece, end: Piece, readers: Mapping[Piece, set[Piece]]) -> bool:
    todo, seen = [start], {start}
    while todo:
        at = todo.pop()
        if at == end:
            return True
        fresh = readers.get(at, set()) - seen
        seen |= fresh
        todo += fresh
    return False

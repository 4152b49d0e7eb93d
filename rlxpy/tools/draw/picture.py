"""What a drawing shows, before anyone decides where: boxes and their facts, lines, frames around blocks, what is left out."""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from rlxpy.extend.backend import BackendSpec, remembering
from rlxpy.frozen import dataclass
from rlxpy.ir.graph import Graph, Node
from rlxpy.ir.op import Op
from rlxpy.tools.draw.boxes import Box, fold_box, node_box, output_box, update_box
from rlxpy.tools.draw.folding import Fold, Path, Piece, convex, foldings
from rlxpy.tools.trace import Stage

MAX_BOXES = 150
MOST_RESULTS = 40  # beyond, outputs share a box, and so do new states
BESIDE = frozenset({Op.PARAM, Op.CONST})  # shown inside the boxes that read them


@dataclass(frozen=True)
class Picture:
    """boxes: sources before readers.  frames: for each box the blocks around it, outermost first, so cut that no two frames wait
    for each other in a circle.  edges: pairs (from, to) of box numbers.  folded: sentences about what is not drawn one by one."""

    name: str
    boxes: tuple[Box, ...]
    frames: tuple[Path, ...]
    edges: tuple[tuple[int, int], ...]
    folded: tuple[str, ...] = ()


def pictures(stages: Sequence[Stage], spec: BackendSpec, max_boxes: int = MAX_BOXES) -> dict[int, Picture]:
    """By number of the stage: of the first, and of each that changed the graph."""
    spec = remembering(spec)
    before = (None, *(s.graph for s in stages))
    return {k: picture(s.graph, spec, before[k], max_boxes) for k, s in enumerate(stages) if s.changed or k == 0}


def picture(graph: Graph, spec: BackendSpec, before: Graph | None = None, max_boxes: int = MAX_BOXES) -> Picture:
    """before: the graph that a pass made this one of, so that what is fresh can be marked."""
    shown = [n.id for n in graph if n.op not in BESIDE]
    folded, members = _folded(graph, shown, max_boxes)
    fresh, fixed = _fresh(graph, before), _fixed(graph)
    boxes = [fold_box(folded[ids[0]], len(ids), not fresh.isdisjoint(ids), fixed.issuperset(ids)) if ids[0] in folded
             else node_box(graph, graph[ids[0]], spec, ids[0] in fresh, ids[0] in fixed) for ids in members]
    number = {i: k for k, ids in enumerate(members) for i in ids}
    edges = {(number[r.node], number[i]): None for i in shown for r in graph[i].inputs if r.node in number}
    for box, sources in _results(graph, folded):
        edges |= dict.fromkeys((number[i], len(boxes)) for i in sources if i in number)
        boxes.append(box)
    return _sorted(graph.name, boxes, [e for e in edges if e[0] != e[1]], tuple(dict.fromkeys(f.sentence for f in folded.values())))


def unframed(p: Picture) -> Picture:
    """The same without frames around blocks."""
    return replace(p, frames=((),) * len(p.boxes))


def _folded(graph: Graph, shown: Sequence[int], max_boxes: int) -> tuple[dict[int, Fold], list[list[int]]]:
    """The finest folding that keeps to the limit, and the nodes of each box."""
    for folded in foldings(graph, shown, max_boxes):
        piece = convex(shown, lambda i: (r.node for r in graph[i].inputs if graph[r].op not in BESIDE), folded, max_boxes)
        if piece or not shown:
            break
    members: dict[Piece, list[int]] = defaultdict(list)
    for i, p in piece.items():
        members[p].append(i)
    return folded, list(members.values())


def _fresh(graph: Graph, before: Graph | None) -> set[int]:
    """Nodes that are not found in the graph before."""
    def identity(n: Node) -> tuple[object, ...]:
        return n.op, n.types, n.loc, n.made_by

    old = set(map(identity, before)) if before else set()
    return {n.id for n in graph if identity(n) not in old} if before else set()


def _fixed(graph: Graph) -> set[int]:
    """Nodes that depend on no input and no state, and these themselves: they may be drawn where they are read."""
    fixed: set[int] = set()
    for n in graph:
        if all(r.node in fixed and graph[r].op not in (Op.INPUT, Op.STATE) for r in n.inputs):
            fixed.add(n.id)
    return fixed


def _results(graph: Graph, folded: Mapping[int, Fold]) -> Iterator[tuple[Box, list[int]]]:
    """Boxes for what a run leaves behind, each with the nodes it comes from."""
    if len(graph.outputs) > MOST_RESULTS:
        yield Box("result", f"{len(graph.outputs)} outputs"), [r.node for r in graph.outputs]
    else:
        yield from ((output_box(name, graph.type(r)), [r.node]) for name, r in zip(graph.output_names, graph.outputs, strict=True))
    updates = [(state, new) for state, new in graph.updates if state.node not in folded]
    if len(updates) > MOST_RESULTS:
        yield Box("result", f"{len(updates)} new states"), [new.node for _, new in updates]
    else:
        yield from ((update_box(graph[state]), [new.node]) for state, new in updates)


def _sorted(name: str, boxes: Sequence[Box], edges: Sequence[tuple[int, int]], folded: tuple[str, ...]) -> Picture:
    """Boxes so that each comes after those it reads, and their frames."""
    readers: dict[int, list[int]] = defaultdict(list)
    waiting = [0] * len(boxes)
    for a, b in edges:
        readers[a].append(b)
        waiting[b] += 1
    order = [k for k in range(len(boxes)) if not waiting[k]]
    for k in order:  # grows while we walk it
        for b in readers[k]:
            waiting[b] -= 1
            if not waiting[b]:
                order.append(b)
    place = {k: at for at, k in enumerate(order)}
    kept = tuple(boxes[k] for k in order)
    placed = tuple((place[a], place[b]) for a, b in edges)
    sources: dict[int, list[int]] = defaultdict(list)
    for a, b in placed:
        sources[b].append(a)
    paths = dict(_frames(range(len(kept)), lambda k: sources[k], [b.scope for b in kept], 0))
    return Picture(name, kept, tuple(paths[k] for k in range(len(kept))), placed, folded)


def _frames(order: Sequence[int], sources: Callable[[int], Iterable[int]], scopes: Sequence[Path], depth: int) -> Iterator[tuple[int, Path]]:
    """Frames of one depth, and those within each: a block that cannot be one frame becomes several."""
    here = set(order)
    piece = convex(order, lambda k: (s for s in sources(k) if s in here), {k: scopes[k][depth] for k in order if len(scopes[k]) > depth})
    inner: dict[tuple[str, int], list[int]] = defaultdict(list)
    for k in order:
        name, part = piece[k]
        if isinstance(name, str):
            inner[name, part].append(k)
        else:
            yield k, ()
    for (name, part), ids in inner.items():
        label = f"{name} ({part + 1})" if part else name
        yield from ((k, (label, *rest)) for k, rest in _frames(ids, sources, scopes, depth + 1))

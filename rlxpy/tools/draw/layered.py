"""Where boxes and lines go: layers from top to bottom, frames within frames, and no line through a box."""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from rlxpy.frozen import dataclass
from rlxpy.tools.draw.cells import LINE_GAP, Cell, Key, Wire, order_cells, place_cells

LAYER_GAP = 30.0   # between layers, where lines bend
MARGIN = 14.0      # inside a frame
TIP = 7.0          # straight end of a line, for its arrow
TITLE = 20.0       # room for a frame's name

Path = tuple[str, ...]  # names of frames, outermost first
Point = tuple[float, float]


class Item(NamedTuple):
    """A box to place.  `floats`: it may sink to just above its first reader, as constants and inputs do."""

    width: float
    height: float
    frame: Path = ()
    floats: bool = False


class Hop(NamedTuple):
    """A piece of the line that leaves item `source`: down from `start`, a bend between two heights, down to `end`.

    `target` is the item it arrives at, or -1 when the line goes on."""

    source: int
    start: Point
    bend: tuple[float, float]
    end: Point
    target: int


class Frame(NamedTuple):
    path: Path
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Layout:
    """`places` are top left corners, in the order of the items."""

    width: float
    height: float
    places: tuple[Point, ...]
    frames: tuple[Frame, ...]
    hops: tuple[Hop, ...]


def layout(items: Sequence[Item], edges: Iterable[tuple[int, int]]) -> Layout:
    """edges: pairs (from, to) of item numbers.  Neither items nor the frames of any one level may wait for each other in a circle."""
    whole = _arrange((), range(len(items)), items, tuple(dict.fromkeys(edges)))
    places: dict[int, Point] = {}
    frames: list[Frame] = []
    hops: list[Hop] = []
    _spread(whole, 0.0, 0.0, places, frames, hops)
    return Layout(whole.width, whole.height, tuple(places[i] for i in range(len(items))), tuple(frames), tuple(hops))


# ---- one frame -----------------------------------------------------------------------------------------------------
@dataclass
class _Arranged:
    """A frame with everything inside placed, from its own top left corner."""

    path: Path
    width: float
    height: float
    cells: list[Cell]
    hops: list[Hop]
    doors: dict[tuple[str, int], float]  # as in Cell
    inner: dict[Key, _Arranged]


Line = tuple[Key, Key, int]  # from cell, to cell, the item whose value it carries


def _arrange(path: Path, members: Iterable[int], items: Sequence[Item], edges: Sequence[tuple[int, int]]) -> _Arranged:
    inside, depth = set(members), len(path)
    nested: dict[Key, set[int]] = defaultdict(set)
    for i in sorted(inside):
        nested[_seen(i, depth, items)].add(i)
    cells: dict[Key, Cell] = {}
    inner: dict[Key, _Arranged] = {}
    for key, own in nested.items():
        kind, name = key
        if kind == "item":
            cells[key] = Cell(key, items[name].width, items[name].height, items[name].floats)
        else:
            frame = inner[key] = _arrange((*path, name), own, items, [e for e in edges if e[0] in own or e[1] in own])
            cells[key] = Cell(key, frame.width, frame.height, all(items[i].floats for i in own), frame.doors)
    lines = list(dict.fromkeys(_lines(depth, inside, items, edges)))
    for a, b, _ in lines:
        for key in (a, b):
            cells.setdefault(key, Cell(key))
    ranks = _ranks(cells, lines)
    layers, wires = _with_bends(cells, lines, ranks)
    order_cells(layers, wires)
    place_cells(layers, wires, frozenset(a for _, _, a in lines if items[a].floats))
    return _framed(path, layers, wires, inner)


def _lines(depth: int, inside: set[int], items: Sequence[Item], edges: Sequence[tuple[int, int]]) -> Iterator[Line]:
    """Edges as this frame sees them: what is outside is a door, what is deeper inside is the frame around it."""
    for a, b in edges:
        start = _seen(a, depth, items) if a in inside else ("in", a)
        end = _seen(b, depth, items) if b in inside else ("out", a)
        if start != end and (a in inside or b in inside):
            yield start, end, a


def _seen(i: int, depth: int, items: Sequence[Item]) -> Key:
    """An item, or the frame around it, in a frame of this depth."""
    return ("frame", items[i].frame[depth]) if len(items[i].frame) > depth else ("item", i)


def _ranks(cells: Mapping[Key, Cell], lines: Sequence[Line]) -> dict[Key, int]:
    """Layer of every cell: below all it reads; what floats sinks to its readers; doors are first and last."""
    after: dict[Key, list[Key]] = defaultdict(list)
    waiting = dict.fromkeys(cells, 0)
    for a, b, _ in lines:
        after[a].append(b)
        waiting[b] += 1
    order = [k for k in cells if not waiting[k]]
    for k in order:  # grows while we walk it
        for b in after[k]:
            waiting[b] -= 1
            if not waiting[b]:
                order.append(b)
    first = int(any(k[0] == "in" for k in cells))
    rank = {k: 0 if k[0] == "in" else first for k in cells}
    for k in order:
        for b in after[k]:
            rank[b] = max(rank[b], rank[k] + 1)
    for k in reversed(order):
        if cells[k].floats and after[k]:
            rank[k] = min(rank[b] for b in after[k]) - 1
    last = max((r for k, r in rank.items() if k[0] != "out"), default=0) + 1
    return {k: last if k[0] == "out" else r for k, r in rank.items()}


def _with_bends(cells: dict[Key, Cell], lines: Sequence[Line], ranks: Mapping[Key, int]) -> tuple[list[list[Cell]], list[Wire]]:
    """Layers of cells and bends: a line passes each layer between its ends at a bend, and lines of one value share their bends."""
    layers: list[list[Cell]] = [[] for _ in range(max(ranks.values(), default=-1) + 1)]
    for k, cell in cells.items():
        layers[ranks[k]].append(cell)
    bends: dict[Key, Cell] = {}
    wires: dict[tuple[Key, Key, int], Wire] = {}
    for a, b, source in lines:
        at = cells[a]
        for r in range(ranks[a] + 1, ranks[b]):
            key: Key = ("bend", (a, source, r))
            if key not in bends:
                bends[key] = Cell(key)
                layers[r].append(bends[key])
            wires[at.key, key, source] = (at, bends[key], source)
            at = bends[key]
        wires[at.key, b, source] = (at, cells[b], source)
    return layers, list(wires.values())


# ---- heights and lines -----------------------------------------------------------------------------------------------
def _framed(path: Path, layers: Sequence[Sequence[Cell]], wires: Sequence[Wire], inner: dict[Key, _Arranged]) -> _Arranged:
    """Heights, the frame around it all, and lines as points."""
    cells = [c for layer in layers for c in layer]
    left = min((c.x - c.width / 2 for c in cells), default=0.0)
    right = max((c.x + c.width / 2 for c in cells), default=0.0)
    title = len(path[-1]) * 7.0 if path else 0.0
    slack = max(0.0, title - (right - left)) / 2
    y = TITLE if path else MARGIN
    bottoms: dict[Key, float] = {}
    tops: dict[Key, float] = {}
    for layer in layers:
        height = max((c.height for c in layer), default=0.0)
        for c in layer:
            c.x, c.y = c.x - left + MARGIN + slack, 0.0 if c.key[0] == "in" else y
            tops[c.key], bottoms[c.key] = c.y, y + height
        y += height + (LAYER_GAP if height else LAYER_GAP / 2)
    height = y - LAYER_GAP + MARGIN if layers and layers[-1][0].key[0] != "out" else y - LAYER_GAP / 2
    for c in cells:
        if c.key[0] == "out":
            c.y = bottoms[c.key] = height
    made = [_points(a, b, s, bottoms, tops) for a, b, s in _fanned(wires)]
    doors = {c.key: c.x for c in cells if c.key[0] in ("in", "out")}
    return _Arranged(path, right - left + 2 * (MARGIN + slack), height, [c for c in cells if c.key[0] in ("item", "frame")], made, doors, inner)


_End = tuple[Cell, float]  # a cell, and where on its edge a line touches


def _fanned(wires: Sequence[Wire]) -> Iterator[tuple[_End, _End, int]]:
    """Lines that arrive at one box touch it side by side, in the order they come from."""
    arriving: dict[Key, list[Wire]] = defaultdict(list)
    for wire in wires:
        arriving[wire[1].key].append(wire)
    for group in arriving.values():
        group.sort(key=lambda w: w[0].x + w[0].door("out", w[2]))
        for k, (a, b, source) in enumerate(group):
            step = min(LINE_GAP, b.width / (len(group) + 1)) if b.key[0] == "item" else 0.0
            touch = b.door("in", source) if b.doors else step * (k - (len(group) - 1) / 2)
            yield (a, a.x + a.door("out", source)), (b, b.x + touch), source


def _points(start: _End, end: _End, source: int, bottoms: Mapping[Key, float], tops: Mapping[Key, float]) -> Hop:
    (a, x), (b, to_x) = start, end
    target = b.key[1] if b.key[0] == "item" else -1
    upper = max(a.y + a.height, bottoms[a.key]) if a.key[0] != "in" else a.y
    lower = max(upper, b.y - (TIP if target >= 0 else 0.0))
    return Hop(source, (x, a.y + a.height), (upper, lower), (to_x, b.y), target)


def _spread(arranged: _Arranged, x: float, y: float, places: dict[int, Point], frames: list[Frame], hops: list[Hop]) -> None:
    """From each frame's own corner to the drawing's."""
    if arranged.path:
        frames.append(Frame(arranged.path, x, y, arranged.width, arranged.height))
    hops += [Hop(h.source, (h.start[0] + x, h.start[1] + y), (h.bend[0] + y, h.bend[1] + y), (h.end[0] + x, h.end[1] + y), h.target)
             for h in arranged.hops]
    for c in arranged.cells:
        left, top = x + c.x - c.width / 2, y + c.y
        if c.key in arranged.inner:
            _spread(arranged.inner[c.key], left, top, places, frames, hops)
        else:
            places[c.key[1]] = (left, top)

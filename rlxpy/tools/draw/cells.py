"""Cells in layers: in which order, so that few lines cross, and how far across, so that lines are short and straight."""
from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import field
from itertools import pairwise
from typing import Any

from rlxpy.frozen import dataclass

GAP = 22.0         # between neighbours in a layer
LINE_GAP = 14.0    # between lines that pass a layer side by side
SWEEPS = 8         # over all layers, for their order and again for their places
BUSY = 4000        # cells beyond which two sweeps must do
STIFF, FAINT = 8.0, 0.1  # how a bend pulls at bends, and at boxes, where a box pulls with 1

Key = tuple[str, Any]  # ("item", number), ("frame", name), ("in", source), ("out", source), ("bend", (cell, source, rank))


@dataclass
class Cell:
    """What is placed in a layer: an item, a frame, a door of the frame around it, or a line passing by.

    x: its middle.  doors: of a frame, where lines pass its upper ("in") and lower ("out") edge, from its left."""

    key: Key
    width: float = 0.0
    height: float = 0.0
    floats: bool = False
    doors: Mapping[tuple[str, int], float] = field(default_factory=dict)
    x: float = 0.0
    y: float = 0.0

    def door(self, side: str, source: int) -> float:
        """Where the line of `source` enters or leaves, from the middle."""
        return self.doors[side, source] - self.width / 2 if self.doors else 0.0

    @property
    def is_bend(self) -> bool:
        return self.key[0] == "bend"


Wire = tuple[Cell, Cell, int]  # cells of neighbouring layers, and the item whose value runs there


# ---- order within layers: barycentres, Sugiyama, Tagawa and Toda 1981 -------------------------------------------------
def order_cells(layers: list[list[Cell]], wires: Sequence[Wire]) -> None:
    """Sort every layer, in place."""
    up, down = _neighbours(wires)
    best, least = [list(layer) for layer in layers], _crossings(layers, down)
    position = {c.key: p for layer in layers for p, c in enumerate(layer)}
    for sweep in range(_sweeps(layers)):
        forth = sweep % 2 == 0
        for layer in layers if forth else reversed(layers):
            _sort(layer, up if forth else down, position, "out" if forth else "in")
            position |= {c.key: p for p, c in enumerate(layer)}
        now = _crossings(layers, down)
        if now < least:
            best, least = [list(layer) for layer in layers], now
        if not least:
            break
    for layer, row in zip(layers, best, strict=True):
        layer[:] = row


_Ends = dict[Key, list[tuple[Cell, int]]]  # the cells at the other ends, and the sources


def _neighbours(wires: Sequence[Wire]) -> tuple[_Ends, _Ends]:
    up: _Ends = defaultdict(list)
    down: _Ends = defaultdict(list)
    for a, b, source in wires:
        down[a.key].append((b, source))
        up[b.key].append((a, source))
    return up, down


def _sweeps(layers: Sequence[Sequence[Cell]]) -> int:
    return SWEEPS if sum(map(len, layers)) < BUSY else 2


def _sort(layer: list[Cell], ends: _Ends, position: Mapping[Key, int], side: str) -> None:
    """Cells by the mean place of their neighbours, the doors of a frame told apart; cells without any stay where they are.

    side: at which side of the neighbours the lines are."""
    def mean(c: Cell) -> float:
        near = ends[c.key]
        if not near:
            return float(position[c.key])
        return sum(position[n.key] + (n.door(side, s) / n.width if n.doors else 0.0) for n, s in near) / len(near)

    layer.sort(key=mean)


def _crossings(layers: Sequence[Sequence[Cell]], down: _Ends) -> int:
    """Pairs of lines that cross: for each line, those further left above that end further right below."""
    total = 0
    for upper, lower in pairwise(layers):
        position = {c.key: p for p, c in enumerate(lower)}
        passed: list[int] = []  # where lines from the left end, sorted
        for c in upper:
            ends = [position[b.key] for b, _ in down[c.key]]
            total += sum(len(passed) - bisect_right(passed, p) for p in ends)
            for p in ends:
                insort(passed, p)
    return total


# ---- places ----------------------------------------------------------------------------------------------------------
def place_cells(layers: Sequence[Sequence[Cell]], wires: Sequence[Wire], light: frozenset[int]) -> None:
    """Set every `x`: as near to what it is joined to as the neighbours in its layer allow.  Lines of `light` items matter least."""
    up, down = _neighbours(wires)
    for layer in layers:
        _pack(layer, [c.x for c in layer], [1.0] * len(layer))
    for sweep in range(2 * _sweeps(layers)):
        forth = sweep % 2 == 0
        for layer in layers if forth else reversed(layers):
            wishes = [_wish(c, up, down, forth, light) for c in layer]
            _pack(layer, [x for x, _ in wishes], [w for _, w in wishes])


def _wish(c: Cell, up: _Ends, down: _Ends, forth: bool, light: frozenset[int]) -> tuple[float, float]:
    """The middle a cell would like, and how strongly.  The inside of a long line insists on being straight; its ends give way to boxes."""
    above = [(n, s, n.x + n.door("out", s) - c.door("in", s)) for n, s in up[c.key]]
    below = [(n, s, n.x + n.door("in", s) - c.door("out", s)) for n, s in down[c.key]]
    near = (above or below) if forth else (below or above)
    if not near:
        return c.x, FAINT
    pulls = [FAINT if s in light or (n.is_bend and not c.is_bend) else 1.0 for n, s, _ in near]
    middle = sum(x * w for (_, _, x), w in zip(near, pulls, strict=True)) / sum(pulls)
    return middle, sum(pulls) * (1.0 if not c.is_bend else STIFF if all(n.is_bend for n, _, _ in (*above, *below)) else FAINT)


def _pack(layer: Sequence[Cell], wanted: Sequence[float], weights: Sequence[float]) -> None:
    """Least squares from the wishes, keeping order and distance: isotonic regression by pooling adjacent violators."""
    offsets, at = [], 0.0
    for k, c in enumerate(layer):
        if k:
            left = layer[k - 1]
            at += (left.width + c.width) / 2 + (LINE_GAP if not left.width or not c.width else GAP)
        offsets.append(at)
    pools: list[tuple[float, float, int]] = []  # mean, weight, cells
    for x, w, o in zip(wanted, weights, offsets, strict=True):
        mean, weight, count = x - o, w, 1
        while pools and pools[-1][0] > mean:
            m, v, n = pools.pop()
            mean, weight, count = (mean * weight + m * v) / (weight + v), weight + v, count + n
        pools.append((mean, weight, count))
    means = [m for m, _, n in pools for _ in range(n)]
    for c, m, o in zip(layer, means, offsets, strict=True):
        c.x = m + o

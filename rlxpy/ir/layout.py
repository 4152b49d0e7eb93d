"""How a value lies in memory, and which movement ops are only another walk over the same bytes."""
from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from rlxpy.frozen import dataclass
from rlxpy.ir.dims import Dim, Shape, exact_quotient
from rlxpy.ir.types import TensorType


@dataclass(frozen=True)
class Layout:
    """Element (i, j, ..) is at offset + i * strides[0] + j * strides[1] + ..; both count elements, from the buffer's start."""

    strides: Shape
    offset: Dim = 0

    def is_contiguous(self, shape: Shape) -> bool:
        return all(s == w or d == 1 for d, s, w in zip(shape, self.strides, row_major(shape).strides, strict=True))


@lru_cache(maxsize=1 << 14)
def row_major(shape: Shape) -> Layout:
    strides: list[Dim] = []
    step: Dim = 1
    for d in reversed(shape):
        strides.append(step)
        step = step * d
    return Layout(tuple(reversed(strides)))


class ViewArgs(NamedTuple):
    layout: Layout
    source: TensorType
    result: TensorType
    params: dict[str, Any]


def reshape(v: ViewArgs) -> Layout | None:
    """Possible when each run of result axes covers a run of source axes that is itself contiguous."""
    if v.layout.is_contiguous(v.source.shape):
        return Layout(row_major(v.result.shape).strides, v.layout.offset)
    strides = _regroup(v.source.shape, v.layout.strides, v.result.shape)
    return None if strides is None else Layout(strides, v.layout.offset)


def _regroup(shape: Shape, strides: Shape, result: Shape) -> Shape | None:
    """Strides of `result` over the same elements: axes are matched from the right, splitting or merging as sizes divide."""
    source = [(d, s) for d, s in zip(shape, strides, strict=True) if d != 1]
    out: list[Dim] = []
    room: Dim = 1   # elements left in the contiguous source run being split
    step: Dim = 0   # stride of its next element
    for d in reversed(result):
        if d == 1:
            out.append(step)
            continue
        while (share := exact_quotient(room, d)) is None or room == 1:
            if not source:
                return None
            size, stride = source.pop()
            if room == 1:
                room, step = size, stride
            elif stride == step * room:  # the run goes on
                room = room * size
            else:
                return None
        out.append(step)
        room, step = share, step * d
    return tuple(reversed(out)) if room == 1 and not source else None


def transpose(v: ViewArgs) -> Layout:
    return Layout(tuple(v.layout.strides[p] for p in v.params["perm"]), v.layout.offset)


def slice_(v: ViewArgs) -> Layout:
    offset = v.layout.offset
    for start, stride in zip(v.params["start"], v.layout.strides, strict=True):
        offset = offset + start * stride
    return Layout(tuple(s * by for s, by in zip(v.layout.strides, v.params["step"], strict=True)), offset)


def expand(v: ViewArgs) -> Layout:
    lead = len(v.result.shape) - len(v.source.shape)
    stretched = (0 if d == 1 and r != 1 else s for d, r, s in zip(v.source.shape, v.result.shape[lead:], v.layout.strides, strict=True))
    return Layout((*(0,) * lead, *stretched), v.layout.offset)


def windows(v: ViewArgs) -> Layout:
    """Windows overlap: one element is seen from several places."""
    a, strides = v.params["axis"] % v.source.rank, v.layout.strides
    return Layout((*strides[:a], strides[a] * v.params["stride"], *strides[a + 1:], strides[a] * v.params["dilation"]), v.layout.offset)


def reverse(v: ViewArgs) -> Layout:
    flipped = {a % v.source.rank for a in v.params["axes"]}
    offset, strides = v.layout.offset, list(v.layout.strides)
    for a in flipped:
        offset = offset + (v.source.shape[a] - 1) * strides[a]
        strides[a] = strides[a] * -1
    return Layout(tuple(strides), offset)

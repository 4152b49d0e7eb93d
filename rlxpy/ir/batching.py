"""The `vmap` cells of the op table: an op over inputs of which some carry a batch on axis 0.  Contract: ir/row.py."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlxpy.ir import functions as F
from rlxpy.ir.dims import Shape, product
from rlxpy.ir.row import Family
from rlxpy.ir.shapes import axes_of, axis_of

V = Any  # a Value (see ir/lowerings.py)
Flags = Sequence[bool]


def _aligned(name: str, batched: Flags, *xs: V, **attrs: Any) -> V:
    """The op itself, once the batch axes stand in line: what is shorter gets axes of 1 behind its batch."""
    rank = max(len(x.shape) - b for x, b in zip(xs, batched, strict=True))
    lined = tuple(_stretched(x, rank) if b else x for x, b in zip(xs, batched, strict=True))
    return lined[0].apply(name, lined, attrs)


def _stretched(x: V, rank: int) -> V:
    return F.reshape(x, (x.shape[0], *(1,) * (rank + 1 - len(x.shape)), *x.shape[1:]))


def _axes_shifted(name: str, batched: Flags, x: V, axes: tuple[int, ...], **attrs: Any) -> V:
    return x.apply(name, (x,), {"axes": tuple(a + 1 for a in axes_of(axes, len(x.shape) - 1)), **attrs})


def _axis_shifted(name: str, batched: Flags, x: V, axis: int, **attrs: Any) -> Any:
    return x.apply(name, (x,), {"axis": axis_of(axis, len(x.shape) - 1) + 1, **attrs})


def _normed(name: str, batched: Flags, x: V, *params: V, eps: float) -> V:
    """Scale and bias that carry a batch are applied outside the op, which takes one of each."""
    if not any(batched[1:]):
        return x.apply(name, (x, *params), {"eps": eps})

    @F.widened
    def apart(x: V, *params: V) -> V:
        y, has_batch = x.apply(name, (x,), {"eps": eps}), batched[0]
        for p, b, combine in zip(params, batched[1:], ("mul", "add"), strict=False):
            y, has_batch = _aligned(combine, (has_batch, b), y, p), has_batch or b
        return y

    return apart(x, *params)


ALIGNED, AXES, AXIS, NORM = Family(_aligned), Family(_axes_shifted), Family(_axis_shifted), Family(_normed)


def reshape(batched: Flags, x: V, shape: Shape) -> V: return F.reshape(x, (x.shape[0], *shape))
def expand(batched: Flags, x: V, shape: Shape) -> V: return F.expand(_stretched(x, len(shape)), (x.shape[0], *shape))
def transpose(batched: Flags, x: V, perm: tuple[int, ...]) -> V: return x.transpose(perm=(0, *(p + 1 for p in perm)))


def slice_(batched: Flags, x: V, start: Shape, stop: Shape, step: tuple[int, ...]) -> V:
    return x.slice(start=(0, *start), stop=(x.shape[0], *stop), step=(1, *step))


def quantize(batched: Flags, x: V, encoding: str) -> Any: return x.quantize(encoding=encoding)


def pad(batched: Flags, x: V, low: Shape, high: Shape, value: float) -> V:
    return x.pad(low=(0, *low), high=(0, *high), value=value)


def _all_batched(batched: Flags, xs: Sequence[V]) -> list[V]:
    """Every input with the batch axis: those without one are stretched, which costs no memory."""
    size = next(x.shape[0] for x, b in zip(xs, batched, strict=True) if b)
    return [x if b else F.expand(x, (size, *x.shape)) for x, b in zip(xs, batched, strict=True)]


def concat(batched: Flags, *xs: V, axis: int) -> V:
    wide = _all_batched(batched, xs)
    return F.concat(wide, axis_of(axis, len(wide[0].shape) - 1) + 1)


def take_along(batched: Flags, x: V, at: V, axis: int) -> V:
    x, at = _all_batched(batched, (x, at))
    return x.take_along(at, axis=axis_of(axis, len(x.shape) - 1) + 1)


def gather(batched: Flags, x: V, at: V, axis: int) -> V:
    """Indices with a batch pick element by element, so that each is checked against its own part of the batch."""
    a = axis_of(axis, len(x.shape) - batched[0]) + 1
    if not batched[1]:
        return x.gather(at, axis=a)
    x, at = _all_batched(batched, (x, at))
    size, picks, lead, rest = at.shape[0], product(at.shape[1:]), x.shape[1:a], x.shape[a + 1:]
    column = F.reshape(at, (size, *(1,) * len(lead), picks, *(1,) * len(rest)))
    picked = x.take_along(F.expand(column, (size, *lead, picks, *rest)), axis=a)
    return F.reshape(picked, (size, *lead, *at.shape[1:], *rest))

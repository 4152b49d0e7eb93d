"""Shape rules and NumPy meanings of the ops over spatial axes: windows, convolution, pooling, resizing.

Values are [batch, channels, *space]; attrs hold one number for each axis of space."""
from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from rlxpy.errors import BuildError
from rlxpy.ir.dims import Dim, Shape, divides, lower, shape_text
from rlxpy.ir.dtypes import Array, DType, dtype
from rlxpy.ir.refs import keeping_type, lifted, pad
from rlxpy.ir.shapes import axis_of
from rlxpy.ir.types import TensorType

METHODS = ("nearest", "linear")
POINTS = ("half_pixel", "corners", "asymmetric")


def reach(size: int, dilation: int) -> int:
    """Elements from the first to the last of a window, both counted."""
    return (size - 1) * dilation + 1


def least(d: DType) -> float:
    """What never wins a maximum: -inf, or the least value of types without it."""
    return float({DType.F8E4M3FN: -448, DType.F4E2M1: -6}.get(d, -np.inf) if d.is_float else d.range[0])


# ---- shapes --------------------------------------------------------------------------------------------------------
def windows_shape(x: TensorType, *, axis: int, size: int, stride: int, dilation: int) -> Shape:
    a = axis_of(axis, x.rank)
    return (*x.shape[:a], _count(x.shape[a], size, stride, dilation, f"axis {axis} of {x}"), *x.shape[a + 1:], size)


def _count(n: Dim, size: int, stride: int, dilation: int, of: str) -> Dim:
    """How many windows lie inside n elements."""
    if min(size, stride, dilation) < 1:
        raise BuildError(f"windows of size {size}, stride {stride}, dilation {dilation}", why="each is 1 or more")
    if lower(n) < reach(size, dilation):
        raise BuildError(f"windows of {size} elements, {dilation} apart, over {of}", why=f"they reach over {reach(size, dilation)} elements, and there are {_from(n)}",
                         fix="pad the axis, take smaller windows, or narrow the range of the symbol")
    return (n - reach(size, dilation)) // stride + 1


def _from(n: Dim) -> str:
    return str(n) if isinstance(n, int) else f"{n}, perhaps {lower(n)}"


def _space(x: TensorType, what: str, **attrs: Sequence[Any]) -> int:
    """How many spatial axes.  Raises BuildError unless each parameter has a number for each."""
    rank = x.rank - 2
    if not 1 <= rank <= 3:
        raise BuildError(f"{what} of {x}", why=f"it has {x.rank} axes; batch, channels and 1 to 3 spatial axes make 3 to 5", fix="reshape it")
    for name, given in attrs.items():
        if len(given) != rank:
            raise BuildError(f"{what} of {x} with {name} {tuple(given)}", why=f"{len(given)} numbers for {rank} spatial axes", fix=f"give {rank}")
        if name in ("low", "high") and any(v < 0 for v in given):
            raise BuildError(f"{what} of {x} with {name} {tuple(given)}", why="padding is 0 or more", fix="crop with a slice")
    return rank


def _slid(space: Shape, size: Sequence[int], strides: Sequence[int], low: Sequence[int], high: Sequence[int], dilation: Sequence[int], of: str) -> Shape:
    return tuple(_count(n + a + b, k, s, d, of) for n, k, s, a, b, d in zip(space, size, strides, low, high, dilation, strict=True))


def _kernel(x: TensorType, w: TensorType, groups: int, what: str) -> tuple[int, ...]:
    """Spatial sizes of the weights.  Raises BuildError."""
    size = w.shape[2:]
    if w.rank != x.rank or not all(isinstance(k, int) for k in size):
        raise BuildError(f"{what} of {x} with weights {w}", why=f"they have {w.rank} axes of {shape_text(w.shape)}, x has {x.rank}",
                         fix="weights have as many axes as x, and known spatial sizes")
    if groups < 1 or not divides(groups, w.shape[0]):
        raise BuildError(f"{what} of {x} with weights {w} in {groups} groups", why=f"{w.shape[0]} channels do not make {groups} groups", fix="a group count divides them")
    return tuple(int(k) for k in size)


def conv_shape(x: TensorType, w: TensorType, *, groups: int, **a: Any) -> Shape:
    _space(x, "conv", **a)
    size = _kernel(x, w, groups, "conv")
    if x.shape[1] != w.shape[1] * groups:
        raise BuildError(f"conv of {x} with weights {w} in {groups} groups", why=f"x has {x.shape[1]} channels, the weights take {w.shape[1]} * {groups}",
                         fix="weights are [out, channels / groups, *size]")
    return (x.shape[0], w.shape[0], *_slid(x.shape[2:], size, a["strides"], a["low"], a["high"], a["dilation"], f"{x}, padded by {a['low']} and {a['high']}"))


def conv_transpose_shape(x: TensorType, w: TensorType, *, shape: Shape, groups: int, **a: Any) -> Shape:
    _space(x, "conv_transpose", shape=shape, **a)
    size = _kernel(x, w, groups, "conv_transpose")
    if x.shape[1] != w.shape[0]:
        raise BuildError(f"conv_transpose of {x} with weights {w}", why=f"x has {x.shape[1]} channels, the weights take {w.shape[0]}",
                         fix="weights are [channels, out / groups, *size]")
    back = _slid(shape, size, a["strides"], a["low"], a["high"], a["dilation"], f"{shape_text(shape)}, padded by {a['low']} and {a['high']}")
    if back != x.shape[2:]:
        raise BuildError(f"conv_transpose of {x} to {shape_text(shape)}", why=f"conv makes {shape_text(back)} of that, x has {shape_text(x.shape[2:])}",
                         fix="give sizes that conv with these parameters takes to x's")
    return (x.shape[0], w.shape[1] * groups, *shape)


def pool_shape(x: TensorType, *, size: tuple[int, ...], count_pad: bool = True, **a: Any) -> Shape:
    _space(x, "pooling", size=size, **a)
    return (*x.shape[:2], *_slid(x.shape[2:], size, a["strides"], a["low"], a["high"], a["dilation"], f"{x}, padded by {a['low']} and {a['high']}"))


def resize_shape(x: TensorType, *, shape: Shape, method: str, points: str) -> Shape:
    _space(x, "resize", shape=shape)
    for given, known, what in ((method, METHODS, "method"), (points, POINTS, "points")):
        if given not in known:
            raise BuildError(f"resize with {what} {given!r}", fix=f"one of: {', '.join(known)}")
    if any(lower(n) < 1 for n in x.shape[2:]):
        raise BuildError(f"resize of {x} to {shape_text(shape)}", why=f"spatial sizes {shape_text(x.shape[2:])} may be 0", fix="start from 1 element or more")
    return (*x.shape[:2], *shape)


# ---- meanings ------------------------------------------------------------------------------------------------------
def windows(x: Array, axis: int, size: int, stride: int, dilation: int) -> Array:
    """A view."""
    a = axis % x.ndim
    count = (x.shape[a] - reach(size, dilation)) // stride + 1
    step = x.strides[a]
    raw = x.view(f"V{x.itemsize}")  # as_strided does not know the types of ml_dtypes
    seen = np.lib.stride_tricks.as_strided(raw, (*x.shape[:a], count, *x.shape[a + 1:], size),
                                           (*x.strides[:a], step * stride, *x.strides[a + 1:], step * dilation), writeable=False)
    return seen.view(x.dtype)


def patches(x: Array, size: Sequence[int], strides: Sequence[int], low: Sequence[int], high: Sequence[int], dilation: Sequence[int], value: float = 0) -> Array:
    """[batch, channels, *result, *size]: what lies in the window of each result."""
    cells = pad(x, (0, 0, *low), (0, 0, *high), value)
    for i, (k, s, d) in enumerate(zip(size, strides, dilation, strict=True)):
        cells = windows(cells, 2 + i, k, s, d)
    return cells


@keeping_type
def conv(x: Array, w: Array, strides: Sequence[int], low: Sequence[int], high: Sequence[int], dilation: Sequence[int], groups: int) -> Array:
    """One product a group, of the weights with every window as a column."""
    (n, c), size, out = x.shape[:2], w.shape[2:], w.shape[0]
    cells = patches(x, size, strides, low, high, dilation)
    space = cells.shape[2:x.ndim]
    columns = np.moveaxis(cells, range(2, x.ndim), range(2 - x.ndim, 0)).reshape(n, groups, c // groups * prod(size), prod(space))
    return (w.reshape(groups, out // groups, prod(w.shape[1:])) @ columns).reshape(n, out, *space)


@keeping_type
def conv_transpose(x: Array, w: Array, shape: Sequence[int], strides: Sequence[int], low: Sequence[int], high: Sequence[int], dilation: Sequence[int], groups: int) -> Array:
    """Every element of x adds a window of weights to the result."""
    (n, c), space, size, out = x.shape[:2], x.shape[2:], w.shape[2:], w.shape[1] * groups
    grouped = w.reshape(groups, c // groups, prod(w.shape[1:]))
    spread = (grouped.swapaxes(1, 2) @ x.reshape(n, groups, c // groups, prod(space))).reshape(n, out, *size, *space)
    room = [m + a + b for m, a, b in zip(shape, low, high, strict=True)]
    y = np.zeros((n, out, *room), spread.dtype)
    every = (slice(None), slice(None))
    for at in np.ndindex(*size):
        y[(*every, *_places(at, space, strides, dilation))] += spread[(*every, *at)]
    return y[(*every, *(slice(a, a + m) for a, m in zip(low, shape, strict=True)))]


def _places(at: Sequence[int], space: Sequence[int], strides: Sequence[int], dilation: Sequence[int]) -> tuple[slice, ...]:
    """Where element `at` of every window lies."""
    return tuple(slice(k * d, k * d + (m - 1) * s + 1, s) for k, m, s, d in zip(at, space, strides, dilation, strict=True))


@lifted
def _greatest(cells: Array, axes: tuple[int, ...]) -> Array: return np.asarray(cells.max(axes))


def max_pool(x: Array, size: Sequence[int], strides: Sequence[int], low: Sequence[int], high: Sequence[int], dilation: Sequence[int]) -> Array:
    return np.asarray(_greatest(patches(x, size, strides, low, high, dilation, least(dtype(x.dtype))), axes=tuple(range(-len(size), 0))))


@lifted
def avg_pool(x: Array, size: Sequence[int], strides: Sequence[int], low: Sequence[int], high: Sequence[int], dilation: Sequence[int], count_pad: bool) -> Array:
    axes = tuple(range(-len(size), 0))
    total = patches(x, size, strides, low, high, dilation).sum(axes)
    there = prod(size) if count_pad else patches(np.ones((1, 1, *x.shape[2:]), x.dtype), size, strides, low, high, dilation).sum(axes)
    return np.asarray(total / x.dtype.type(there) if count_pad else total / there)


def position(i: Any, n: Any, m: Any, points: str) -> tuple[Any, Any]:
    """Where result i of m lies among n elements, as numerator and denominator: whole numbers, so that nothing is rounded."""
    if points == "half_pixel":
        return (i * 2 + 1) * n - m, m * 2
    return (i * n, m) if points == "asymmetric" else (i * (n - 1), m - 1)


def nearest(i: Any, n: Any, m: Any, points: str) -> Any:
    """Index of the element nearest to result i.  Of one result at the corners this divides 0 by 0, which is 0."""
    num, den = position(i, n, m, points)
    return num // den if points == "asymmetric" else (num * 2 + den) // (den * 2)


@lifted
def resize(x: Array, shape: Sequence[int], method: str, points: str) -> Array:
    for a, m in enumerate(shape, 2):
        n, i = x.shape[a], np.arange(m)
        if method == "nearest":
            x = x.take(nearest(i, n, m, points).clip(0, n - 1), axis=a)
            continue
        num, den = position(i, n, m, points)
        num, den = num.clip(0), max(den, 1)
        at = (num // den).clip(0, n - 1)
        part = (num % den / den).astype(x.dtype).reshape(-1, *(1,) * (x.ndim - a - 1))
        low, high = x.take(at, axis=a), x.take((at + 1).clip(0, n - 1), axis=a)
        x = low + (high - low) * part
    return x

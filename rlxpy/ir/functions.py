"""Functions that are compositions of ops, and so need no row: squeeze, split, stack, var, ..."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any

from rlxpy.errors import BuildError
from rlxpy.ir.dims import Dim, Shape, as_shape, product
from rlxpy.ir.dtypes import DType
from rlxpy.ir.place import placed
from rlxpy.ir.shapes import axes_of, axis_of, infer_one

V = Any  # a Value (see ir/lowerings.py)


def constant(like: V, value: Any, dtype: DType | None = None) -> V:
    """A constant in the graph that `like` belongs to."""
    return like.builder.const(value, dtype)


def full_like(x: V, value: float) -> V:
    """A scalar of x's type: it broadcasts, so no memory is spent on it."""
    return x.builder.const(value, x.dtype)


def iota(like: V, shape: Shape, axis: int, to: DType = DType.I64) -> V:
    """0, 1, 2, .. along `axis`."""
    return like.builder.emit("iota", shape=shape, axis=axis, to=to)


def size(like: V, dim: Dim) -> V:
    """A size as an i64 scalar value."""
    return like.builder.emit("size", dim=dim)


def to_type(x: V, to: DType) -> V:
    """x itself when it has the type already."""
    return x if x.dtype is to else x.cast(to=to)


def dequantize(planes: Sequence[V], encoding: str, shape: Shape) -> V:
    """Packed numbers as f32: in plain ops, which fuse and run everywhere, where a row has one scale."""
    from rlxpy.ir.encoding import encoding as look_up

    if look_up(encoding).is_scaled_rows:
        codes, scales = planes
        return to_type(codes, DType.F32) * scales
    return planes[0].apply("dequantize", tuple(planes), {"encoding": encoding, "shape": shape})


@placed
def reshape(x: V, shape: Sequence[Dim]) -> V:
    """One dim may be -1."""
    wanted = infer_one(x.shape, as_shape(shape))
    return x if wanted == x.shape else x.reshape(shape=wanted)


@placed
def unsqueeze(x: V, axis: int) -> V:
    at = axis_of(axis, len(x.shape) + 1)
    return reshape(x, (*x.shape[:at], 1, *x.shape[at:]))


@placed
def squeeze(x: V, axis: int) -> V:
    at = axis_of(axis, len(x.shape))
    if x.shape[at] != 1:
        raise BuildError(f"squeeze of axis {axis} of {x.type}", why=f"its size is {x.shape[at]}, not 1", fix="index the axis, or reduce it")
    return reshape(x, (*x.shape[:at], *x.shape[at + 1:]))


@placed
def transpose(x: V, *perm: int) -> V:
    return x.transpose(perm=perm)


@placed
def swap(x: V, a: int = -1, b: int = -2) -> V:
    """Exchange two axes."""
    perm = list(range(len(x.shape)))
    a, b = axis_of(a, len(perm)), axis_of(b, len(perm))
    perm[a], perm[b] = perm[b], perm[a]
    return x.transpose(perm=tuple(perm))


@placed
def cut(x: V, axis: int, start: Dim, stop: Dim, step: int = 1) -> V:
    """x[..., start:stop:step, ...] on one axis."""
    at = axis_of(axis, len(x.shape))
    rank = len(x.shape)
    return x.slice(start=tuple(start if i == at else 0 for i in range(rank)),
                   stop=tuple(stop if i == at else d for i, d in enumerate(x.shape)),
                   step=tuple(step if i == at else 1 for i in range(rank)))


@placed
def split(x: V, sizes: Sequence[Dim], axis: int) -> tuple[V, ...]:
    parts, at = [], axis_of(axis, len(x.shape))
    start: Dim = 0
    for n in sizes:
        parts.append(cut(x, at, start, start + n))
        start = start + n
    if start != x.shape[at]:
        raise BuildError(f"split of {x.type} into {list(sizes)}", why=f"they add up to {start}, axis {axis} has {x.shape[at]}",
                         fix="name every part; the rest may be an index, as in x[2:]")
    return tuple(parts)


@placed
def concat(xs: Sequence[V], axis: int) -> V:
    if not xs:
        raise BuildError("concat of nothing", why="0 values have no common shape", fix="give one value or more")
    return xs[0].apply("concat", tuple(xs), {"axis": axis})


@placed
def stack(xs: Sequence[V], axis: int = 0) -> V:
    return concat([unsqueeze(x, axis) for x in xs], axis)


@placed
def expand(x: V, shape: Shape) -> V:
    return x if x.shape == shape else x.expand(shape=shape)


@placed
def tile(x: V, times: Sequence[int]) -> V:
    """Repeat whole axes, as numpy.tile with one count for each axis."""
    if len(times) != len(x.shape):
        raise BuildError(f"tile of {x.type} by {list(times)}", why=f"{len(x.shape)} counts are needed", fix="repeat an axis once with 1")
    spread = reshape(x, tuple(d for size in x.shape for d in (1, size)))
    wide = expand(spread, tuple(d for n, size in zip(times, x.shape, strict=True) for d in (n, size)))
    return reshape(wide, tuple(n * size for n, size in zip(times, x.shape, strict=True)))


@placed
def roll(x: V, shift: int, axis: int) -> V:
    """Elements leaving one end come back at the other; the axis must have a known size."""
    n = x.shape[axis_of(axis, len(x.shape))]
    if not isinstance(n, int):
        raise BuildError(f"roll of {x.type} on axis {axis}", why=f"its size {n} is symbolic", fix="concat the two parts of a split")
    by = shift % n if n else 0
    return concat(split(x, (n - by, by), axis)[::-1], axis) if by else x


def var(x: V, axes: tuple[int, ...], keep: bool = False) -> V:
    """Population variance, as the mean of squares of what the mean leaves: not below zero, and zero of a constant."""
    d = centred(x, axes)
    return (d * d).mean(axes=axes, keep=keep)


def centred(x: V, axes: tuple[int, ...]) -> V:
    """x less its mean, which is freed of its sum's rounding by the mean of what it leaves: a constant becomes zeros."""
    rough = x.mean(axes=axes, keep=True)
    return x - (rough + ((x - rough) * share(x, axes)).sum(axes=axes, keep=True))


def share(x: V, axes: tuple[int, ...]) -> V | float:
    """One element's part in a mean over the axes."""
    n = product(x.shape[a] for a in axes_of(axes, len(x.shape)))
    return 1.0 / max(n, 1) if isinstance(n, int) else 1.0 / size(x, n).cast(to=x.dtype)


def logsumexp(x: V, axes: tuple[int, ...]) -> V:
    """log(sum(exp(x))), kept finite for large x; the reduced axes stay with size 1."""
    top = x.max(axes=axes, keep=True)
    safe = top.is_finite().where(top, full_like(top, 0.0))
    return (x - safe).exp().sum(axes=axes, keep=True).log() + safe


def widened(f: Callable[..., Any]) -> Callable[..., Any]:
    """f on f32 for narrower floats, its results rounded once: what refs.lifted is for arrays.  Tuples and None pass through."""
    @wraps(f, ())
    def cell(*args: Any, **attrs: Any) -> Any:
        narrow = next((v.dtype for v in _flat(args) if v.dtype.accumulator is not v.dtype), None)
        if narrow is None:
            return f(*args, **attrs)
        wide = _each(lambda v: v.cast(to=DType.F32) if v.dtype is narrow else v, args)
        return _each(lambda v: v.cast(to=narrow) if v.dtype is DType.F32 else v, f(*wide, **attrs))
    return cell


def _flat(tree: Any) -> Iterator[V]:
    if isinstance(tree, tuple):
        for v in tree:
            yield from _flat(v)
    elif tree is not None:
        yield tree


def _each(change: Callable[[V], V], tree: Any) -> Any:
    return tuple(_each(change, v) for v in tree) if isinstance(tree, tuple) else None if tree is None else change(tree)

"""The `lower`, `vjp`, `jvp` and `vmap` cells of the ops over spatial axes.  Contracts: ir/row.py; meanings: ir/spatial.py."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlxpy.ir import derivatives as D, functions as F
from rlxpy.ir.dims import Dim, Shape, product
from rlxpy.ir.dtypes import DType
from rlxpy.ir.row import Family
from rlxpy.ir.shapes import axis_of
from rlxpy.ir.spatial import least, nearest, position, reach

V = Any  # a Value (see ir/lowerings.py)
Ints = tuple[int, ...]


# ---- windows -------------------------------------------------------------------------------------------------------
def patches(x: V, size: Ints, strides: Ints, low: Ints, high: Ints, dilation: Ints, value: float = 0.0) -> V:
    """[batch, channels, *result, *size]: what lies in the window of each result."""
    cells = x.pad(low=(0, 0, *low), high=(0, 0, *high), value=value) if any((*low, *high)) else x
    for i, (k, s, d) in enumerate(zip(size, strides, dilation, strict=True)):
        cells = cells.windows(axis=2 + i, size=k, stride=s, dilation=d)
    return cells


def unpatched(dcells: V, x: V, strides: Ints, low: Ints, high: Ints, dilation: Ints) -> V:
    """The transpose of `patches`: every element is the sum over the windows that see it."""
    rank = len(x.shape)
    for a in reversed(range(2, rank)):
        dcells = _overlapped(dcells, a, x.shape[a] + low[a - 2] + high[a - 2], strides[a - 2], dilation[a - 2])
    return dcells.slice(start=(0, 0, *low), stop=(*x.shape[:2], *(n + b for n, b in zip(x.shape[2:], low, strict=True))), step=(1,) * rank)


def _overlapped(dcells: V, a: int, n: Dim, stride: int, dilation: int) -> V:
    """The transpose of `windows` over an axis of n elements."""
    count, size, rank = dcells.shape[a], dcells.shape[-1], len(dcells.shape)
    at = F.iota(dcells, (count, size), 0) * stride + F.iota(dcells, (count, size), 1) * dilation
    update = dcells.transpose(perm=(*range(a + 1), rank - 1, *range(a + 1, rank - 1)))
    shape = (*dcells.shape[:a], n, *dcells.shape[a + 1:-1])
    return F.expand(F.full_like(dcells, 0.0), shape).scatter_add(at, update, axis=a)


def _windows_vjp(dy: V, y: V, x: V, axis: int, size: int, stride: int, dilation: int) -> tuple[V]:
    a = axis_of(axis, len(x.shape))
    return (_overlapped(dy, a, x.shape[a], stride, dilation),)


WINDOWS: D.Cells = {"vjp": _windows_vjp, "jvp": D.LINEAR}


# ---- convolution ---------------------------------------------------------------------------------------------------
def columns(x: V, size: Ints, groups: int, **slide: Any) -> V:
    """[batch, groups, channels of a group * window, results]."""
    cells = patches(x, size, **slide)
    n, c, rank = x.shape[0], x.shape[1], len(size)
    space = cells.shape[2:2 + rank]
    turned = cells.transpose(perm=(0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank)))
    return F.reshape(turned, (n, groups, c // groups * product(size), product(space)))


def conv(x: V, w: V, groups: int, **slide: Any) -> V:
    """One product a group, of the weights with every window as a column."""
    size, out = w.shape[2:], w.shape[0]
    cols = columns(x, size, groups, **slide)
    y = F.reshape(w, (groups, out // groups, product(w.shape[1:]))) @ cols
    return F.reshape(y, (x.shape[0], out, *_result(x, size, **slide)))


def _result(x: V, size: Ints, strides: Ints, low: Ints, high: Ints, dilation: Ints) -> Shape:
    return tuple((n + a + b - reach(k, d)) // s + 1 for n, k, s, a, b, d in zip(x.shape[2:], size, strides, low, high, dilation, strict=True))


def conv_transpose(x: V, w: V, shape: Shape, strides: Ints, low: Ints, high: Ints, dilation: Ints, groups: int) -> V:
    """One conv of x that makes, for each of its places, the `stride` results beside one another on every axis as channels; then they are laid out.

    With window k = t stride + q, result (i + t) stride + q takes x[i] w[k]: for each q a conv by the turned weights of every t."""
    rank, before, after = len(strides), list[int](), list[int]()
    for a, (s, d, h) in enumerate(zip(strides, dilation, high, strict=True)):
        reached = reach(w.shape[2 + 2 * a], d)
        taps = -(-reached // s)
        w = F.reshape(_lengthened(D.dilated(w, 2 + 2 * a, d, reached), 2 + 2 * a, taps * s), (*w.shape[:2 + 2 * a], taps, s, *w.shape[3 + 2 * a:]))
        before.append(taps - 1)
        after.append(taps - 1 + (s - 1 - h > taps * s - reached))  # the image may be longer than what windows reach
    depth, out = w.shape[0] // groups, w.shape[1]
    turned, each = tuple(range(3, 3 + 2 * rank, 2)), tuple(range(4, 4 + 2 * rank, 2))
    grouped = F.reshape(w, (groups, depth, *w.shape[1:])).transpose(perm=(0, 2, *each, 1, *turned))
    kernel = F.reshape(grouped, (groups * out * product(strides), depth, *(b + 1 for b in before)))
    y = x.conv(kernel.reverse(axes=tuple(range(2, 2 + rank))), strides=(1,) * rank, low=tuple(before), high=tuple(after), dilation=(1,) * rank, groups=groups)
    apart = F.reshape(y, (x.shape[0], groups * out, *strides, *y.shape[2:]))
    laid = apart.transpose(perm=(0, 1, *(axis for a in range(rank) for axis in (2 + rank + a, 2 + a))))
    full = F.reshape(laid, (*laid.shape[:2], *(m * s for m, s in zip(y.shape[2:], strides, strict=True))))
    return full.slice(start=(0, 0, *low), stop=(*full.shape[:2], *(m + b for m, b in zip(shape, low, strict=True))), step=(1,) * (rank + 2))


def _lengthened(v: V, axis: int, size: int) -> V:
    """Zeros behind, up to `size` elements."""
    more = tuple(size - v.shape[axis] if i == axis else 0 for i in range(len(v.shape)))
    return v.pad(low=(0,) * len(more), high=more) if any(more) else v


def _weight_gradient(image: V, made: V, w: V, groups: int, **slide: Any) -> V:
    """Of conv's weights, where `made` is the cotangent of what it makes of `image`."""
    cols = columns(image, w.shape[2:], groups, **slide)
    n, _, depth, results = cols.shape
    out = w.shape[0] // groups
    left = F.reshape(made, (n, groups, out, results)).transpose(perm=(1, 2, 0, 3))
    right = cols.transpose(perm=(1, 0, 3, 2))
    return F.reshape(F.reshape(left, (groups, out, n * results)) @ F.reshape(right, (groups, n * results, depth)), w.shape)


def _conv_vjp(dy: V, y: V, x: V, w: V, **attrs: Any) -> tuple[V, V]:
    return dy.conv_transpose(w, shape=x.shape[2:], **attrs), _weight_gradient(x, dy, w, **attrs)


def _conv_transpose_vjp(dy: V, y: V, x: V, w: V, shape: Shape, **attrs: Any) -> tuple[V, V]:
    return dy.conv(w, **attrs), _weight_gradient(dy, x, w, **attrs)


def _bilinear(name: str, dxs: Sequence[V | None], y: V, x: V, w: V, **attrs: Any) -> V | None:
    dx, dw = dxs
    return D.total(y.shape, None if dx is None else x.apply(name, (dx, w), attrs), None if dw is None else x.apply(name, (x, dw), attrs))


CONV: D.Cells = {"vjp": _conv_vjp, "jvp": Family(_bilinear)}
CONV_TRANSPOSE: D.Cells = {"vjp": _conv_transpose_vjp, "jvp": Family(_bilinear)}


def _conv_vmap(name: str, batched: Sequence[bool], x: V, w: V, groups: int, **attrs: Any) -> V:
    """A batch of inputs is a longer batch; a batch of weights is more groups."""
    if not batched[1]:
        y = x.apply(name, (F.reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:])), w), {"groups": groups, **attrs})
        return F.reshape(y, (x.shape[0], x.shape[1], *y.shape[1:]))
    size = w.shape[0]
    x = x if batched[0] else F.expand(x, (size, *x.shape))
    side_by_side = F.reshape(F.swap(x, 0, 1), (x.shape[1], size * x.shape[2], *x.shape[3:]))
    y = x.apply(name, (side_by_side, F.reshape(w, (size * w.shape[1], *w.shape[2:]))), {"groups": size * groups, **attrs})
    return F.swap(F.reshape(y, (x.shape[1], size, y.shape[1] // size, *y.shape[2:])), 0, 1)


CONV_BATCHES = Family(_conv_vmap)


def _longer_batch(name: str, batched: Sequence[bool], x: V, **attrs: Any) -> V:
    y = x.apply(name, (F.reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:])),), attrs)
    return F.reshape(y, (*x.shape[:2], *y.shape[1:]))


BATCHES = Family(_longer_batch)


# ---- pooling -------------------------------------------------------------------------------------------------------
def _axes(size: Ints) -> Ints: return tuple(range(-len(size), 0))


def max_pool(x: V, size: Ints, **slide: Any) -> V:
    return patches(x, size, value=least(x.dtype), **slide).max(axes=_axes(size))


def _share_of_greatest(y: V, x: V, size: Ints, **slide: Any) -> V:
    """[batch, channels, *result, *size]: the slope of each result in what its window sees; ties share."""
    cells = patches(x, size, value=least(x.dtype), **slide)
    return D.extreme(F.reshape(y, (*y.shape, *(1,) * len(size))), cells, _axes(size))


@F.widened
def _max_pool_vjp(dy: V, y: V, x: V, size: Ints, **slide: Any) -> tuple[V]:
    slope = _share_of_greatest(y, x, size, **slide)
    return (unpatched(D.times(F.expand(F.reshape(dy, (*dy.shape, *(1,) * len(size))), slope.shape), slope), x, **slide),)


@F.widened
def _max_pool_jvp(dxs: Sequence[V], y: V, x: V, size: Ints, **slide: Any) -> V:
    return D.times(patches(dxs[0], size, **slide), _share_of_greatest(y, x, size, **slide)).sum(axes=_axes(size))


MAX_POOL: D.Cells = {"vjp": _max_pool_vjp, "jvp": _max_pool_jvp}


@F.widened
def avg_pool(x: V, size: Ints, count_pad: bool, **slide: Any) -> V:
    return patches(x, size, **slide).sum(axes=_axes(size)) / _there(x, size, count_pad, **slide)


def _there(x: V, size: Ints, count_pad: bool, **slide: Any) -> V | float:
    """Elements that each window's mean is over."""
    if count_pad:
        return float(product(size))
    ones = F.expand(F.full_like(x, 1.0), (1, 1, *x.shape[2:]))
    return patches(ones, size, **slide).sum(axes=_axes(size))


@F.widened
def _avg_pool_vjp(dy: V, y: V, x: V, size: Ints, count_pad: bool, **slide: Any) -> tuple[V]:
    each = dy / _there(x, size, count_pad, **slide)
    return (unpatched(F.expand(F.reshape(each, (*each.shape, *(1,) * len(size))), (*each.shape, *size)), x, **slide),)


AVG_POOL: D.Cells = {"vjp": _avg_pool_vjp, "jvp": D.LINEAR}


# ---- resizing ------------------------------------------------------------------------------------------------------
def _taps(like: V, n: Dim, m: Dim, method: str, points: str) -> tuple[V, V, V | None]:
    """Of each of m results the two elements among n that it lies between, and how far it is on the way; None: it is the first."""
    i, size, made, last = F.iota(like, (m,), 0), D.count(like, n), D.count(like, m), F.size(like, n - 1)
    if method == "nearest":
        at = nearest(i, size, made, points).clamp(0, last)
        return at, at, None
    num, den = position(i, size, made, points)
    num, den = num.maximum(0), max(den, 1) if isinstance(den, int) else den.maximum(1)
    part = (num % den).cast(to=DType.F64) / (float(den) if isinstance(den, int) else den.cast(to=DType.F64))
    at = (num // den).minimum(last)
    return at, (at + 1).minimum(last), part.cast(to=like.dtype)


def _along(part: V, rank: int, a: int) -> V: return F.reshape(part, (part.shape[0], *(1,) * (rank - a - 1)))


@F.widened
def resize(x: V, shape: Shape, method: str, points: str) -> V:
    for a, m in enumerate(shape, 2):
        at, beyond, part = _taps(x, x.shape[a], m, method, points)
        low = x.gather(at, axis=a)
        x = low if part is None else low + (x.gather(beyond, axis=a) - low) * _along(part, len(x.shape), a)
    return x


@F.widened
def _resize_vjp(dy: V, y: V, x: V, shape: Shape, method: str, points: str) -> tuple[V]:
    for a in reversed(range(2, len(x.shape))):
        at, beyond, part = _taps(dy, x.shape[a], shape[a - 2], method, points)
        empty = F.expand(F.full_like(dy, 0.0), (*dy.shape[:a], x.shape[a], *dy.shape[a + 1:]))
        way = None if part is None else _along(part, len(dy.shape), a)
        dy = empty.scatter_add(at, dy, axis=a) if way is None else empty.scatter_add(at, dy * (1.0 - way), axis=a).scatter_add(beyond, dy * way, axis=a)
    return (dy,)


RESIZE: D.Cells = {"vjp": _resize_vjp, "jvp": D.LINEAR}

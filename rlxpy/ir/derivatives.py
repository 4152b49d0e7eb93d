"""The `vjp` and `jvp` cells of the op table, as functions on Values.  Contracts: ir/row.py.

An elementwise op states its slopes, the partial derivatives at each point; both directions are made of them, and so cannot disagree.
A zero cotangent (or tangent) wins over any slope, infinite or NaN: the branch that `where` did not take adds nothing.
Complex values follow the transpose, without conjugation."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from operator import add
from typing import Any

from rlxpy.ir import functions as F
from rlxpy.ir.dims import Dim, Shape, product
from rlxpy.ir.dtypes import DType
from rlxpy.ir.layout import row_major
from rlxpy.ir.row import Family
from rlxpy.ir.shapes import axis_of, reduced

V = Any  # a Value (see ir/lowerings.py)
Cells = dict[str, Any]  # the two columns, ready for a row
Slopes = Callable[..., Sequence[Any]]  # (y, *xs) -> for each input a Value, a number, or None where the slope is 0 everywhere


def times(d: V, slope: V | float) -> V:
    """d * slope, where a zero d wins; a bool slope lets d pass where it is true."""
    if isinstance(slope, float):
        return d if slope == 1.0 else -d if slope == -1.0 else d * slope
    if slope.dtype is DType.BOOL:
        return slope.where(d, F.full_like(d, 0.0))
    return d.eq(0.0).where(d, d * slope)


def unspread(g: V, shape: Shape) -> V:
    """g summed over the axes along which a value of `shape` was broadcast."""
    lead = len(g.shape) - len(shape)
    axes = (*range(lead), *(lead + i for i, d in enumerate(shape) if d == 1 and g.shape[lead + i] != 1))
    return F.reshape(g.sum(axes=axes), shape) if axes else g


def zeros(x: V) -> V: return F.expand(F.full_like(x, 0.0), x.shape)
def count(like: V, dim: Dim) -> V | int: return dim if isinstance(dim, int) else F.size(like, dim)


def total(shape: Shape, *tangents: V | None) -> V | None:
    """The sum of those that are there, broadcast to `shape`; None of none."""
    there = [t for t in tangents if t is not None]
    return F.expand(reduce(add, there), shape) if there else None


def elementwise(slopes: Slopes | None) -> Cells:
    """Both cells; of None, which nobody has written yet, none."""
    return {"vjp": partial(_slopes_vjp, slopes), "jvp": partial(_slopes_jvp, slopes)} if slopes else {}


def unary(slope: Callable[[V, V], Any] | None) -> Cells:
    return elementwise(slope and (lambda y, x: (slope(y, x),)))


def _slopes_vjp(slopes: Slopes, dy: V, y: V, *xs: V) -> tuple[V | None, ...]:
    return tuple(None if s is None else unspread(times(dy, s), x.shape) for s, x in zip(slopes(y, *xs), xs, strict=True))


def _slopes_jvp(slopes: Slopes, dxs: Sequence[V | None], y: V, *xs: V) -> V | None:
    return total(y.shape, *(None if dx is None or s is None else times(dx, s) for dx, s in zip(dxs, slopes(y, *xs), strict=True)))


def flat(y: V, x: V) -> None: """The slope of a staircase: zero wherever there is one."""


def share(a: V, b: V) -> V:
    """The slope of max(a, b) in a: ties are halved."""
    return (a > b).where(F.full_like(a, 1.0), a.eq(b).where(F.full_like(a, 0.5), F.full_like(a, 0.0)))


def maximum(y: V, a: V, b: V) -> tuple[V, V]: return share(a, b), share(b, a)
def minimum(y: V, a: V, b: V) -> tuple[V, V]: return share(b, a), share(a, b)
def where(y: V, c: V, a: V, b: V) -> tuple[None, V, V]: return None, c, c.logical_not()


def clamp(y: V, x: V, lo: V, hi: V) -> tuple[V, V, V]:
    raised = x.maximum(lo)
    kept = share(hi, raised)
    return kept * share(x, lo), kept * share(lo, x), share(raised, hi)


def power(y: V, x: V, p: V) -> tuple[V, V]:
    """x ** 0 is flat in x; 0 ** p is flat in p from 0 on."""
    zero = F.full_like(y, 0.0)
    return p.eq(0.0).where(zero, p * x.pow(p - 1.0)), x.eq(0.0).logical_and(p >= 0.0).where(zero, y * x.log())


def atan2(y: V, a: V, b: V) -> tuple[V, V]:
    square = a * a + b * b
    return b / square, -(a / square)


# The clamps in these slopes keep inf * 0 out: beyond them the other factor is 0 in every type.
def silu(y: V, x: V) -> V:
    s = x.sigmoid()
    return s + x.clamp(-800.0, 800.0) * s * (1.0 - s)


def gelu(y: V, x: V) -> V:
    c = x.clamp(-40.0, 40.0)
    return ((c * 0.7071067811865476).erf() + 1.0) * 0.5 + c * (c * c * -0.5).exp() * 0.3989422804014327  # sqrt(1/2), sqrt(1/(2 pi))


def gelu_tanh(y: V, x: V) -> V:
    c = x.clamp(-20.0, 20.0)
    t = ((c + c * c * c * 0.044715) * 0.7978845608028654).tanh()
    return (t + 1.0) * 0.5 + c * (1.0 - t * t) * (c * c * 0.134145 + 1.0) * 0.3989422804014327  # 3 * 0.044715, sqrt(2/pi) / 2


def cast_vjp(dy: V, y: V, x: V, to: DType) -> tuple[V | None]:
    return (dy.cast(to=x.dtype) if _smooth(x.dtype) and _smooth(to) else None,)


def cast_jvp(dxs: Sequence[V], y: V, x: V, to: DType) -> V | None:
    return dxs[0].cast(to=to) if _smooth(x.dtype) and _smooth(to) else None


def _smooth(d: DType) -> bool: return d.is_float or d.is_complex


Slope = Callable[[Any, Any, tuple[int, ...]], Any]  # (y with its axes kept, x, axes) -> the slope at each element of x


def reduction(slope: Slope) -> Cells:
    return {"vjp": F.widened(partial(_reduced_vjp, slope)), "jvp": F.widened(partial(_reduced_jvp, slope))}


def _kept(v: V, x: V, axes: tuple[int, ...]) -> V: return F.reshape(v, reduced(x.type, axes=axes, keep=True))


def _reduced_vjp(slope: Slope, dy: V, y: V, x: V, axes: tuple[int, ...], keep: bool) -> tuple[V]:
    return (F.expand(times(_kept(dy, x, axes), slope(_kept(y, x, axes), x, axes)), x.shape),)


def _reduced_jvp(slope: Slope, dxs: Sequence[V], y: V, x: V, axes: tuple[int, ...], keep: bool) -> V:
    return times(dxs[0], slope(_kept(y, x, axes), x, axes)).sum(axes=axes, keep=keep)


def mean(y: V, x: V, axes: tuple[int, ...]) -> V | float:
    return F.share(x, axes)


def extreme(y: V, x: V, axes: tuple[int, ...]) -> V:
    """Equal parts for all that tie."""
    hits = x.eq(y).cast(to=x.dtype)
    return hits / hits.sum(axes=axes, keep=True)


def prod(y: V, x: V, axes: tuple[int, ...]) -> V:
    """The product of the others: beside one zero only that zero has a slope, beside two nothing has."""
    is_zero, zero = x.eq(0.0), F.full_like(x, 0.0)
    holes = is_zero.cast(to=DType.I64).sum(axes=axes, keep=True)
    filled = is_zero.where(F.full_like(x, 1.0), x)
    others = filled.prod(axes=axes, keep=True)
    return is_zero.where(holes.eq(1).where(others, zero), holes.eq(0).where(others / filled, zero))


def _linear(name: str, dxs: Sequence[V], y: V, *xs: V, **attrs: Any) -> V:
    """The op itself on the tangent of its first input, the only one that has one."""
    return dxs[0].apply(name, (dxs[0], *xs[1:]), attrs)


LINEAR = Family(_linear)


@F.widened
def _through_softmax(v: V, y: V, axis: int) -> V:
    """Its Jacobian times v, or v times its Jacobian: it is symmetric."""
    return y * (v - (v * y).sum(axes=(axis,), keep=True))


@F.widened
def _log_softmax_vjp(dy: V, y: V, x: V, axis: int) -> tuple[V]: return (dy - y.exp() * dy.sum(axes=(axis,), keep=True),)
@F.widened
def _log_softmax_jvp(dxs: Sequence[V], y: V, x: V, axis: int) -> V: return dxs[0] - (dxs[0] * y.exp()).sum(axes=(axis,), keep=True)


SOFTMAX: Cells = {"vjp": lambda dy, y, x, axis: (_through_softmax(dy, y, axis=axis),),
                  "jvp": lambda dxs, y, x, axis: _through_softmax(dxs[0], y, axis=axis)}
LOG_SOFTMAX: Cells = {"vjp": _log_softmax_vjp, "jvp": _log_softmax_jvp}
CUMSUM: Cells = {"vjp": lambda dy, y, x, axis: (dy.reverse(axes=(axis,)).cumsum(axis=axis).reverse(axes=(axis,)),), "jvp": LINEAR}


def put_along(updates: V, at: V, shape: Shape, axis: int) -> V:
    """Zeros of `shape` with `updates` added where take_along(at) reads."""
    at, a, strides = F.to_type(at, DType.I64), axis_of(axis, len(shape)), row_major(shape).strides
    place = (at < 0).where(at + count(at, shape[a]), at) * count(at, strides[a])
    for i, stride in enumerate(strides):
        place = place if i == a else place + F.iota(at, at.shape, i) * count(at, stride)
    empty = F.expand(F.full_like(updates, 0.0), (product(shape),))
    return F.reshape(empty.scatter_add(F.reshape(place, (-1,)), F.reshape(updates, (-1,)), axis=0), shape)


ORDERED: Cells = {  # of values and indices the values alone have derivatives
    "vjp": lambda dy, y, x, axis, **_: (put_along(dy[0], y[1], x.shape, axis),),
    "jvp": lambda dxs, y, x, axis, **_: (dxs[0].take_along(y[1], axis=axis), None)}


def _matmul_vjp(dy: V, y: V, a: V, b: V) -> tuple[V, V]: return unspread(dy @ F.swap(b), a.shape), unspread(F.swap(a) @ dy, b.shape)


def _matmul_jvp(dxs: Sequence[V | None], y: V, a: V, b: V) -> V | None:
    da, db = dxs
    return total(y.shape, None if da is None else da @ b, None if db is None else a @ db)


MATMUL: Cells = {"vjp": _matmul_vjp, "jvp": _matmul_jvp}


def _slice_vjp(dy: V, y: V, x: V, start: Shape, stop: Shape, step: tuple[int, ...]) -> tuple[V]:
    for axis, by in enumerate(step):
        dy = dilated(dy, axis, by, stop[axis] - start[axis])
    return (dy.pad(low=start, high=tuple(d - hi for d, hi in zip(x.shape, stop, strict=True))),)


def dilated(v: V, axis: int, by: int, size: Dim) -> V:
    """by - 1 zeros after every element along an axis, cut to `size`."""
    if by == 1:
        return v
    pairs = F.unsqueeze(v, axis + 1)
    gap = tuple(by - 1 if i == axis + 1 else 0 for i in range(len(pairs.shape)))
    apart = pairs.pad(low=(0,) * len(gap), high=gap)
    return F.cut(F.reshape(apart, (*v.shape[:axis], v.shape[axis] * by, *v.shape[axis + 1:])), axis, 0, size)


def _pad_vjp(dy: V, y: V, x: V, low: Shape, high: Shape, value: float) -> tuple[V]:
    return (dy.slice(start=low, stop=tuple(a + d for a, d in zip(low, x.shape, strict=True)), step=(1,) * len(low)),)


def _concat_vjp(dy: V, y: V, *xs: V, axis: int) -> tuple[V, ...]: return F.split(dy, [x.shape[axis] for x in xs], axis)


def _concat_jvp(dxs: Sequence[V | None], y: V, *xs: V, axis: int) -> V:
    return F.concat([zeros(x) if dx is None else dx for dx, x in zip(dxs, xs, strict=True)], axis)


def _transposed(perm: tuple[int, ...]) -> tuple[int, ...]: return tuple(perm.index(i) for i in range(len(perm)))


RESHAPE: Cells = {"vjp": lambda dy, y, x, shape: (F.reshape(dy, x.shape),), "jvp": LINEAR}
EXPAND: Cells = {"vjp": lambda dy, y, x, shape: (unspread(dy, x.shape),), "jvp": LINEAR}
TRANSPOSE: Cells = {"vjp": lambda dy, y, x, perm: (dy.transpose(perm=_transposed(perm)),), "jvp": LINEAR}
SLICE: Cells = {"vjp": _slice_vjp, "jvp": LINEAR}
REVERSE: Cells = {"vjp": lambda dy, y, x, axes: (dy.reverse(axes=axes),), "jvp": LINEAR}
PAD: Cells = {"vjp": _pad_vjp, "jvp": lambda dxs, y, x, low, high, value: dxs[0].pad(low=low, high=high)}
CONCAT: Cells = {"vjp": _concat_vjp, "jvp": _concat_jvp}
GATHER: Cells = {"vjp": lambda dy, y, x, at, axis: (zeros(x).scatter_add(at, dy, axis=axis), None), "jvp": LINEAR}
TAKE_ALONG: Cells = {"vjp": lambda dy, y, x, at, axis: (put_along(dy, at, x.shape, axis), None), "jvp": LINEAR}


def _or_zeros(dx: V | None, x: V) -> V: return zeros(x) if dx is None else dx


SCATTER_ADD: Cells = {
    "vjp": lambda dy, y, x, at, update, axis: (dy, None, dy.gather(at, axis=axis)),
    "jvp": lambda dxs, y, x, at, update, axis: _or_zeros(dxs[0], x).scatter_add(at, _or_zeros(dxs[2], update), axis=axis)}


def _kv_append_vjp(dy: V, y: V, cache: V, new: V, pos: V, axis: int) -> tuple[V, V, None]:
    rows = F.iota(pos, (new.shape[axis],), 0) + F.to_type(pos, DType.I64)
    return dy.kv_append(zeros(new), pos, axis=axis), dy.gather(rows, axis=axis), None


KV_APPEND: Cells = {
    "vjp": _kv_append_vjp,
    "jvp": lambda dxs, y, cache, new, pos, axis: _or_zeros(dxs[0], cache).kv_append(_or_zeros(dxs[1], new), pos, axis=axis)}


def norm(*, centred: bool) -> Cells:
    """Over the last axis, with scale and bias as far as they are given."""
    return {"vjp": F.widened(partial(_norm_vjp, centred)), "jvp": F.widened(partial(_norm_jvp, centred))}


def _average(v: V) -> V: return v.mean(axes=(-1,), keep=True)


def _unit(centred: bool, x: V, eps: float) -> tuple[V, Callable[[V], V]]:
    """x before scale and bias, and its Jacobian, which is symmetric: it takes tangents forward and cotangents back."""
    d = x - _average(x) if centred else x
    r = (_average(d * d) + eps).rsqrt()
    unit = d * r

    def jacobian(v: V) -> V:
        bent = v - unit * _average(v * unit)
        return r * (bent - _average(v) if centred else bent)

    return unit, jacobian


def _norm_vjp(centred: bool, dy: V, y: V, x: V, *params: V, eps: float) -> tuple[V, ...]:
    unit, jacobian = _unit(centred, x, eps)
    scaled = dy * params[0] if params else dy
    return (jacobian(scaled), *(unspread(g, p.shape) for g, p in zip((dy * unit, dy), params, strict=False)))


def _norm_jvp(centred: bool, dxs: Sequence[V | None], y: V, x: V, *params: V, eps: float) -> V | None:
    unit, jacobian = _unit(centred, x, eps)
    dx, dscale, dbias = (*dxs, None, None)[:3]
    moved = None if dx is None else jacobian(dx) * params[0] if params else jacobian(dx)
    return total(y.shape, moved, None if dscale is None else dscale * unit, dbias)


LAYER_NORM, RMS_NORM = norm(centred=True), norm(centred=False)

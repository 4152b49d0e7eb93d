"""NumPy meanings of the ops that are more than one NumPy call.  Numerics are design section 9's, the same on every path."""
from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from math import prod
from typing import Any

import numpy as np

from rlxpy.errors import IndexOutOfRange, InputError, RlxError
from rlxpy.ir.constant import Constant
from rlxpy.ir.dtypes import Array, DType, dtype

Ref = Callable[..., Any]


def is_narrow(x: Any) -> bool:
    """Whether sums of x are kept in f32: a float narrower than 32 bits."""
    return bool(x.dtype.itemsize < 4 and (x.dtype.kind == "f" or (x.dtype.kind == "V" and dtype(x.dtype).is_float)))


def lifted(f: Ref) -> Ref:
    """f computed in f32 for narrower floats and rounded once."""
    @wraps(f, ())
    def ref(*xs: Array, **attrs: Any) -> Any:
        if is_narrow(xs[0]):
            return np.asarray(f(*(x.astype(np.float32) if is_narrow(x) else x for x in xs), **attrs)).astype(xs[0].dtype)
        return f(*xs, **attrs)
    return ref


def keeping_type(f: Ref) -> Ref:
    """f with its result in the first input's type: NumPy widens small integers, we wrap."""
    def ref(*xs: Array, **attrs: Any) -> Any:
        return np.asarray(f(*xs, **attrs)).astype(xs[0].dtype, copy=False)
    return lifted(ref)


# ---- elementwise ---------------------------------------------------------------------------------------------------
ERF_CHUNK = 1 << 13  # elements, so that the f64 temporaries stay in the first caches


def erf(x: Array) -> Array:
    """Error function by W. J. Cody's rational forms in f64: below 1e-15 before the result is rounded to x's type."""
    flat = np.ravel(x)
    out = np.empty_like(flat)
    far = x.dtype == np.float64  # in f32 erf is 1 from 4 on: erfc(4) is less than half a unit in the last place
    for lo in range(0, flat.size, ERF_CHUNK):
        out[lo:lo + ERF_CHUNK] = _erf_chunk(flat[lo:lo + ERF_CHUNK].astype(np.float64), far)
    return out.reshape(x.shape)


def _erf_chunk(v: Array, far: bool) -> Array:
    a = np.abs(v)
    s = np.minimum(a, 0.46875) ** 2
    m = np.clip(a, 0.46875, 4.0)
    tail = 1.0 - np.exp(-m * m) * _ratio(m, _ERFC_P, _ERFC_Q)
    if far:
        t = np.clip(a, 4.0, 30.0)
        z = 1.0 / (t * t)
        tail = np.where(a > 4.0, 1.0 - np.exp(-t * t) / t * (_SQRT_1_PI - z * _ratio(z, _ERFC_R, _ERFC_S)), tail)
    else:
        tail = np.where(a >= 4.0, 1.0, tail)
    return np.where(a <= 0.46875, v * _ratio(s, _ERF_P, _ERF_Q), np.copysign(tail, v))


def _ratio(x: Array, p: tuple[float, ...], q: tuple[float, ...]) -> Array:
    num, den = np.full_like(x, p[0]), np.full_like(x, q[0])
    for a in p[1:]:
        num = num * x + a
    for b in q[1:]:
        den = den * x + b
    return np.asarray(num / den)


# Coefficients, highest power first: Cody, "Rational Chebyshev approximations for the error function", Math. Comp. 23 (1969).
_SQRT_1_PI = 0.56418958354775628695
_ERF_P = (1.85777706184603153e-1, 3.16112374387056560e0, 1.13864154151050156e2, 3.77485237685302021e2, 3.20937758913846947e3)
_ERF_Q = (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3)
_ERFC_P = (2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594e0, 6.61191906371416295e1, 2.98635138197400131e2,
           8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3, 1.23033935479799725e3)
_ERFC_Q = (1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3, 3.29079923573345963e3,
           4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3)
_ERFC_R = (1.63153871373020978e-2, 3.05326634961232344e-1, 3.60344899949804439e-1, 1.25781726111229246e-1, 1.60837851487422766e-2, 6.58749161529837803e-4)
_ERFC_S = (1.0, 2.56852019228982242e0, 1.87295284992346047e0, 5.27905102951428412e-1, 6.05183413124413191e-2, 2.33520497626869185e-3)


def sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1 / (1 + e), e / (1 + e)))


def silu(x: Array) -> Array: return np.asarray(np.where(x == -np.inf, x.dtype.type(-0.0), x * sigmoid(x)))
def softplus(x: Array) -> Array: return np.asarray(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))))
def gelu(x: Array) -> Array: return np.asarray(np.where(np.isneginf(x), x.dtype.type(-0.0), x * (0.5 * (1 + erf(x * x.dtype.type(np.sqrt(0.5)))))).astype(x.dtype))


def gelu_tanh(x: Array) -> Array:
    """The tanh form of Hendrycks and Gimpel 2016, arXiv:1606.08415; exact at both ends of the range."""
    c = np.clip(x, -20, 20)  # beyond, tanh is +-1 in every type, and the cube would overflow
    inner = x.dtype.type(0.7978845608028654) * (c + x.dtype.type(0.044715) * c * c * c)
    return np.asarray(np.where(np.isneginf(x), x.dtype.type(-0.0), x * (x.dtype.type(0.5) * (1 + np.tanh(inner)))))


def rsqrt(x: Array) -> Array: return np.asarray(1 / np.sqrt(x))
def recip(x: Array) -> Array: return np.asarray(1 / x)


def cast(x: Array, to: DType) -> Array:
    """Float to int truncates, saturates, and gives 0 for NaN; int to int wraps; complex to real drops the imaginary part; anything to bool asks "not zero"."""
    if to is DType.BOOL:
        return np.asarray(x != 0)
    if x.dtype.kind == "c" and not to.is_complex:
        x = x.real
    source = dtype(x.dtype)
    if not (source.is_float and to.is_integer):
        return x.astype(to.numpy)
    lo, hi = to.range
    wide = x.astype(np.float64) if source is not DType.F64 else x
    whole = np.trunc(wide)
    over, under, nan = whole >= float(hi) + (1.0 if float(hi) == hi else 0.0), whole < lo, np.isnan(wide)
    out = np.where(over | under | nan, 0.0, whole).astype(np.uint64 if lo == 0 else np.int64)
    out[over], out[under] = hi, lo
    return np.asarray(out.astype(to.numpy))


# ---- reductions, order ---------------------------------------------------------------------------------------------
def reduce_with(ufunc: Callable[..., Any]) -> Ref:
    return keeping_type(lambda x, axes, keep: ufunc(x, axis=axes, keepdims=keep))


def extreme(f: Callable[..., Any]) -> Callable[..., Any]:
    """f over axes that hold something.  Raises InputError where a symbolic size turned out to be 0."""
    def checked(x: Array, axis: Any, keepdims: bool) -> Any:
        if 0 in (x.shape[a] for a in (axis if isinstance(axis, tuple) else (axis,))):
            raise InputError("no greatest or least of nothing", why=f"axis {axis} of {list(x.shape)} has size 0", fix="guard the empty case before reducing")
        return f(x, axis=axis, keepdims=keepdims)
    return checked


def mean(x: Array, axis: tuple[int, ...], keepdims: bool) -> Any:
    """NaN where there is nothing to average, without NumPy's warning."""
    return x.sum(axis, keepdims=keepdims) / x.dtype.type(prod(x.shape[a] for a in axis))


def arg_with(ufunc: Callable[..., Any]) -> Ref:
    """First index of the extreme; a NaN is extreme."""
    def ref(x: Array, axis: int, keep: bool) -> Any:
        return np.asarray(extreme(ufunc)(x.astype(np.float32) if is_narrow(x) else x, axis=axis, keepdims=keep)).astype(np.int64)
    return ref


def softmax(x: Array, axis: int) -> Array:
    if x.shape[axis] == 0:
        return x.copy()
    e = np.exp(x - x.max(axis, keepdims=True))
    return np.asarray(e / e.sum(axis, keepdims=True))


def log_softmax(x: Array, axis: int) -> Array:
    if x.shape[axis] == 0:
        return x.copy()
    shifted = x - x.max(axis, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis, keepdims=True)))


def sort(x: Array, axis: int, descending: bool) -> tuple[Array, Array]:
    """Values and indices; stable, ties to the lower index, NaN last in both directions."""
    at = argsort(x, axis, descending)
    return np.take_along_axis(x, at, axis), at.astype(np.int64)


def argsort(x: Array, axis: int, descending: bool) -> Array:
    key: Array = x.astype(np.float32) if is_narrow(x) else x
    if descending:
        key = -key if key.dtype.kind == "f" else ~key  # both reverse the order without overflow; NaN stays NaN
    return np.argsort(key, axis=axis, kind="stable")


def top_k(x: Array, k: int, axis: int) -> tuple[Array, Array]:
    values, at = sort(x, axis, True)
    cut = [slice(None)] * x.ndim
    cut[axis] = slice(0, k)
    return values[tuple(cut)], at[tuple(cut)]


def cumsum(x: Array, axis: int) -> Array:
    return np.asarray(np.cumsum(x, axis=axis, dtype=x.dtype))


# ---- movement ------------------------------------------------------------------------------------------------------
def iota(shape: tuple[int, ...], axis: int, to: DType) -> Array:
    ramp = np.arange(shape[axis]).reshape([-1 if i == axis % len(shape) else 1 for i in range(len(shape))])
    return np.broadcast_to(ramp, shape).astype(to.numpy)


def slice_(x: Array, start: tuple[int, ...], stop: tuple[int, ...], step: tuple[int, ...]) -> Array:
    return x[tuple(map(slice, start, stop, step))]


def pad(x: Array, low: tuple[int, ...], high: tuple[int, ...], value: float) -> Array:
    return np.pad(x, tuple(zip(low, high, strict=True)), constant_values=np.asarray(value).astype(x.dtype)) if x.ndim else x


def checked_index(at: Array, size: int, op: str, axis: int) -> Array:
    """Indices with negatives wrapped.  Raises IndexOutOfRange naming op, axis, index and bound."""
    i = at.astype(np.int64, copy=False)
    bad = (i < (0 if at.dtype.kind == "u" else -size)) | (i >= size)  # a u64 beyond i64 is negative here
    if bad.any():
        raise index_error(op, axis, int(at[bad].flat[0]), size)
    return np.where(i < 0, i + size, i)


def index_error(op: str, axis: int, index: int, size: int) -> IndexOutOfRange:
    """What every backend says of an index outside its axis."""
    return IndexOutOfRange(f"{op}: index {index} on axis {axis}", why=f"the axis has {size} elements, so indices are {-size}..{size - 1}",
                           fix="check the indices, as in clamp")


def append_error(axis: int, pos: int, rows: int, room: int) -> IndexOutOfRange:
    """What every backend says of rows that do not fit a cache."""
    return IndexOutOfRange(f"kv_append: rows {pos}..{pos + rows} on axis {axis}", why=f"the cache holds {room}",
                           fix="ask for a larger context when compiling, or start a new state")


def gather(x: Array, at: Array, axis: int) -> Array:
    return np.take(x, checked_index(at, x.shape[axis], "gather", axis), axis=axis)


def take_along(x: Array, at: Array, axis: int) -> Array:
    return np.take_along_axis(x, checked_index(at, x.shape[axis], "take_along", axis), axis=axis)


def scatter_add(x: Array, at: Array, update: Array, axis: int) -> Array:
    """Sums updates that share an index; narrow floats are summed in f32 and rounded once."""
    i = checked_index(at, x.shape[axis], "scatter_add", axis)
    out = np.moveaxis(x.astype(np.float32) if is_narrow(x) else x.copy(), axis, 0)
    axis %= x.ndim
    flat = np.moveaxis(update.reshape(*x.shape[:axis], i.size, *x.shape[axis + 1:]), axis, 0)
    np.add.at(out, i.reshape(-1), flat.astype(out.dtype))
    return np.moveaxis(out, 0, axis).astype(x.dtype)


def kv_slot(cache: Array, new: Array, pos: Array, axis: int) -> tuple[slice, ...]:
    """Where `new` lands.  Raises IndexOutOfRange when the cache is full."""
    at, room, rows = int(pos), cache.shape[axis], new.shape[axis]
    if at < 0 or at + rows > room:
        raise append_error(axis, at, rows, room)
    return tuple(slice(at, at + rows) if i == axis % cache.ndim else slice(None) for i in range(cache.ndim))


def kv_append(cache: Array, new: Array, pos: Array, axis: int) -> Array:
    out = cache.copy()
    out[kv_slot(cache, new, pos, axis)] = new
    return out


# ---- model blocks --------------------------------------------------------------------------------------------------
def layer_norm(x: Array, *params: Array, eps: float) -> Array:
    """The mean is freed of its sum's rounding by the mean of what it leaves, so a constant row becomes zeros; of what is left then, the
    variance is a mean of squares, so not below zero.  Ba et al. 2016, arXiv:1607.06450."""
    rough = _mean(x)
    d = x - (rough + ((x - rough) / x.dtype.type(x.shape[-1])).sum(-1, keepdims=True))
    y = d / np.sqrt(_mean(d * d) + x.dtype.type(eps))
    return np.asarray(_affine(y, params))


def rms_norm(x: Array, *params: Array, eps: float) -> Array:
    """x / rms(x).  Zhang and Sennrich 2019, arXiv:1910.07467."""
    y = x / np.sqrt(_mean(x * x) + x.dtype.type(eps))
    return np.asarray(_affine(y, params))


def _mean(x: Array) -> Array:
    """Over the last axis; of nothing, for rows that have nothing to divide by it."""
    return x.mean(-1, keepdims=True) if x.shape[-1] else np.zeros((*x.shape[:-1], 1), x.dtype)


def _affine(y: Array, params: tuple[Array, ...]) -> Array:
    if params:
        y = y * params[0]
    return y + params[1] if len(params) > 1 else y


def dequantize(*planes: Array, encoding: str, shape: tuple[int, ...]) -> Array:
    from rlxpy.ir.encoding import encoding as look_up

    return np.asarray(look_up(encoding).decode(planes, shape[-1])).reshape(shape)


def quantize(x: Array, encoding: str) -> Array | tuple[Array, ...]:
    from rlxpy.ir.quantize import quantize as rounded

    planes = rounded(x, encoding, finite=False)
    return planes if len(planes) > 1 else planes[0]


PANEL_NUMEL = 1 << 20  # elements decoded at a time: 4 MiB of f32, so the packed weights never have a dense copy


def qmatmul(x: Array, *planes: Array, encoding: str, shape: tuple[int, ...]) -> Array:
    """x @ dequantize(w)^T by panels of rows."""
    rows, columns = shape
    flat = (x.astype(np.float32) if is_narrow(x) else x).reshape(-1, columns)
    out = np.empty((flat.shape[0], rows), flat.dtype)
    panel = max(1, PANEL_NUMEL // max(columns, 1))
    for lo in range(0, rows, panel):
        hi = min(lo + panel, rows)
        part = tuple(p[lo:hi] if p.shape[:1] == (rows,) else p for p in planes)
        np.matmul(flat, dequantize(*part, encoding=encoding, shape=(hi - lo, columns)).T, out=out[:, lo:hi])
    return out.reshape(*x.shape[:-1], rows).astype(x.dtype, copy=False)


# ---- graphs --------------------------------------------------------------------------------------------------------
def literal(value: Constant) -> Array: return value.array


def run_body(*xs: Array, kind: str, body: Any) -> tuple[Array, ...]:
    """The fused node's chain, op by op."""
    return evaluate(body, dict(zip((n.id for n in body.inputs), xs, strict=True)))


def evaluate(graph: Any, given: dict[int, Array]) -> tuple[Array, ...]:
    """Run `ref` node by node.  `given` holds leaves by node id; sizes must already be concrete."""
    got: dict[tuple[int, int], Array] = {(i, 0): a for i, a in given.items()}
    for n in graph.nodes:
        if (n.id, 0) in got:
            continue
        if n.row.ref is None or not callable(n.row.ref):
            raise InputError(f"{n.op.text} has no value", where=n.where, why="it is a leaf that nobody fed")
        try:
            result = n.row.ref(*(got[r] for r in n.inputs), **n.attrs.params())
        except RlxError as e:
            raise e.at(n.where) from None
        for k, a in enumerate(result if isinstance(result, tuple) else (result,)):
            got[(n.id, k)] = a
    return tuple(got[r] for r in graph.outputs)

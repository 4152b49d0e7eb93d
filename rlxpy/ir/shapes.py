"""Shape and dtype rules: pure functions of input types and attrs."""
from __future__ import annotations

from typing import Any

from rlxpy.errors import BuildError
from rlxpy.ir.dims import Dim, Shape, exact_quotient, lower, product, shape_text, upper
from rlxpy.ir.dtypes import DType
from rlxpy.ir.types import TensorType, broadcast, fmt, promote


def first(*ts: TensorType, **_: Any) -> Shape: return ts[0].shape
def spread(*ts: TensorType, **_: Any) -> Shape: return broadcast([t.shape for t in ts])
def given(*_: TensorType, shape: Shape, **__: Any) -> Shape: return shape
def scalar(*_: TensorType, **__: Any) -> Shape: return ()


def same(*ts: TensorType, **_: Any) -> DType: return promote([t.dtype for t in ts])
def of_first(*ts: TensorType, **_: Any) -> DType: return ts[0].dtype
def of_rest(*ts: TensorType, **_: Any) -> DType: return promote([t.dtype for t in ts[1:]])
def asked(*_: TensorType, to: DType, **__: Any) -> DType: return to
def boolean(*ts: TensorType, **_: Any) -> DType: return promote([t.dtype for t in ts]) and DType.BOOL
def single(*_: TensorType, **__: Any) -> DType: return DType.F32
def word(*_: TensorType, **__: Any) -> DType: return DType.U32
def index(*_: TensorType, **__: Any) -> DType: return DType.I64
def value_and_index(x: TensorType, **_: Any) -> list[DType]: return [x.dtype, DType.I64]


def axis_of(axis: int, rank: int) -> int:
    """A non-negative axis.  Raises BuildError outside -rank..rank-1."""
    if not isinstance(axis, int):
        raise BuildError(f"axis {axis!r} of a rank {rank} value", why=f"{type(axis).__name__} is not a whole number", fix="give an int")
    if not -rank <= axis < rank:
        raise BuildError(f"axis {axis} of a rank {rank} value", why=f"axes are {-rank}..{rank - 1}" if rank else "a scalar has no axes",
                         fix="count axes from 0, or from the end with -1")
    return axis % rank


def axes_of(axes: tuple[int, ...], rank: int) -> tuple[int, ...]:
    found = tuple(axis_of(a, rank) for a in axes)
    if len(set(found)) < len(found):
        raise BuildError(f"axes {axes} repeat", why=f"they are {found} of rank {rank}", fix="name each axis once")
    return found


def reduced(x: TensorType, *, axes: tuple[int, ...], keep: bool = False) -> Shape:
    drop = axes_of(axes, x.rank)
    return tuple(1 if i in drop else d for i, d in enumerate(x.shape) if keep or i not in drop)


def reduced_nonempty(x: TensorType, *, axes: tuple[int, ...], keep: bool = False) -> Shape:
    for a in axes_of(axes, x.rank):
        if upper(x.shape[a]) == 0:
            raise BuildError(f"no greatest or least of {x}", why=f"axis {a} has size 0", fix="guard the empty case before reducing")
    return reduced(x, axes=axes, keep=keep)


def reduced_one(x: TensorType, *, axis: int, keep: bool = False, **_: Any) -> Shape:
    return reduced_nonempty(x, axes=(axis,), keep=keep)


def along_axis(x: TensorType, *, axis: int, **_: Any) -> Shape:
    axis_of(axis, x.rank)
    return x.shape


def sorted_pair(x: TensorType, *, axis: int, descending: bool) -> list[Shape]:
    axis_of(axis, x.rank)
    return [x.shape, x.shape]


def top(x: TensorType, *, k: int, axis: int) -> list[Shape]:
    a = axis_of(axis, x.rank)
    if not 0 <= k <= lower(x.shape[a]):
        raise BuildError(f"top_k of {k}", why=f"axis {axis} has {x.shape[a]} elements", fix="take fewer, or narrow the range of the symbol")
    out = (*x.shape[:a], k, *x.shape[a + 1:])
    return [out, out]


def contracted(a: TensorType, b: TensorType) -> Shape:
    if a.rank < 2 or b.rank < 2:
        raise BuildError(f"matmul of {fmt((a.shape, b.shape))}", why="both sides need rank 2 or more",
                         fix="add an axis with x.unsqueeze(...)")
    if a.shape[-1] != b.shape[-2]:
        raise BuildError(f"matmul of {fmt((a.shape, b.shape))}", why=f"{a.shape[-1]} columns meet {b.shape[-2]} rows",
                         fix="transpose one side")
    return (*broadcast([a.shape[:-2], b.shape[:-2]]), a.shape[-2], b.shape[-1])


def reshaped(x: TensorType, *, shape: Shape) -> Shape:
    if product(x.shape) != product(shape):
        raise BuildError(f"reshape of {shape_text(x.shape)} to {shape_text(shape)}", why=f"{x.numel} elements become {product(shape)}",
                         fix="keep the number of elements; each size is written out, it may be an expression such as N * 4")
    return shape


def infer_one(x: Shape, shape: tuple[Dim, ...]) -> Shape:
    """`shape` with its single -1 replaced by what is left of x's elements."""
    if shape.count(-1) == 0:
        return shape
    rest = product(d for d in shape if d != -1)
    size = exact_quotient(product(x), rest) if shape.count(-1) == 1 else None
    if size is None:
        raise BuildError(f"reshape of {shape_text(x)} to {shape_text(shape)}", why=f"-1 cannot be told from {product(x)} / {rest}",
                         fix="write the size out")
    return tuple(size if d == -1 else d for d in shape)


def permuted(x: TensorType, *, perm: tuple[int, ...]) -> Shape:
    if sorted(perm) != list(range(x.rank)):
        raise BuildError(f"transpose of {x} by {perm}", why=f"every axis 0..{x.rank - 1} must appear once",
                         fix="give a permutation of the axes, as in perm=(1, 0)")
    return tuple(x.shape[p] for p in perm)


def sliced(x: TensorType, *, start: Shape, stop: Shape, step: tuple[int, ...]) -> Shape:
    if not len(start) == len(stop) == len(step) == x.rank:
        raise BuildError(f"slice of {x}", why=f"{len(start)} starts, {len(stop)} stops, {len(step)} steps for {x.rank} axes",
                         fix="give one for each axis, or index as in x[1:3]")
    out: list[Dim] = []
    for axis, (lo, hi, by, size) in enumerate(zip(start, stop, step, x.shape, strict=True)):
        fits = (hi == size or upper(hi) <= lower(size) or upper(hi - size) <= 0) and lower(lo) >= 0 and by > 0
        if not fits or lower(hi - lo) < 0:
            raise BuildError(f"slice {lo}:{hi}:{by} of axis {axis} of {x}", why=f"0 <= start <= stop <= {size} and step > 0 must hold for every size",
                             fix="tighten the ranges of the symbols, or flip with x.reverse(axes=...)")
        out.append((hi - lo + (by - 1)) // by)
    return tuple(out)


def flipped(x: TensorType, *, axes: tuple[int, ...]) -> Shape:
    axes_of(axes, x.rank)
    return x.shape


def padded(x: TensorType, *, low: Shape, high: Shape, value: float) -> Shape:
    if not len(low) == len(high) == x.rank or any(lower(p) < 0 for p in (*low, *high)):
        raise BuildError(f"pad of {x} by {low}, {high}", why=f"{x.rank} non-negative sizes a side are needed", fix="crop with a slice")
    return tuple(a + d + b for a, d, b in zip(low, x.shape, high, strict=True))


def expanded(x: TensorType, *, shape: Shape) -> Shape:
    if broadcast([x.shape, shape]) != shape:
        raise BuildError(f"expand of {shape_text(x.shape)} to {shape_text(shape)}", why="only axes of size 1 stretch",
                         fix="make an axis of size 1 first, with reshape")
    return shape


def joined(*ts: TensorType, axis: int) -> Shape:
    a = axis_of(axis, ts[0].rank)
    for t in ts[1:]:
        if t.rank != ts[0].rank or any(x != y for i, (x, y) in enumerate(zip(t.shape, ts[0].shape, strict=True)) if i != a):
            raise BuildError(f"concat of {fmt([t.shape for t in ts])}", why=f"all axes but {axis} must be equal",
                             fix="reshape, pad or transpose the odd one")
    total: Dim = 0
    for t in ts:
        total = total + t.shape[a]
    return (*ts[0].shape[:a], total, *ts[0].shape[a + 1:])


def gathered(x: TensorType, at: TensorType, *, axis: int) -> Shape:
    a = axis_of(axis, x.rank)
    return (*x.shape[:a], *at.shape, *x.shape[a + 1:])


def taken(x: TensorType, at: TensorType, *, axis: int) -> Shape:
    a = axis_of(axis, x.rank)
    if at.rank != x.rank or any(i != a and d != e for i, (d, e) in enumerate(zip(at.shape, x.shape, strict=True))):
        raise BuildError(f"take_along of {fmt((x.shape, at.shape))}", why=f"the shapes may differ on axis {axis} alone",
                         fix="gather takes indices of any shape")
    return at.shape


def scattered(x: TensorType, at: TensorType, update: TensorType, *, axis: int) -> Shape:
    if update.shape != gathered(x, at, axis=axis):
        raise BuildError(f"scatter_add of {update} into {x}", why=f"updates must be {shape_text(gathered(x, at, axis=axis))}",
                         fix="reshape the updates")
    return x.shape


def appended(cache: TensorType, new: TensorType, pos: TensorType, *, axis: int) -> Shape:
    a = axis_of(axis, cache.rank)
    if pos.shape != () or new.rank != cache.rank or any(i != a and d != e for i, (d, e) in enumerate(zip(new.shape, cache.shape, strict=True))):
        raise BuildError(f"kv_append of {new} at {pos} into {cache}",
                         why=f"shapes may differ on axis {axis} alone and the position is a scalar",
                         fix="bring the new rows into the layout of the cache")
    if lower(new.shape[a]) > upper(cache.shape[a]):
        raise BuildError(f"kv_append of {new} into {cache}", why=f"{new.shape[a]} rows never fit {cache.shape[a]}",
                         fix="make the cache longer, or append fewer rows")
    return cache.shape


def normed(x: TensorType, *params: TensorType, eps: float) -> Shape:
    for p in params:
        if x.rank < 1 or p.shape != x.shape[-1:]:
            raise BuildError(f"normalisation of {x} with {p}", why=f"scale and bias must be {shape_text(x.shape[-1:])}",
                             fix="reshape it, or multiply and add after the norm")
    return x.shape


def attended(q: TensorType, k: TensorType, v: TensorType, *mask: TensorType, **attrs: Any) -> Shape:
    if not q.rank == k.rank == v.rank == 4:
        raise BuildError(f"attention of {fmt((q.shape, k.shape, v.shape))}", why="each is [batch, heads, length, channels]",
                         fix="split the heads off with reshape and transpose")
    if k.shape[:3] != v.shape[:3] or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise BuildError(f"attention of {fmt((q.shape, k.shape, v.shape))}",
                         why="batch, key heads, key length and query-key channels must agree",
                         fix="the shapes are q [b, h, t, d], k [b, g, s, d], v [b, g, s, e]")
    if exact_quotient(q.shape[1], k.shape[1]) is None:
        raise BuildError(f"attention with {q.shape[1]} query heads on {k.shape[1]} key heads",
                         why="query heads must be a multiple of key heads", fix="repeat the key heads")
    if attrs["mask"] not in ("none", "causal", "window") or (attrs["mask"] == "window") != (attrs["window"] > 0):
        raise BuildError(f"attention mask {attrs['mask']!r} with window {attrs['window']}",
                         fix="mask is none, causal, or window with window >= 1")
    spans = bool(mask) and mask[0].dtype.is_integer
    wanted = (*q.shape[:3], 2 if spans else k.shape[2])
    if mask and (broadcast([mask[0].shape, wanted]) != wanted or (spans and mask[0].shape[-1:] != (2,))):
        raise BuildError(f"attention mask {mask[0]}", why=f"it does not broadcast to {shape_text(wanted)}",
                         fix="spans are [.., 2]: the first key and the one past the last" if spans else "give it axes of size 1")
    return (*q.shape[:3], v.shape[3])


def attended_dtype(q: TensorType, k: TensorType, v: TensorType, *mask: TensorType, **_: Any) -> DType:
    if mask and mask[0].dtype.is_float:
        promote([q.dtype, mask[0].dtype])
    return promote([q.dtype, k.dtype, v.dtype])


def rotated(x: TensorType, position: TensorType, *freq: TensorType, theta: float, style: str, dims: int) -> Shape:
    if x.rank < 2:
        raise BuildError(f"rope of {x}", why="x is [..., length, channels]", fix="add a length axis")
    turning = dims or x.shape[-1]
    if style not in ("half", "interleaved"):
        raise BuildError(f"rope style {style!r}", fix="half (channel i with i + dims/2) or interleaved (2i with 2i+1)")
    if not isinstance(turning, int) or turning % 2 or turning > upper(x.shape[-1]):
        raise BuildError(f"rope over {turning} of {x.shape[-1]} channels", why="an even number of existing channels is needed",
                         fix="set dims to how many turn")
    if broadcast([position.shape, x.shape[:-1]]) != x.shape[:-1]:
        raise BuildError(f"rope of {x} at positions {position}", why=f"positions must broadcast to {shape_text(x.shape[:-1])}",
                         fix="give one position for each row")
    if freq and freq[0].shape != (turning // 2,):
        raise BuildError(f"rope frequencies {freq[0]}", why=f"there must be {turning // 2}", fix="give one for each pair of channels")
    return x.shape


def unpacked(*planes: TensorType, encoding: str, shape: Shape) -> Shape:
    from rlxpy.ir.encoding import encoding as look_up

    if not shape or not isinstance(shape[-1], int):
        raise BuildError(f"packed shape {shape_text(shape)}", why="the last axis holds the blocks and must be a known size",
                         fix="write the size out")
    wanted = tuple(TensorType(s, d) for _, s, d in look_up(encoding).planes(shape))  # type: ignore[arg-type]  # leading dims pass through
    if tuple(planes) != wanted:
        raise BuildError(f"{encoding} weights of {shape_text(shape)}",
                         why=f"planes are {', '.join(map(str, planes))}, needed are {', '.join(map(str, wanted))}",
                         fix="pack the weights in this encoding and shape")
    return shape


def packed(x: TensorType, *, encoding: str) -> Any:
    """Of one plane, or of several."""
    planes = _planes(x, encoding)
    return [s for _, s, _ in planes] if len(planes) > 1 else planes[0][1]


def packed_dtype(x: TensorType, *, encoding: str) -> Any:
    planes = _planes(x, encoding)
    return [d for *_, d in planes] if len(planes) > 1 else planes[0][2]


def _planes(x: TensorType, encoding: str) -> Any:
    from rlxpy.ir.encoding import encoding as look_up
    from rlxpy.ir.quantize import refusal

    if reason := refusal(look_up(encoding)):
        raise BuildError(f"quantize to {encoding}", why=reason, fix="use an encoding that rounding to nearest can write, such as q8_0")
    if x.rank < 1 or not isinstance(x.shape[-1], int):
        raise BuildError(f"quantize of {x}", why="the last axis holds the blocks and must be a known size", fix="write the size out")
    return look_up(encoding).planes(x.shape)  # type: ignore[arg-type]  # leading dims pass through


def packed_product(x: TensorType, *planes: TensorType, encoding: str, shape: Shape) -> Shape:
    unpacked(*planes, encoding=encoding, shape=shape)
    if len(shape) != 2 or x.rank < 1 or x.shape[-1] != shape[1]:
        raise BuildError(f"qmatmul of {x} with weights {shape_text(shape)}",
                         why=f"{x.shape[-1] if x.rank else 'no'} columns meet {shape[-1]}",
                         fix="transpose x, or name the shape of the weights [rows, columns]")
    return (*x.shape[:-1], shape[0])


def filled(*_: TensorType, shape: Shape, axis: int, to: DType) -> Shape:
    axis_of(axis, len(shape))
    return shape


def drawn(key: TensorType, *, shape: Shape) -> Shape:
    if key.shape != (2,):
        raise BuildError(f"random_bits with key {key}", why=f"a key is u32[2], this one has shape {shape_text(key.shape)}", fix="index one key of a split, as in keys[0]")
    return shape


def body_shapes(*ts: TensorType, kind: str, body: Any) -> list[Shape]:
    wanted = tuple(n.types[0] for n in body.inputs)
    if tuple(ts) != wanted:
        raise BuildError(f"fused {kind} of {', '.join(map(str, ts))}", why=f"its chain takes {', '.join(map(str, wanted))}",
                         fix="give the inputs of the chain, in order")
    return [t.shape for t in body.output_types]


def body_dtypes(*_: TensorType, kind: str, body: Any) -> list[DType]:
    return [t.dtype for t in body.output_types]



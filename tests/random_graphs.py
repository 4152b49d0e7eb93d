"""Seeded random graphs over the whole op table, and inputs for them.

A value is `loose` when its last bits depend on the order of a sum or on which vector routine ran, so that equal graphs may differ there.
Loose values never reach an op that jumps (floor, comparisons, sorting), so every graph is compared: exact values bit for bit."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlxpy import Builder, DType, Graph, Op, Value, cond, scan, sym, while_loop
from rlxpy.errors import BuildError
from rlxpy.ir import functions as F
from rlxpy.ir.dims import Dim, Shape, lower, product, upper
from rlxpy.ir.dtypes import Array
from rlxpy.ir.encoding import encoding
from rlxpy.ir.graph import Node
from rlxpy.ir.op import ELEMENTWISE, LEAVES
from rlxpy.ir.quantize import quantize
from rlxpy.ir.types import bind

MAX_NUMEL = 2048
CACHE_ROWS, NEW_ROWS = 6, 2
B, S = sym("B", 1, 4), sym("S", 2, 8, 2)
DTYPES = (DType.F32, DType.F32, DType.F32, DType.F64, DType.F16, DType.BF16, DType.I32, DType.I64, DType.I8, DType.U8, DType.BOOL, DType.C64)
SHAPES: tuple[Shape, ...] = ((), (3,), (B, S), (2, 1, 3), (B, 2, S, 4), (S, B), (5, 3), (B, 0, 2), (1, S), (B + 1, 3), (2 * S,), (4, 4))


def _ops(names: str) -> frozenset[Op]:
    return frozenset(Op[n] for n in names.split())


ROUNDED = _ops("NEG ABS SIGN SQUARE RECIP SQRT RSQRT FLOOR CEIL TRUNC ROUND RELU CAST ADD SUB MUL DIV FLOOR_DIV MOD MAXIMUM MINIMUM WHERE CLAMP FMA "
               "MAX MIN IOTA SORT TOP_K RESHAPE EXPAND TRANSPOSE SLICE REVERSE PAD CONCAT GATHER TAKE_ALONG KV_APPEND DEQUANTIZE QUANTIZE CONST WINDOWS MAX_POOL RANDOM_BITS")  # one right answer
SMOOTH = _ops("NEG ABS RELU TANH SIGMOID ERF ADD SUB MUL MAXIMUM MINIMUM CLAMP SQUARE FMA SIN COS SUM MEAN MAX MIN CUMSUM MATMUL SOFTMAX RESHAPE EXPAND "
              "TRANSPOSE SLICE REVERSE PAD CONCAT GATHER TAKE_ALONG SCATTER_ADD KV_APPEND ATTENTION ROPE "
              "WINDOWS CONV CONV_TRANSPOSE MAX_POOL AVG_POOL RESIZE FFT IFFT RFFT IRFFT")  # a little more in is a little more out


class Unfit(Exception):
    """No value so far suits the op."""


@dataclass(frozen=True)
class Sample:
    seed: int
    graph: Graph
    loose_outputs: frozenset[str]

    def __str__(self) -> str:
        return f"seed {self.seed}"


@dataclass
class Growth:
    """A graph on its way: the values so far, and which of them are loose."""

    rng: np.random.Generator
    b: Builder = field(default_factory=lambda: Builder("random"))
    values: list[Value] = field(default_factory=list)
    loose: set[Any] = field(default_factory=set)

    def keep(self, made: Value | Sequence[Value]) -> None:
        for v in made if isinstance(made, (list, tuple)) else (made,):
            inexact = v.dtype.is_float or v.dtype.is_complex
            if inexact and self._has_many_right_answers(v.ref):
                self.loose.add(v.ref)
            if v.ref not in {w.ref for w in self.values}:
                self.values.append(v)

    def _has_many_right_answers(self, ref: Any) -> bool:
        """Also through values that a maker built on the way and did not keep."""
        if ref in {v.ref for v in self.values}:
            return ref in self.loose
        node = self.b.nodes[ref.node]
        t = node.types[ref.out].dtype
        return (t.is_float or t.is_complex) and (node.op not in ROUNDED | LEAVES or t.is_complex or any(map(self._has_many_right_answers, node.inputs)))

    def pick(self, op: Op, test: Callable[[Value], bool] = lambda v: True) -> Value:
        """A recent value more often than an old one.  Raises Unfit."""
        fit = [v for v in self.values if v.dtype in op.row.dtypes[0] and test(v) and (op in SMOOTH or v.ref not in self.loose)]
        if not fit:
            raise Unfit
        return fit[-1 - int(len(fit) * self.rng.random() ** 2)]

    def one_of(self, xs: Sequence[Any]) -> Any:
        return xs[int(self.rng.integers(len(xs)))]

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def axis(self, v: Value, least: int = 0) -> int:
        """An axis that always has `least` elements, counted from either end.  Raises Unfit."""
        fit = [i for i, d in enumerate(v.shape) if lower(d) >= least]
        if not fit:
            raise Unfit
        return int(self.one_of(fit)) - (len(v.shape) if self.chance(0.5) else 0)


def random_graph(seed: int, steps: int = 40) -> Sample:
    rng = np.random.default_rng(seed)
    g = Growth(rng)
    for i in range(5):
        dtype = g.one_of(DTYPES)
        g.keep(g.b.input(f"x{i}", g.one_of(SHAPES), dtype))
    for i in range(3):
        g.keep(g.b.param(f"w{i}", g.one_of([s for s in SHAPES if all(isinstance(d, int) for d in s)]), g.one_of(DTYPES)))
    g.keep(g.b.state("memory", (2, 3)))
    makers = list(MAKERS.items())
    while len(g.values) < steps:
        op, make = g.one_of(makers)
        try:
            g.keep(make(g, op))
        except (Unfit, BuildError):  # BuildError: a size that cannot be proven
            continue
    outputs = [g.one_of(g.values) for _ in range(6)] + g.values[-4:]
    new = g.one_of([v for v in g.values if v.type == g.b.state("memory", (2, 3)).type])
    graph = g.b.finish(*outputs, updates=[(g.b.state("memory", (2, 3)), new)] if g.chance(0.7) else [])
    return Sample(seed, graph, frozenset(f"out{k}" for k, v in enumerate(outputs) if v.ref in g.loose))


# ---- how to make each op -------------------------------------------------------------------------------------------
Make = Callable[[Growth, Op], Any]


def _elementwise(g: Growth, op: Op) -> Any:
    if op is Op.CAST:
        x = g.pick(op, lambda v: v.ref not in g.loose and not v.dtype.is_complex)
        return x.cast(to=g.one_of([d for d in DTYPES if not d.is_complex]))
    arity = op.row.arity
    assert isinstance(arity, int)
    if op is Op.WHERE:
        condition = g.pick(op)
        a = g.pick(Op.ADD, lambda v: _meets(v.shape, condition.shape))
        return condition.where(*_operands(g, Op.ADD, a, 2, condition.shape))
    x = g.pick(op)
    return op(*_operands(g, op, x, arity, x.shape))


def _operands(g: Growth, op: Op, first: Value, count: int, shape: Shape) -> list[Any]:
    """`first` and others of its type that broadcast with it; now and then a number that rules look for."""
    xs: list[Any] = [first]
    while len(xs) < count:
        number = g.one_of((0.0, -0.0, 1.0, 2.0, float("inf"), float("nan"))) if first.dtype.is_float else g.one_of((0, 1, 2))
        xs.append(g.b.const(bool(number) if first.dtype is DType.BOOL else number, first.dtype) if g.chance(0.3)
                  else g.pick(op, lambda v: v.dtype is first.dtype and _meets(v.shape, shape)))
    if first.dtype is not DType.BOOL and g.chance(0.2):
        xs.reverse()
    return xs


def _meets(a: Shape, b: Shape) -> bool:
    pairs = list(zip(reversed(a), reversed(b), strict=False))
    if not all(x == y or 1 in (x, y) for x, y in pairs):
        return False
    return int(np.prod([max(upper(x), upper(y)) for x, y in pairs])) * max(upper(product(a[:len(a) - len(pairs)])), upper(product(b[:len(b) - len(pairs)]))) < MAX_NUMEL


def _iota(g: Growth, op: Op) -> Any:
    shape = g.one_of([s for s in SHAPES if s])
    return g.b.emit(op, shape=shape, axis=int(g.rng.integers(len(shape))), to=g.one_of((DType.I64, DType.I32, DType.F32)))


def _reduce(g: Growth, op: Op) -> Any:
    x = g.pick(op, lambda v: len(v.shape) > 0)
    least = 1 if op in (Op.MAX, Op.MIN) else 0
    axes = tuple(i for i, d in enumerate(x.shape) if g.chance(0.5) and lower(d) >= least)
    return x.apply(op.text, (x,), {"axes": axes, "keep": g.chance(0.5)})


def _along(least: int, **more: Callable[[Growth], Any]) -> Make:
    def make(g: Growth, op: Op) -> Any:
        x = g.pick(op)
        return x.apply(op.text, (x,), {"axis": g.axis(x, least), **{k: f(g) for k, f in more.items()}})
    return make


def _matmul(g: Growth, op: Op) -> Any:
    a = g.pick(op, lambda v: len(v.shape) >= 2)
    if g.chance(0.3):
        return a @ a.T
    b = g.pick(op, lambda v: v.dtype is a.dtype and len(v.shape) >= 2 and v.shape[-2] == a.shape[-1] and _meets(v.shape[:-2], a.shape[:-2]))
    return b.T @ a.T if g.chance(0.3) else a @ b


def _packed(g: Growth, op: Op) -> Any:
    name, shape = g.one_of(("q8_0", "q4_1", "q5_0")), (3, 256)
    planes = [g.b.param(f"packed.{name}.{k}", s, d) for k, (_, s, d) in enumerate(encoding(name).planes(shape))]
    if op is Op.DEQUANTIZE:
        return planes[0].apply(op.text, tuple(planes), {"encoding": name, "shape": shape})
    x = g.b.input("wide", (B, 256))
    return x.apply(op.text, (x, *planes), {"encoding": name, "shape": shape})


def _quantize(g: Growth, op: Op) -> Any:
    x = g.b.input("fine", (B, 64), g.one_of(("f32", "f16")))
    return x.apply(op.text, (x,), {"encoding": "q8_0"})


def _reshape(g: Growth, op: Op) -> Any:
    x = g.pick(op)
    if not x.shape:
        return x.reshape(shape=(1, 1))
    i = int(g.rng.integers(len(x.shape)))
    d = x.shape[i]
    if i + 1 < len(x.shape) and g.chance(0.5):
        return x.reshape(shape=(*x.shape[:i], d * x.shape[i + 1], *x.shape[i + 2:]))
    halves: tuple[Dim, ...] = (2, d // 2) if isinstance(d, int) and d % 2 == 0 and d else (1, d)
    return x.reshape(shape=(*x.shape[:i], *halves, *x.shape[i + 1:]))


def _expand(g: Growth, op: Op) -> Any:
    x = g.pick(op, lambda v: upper(v.type.numel) < MAX_NUMEL // 8)
    return x.expand(shape=(*((2,) if g.chance(0.4) else ()), *(g.one_of((3, B)) if d == 1 else d for d in x.shape)))


def _transpose(g: Growth, op: Op) -> Any:
    x = g.pick(op)
    return x.transpose(perm=tuple(map(int, g.rng.permutation(len(x.shape)))))


def _slice(g: Growth, op: Op) -> Any:
    x = g.pick(op)
    start = tuple(int(g.rng.integers(lower(d) + 1)) for d in x.shape)
    stop = tuple(d if g.chance(0.6) else int(g.rng.integers(lo, max(lo, lower(d)) + 1)) for lo, d in zip(start, x.shape, strict=True))
    return x.slice(start=start, stop=stop, step=tuple(g.one_of((1, 1, 2, 3)) for _ in start))


def _reverse(g: Growth, op: Op) -> Any:
    x = g.pick(op)
    return x.reverse(axes=tuple(i for i in range(len(x.shape)) if g.chance(0.5)))


def _pad(g: Growth, op: Op) -> Any:
    x = g.pick(op, lambda v: upper(v.type.numel) < MAX_NUMEL // 8)
    sides = [tuple(g.one_of((0, 0, 1, 2)) for _ in x.shape) for _ in range(2)]
    return x.pad(low=sides[0], high=sides[1], value=g.one_of((0.0, 1.0)))


def _concat(g: Growth, op: Op) -> Any:
    x = g.pick(op)
    axis = g.axis(x)
    at = axis % len(x.shape)
    other = g.pick(op, lambda v: v.dtype is x.dtype and len(v.shape) == len(x.shape) and all(i == at or d == e for i, (d, e) in enumerate(zip(v.shape, x.shape, strict=True))))
    return x.apply("concat", (x, other, *([x] if g.chance(0.3) else [])), {"axis": axis})


def _gather(g: Growth, op: Op) -> Any:
    x = g.pick(op)
    axis = g.axis(x, 1)
    return x.gather(_indices(g, lower(x.shape[axis]), (2, 2)), axis=axis)


def _indices(g: Growth, n: int, shape: Shape) -> Value:
    return g.b.const(g.rng.integers(-n, n, bind(shape, {})).astype(np.int32)) if g.chance(0.5) else g.b.input(f"at{len(shape)}", shape, DType.I64)


def _take_along(g: Growth, op: Op) -> Any:
    x = g.pick(op, lambda v: all(isinstance(d, int) for d in v.shape))
    axis = g.axis(x, 1)
    at = axis % len(x.shape)
    shape = tuple(int(d) for d in (*x.shape[:at], 3, *x.shape[at + 1:]))
    return x.take_along(g.b.const(g.rng.integers(-lower(x.shape[at]), lower(x.shape[at]), shape)), axis=axis)


def _scatter_add(g: Growth, op: Op) -> Any:
    x = g.pick(op)
    axis = g.axis(x, 1)
    update = x.gather(_indices(g, lower(x.shape[axis]), (3,)), axis=axis)
    return x.scatter_add(_indices(g, lower(x.shape[axis]), (3,)), update, axis=axis)


def _kv_append(g: Growth, op: Op) -> Any:
    """A cache in persistent state, or one made on the way."""
    x = g.pick(op, lambda v: len(v.shape) > 0)
    axis = g.axis(x, 1)
    at = axis % len(x.shape)
    new = x.slice(start=(0,) * len(x.shape), stop=tuple(1 if i == at else d for i, d in enumerate(x.shape)), step=(1,) * len(x.shape))
    if not all(isinstance(d, int) for d in x.shape) or g.chance(0.4):
        return x.kv_append(new, g.b.input("pos0", (), DType.I64), axis=axis)
    shape = tuple(CACHE_ROWS if i == at else d for i, d in enumerate(x.shape))
    cache = g.b.state(f"cache {x.dtype} {shape}", shape, x.dtype)
    grown = cache.kv_append(new, g.b.input("pos", (), DType.I32), axis=axis)
    if g.chance(0.7):
        g.b.update(cache, grown)
    return [grown, cache] if g.chance(0.5) else grown


def _norm(g: Growth, op: Op) -> Any:
    x = g.pick(op, lambda v: len(v.shape) > 0 and isinstance(v.shape[-1], int) and lower(v.shape[-1]) > 1)
    params = [g.b.param(f"{n} {x.dtype} {x.shape[-1]}", x.shape[-1:], x.dtype) for n in ("scale", "bias")]
    return x.apply(op.text, (x, *params[:int(g.rng.integers(2 if op is Op.RMS_NORM else 3))]), {"eps": 1e-5})


def _attention(g: Growth, op: Op) -> Any:
    q = g.b.input("q", (B, 4, S, 8))
    k, v = (g.b.input(n, (B, 2, S + 1, 8)) for n in ("k", "v"))
    mask = [g.b.input("seen", (S, S + 1), DType.BOOL)] if g.chance(0.5) else []
    kind = g.one_of(({}, {"mask": "causal"}, {"mask": "window", "window": 2}, {"softcap": 5.0}))
    return q.attention(k, v, *mask, scale=0.35, **kind)


def _rope(g: Growth, op: Op) -> Any:
    x = g.pick(op, lambda v: len(v.shape) > 1 and isinstance(v.shape[-1], int) and v.shape[-1] > 1 and v.shape[-1] % 2 == 0)
    return x.rope(g.b.emit("iota", shape=x.shape[-2:-1], axis=0, to=DType.I64), style=g.one_of(("half", "interleaved")), dims=g.one_of((0, 2)))


def _windows(g: Growth, op: Op) -> Any:
    x = g.pick(op, lambda v: upper(v.type.numel) < MAX_NUMEL // 8)
    return x.windows(axis=g.axis(x, 3), size=g.one_of((1, 2)), stride=g.one_of((1, 2)), dilation=g.one_of((1, 2)))


def _image(g: Growth, op: Op) -> tuple[Value, int]:
    """A value with one to three axes of space, made of another by axes of 1, and how many they are."""
    x = g.pick(op, lambda v: 1 <= len(v.shape) <= 4 and all(lower(d) >= 1 for d in v.shape))
    return F.reshape(x, (*(1,) * max(3 - len(x.shape), 0), *x.shape)), max(len(x.shape) - 2, 1)


def _slide(g: Growth, rank: int) -> dict[str, Any]:
    return {"strides": tuple(g.one_of((1, 1, 2)) for _ in range(rank)), "low": tuple(g.one_of((0, 1)) for _ in range(rank)), "high": (1,) * rank,
            "dilation": tuple(g.one_of((1, 2)) for _ in range(rank))}


def _conv(g: Growth, op: Op) -> Any:
    x, rank = _image(g, op)
    channels = x.shape[1] if isinstance(x.shape[1], int) else 0
    if not channels:
        raise Unfit
    size = (2,) * rank
    if op is Op.CONV:
        depthwise = g.chance(0.4)
        w = g.b.param(f"kernel {x.dtype} {channels} {rank} {depthwise}", (2 * channels, 1 if depthwise else channels, *size), x.dtype)
        return x.conv(w, **_slide(g, rank), groups=channels if depthwise else 1)
    w = g.b.param(f"back {x.dtype} {channels} {rank}", (channels, 3, *size), x.dtype)
    return x.conv_transpose(w, strides=(2,) * rank, low=(0,) * rank, high=(0,) * rank, dilation=(1,) * rank, shape=tuple(d * 2 for d in x.shape[2:]))


def _pool(g: Growth, op: Op) -> Any:
    x, rank = _image(g, op)
    return x.apply(op.text, (x,), {"size": (2,) * rank, **_slide(g, rank), **({"count_pad": g.chance(0.5)} if op is Op.AVG_POOL else {})})


def _resize(g: Growth, op: Op) -> Any:
    x, rank = _image(g, op)
    return x.resize(shape=tuple(g.one_of((1, 3, B)) for _ in range(rank)), method=g.one_of(("nearest", "linear")), points=g.one_of(("half_pixel", "corners", "asymmetric")))


def _irfft(g: Growth, op: Op) -> Any:
    x = g.pick(op, lambda v: len(v.shape) > 0 and isinstance(v.shape[-1], int) and v.shape[-1] > 1)
    return x.irfft(n=2 * x.shape[-1] - g.one_of((1, 2)))


def _random_bits(g: Growth, op: Op) -> Any:
    return g.b.const(g.rng.integers(0, 1 << 32, 2), DType.U32).random_bits(shape=g.one_of(SHAPES))


def _scan(g: Growth, op: Op) -> Any:
    """A running mixture of slices, and of a value from around the loop."""
    x = g.pick(op, lambda v: v.dtype.is_float and len(v.shape) > 0 and upper(v.type.numel) < MAX_NUMEL // 4)
    start = g.b.const(1.0, x.dtype).expand(shape=x.shape[1:]) if len(x.shape) > 1 else g.b.const(1.0, x.dtype)
    other = g.pick(op, lambda v: v.dtype is x.dtype and _meets(v.shape, x.shape[1:]) and len(v.shape) < len(x.shape) and all(d == 1 for d in v.shape))
    carry, ys = scan(lambda c, part: (c * 0.5 + part, (c.tanh(), part * other)), start, x, reverse=g.chance(0.5))
    return [carry, *ys]


def _while(g: Growth, op: Op) -> Any:
    x, count = g.pick(op, lambda v: v.dtype.is_float), int(g.rng.integers(4))
    return while_loop(lambda s: s[0] < count, lambda s: (s[0] + 1, s[1] * 0.5), (g.b.const(0), x))[1]


def _cond(g: Growth, op: Op) -> Any:
    p, x = g.pick(op, lambda v: v.dtype is DType.BOOL), g.pick(Op.ABS)
    axes = tuple(range(len(p.shape)))
    return cond(p.any(axes=axes) if axes else p, lambda v: (-v if v.dtype.kind != "u" else v, v.abs()), lambda v: (v + x, x), x)


MAKERS: dict[Op, Make] = {
    **dict.fromkeys(sorted(ELEMENTWISE, key=lambda op: op.text), _elementwise),
    Op.IOTA: _iota, Op.SIZE: lambda g, op: g.b.emit(op, dim=g.one_of((B, S + 1, B * S))),
    **dict.fromkeys((Op.SUM, Op.PROD, Op.MEAN, Op.MAX, Op.MIN, Op.ANY, Op.ALL), _reduce),
    **dict.fromkeys((Op.ARGMAX, Op.ARGMIN), _along(1, keep=lambda g: g.chance(0.5))),
    **dict.fromkeys((Op.SOFTMAX, Op.LOG_SOFTMAX, Op.CUMSUM), _along(0)),
    Op.SORT: _along(0, descending=lambda g: g.chance(0.5)), Op.TOP_K: _along(1, k=lambda g: 1),
    Op.MATMUL: _matmul, Op.QMATMUL: _packed, Op.DEQUANTIZE: _packed, Op.QUANTIZE: _quantize,
    Op.RESHAPE: _reshape, Op.EXPAND: _expand, Op.TRANSPOSE: _transpose, Op.SLICE: _slice, Op.REVERSE: _reverse, Op.PAD: _pad, Op.CONCAT: _concat,
    Op.GATHER: _gather, Op.TAKE_ALONG: _take_along, Op.SCATTER_ADD: _scatter_add, Op.KV_APPEND: _kv_append,
    **dict.fromkeys((Op.FFT, Op.IFFT, Op.RFFT), _along(1)), Op.IRFFT: _irfft,
    Op.RANDOM_BITS: _random_bits, Op.SCAN: _scan, Op.WHILE: _while, Op.COND: _cond,
    Op.LAYER_NORM: _norm, Op.RMS_NORM: _norm, Op.ATTENTION: _attention, Op.ROPE: _rope,
    Op.WINDOWS: _windows, Op.CONV: _conv, Op.CONV_TRANSPOSE: _conv, Op.MAX_POOL: _pool, Op.AVG_POOL: _pool, Op.RESIZE: _resize,
}


# ---- inputs --------------------------------------------------------------------------------------------------------
SPECIAL = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.5)


def random_sizes(graph: Graph, rng: np.random.Generator) -> dict[str, int]:
    return {n: int(rng.integers(s.lo // s.step + (s.lo % s.step > 0), s.hi // s.step + 1)) * s.step for n, s in graph.symbols.items()}


def random_arrays(leaves: Iterable[Node], sizes: dict[str, int], rng: np.random.Generator, *, special: bool = False) -> dict[str, Array]:
    """By name.  Positions stay in range; `special` mixes in NaN, infinities and signed zeros."""
    packed: dict[str, tuple[Array, ...]] = {}
    arrays: dict[str, Array] = {}
    for n in leaves:
        shape, dtype = bind(n.type.shape, sizes), n.type.dtype
        if n.name.startswith("packed."):
            _, name, k = n.name.split(".")
            packed.setdefault(name, quantize(np.linspace(-2, 3, 3 * 256, dtype=np.float32).reshape(3, 256) ** 3, name))
            arrays[n.name] = packed[name][int(k)]
        elif n.name == "pos":
            arrays[n.name] = np.asarray(rng.integers(CACHE_ROWS), dtype.numpy)
        elif n.name == "pos0":
            arrays[n.name] = np.asarray(0, dtype.numpy)
        elif n.name.startswith("at"):
            arrays[n.name] = rng.integers(-1, 1, shape).astype(dtype.numpy)
        else:
            arrays[n.name] = random_array(shape, dtype, rng, special=special)
    return arrays


def random_array(shape: tuple[int, ...], dtype: DType, rng: np.random.Generator, *, special: bool = False) -> Array:
    if dtype is DType.BOOL:
        return rng.random(shape) < 0.5
    if dtype.is_integer:
        return rng.integers(max(dtype.range[0], -5), min(dtype.range[1], 6), shape).astype(dtype.numpy)
    x = np.round(rng.standard_normal(shape) * 8) / 8  # few bits, so that narrow types hold it
    x = np.where(rng.random(shape) < 0.3, rng.choice(SPECIAL, shape), x) if special else x
    with np.errstate(invalid="ignore"):
        return np.asarray(x + (1j * x[::-1] if dtype.is_complex and x.ndim else 0)).astype(dtype.numpy)


# ---- comparing -----------------------------------------------------------------------------------------------------
TOLERANCE = {DType.F64: 1e-9, DType.C128: 1e-9, DType.F32: 2e-4, DType.C64: 2e-4, DType.F16: 2e-2, DType.BF16: 1e-1}  # of the largest value


def assert_same(got: Array, want: Array, dtype: DType, what: object, *, loose: bool) -> None:
    """Bit for bit, NaN being one value; loose arrays within a share of their largest element, NaN and infinities in the same places."""
    assert (got.shape, got.dtype) == (want.shape, want.dtype), what
    if not (dtype.is_float or dtype.is_complex):
        np.testing.assert_array_equal(got, want, str(what))
        return
    wide = np.complex128 if dtype.is_complex else np.float64
    a, b = got.astype(wide), want.astype(wide)
    if loose:
        finite = np.abs(b[np.isfinite(b)])
        np.testing.assert_allclose(a, b, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * float(finite.max(initial=1e-3)), err_msg=str(what))
        return
    np.testing.assert_array_equal(np.isnan(a), np.isnan(b), str(what))
    same = np.isnan(a) | ((a == b) & (np.signbit(a.real) == np.signbit(b.real)))
    assert same.all(), f"{what}: {got[~same]} != {want[~same]}"

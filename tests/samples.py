"""Sample calls of every op: the one place.  An elementwise row needs no entry here; any other names its shapes and parameters once."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from rlxpy import Builder, DType, Graph, Op, Value
from rlxpy.ir.dtypes import Array
from rlxpy.ir.encoding import encoding
from rlxpy.ir.op import ELEMENTWISE, LEAVES
from rlxpy.ir.quantize import quantize
from rlxpy.ir.row import BOOL, INDEX

OPS = tuple(op for op in Op if op not in LEAVES and op is not Op.CUSTOM)  # leaves compute nothing; extensions bring rows of their own


@dataclass(frozen=True)
class Case:
    """One call.  `ints` bounds integer inputs (upper end excluded); `types` fixes the dtype of single inputs; `packed` (encoding, shape)
    adds the planes of a packed matrix behind the other inputs."""

    shapes: tuple[tuple[int, ...], ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    ints: tuple[int, int] = (-9, 10)
    types: Mapping[int, DType] = field(default_factory=dict)
    packed: tuple[str, tuple[int, ...]] | None = None

    def __str__(self) -> str:
        shapes = " ".join("x".join(map(str, s)) or "scalar" for s in self.shapes)
        return " ".join((shapes, *(f"{k}={v}" for k, v in self.attrs.items() if not isinstance(v, Graph))))


@dataclass(frozen=True)
class Sample:
    """A case of an op in one dtype."""

    op: Op
    case: Case
    dtype: DType

    def __str__(self) -> str:
        return f"{self.op.text} {self.dtype} {self.case}".strip()

    def input_types(self) -> tuple[tuple[tuple[int, ...], DType], ...]:
        """(shape, dtype) of each input: the sample's dtype wherever the row takes any, i64 for indices."""
        own = tuple((shape, self.case.types.get(i) or self._taken(i)) for i, shape in enumerate(self.case.shapes))
        planes = encoding(self.case.packed[0]).planes(self.case.packed[1]) if self.case.packed else ()
        return (*own, *((shape, dt) for _, shape, dt in planes))

    def _taken(self, i: int) -> DType:
        accepted = accepted_by(self.op, i)
        return DType.I64 if accepted is INDEX else DType.BOOL if accepted is BOOL else self.dtype

    def emit(self, b: Builder) -> tuple[Value, ...]:
        """The call on inputs x0, x1, .. of a new graph."""
        xs = [b.input(f"x{i}", shape, dt) for i, (shape, dt) in enumerate(self.input_types())]
        made = b.emit(self.op, *xs, **self.case.attrs)
        return made if isinstance(made, tuple) else (made,)

    def graph(self) -> Graph:
        b = Builder(self.op.text)
        return b.finish(*self.emit(b))

    def arrays(self, seed: int = 0) -> tuple[Array, ...]:
        rng = np.random.default_rng(seed)
        domain, own_types = DOMAIN.get(self.op, (-2.0, 2.0)), self.input_types()[:len(self.case.shapes)]
        own = tuple(draw(rng, shape, dt, domain, self.case.ints) for shape, dt in own_types)
        if self.case.packed is None:
            return own
        name, shape = self.case.packed
        return (*own, *quantize(rng.normal(size=shape).astype(np.float32), name))

    def reference(self, arrays: tuple[Array, ...]) -> tuple[Array, ...]:
        """What the row's `ref` says, as arrays."""
        assert callable(self.op.row.ref)
        with np.errstate(all="ignore"):
            got = self.op.row.ref(*arrays, **self.graph().nodes[len(arrays)].attrs.params())
        return got if isinstance(got, tuple) else (got,)


def draw(rng: np.random.Generator, shape: tuple[int, ...], dt: DType, domain: tuple[float, float], ints: tuple[int, int]) -> Array:
    if dt is DType.BOOL:
        return np.asarray(rng.integers(0, 2, shape).astype(bool))
    if dt.is_integer:
        low, high = max(ints[0], dt.range[0]), min(ints[1], dt.range[1] + 1)
        return np.asarray(rng.integers(low, high, shape)).astype(dt.numpy)
    real = np.asarray(rng.uniform(*domain, shape))
    return np.asarray(real + 1j * rng.uniform(*domain, shape), dt.numpy) if dt.is_complex else real.astype(dt.numpy)


def accepted_by(op: Op, i: int) -> frozenset[DType]:
    dtypes = op.row.dtypes
    return dtypes[min(i, len(dtypes) - 1)]


def accepted(op: Op) -> tuple[DType, ...]:
    """The dtypes an op calculates in: what its first input takes that is neither an index nor a condition."""
    case = cases(op)[0]
    free = [a for i in range(len(case.shapes)) if (a := accepted_by(op, i)) is not INDEX and a is not BOOL and i not in case.types]
    return tuple(d for d in DType if d in (free or [BOOL])[0]) if case.shapes else (DType.F32,)


def samples(op: Op, dtypes: frozenset[DType] | None = None) -> Iterator[Sample]:
    """Every case in every accepted dtype, or those among `dtypes`."""
    for case in cases(op):
        for d in _fixed(case) or accepted(op):
            if dtypes is None or d in dtypes:
                yield Sample(op, case, d)


def _fixed(case: Case) -> tuple[DType, ...]:
    """The float type of a case that leaves no choice."""
    fixed = [d for d in case.types.values() if d.is_float] if len(case.types) == len(case.shapes) else []
    return tuple(fixed[-1:])


def cases(op: Op) -> tuple[Case, ...]:
    if op in ELEMENTWISE:
        shapes, attrs = broadcasts(op.row.arity), ATTRS.get(op, ({},))
        return tuple(Case(shapes[i % len(shapes)], attrs[i % len(attrs)]) for i in range(max(len(shapes), len(attrs))))
    return CASES[op]


def broadcasts(arity: Any) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Shapes for an elementwise op: equal, stretched in the middle and on both sides, ranks that differ, 0-d, empty, 1 among 1s."""
    rows: tuple[tuple[tuple[int, ...], ...], ...] = (
        ((3, 5), (3, 5), (3, 5)), ((2, 4, 3), (2, 1, 3), (3,)), ((7, 1), (1, 3), ()), ((), (5,), (2, 1)), ((), (), ()),
        ((0, 3), (1, 3), (3,)), ((1, 1), (1,), (1, 1)))
    return tuple(tuple(row[i % 3] for i in range(arity)) for row in rows)


DOMAIN: dict[Op, tuple[float, float]] = {  # where the op is finite and smooth; the default is -2..2
    Op.LOG1P: (-0.9, 3), Op.ASIN: (-0.95, 0.95), Op.ACOS: (-0.95, 0.95), Op.TAN: (-1.4, 1.4), Op.POW: (0.2, 2),
    **dict.fromkeys((Op.SQRT, Op.RSQRT, Op.LOG, Op.LOG2, Op.RECIP, Op.DIV, Op.MOD, Op.FLOOR_DIV), (0.2, 3)),
}
ATTRS: dict[Op, tuple[Mapping[str, Any], ...]] = {
    Op.CAST: tuple({"to": d} for d in (DType.F32, DType.F64, DType.F16, DType.BF16, DType.I32, DType.U8, DType.BOOL)),
}


def _reductions(*more: Case) -> tuple[Case, ...]:
    return (Case(((3, 4, 5),), {"axes": (1,)}), Case(((3, 4, 5),), {"axes": (0, -1), "keep": True}), Case(((7,),), {"axes": (0,)}),
            Case(((2, 3),), {"axes": ()}), Case(((),), {"axes": ()}), Case(((0, 3),), {"axes": (1,)}), *more)


EMPTY = Case(((2, 0, 3),), {"axes": (1,)}), Case(((0,),), {"axes": (0,), "keep": True})
ALONG = tuple(Case((shape,), {"axis": axis}) for shape, axis in (((3, 5), -1), ((2, 4, 3), 1), ((7,), 0), ((0, 3), 1), ((2, 3, 1), 2)))
EMPTY_ALONG = Case(((2, 0, 3),), {"axis": 1})
QKV = ((2, 4, 3, 5), (2, 2, 7, 5), (2, 2, 7, 6))


def _attention(shapes: tuple[tuple[int, ...], ...] = QKV, types: Mapping[int, DType] | None = None, **attrs: Any) -> Case:
    return Case(shapes, {"scale": 0.5, **attrs}, types=types or {})


def _slide(shapes: tuple[tuple[int, ...], ...], strides: tuple[int, ...], low: tuple[int, ...], high: tuple[int, ...], dilation: tuple[int, ...], **more: Any) -> Case:
    return Case(shapes, {"strides": strides, "low": low, "high": high, "dilation": dilation, **more})


def _graph(name: str, make: Any, *types: tuple[tuple[int, ...], DType]) -> Graph:
    """What `make` builds of inputs x0, x1, .."""
    b = Builder(name)
    made = make(*(b.input(f"x{k}", *t) for k, t in enumerate(types)))
    return b.finish(*(made if isinstance(made, tuple) else (made,)))


def _scan(steps: int, reverse: bool, d: DType) -> Case:
    """Two carries that trade places, a mapped input, and one read whole."""
    body = _graph("body", lambda s, t, x, w: (t + x * w, s, x + s.sum(axes=(1,), keep=True)), *(((2, 3), d),) * 3, ((3,), d))
    return Case(((2, 3), (2, 3), (steps, 2, 3), (3,)), {"body": body, "carries": 2, "mapped": 1, "length": steps, "reverse": reverse}, types=dict.fromkeys(range(4), d))


def _while(d: DType, rows: int = 3) -> Case:
    """x is halved until all of it is at most w."""
    types = ((rows, 5), d), ((), d)
    return Case(tuple(s for s, _ in types), {"cond": _graph("cond", lambda x, w: (x > w.abs() + 0.125).any(axes=(0, 1)), *types),
                                             "body": _graph("body", lambda x, w: x * 0.5, *types)}, types={0: d, 1: d})


def _cond(d: DType) -> Case:
    types = ((3, 0), d), ((2, 5), d)
    return Case(((), *(s for s, _ in types)), {"then": _graph("then", lambda e, x: (x * 2.0, e), *types), "otherwise": _graph("otherwise", lambda e, x: (-x, e + 1.0), *types)},
                types={0: DType.BOOL, 1: d, 2: d})


def _chain() -> Graph:
    b = Builder("elementwise")
    x, y = b.input("in0", (2, 3)), b.input("in1", (3,))
    return b.finish((x * y + 1.0).relu())


CASES: dict[Op, tuple[Case, ...]] = {
    Op.IOTA: (Case((), {"shape": (3, 4), "axis": 1, "to": DType.I64}), Case((), {"shape": (3, 0, 2), "axis": -3, "to": DType.F16})),
    Op.SIZE: (Case((), {"dim": 7}),),
    **{op: _reductions(*EMPTY) for op in (Op.SUM, Op.PROD, Op.MEAN, Op.ANY, Op.ALL)},
    **{op: _reductions() for op in (Op.MAX, Op.MIN)},
    **dict.fromkeys((Op.ARGMAX, Op.ARGMIN), (*ALONG, Case(((3, 5),), {"axis": 0, "keep": True}))),
    **dict.fromkeys((Op.SOFTMAX, Op.LOG_SOFTMAX, Op.CUMSUM), (*ALONG, EMPTY_ALONG)),
    Op.SORT: (*ALONG, EMPTY_ALONG, Case(((4, 6),), {"axis": 0, "descending": True})),
    Op.TOP_K: (Case(((3, 5),), {"k": 2}), Case(((2, 4, 3),), {"k": 4, "axis": 1}), Case(((3, 5),), {"k": 0}), Case(((0, 3),), {"k": 3})),
    Op.MATMUL: (Case(((3, 4), (4, 5))), Case(((2, 3, 4), (4, 5))), Case(((3, 1, 2, 7), (5, 7, 3))), Case(((1, 4), (6, 4, 1))), Case(((4, 0), (0, 3))),
                Case(((0, 4), (4, 2))), Case(((2, 3, 4), (1, 4, 0)))),
    Op.QMATMUL: tuple(Case((shape,), {"encoding": name, "shape": (3, 64)}, packed=(name, (3, 64)))
                      for name, shape in (("q8_0", (5, 64)), ("q4_1", (2, 3, 64)), ("q8_0", (64,)), ("q4_0", (0, 64)))),
    Op.DEQUANTIZE: tuple(Case((), {"encoding": name, "shape": shape}, packed=(name, shape)) for name, shape in (("q8_0", (3, 64)), ("q4_1", (2, 2, 32)))),
    Op.QUANTIZE: (Case(((3, 64),), {"encoding": "q8_0"}), Case(((2, 1, 32),), {"encoding": "q4_1"}), Case(((0, 32),), {"encoding": "q8_0"})),
    Op.RESHAPE: tuple(Case((a,), {"shape": b}) for a, b in (((2, 3, 4), (4, 6)), ((6,), (2, 1, 3)), ((), (1, 1)), ((0, 3), (5, 0)), ((1,), ()))),
    Op.EXPAND: tuple(Case((a,), {"shape": b}) for a, b in (
        ((2, 1, 3), (2, 4, 3)), ((3,), (2, 5, 3)), ((), (4,)), ((1, 3), (0, 3)), ((2, 1), (3, 2, 1)), ((0, 1), (2, 0, 3)))),
    Op.TRANSPOSE: tuple(Case((a,), {"perm": p}) for a, p in (
        ((2, 3), (1, 0)), ((2, 3, 4), (2, 0, 1)), ((), ()), ((0, 5), (1, 0)), ((2, 3, 4, 5), (0, 2, 1, 3)))),
    Op.SLICE: tuple(Case((a,), {"start": lo, "stop": hi, "step": by}) for a, lo, hi, by in (
        ((7, 5), (1, 0), (6, 5), (2, 1)), ((9,), (2,), (9,), (3,)), ((4, 6), (0, 6), (4, 6), (1, 2)),
        ((0, 3), (0, 1), (0, 3), (2, 1)), ((), (), (), ()), ((5, 7, 3), (0, 1, 2), (5, 6, 3), (4, 3, 1)))),
    Op.REVERSE: tuple(Case((a,), {"axes": axes}) for a, axes in (((2, 3), (1,)), ((2, 3, 4), (0, -1)), ((3,), ()), ((0, 2), (0,)))),
    Op.PAD: tuple(Case((a,), {"low": lo, "high": hi, "value": v}) for a, lo, hi, v in (
        ((2, 3), (1, 0), (0, 2), 0.0), ((4,), (0,), (3,), 1.0), ((0, 2), (1, 1), (1, 0), 1.0), ((), (), (), 0.0))),
    Op.CONCAT: (Case(((2, 3), (2, 1)), {"axis": 1}), Case(((2, 1, 3), (2, 4, 3), (2, 0, 3)), {"axis": -2}), Case(((5,),), {"axis": 0})),
    Op.GATHER: tuple(Case(shapes, {"axis": axis}, ints=(-n, n)) for shapes, axis, n in (
        (((5, 2), (3,)), 0, 5), (((2, 5, 3), (4, 2)), 1, 5), (((3, 4), ()), -1, 4), (((5, 2), (0,)), 0, 5), (((3, 0, 2), (2,)), 0, 3))),
    Op.TAKE_ALONG: tuple(Case(shapes, {"axis": axis}, ints=(-n, n)) for shapes, axis, n in (
        (((5, 3), (2, 3)), 0, 5), (((2, 4, 3), (2, 7, 3)), -2, 4), (((3, 4), (3, 0)), 1, 4))),
    Op.SCATTER_ADD: tuple(Case(shapes, {"axis": axis}, ints=(-n, n)) for shapes, axis, n in (
        (((5, 2), (3,), (3, 2)), 0, 5), (((2, 4, 3), (2, 3), (2, 2, 3, 3)), 1, 4), (((3, 4), (), (3,)), -1, 4), (((5, 2), (0,), (0, 2)), 0, 5))),
    Op.KV_APPEND: (Case(((2, 3, 8, 4), (2, 3, 2, 4), ()), {"axis": 2}, ints=(0, 7)), Case(((6, 2), (6, 2), ()), {"axis": 0}, ints=(0, 1)),
                   Case(((2, 5), (2, 0), ()), {"axis": 1}, ints=(0, 6))),
    Op.WINDOWS: tuple(Case((a,), attrs) for a, attrs in (
        ((2, 7), {"axis": 1, "size": 3}), ((2, 9, 3), {"axis": -2, "size": 2, "stride": 3, "dilation": 2}), ((5,), {"axis": 0, "size": 5}),
        ((0, 4), {"axis": 1, "size": 1, "stride": 2}))),
    Op.CONV: (
        _slide(((2, 3, 5, 7), (4, 3, 3, 2)), (1, 1), (1, 0), (1, 1), (1, 1)), _slide(((2, 4, 7, 5), (6, 2, 3, 3)), (2, 1), (1, 2), (0, 2), (1, 2), groups=2),
        _slide(((3, 5, 9), (5, 1, 3)), (2,), (1,), (1,), (1,), groups=5), _slide(((1, 2, 3, 4, 5), (3, 2, 2, 2, 2)), (1, 2, 1), (0, 1, 0), (1, 0, 0), (2, 1, 3)),
        _slide(((2, 3, 4, 3), (5, 3, 1, 1)), (1, 1), (0, 0), (0, 0), (1, 1)), _slide(((0, 2, 4), (3, 2, 3)), (1,), (1,), (1,), (1,))),
    Op.CONV_TRANSPOSE: (
        _slide(((2, 3, 3, 4), (3, 2, 3, 2)), (2, 1), (1, 0), (0, 1), (1, 1), shape=(6, 4)), _slide(((2, 4, 3), (4, 3, 3)), (3,), (1,), (1,), (2,), groups=2, shape=(9,)),
        _slide(((1, 2, 2, 3, 2), (2, 1, 2, 1, 2)), (1, 2, 2), (0, 0, 1), (0, 1, 0), (1, 1, 1), shape=(3, 5, 3)),
        _slide(((0, 2, 4), (2, 3, 3)), (1,), (0,), (0,), (1,), shape=(6,))),
    **{op: (_slide(((2, 3, 5, 7),), (2, 1), (1, 0), (0, 1), (1, 2), size=(3, 2), **more), _slide(((3, 2, 9),), (2,), (1,), (1,), (1,), size=(3,), **more),
            _slide(((1, 2, 4, 3, 5),), (1, 2, 3), (0, 1, 0), (1, 0, 0), (1, 1, 1), size=(2, 3, 1), **more), _slide(((0, 3, 5),), (1,), (0,), (0,), (1,), size=(2,), **more))
       for op, more in ((Op.MAX_POOL, {}), (Op.AVG_POOL, {"count_pad": False}))},
    Op.RESIZE: (*(Case(((2, 3, 5, 4),), {"shape": (7, 3), "method": m, "points": p}) for m in ("nearest", "linear") for p in ("half_pixel", "corners", "asymmetric")),
                Case(((3, 1, 1),), {"shape": (4,), "method": "linear", "points": "corners"}), Case(((1, 2, 3, 2, 5),), {"shape": (1, 5, 2), "method": "linear"}),
                Case(((0, 2, 3),), {"shape": (5,)})),
    Op.LAYER_NORM: tuple(Case(s, {"eps": 1e-5}) for s in (((3, 5),), ((2, 3, 4), (4,)), ((2, 3, 4), (4,), (4,)), ((7,), (7,), (7,)), ((0, 3), (3,)))),
    Op.RMS_NORM: tuple(Case(s, {"eps": 1e-6}) for s in (((3, 5),), ((2, 3, 4), (4,)), ((7,), (7,)), ((0, 3), (3,)))),
    Op.ATTENTION: (
        _attention(), _attention(mask="causal"), _attention(mask="window", window=3, softcap=2.0), _attention((*QKV, (3, 7)), mask="causal"),
        _attention((*QKV, (2, 1, 3, 7)), {3: DType.BOOL}), _attention(((1, 2, 5, 3), (1, 2, 2, 3), (1, 2, 2, 1)), mask="causal"),
        _attention(((2, 1, 0, 3), (2, 1, 4, 3), (2, 1, 4, 3))), _attention((*QKV, (3, 2)), {3: DType.I32}, mask="causal"), _attention((*QKV, (2, 4, 1, 2)), {3: DType.I64}),
        _attention(((2, 1, 3, 4), (2, 1, 0, 4), (2, 1, 0, 4)))),
    Op.ROPE: tuple(Case(shapes, attrs, ints=(0, 50)) for shapes, attrs in (
        (((2, 3, 5, 4), (5,)), {}), (((2, 5, 6), (2, 5)), {"style": "interleaved", "theta": 100.0}), (((1, 2, 3, 8), (3,), (2,)), {"dims": 4}),
        (((3, 4), (3,), (2,)), {}), (((0, 4), (0,)), {}))),
    **dict.fromkeys((Op.FFT, Op.IFFT, Op.RFFT), tuple(Case((shape,), {"axis": axis}) for shape, axis in (
        ((3, 8), -1), ((2, 6, 5), 1), ((17,), 0), ((0, 3), 1), ((2, 1), -1), ((4, 3, 7), 0), ((2, 45), 1)))),
    Op.IRFFT: tuple(Case((shape,), {"axis": axis, "n": n}) for shape, axis, n in (((3, 5), -1, 8), ((2, 3, 5), 1, 5), ((9,), 0, 17), ((0, 2), 1, 3), ((2, 1), -1, 1), ((2, 12), 1, 22))),
    Op.RANDOM_BITS: tuple(Case(((2,),), {"shape": shape}, types={0: DType.U32}) for shape in ((), (7,), (2, 3, 5), (0, 3), (3, 5000))),
    Op.SCAN: (*(_scan(steps, reverse, d) for steps, reverse, d in ((5, False, DType.F32), (4, True, DType.F32), (0, False, DType.F32), (3, False, DType.F64))),
              Case(((4, 3),), {"body": _graph("body", lambda x: (x * x, x.sum(axes=(0,))), ((3,), DType.I32)), "carries": 0, "mapped": 1, "length": 4}, types={0: DType.I32})),
    Op.WHILE: (_while(DType.F32), _while(DType.F64), _while(DType.F32, 0)),
    Op.COND: tuple(map(_cond, (DType.F32, DType.F64))),
    Op.FUSED: (Case(((2, 3), (3,)), {"kind": "elementwise", "body": _chain()}, types={0: DType.F32, 1: DType.F32}),),
}


def layouts(a: Array) -> Iterator[tuple[str, Array]]:
    """The same values lying in memory in other ways, and one element seen everywhere."""
    yield "as made", a
    yield "reversed", np.flip(np.flip(a).copy())
    yield "fortran", np.array(a, order="F")
    wide = np.repeat(a[..., None], 2, -1)
    yield "stepped", wide[..., 1]
    frozen = a.copy()
    frozen.setflags(write=False)
    yield "read-only", frozen
    if prod(a.shape):
        yield "stride 0", np.broadcast_to(a.reshape(-1)[0], a.shape)


def plain(a: Array) -> Array:
    """Values that NumPy can compare: what ml_dtypes adds becomes f64 or i64, without loss."""
    return a if a.dtype.isbuiltin == 1 else a.astype(np.int64 if "int" in a.dtype.name else np.float64)


def assert_same(got: Array, want: Array, where: str = "") -> None:
    """Equal in type, shape, value and the sign of zeros; any NaN equals any other."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape), where
    np.testing.assert_array_equal(plain(got), plain(want), where)
    if plain(want).dtype.kind == "f":
        zero = plain(want) == 0
        np.testing.assert_array_equal(np.signbit(plain(got)[zero]), np.signbit(plain(want)[zero]), f"{where}: signs of zeros")


CLOSE = {  # for narrow floats one unit in the last place
    DType.F64: 1e-12, DType.C128: 1e-12, DType.F32: 2e-6, DType.C64: 2e-6,
    DType.F16: 2.0 ** -10, DType.BF16: 2.0 ** -7, DType.F8E4M3FN: 2.0 ** -3, DType.F8E5M2: 2.0 ** -2, DType.F4E2M1: 2.0 ** -1,
}


def assert_close(got: Array, want: Array, dt: DType, where: str = "") -> None:
    """Equal in type and shape, and in value to the tolerance of `dt`, relative and (for sums that cancel) absolute."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape), where
    np.testing.assert_allclose(plain(got), plain(want), rtol=CLOSE.get(dt, 0), atol=CLOSE.get(dt, 0), err_msg=where)

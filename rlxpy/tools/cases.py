"""Calls of every built-in op: the one place.  An elementwise row needs no entry here; any other names its shapes and parameters once."""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlxpy.ir.builder import Builder
from rlxpy.ir.dtypes import DType
from rlxpy.ir.graph import Graph
from rlxpy.ir.op import ELEMENTWISE, LEAVES, Op
from rlxpy.ir.row import BOOL, INDEX
from rlxpy.tools.samples import Case, Sample, accepted_by

OPS = tuple(op for op in Op if op not in LEAVES and op is not Op.CUSTOM)  # leaves compute nothing; extensions bring rows of their own


def accepted(op: Op) -> tuple[DType, ...]:
    """The dtypes an op calculates in: what its first input takes that is neither an index nor a condition."""
    case = cases(op)[0]
    free = [a for i in range(len(case.shapes)) if (a := accepted_by(op, i)) is not INDEX and a is not BOOL and i not in case.types]
    return tuple(d for d in DType if d in (free or [BOOL])[0]) if case.shapes else (DType.F32,)


def samples(op: Op, dtypes: frozenset[DType] | None = None, some: Sequence[Case] | None = None) -> Iterator[Sample]:
    """Every case, or some others, in every accepted dtype, or those among `dtypes`."""
    for case in cases(op) if some is None else some:
        for d in _fixed(case) or accepted(op):
            if dtypes is None or d in dtypes:
                yield Sample(op, case, d)


def _fixed(case: Case) -> tuple[DType, ...]:
    """The float type of a case that leaves no choice."""
    fixed = [d for d in case.types.values() if d.is_float] if len(case.types) == len(case.shapes) else []
    return tuple(fixed[-1:])


def cases(op: Op) -> tuple[Case, ...]:
    if op in ELEMENTWISE:
        shapes, attrs, domain = broadcasts(op.row.arity), ATTRS.get(op, ({},)), DOMAIN.get(op, Case.domain)
        return tuple(Case(shapes[i % len(shapes)], attrs[i % len(attrs)], domain=domain) for i in range(max(len(shapes), len(attrs))))
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

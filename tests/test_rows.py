"""Every row of the op table is held to the same laws.  A new row is tested the moment it exists."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from samples import OPS, Case, Sample, accepted_by, assert_close, assert_same, cases, layouts, samples

from rlxpy import Builder, CompileOptions, DType, Graph, Op, compile, parse, show
from rlxpy.errors import ArityMismatch, BuildError
from rlxpy.ir.dtypes import Array
from rlxpy.ir.op import ELEMENTWISE
from rlxpy.ir.verify import verify

EVERYDAY = frozenset({DType.F32, DType.F64, DType.F16, DType.BF16, DType.I32, DType.I8, DType.U8, DType.BOOL, DType.C64})
SELF_EXPLANATORY = frozenset({  # the name is the whole meaning; every other row has a sentence
    Op.CONCAT, Op.CUMSUM, Op.LOG_SOFTMAX, Op.PROD, Op.MEAN, Op.PAD, Op.RESHAPE, Op.REVERSE, Op.SOFTMAX, Op.TRANSPOSE, Op.ANY, Op.ALL})

STORED = frozenset({DType.F32, DType.BF16, DType.BOOL})  # one of each way to lie in memory
LAYOUTS = tuple(name for name, _ in layouts(np.zeros(1)))
BY_BLAS = frozenset({Op.MATMUL, Op.QMATMUL, Op.ATTENTION, Op.CONV, Op.CONV_TRANSPOSE})  # sums in an order that depends on how memory is aligned

rows = pytest.mark.parametrize("op", OPS, ids=lambda op: op.text)


def outputs(graph: Graph, arrays: tuple[Array, ...], *, optimise: bool) -> tuple[Array, ...]:
    """One run on a poisoned arena, the plan checked."""
    got = compile(graph, options=CompileOptions(optimise=optimise, debug=True)).run(*arrays)
    return got if isinstance(got, tuple) else (got,)


def same(s: Sample, got: tuple[Array, ...], want: tuple[Array, ...], where: str = "") -> None:
    for g, w in zip(got, want, strict=True):
        if s.dtype.is_complex or s.op in BY_BLAS:  # NumPy rounds complex products of scalars and of arrays differently
            assert_close(g, w, s.dtype, f"{s} {where}")
        else:
            assert_same(g, w, f"{s} {where}")


@rows
def test_types_are_inferred_as_the_reference_gives_them(op: Op) -> None:
    for s in samples(op):
        got = s.reference(s.arrays())
        assert [(a.shape, a.dtype) for a in got] == [(t.shape, t.dtype.numpy) for t in s.graph().output_types], str(s)


@rows
def test_text_round_trips(op: Op) -> None:
    for s in samples(op):
        assert parse(show(s.graph())) == s.graph()


@rows
def test_one_node_verifies(op: Op) -> None:
    for s in samples(op, EVERYDAY):
        assert verify(s.graph()) == s.graph()


@rows
def test_compiled_it_gives_what_the_reference_gives_however_inputs_lie_in_memory(op: Op) -> None:
    for s in samples(op, EVERYDAY):
        for optimise in (True, False) if s.dtype in STORED else (True,):
            run = compile(s.graph(), options=CompileOptions(optimise=optimise, debug=True)).run
            for seed, name in enumerate(LAYOUTS if s.dtype in STORED else LAYOUTS[:2]):
                given = tuple(dict(layouts(a)).get(name, a) for a in s.arrays(seed))
                before = tuple(np.array(a, order="C") for a in given)
                got = run(*given)
                same(s, got if isinstance(got, tuple) else (got,), s.reference(before), name)
                same(s, given, before, f"the caller's {name} input")


@pytest.mark.parametrize("op", [op for op in OPS if callable(op.row.lower)], ids=lambda op: op.text)
def test_lowered_it_means_the_same(op: Op) -> None:
    for s in samples(op, EVERYDAY | {DType.F8E5M2, DType.F8E4M3FN}):
        graph = s.lowered()
        assert graph.output_types == s.graph().output_types, str(s)
        for got, want in zip(outputs(graph, s.arrays(), optimise=False), s.reference(s.arrays()), strict=True):
            assert_close(got, want, s.dtype, str(s))


SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -3.5, 20.0, -20.0, 89.0, -89.0, 200.0, -200.0, 3e4, -3e4, 1e-5)


@pytest.mark.parametrize("op", [op for op in OPS if callable(op.row.lower) and op in ELEMENTWISE], ids=lambda op: op.text)
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64, DType.F16, DType.BF16], ids=str)
def test_lowered_it_treats_special_values_the_same(op: Op, dtype: DType) -> None:
    arity = op.row.arity
    assert isinstance(arity, int)
    grid = tuple(a.reshape(-1).astype(dtype.numpy) for a in np.meshgrid(*[np.array(SPECIAL)] * arity))
    s = Sample(op, Case((grid[0].shape,) * arity), dtype)
    (got,), (want,) = outputs(s.lowered(), grid, optimise=False), s.reference(grid)
    assert_close(got, want, dtype, op.text)


@rows
def test_a_dtype_it_does_not_take_is_refused_by_name(op: Op) -> None:
    for i, (shape, _) in enumerate((s := next(samples(op))).input_types()):
        for dt in (d for d in DType if d not in accepted_by(op, i)):
            b = Builder()
            xs = [b.input(f"x{k}", *(t if k != i else (shape, dt))) for k, t in enumerate(s.input_types())]
            with pytest.raises(BuildError) as caught:
                b.emit(op, *xs, **s.case.attrs)
            assert caught.value.what.startswith(f"{op.text}: input {i} is {dt}["), caught.value
            assert f"{dt} is not among" in caught.value.why


MIXABLE = [op for op in OPS if op in ELEMENTWISE and op.row.arity in (2, 3) and len(accepted_by(op, 1)) > 1]


@pytest.mark.parametrize("op", MIXABLE, ids=lambda op: op.text)
def test_dtypes_do_not_mix(op: Op) -> None:
    first, other = sorted(accepted_by(op, 1), key=str)[:2]
    b = Builder()
    xs = [b.input(f"x{i}", (3,), first if first in accepted_by(op, i) else DType.BOOL) for i in range(len(cases(op)[0].shapes))]
    with pytest.raises(BuildError, match=f"{op.text}.*mixed dtypes.*{first}.*{other}"):
        b.emit(op, *xs[:-1], b.input("odd", (3,), other))


@rows
def test_a_wrong_number_of_inputs_is_refused_with_both_numbers(op: Op) -> None:
    arity = op.row.arity
    least, most = arity if isinstance(arity, tuple) else (arity, arity)
    b, s = Builder(), next(samples(op))
    xs = [b.input(f"x{i}", *t) for i, t in enumerate(s.input_types())]
    more = b.input("more", (3,))
    for count in (*range(least), *(() if most is None else (most + 1,))):
        with pytest.raises(ArityMismatch, match=rf"^{op.text} takes {least}.* inputs?, got {count}\n"):
            b.emit(op, *[*xs, more, more, more, more][:count], **s.case.attrs)


@rows
def test_an_unknown_parameter_is_refused_by_name(op: Op) -> None:
    s, b = next(samples(op)), Builder()
    xs = [b.input(f"x{i}", *t) for i, t in enumerate(s.input_types())]
    with pytest.raises(BuildError, match=rf"(?s){op.text}.*no parameter colour"):
        b.emit(op, *xs, **{**s.case.attrs, "colour": 1})


def test_rows_explain_what_their_names_do_not() -> None:
    silent = {op for op in OPS if not op.row.doc}
    assert {op.text for op in silent - SELF_EXPLANATORY - ELEMENTWISE} == set()
    assert {op.text for op in SELF_EXPLANATORY - silent} == set()


def test_samples_reach_every_input_of_every_op() -> None:
    """The laws above hold for what is sampled; so samples must hold batches, nothing, odd sizes and every number of inputs."""
    for op in OPS:
        shapes = [shape for case in cases(op) for shape in case.shapes]
        arity = op.row.arity
        least, most = arity if isinstance(arity, tuple) else (arity, arity)
        counts = {len(s.input_types()) for s in samples(op)}
        assert min(counts) >= least
        assert most is None or set(range(least, most + 1)) <= counts, op.text
        if arity and op not in (Op.FUSED, Op.DEQUANTIZE, Op.RANDOM_BITS):
            assert any(0 in shape for shape in shapes), f"{op.text}: no empty input"
            assert any(shape and shape[0] > 1 for shape in shapes), f"{op.text}: no batch"
            assert any(d % 2 for shape in shapes for d in shape if d > 1), f"{op.text}: no odd size"


def test_elementwise_ops_broadcast_by_shape_in_the_middle_and_not_by_element_count() -> None:
    """An operand of the right number of elements but another shape must not be taken element by element (cases.md A10)."""
    b = Builder()
    x, y = b.input("a", (2, 4, 3)), b.input("b", (2, 1, 3))
    for op in (Op.ADD, Op.WHERE, Op.FMA):
        args: tuple[Any, ...] = {Op.ADD: (x, y), Op.WHERE: (y > 0.0, x, y), Op.FMA: (y, x, y)}[op]
        assert op(*args).shape == (2, 4, 3)
    with pytest.raises(BuildError, match="do not broadcast"):
        x + b.input("c", (6,))
    with pytest.raises(BuildError, match="do not broadcast"):
        x + b.input("d", (2, 12))

"""Extension ops: registered, scoped, typed, written as text, lowered before fusion so that they truly fuse, or run by their `ref`."""
from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from rlxpy import Builder, CompileOptions, DType, Graph, Op, Session, compile, parse, show, sym
from rlxpy.backends.reference import Reference
from rlxpy.errors import AlreadyRegistered, ArityMismatch, BuildError, LegaliseError, NotRegistered
from rlxpy.extend.backend import BackendSpec, Device
from rlxpy.extend.kernels import KernelLibrary, KernelRow, KernelSearchPath
from rlxpy.fusion.canonicalise import Canonicalise
from rlxpy.fusion.pipeline import run, standard
from rlxpy.ir.attrs import Attrs
from rlxpy.ir.dims import Dim
from rlxpy.ir.extension import OpExtension, is_op_registered, register_op, register_op_strict, registered_ops, registry, unregister_op
from rlxpy.ir.row import OpRow
from rlxpy.ir.verify import verify


@dataclass(frozen=True)
class Cap(Attrs):
    cap: float


def same_shape(x: Any, **_: Any) -> Any: return x.shape
def same_dtype(x: Any, **_: Any) -> Any: return x.dtype


SOFTCAP = OpExtension("acme.softcap", OpRow(1, same_shape, same_dtype, lower=lambda x, cap: (x / cap).tanh() * cap, attrs=Cap))
MEDIAN = OpExtension("acme.median", OpRow(1, lambda x: x.shape[:-1], same_dtype, ref=lambda x: np.median(x, -1).astype(x.dtype)))


@pytest.fixture(autouse=True)
def _scope() -> Iterator[None]:
    with registry():
        register_op(SOFTCAP)
        register_op(MEDIAN)
        yield


X = np.linspace(-3, 5, 12, dtype=np.float32).reshape(3, 4)


def one(f: Any, shape: tuple[Dim, ...] = (3, 4)) -> Graph:
    b = Builder()
    return b.finish(f(b.input("x", shape)))


# ---- the registry --------------------------------------------------------------------------------------------------
def test_registered_replaced_and_forgotten() -> None:
    other = OpExtension("acme.softcap", MEDIAN.row)
    with pytest.raises(AlreadyRegistered, match=r"op 'acme.softcap' is already registered"):
        register_op_strict(other)
    assert registered_ops()["acme.softcap"] is SOFTCAP
    assert register_op(other) is other
    assert registered_ops()["acme.softcap"] is other
    unregister_op("acme.softcap")
    assert not is_op_registered("acme.softcap")
    assert register_op_strict(SOFTCAP) is SOFTCAP
    with pytest.raises(NotRegistered, match=r"op 'acme.softcab' is not registered\n.*acme.softcap"):
        unregister_op("acme.softcab")


@pytest.mark.parametrize("name", ["softcap", "", ".", "acme.", ".softcap", "acme.soft cap", "a.b.c", "acme.1x"])
def test_a_name_says_whose_it_is(name: str) -> None:
    with pytest.raises(BuildError, match=r"(?s)is not named vendor.op\n  at: .*test_extension.py:\d+\n.*try: name it"):
        register_op(OpExtension(name, SOFTCAP.row))


def test_scopes_end_nest_and_do_not_leak_into_other_threads() -> None:
    with registry():
        register_op(OpExtension("acme.inner", MEDIAN.row))
        assert is_op_registered("acme.inner")
        assert is_op_registered("acme.softcap")
        elsewhere: list[bool] = []
        thread = threading.Thread(target=lambda: elsewhere.append(is_op_registered("acme.inner")))
        thread.start()
        thread.join()
        assert elsewhere == [False]
        with registry():
            register_op(OpExtension("acme.inner", SOFTCAP.row))
            assert registered_ops()["acme.inner"].row is SOFTCAP.row
        assert registered_ops()["acme.inner"].row is MEDIAN.row
    assert not is_op_registered("acme.inner")


# ---- building ------------------------------------------------------------------------------------------------------
def test_three_ways_to_write_one_node() -> None:
    graphs = [one(lambda x: SOFTCAP(x, cap=2.0)), one(lambda x: x.builder.custom_op("acme.softcap", x, cap=2.0)),
              one(lambda x: x.builder.try_custom_op("acme.softcap", x, cap=2))]
    assert graphs[0] == graphs[1] == graphs[2]
    assert verify(graphs[0])[1].label == "acme.softcap"


def test_equal_calls_are_one_node() -> None:
    b = Builder()
    x = b.input("x", (2,))
    assert SOFTCAP(x, cap=2.0).ref == SOFTCAP(x, cap=2.0).ref != SOFTCAP(x, cap=3.0).ref


def test_misuse_is_told_where_it_is_written() -> None:
    b = Builder()
    x = b.input("x", (2,))
    mistakes: tuple[tuple[Callable[[], Any], type[Exception], str], ...] = (
        (lambda: b.custom_op("acme.softcab", x), NotRegistered, "near it: acme.softcap"),
        (lambda: SOFTCAP(x, x, cap=1.0), ArityMismatch, "acme.softcap takes 1 inputs, got 2"),
        (lambda: SOFTCAP(x), BuildError, "cap"),
        (lambda: SOFTCAP(x, cap=1.0, cup=2.0), BuildError, "acme.softcap has no parameter cup"),
        (lambda: SOFTCAP(x, cap="high"), BuildError, "cap"),
        (lambda: SOFTCAP(cap=1.0), BuildError, "acme.softcap needs a Value"),
    )
    for f, error, words in mistakes:
        with pytest.raises(error, match=words):
            f()
    assert isinstance(b.try_custom_op("acme.nothing", x), NotRegistered)


def test_a_shape_rule_may_refuse() -> None:
    def even(x: Any) -> Any:
        if x.shape[-1] % 2:
            raise BuildError("pairs of an odd axis", why=f"{x.shape[-1]} is odd", fix="pad it")
        return (*x.shape[:-1], x.shape[-1] // 2)
    pairs = register_op(OpExtension("acme.pairs", OpRow(1, even, same_dtype, ref=lambda x: x[..., ::2] + x[..., 1::2])))
    assert one(pairs).output_types[0].shape == (3, 2)
    assert one(pairs, (sym("S", 2, 8, 2),)).output_types[0].shape == (sym("S", 2, 8, 2) // 2,)
    with pytest.raises(BuildError, match=r"acme.pairs\(f32\[3\]\): pairs of an odd axis\n  at: .*test_extension.py:\d+\n  because: 3 is odd\n  try: pad it"):
        one(pairs, (3,))


def test_text_form() -> None:
    g = one(lambda x: SOFTCAP(x, cap=30.0).exp())
    text = show(g)
    assert "%1 = acme.softcap %0 {cap=30.0} : f32[3,4]" in text
    assert parse(text) == g
    unregister_op("acme.softcap")
    with pytest.raises(NotRegistered, match=r"line 3: %1 = acme.softcap"):
        parse(text)


# ---- lowering before fusion ----------------------------------------------------------------------------------------
def by_hand(x: Any) -> Any: return (((x + 1.0) / 2.0).tanh() * 2.0).exp()
def by_extension(x: Any) -> Any: return SOFTCAP(x + 1.0, cap=2.0).exp()


def test_it_fuses_with_its_neighbours_as_if_written_by_hand() -> None:
    c = compile(one(by_extension))
    assert c.plan.graph == compile(one(by_hand)).plan.graph
    (hit,) = c.fusion.hits
    assert (hit.label, hit.text) == ("elementwise", "add div tanh mul exp : f32[3,4]")
    assert [n.label for n in c.report.of("lowered")] == ["acme.softcap"]
    np.testing.assert_allclose(c.run(X), np.exp(np.tanh((X + 1) / 2) * 2), rtol=1e-5)
    (body,) = (g for n in c.plan.graph for _, g in n.attrs.graphs())
    lines = {n.op: n.loc.line for n in body}
    assert lines[Op.TANH] == by_extension.__code__.co_firstlineno  # the user's line, not the extension's
    assert "lower-extensions" in next(n for n in body if n.op is Op.TANH).made_by


def test_unoptimised_it_is_lowered_too() -> None:
    np.testing.assert_allclose(compile(one(by_extension), options=CompileOptions(optimise=False)).run(X), compile(one(by_hand)).run(X), rtol=1e-6)


def test_it_is_found_inside_a_composite() -> None:
    """The pattern sees through it, since lowering comes first."""
    squares = register_op(OpExtension("acme.mean_square", OpRow(1, lambda x: (*x.shape[:-1], 1), same_dtype, lower=lambda x: (x * x).mean(axes=(-1,), keep=True))))
    after, _ = run(one(lambda x: x * (squares(x) + 1e-5).rsqrt()), standard(Reference().spec))
    assert [n.op for n in after if n.inputs] == [Op.RMS_NORM]


# ---- with a reference only -----------------------------------------------------------------------------------------
def test_an_op_with_only_a_reference_runs_on_the_reference() -> None:
    g = one(lambda x: MEDIAN(x * 2.0))
    c = compile(g)
    assert [(s.node.label, s.choice.tier) for s in c.plan.steps] == [("mul", "kernel"), ("acme.median", "native")]
    for _ in range(2):
        np.testing.assert_array_equal(c.run(X), np.median(X * 2, -1))


def test_constants_fold_through_its_reference() -> None:
    b = Builder()
    g = Canonicalise()(b.finish(MEDIAN(b.const(X))))
    assert [n.op for n in g] == [Op.CONST]
    np.testing.assert_array_equal(compile(g).run(), np.median(X, -1))


def test_an_op_with_neither_is_refused_by_name() -> None:
    empty = register_op(OpExtension("acme.empty", OpRow(1, same_shape, same_dtype)))
    with pytest.raises(LegaliseError, match=r"reference cannot run 1 node\n.*test_extension.py:\d+\n.*acme.empty"):
        compile(one(empty))


def test_several_outputs_and_types() -> None:
    split = register_op(OpExtension("acme.parts", OpRow(
        1, lambda x: [x.shape, x.shape], lambda x: [x.dtype, DType.I32], ref=lambda x: (x - np.floor(x), np.floor(x).astype(np.int32)))))
    b = Builder()
    fraction, whole = split(b.input("x", (3, 4)))
    g = b.finish(fraction, whole)
    assert parse(show(g)) == g
    got = compile(g, options=CompileOptions(debug=True)).run(X)
    np.testing.assert_array_equal(got[1], np.floor(X))
    np.testing.assert_array_equal(got[0], X - np.floor(X))


@dataclass(frozen=True)
class Branches(Attrs):
    then: Graph
    other: Graph


def test_graphs_as_parameters() -> None:
    """Each body is inlined by the lowering, on the values of this call."""
    both = register_op(OpExtension("acme.both", OpRow(
        1, same_shape, same_dtype, lower=lambda x, then, other: x.builder.inline(then, [x]) + x.builder.inline(other, [x]), attrs=Branches)))
    then, other = one(lambda x: x.exp()), one(lambda x: SOFTCAP(x, cap=1.0))
    g = one(lambda x: both(x, then=then, other=other))
    assert parse(show(g)) == g
    np.testing.assert_allclose(compile(g).run(X), np.exp(X) + np.tanh(X), rtol=1e-6)


def test_symbolic_parameters_are_bound_to_the_run_s_sizes() -> None:
    @dataclass(frozen=True)
    class Keep(Attrs):
        count: Dim
    first = register_op(OpExtension("acme.first", OpRow(1, lambda x, count: (count,), same_dtype, ref=lambda x, count: x[:count], attrs=Keep)))
    S = sym("S", 1, 6)
    c = compile(one(lambda x: first(x, count=S // 2 + 1), (S + 1,)))
    for n in (1, 5, 2):
        x = np.arange(n + 1, dtype=np.float32)
        np.testing.assert_array_equal(c.run(x), x[:n // 2 + 1])


# ---- a backend's own kernel ----------------------------------------------------------------------------------------
def test_a_backend_with_a_kernel_keeps_it_and_every_other_lowers_it() -> None:
    row = KernelRow("fast", Op.CUSTOM, "kernel", kind="acme.softcap")
    basics = tuple(KernelRow(op.text, op, "") for op in (Op.ADD, Op.EXP, Op.DIV, Op.TANH, Op.MUL))
    for rows, wanted in (((row, *basics), ["add", "acme.softcap", "exp"]), (basics, ["add", "div", "tanh", "mul", "exp"])):
        spec = BackendSpec(Device("own"), KernelSearchPath((KernelLibrary("own", rows),)))
        after, _ = run(one(by_extension), standard(spec))
        assert [n.label for n in after if n.inputs] == wanted


def test_a_session_notices_that_an_op_was_replaced() -> None:
    session, g = Session(), one(lambda x: SOFTCAP(x, cap=2.0))
    first = session.compile(g).run(X)
    register_op(OpExtension("acme.softcap", OpRow(1, same_shape, same_dtype, lower=lambda x, cap: x * cap, attrs=Cap)))
    np.testing.assert_allclose(first, np.tanh(X / 2) * 2, rtol=1e-5)
    np.testing.assert_array_equal(session.compile(g).run(X), X * 2)

"""compile() and what it gives: results, run_into, weights that change, the plans a session keeps."""
from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlxpy import Builder, CompiledGraph, CompileOptions, Graph, Session, Value, compile, parse, settings, show, sym
from rlxpy.errors import FusionError, InputError
from rlxpy.extend.passes import pass_registry, register_ir_pass
from rlxpy.ir import functions as F
from rlxpy.ir.attrs import Attrs
from rlxpy.ir.extension import OpExtension, register_op, registry
from rlxpy.ir.quantize import quantize
from rlxpy.ir.row import OpRow

levels = pytest.mark.parametrize("options", [CompileOptions(debug=True), CompileOptions(optimise=False, debug=True), CompileOptions(weights="dense")], ids=["optimised", "as written", "dense"])
X = np.array([[1, -2, 3], [4, 5, -6]], np.float32)


def build(make: Callable[[Builder], Any], names: tuple[str, ...] = ()) -> Graph:
    b = Builder()
    made = make(b)
    return b.finish(*(made if isinstance(made, tuple) else (made,)), names=names)


# ---- results belong to the caller (A14, A15)
OUTPUTS: dict[str, tuple[Callable[[Builder, Value, Value], Any], Callable[[Any, Any], Any]]] = {
    "a sum": (lambda b, x, w: x.sum(axes=(0, 1)), lambda x, w: (x.sum(),)),
    "the input itself": (lambda b, x, w: x, lambda x, w: (x,)),
    "the input and more": (lambda b, x, w: (x, x + 1.0), lambda x, w: (x, x + 1)),
    "a view of the input": (lambda b, x, w: (x.T, x[1:, ::2], F.reshape(x, (3, 2))), lambda x, w: (x.T, x[1:, ::2], x.reshape(3, 2))),
    "the input stretched": (lambda b, x, w: x[:1].expand(shape=(4, 3)), lambda x, w: (np.broadcast_to(x[:1], (4, 3)),)),
    "a param": (lambda b, x, w: (w, x), lambda x, w: (w, x)),
    "a view of a param": (lambda b, x, w: w.reverse(axes=(0,)), lambda x, w: (w[::-1],)),
    "a constant": (lambda b, x, w: (b.const(0.0), x), lambda x, w: (np.float32(0), x)),
    "the same value twice": (lambda b, x, w: (x * w, x * w), lambda x, w: (x * w, x * w)),
    "a value and what is made of it": (lambda b, x, w: ((s := x + w), s.relu(), s), lambda x, w: (x + w, np.maximum(x + w, 0), x + w)),
    "of rank 0": (lambda b, x, w: (x[1, 2], x.max(axes=(0, 1))), lambda x, w: (x[1, 2], x.max())),
    "nothing": (lambda b, x, w: (), lambda x, w: ()),
}


@pytest.mark.parametrize(("make", "meaning"), OUTPUTS.values(), ids=OUTPUTS)
@levels
def test_results_are_the_callers_own(make: Any, meaning: Any, options: CompileOptions) -> None:
    w = np.array([7, 8, 9], np.float32)
    run = compile(build(lambda b: make(b, b.input("x", (2, 3)), b.param("w", (3,)))), {"w": w}, options=options)

    def results(x: Any) -> tuple[Any, ...]:
        got = run(x)
        return got if isinstance(got, tuple) else (got,)

    def check(got: tuple[Any, ...], x: Any) -> None:
        for g, want in zip(got, meaning(x, np.array([7, 8, 9], np.float32)), strict=True):
            assert (type(g), g.dtype, g.shape) == (np.ndarray, np.float32, np.shape(want))
            np.testing.assert_array_equal(g, want)

    xs = [X * k for k in (1, 2, 3)]
    given = [x.copy() for x in xs]
    got = [results(x) for x in given]
    for x in given:
        x[...] = np.nan  # the caller may reuse what was passed
    for g, x in zip(got, xs, strict=True):
        check(g, x)
    arrays = [a for g in got for a in g]
    for i, a in enumerate(arrays):
        assert a.flags.writeable
        assert not any(np.shares_memory(a, b) for b in (*arrays[:i], *given, w))
        a[...] = np.nan  # and what came back
    check(results(xs[0]), xs[0])


# ---- run_into
def two() -> CompiledGraph:
    """x + 1 and the sum of x's rows."""
    return compile(build(lambda b: ((x := b.input("x", (2, 3))) + 1.0, x.sum(axes=(1,))), ("more", "sums")), options=CompileOptions(debug=True))


def buffers() -> tuple[Any, Any]:
    return np.full((2, 3), 77, np.float32), np.full(2, 77, np.float32)


def test_run_into_writes_exactly_there() -> None:
    wide, sums = np.full((4, 6), 77, np.float32), np.full(5, 77, np.float32)
    two().run_into((wide[::2, 3:], sums[3:0:-2]), X)
    np.testing.assert_array_equal(wide[::2, 3:], X + 1)
    np.testing.assert_array_equal(sums, [77, 3, 77, 2, 77])
    assert np.count_nonzero(wide == 77) == wide.size - 6


def test_run_into_takes_one_array_for_one_output_of_any_rank_and_byte_order() -> None:
    run = compile(build(lambda b: b.input("x", (2, 3)).sum(axes=(0, 1))))
    for out in (np.zeros((), np.float32), np.zeros((), ">f4")):
        run.run_into(out, X)
        assert out == X.sum()


OVERLAPS: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    "the input": lambda a: (a[:6].reshape(2, 3), a[:6].reshape(2, 3)),
    "the input, moved": lambda a: (a[1:7].reshape(2, 3), a[:6].reshape(2, 3)),
    "the input, backwards": lambda a: (a[:6].reshape(2, 3), a[5::-1].reshape(2, 3)),
    "the input's gaps": lambda a: (a[1:12:2].reshape(2, 3), a[0:12:2].reshape(2, 3)),
}


@pytest.mark.parametrize("make", OVERLAPS.values(), ids=OVERLAPS)
def test_an_output_may_lie_on_an_input(make: Callable[[Any], tuple[Any, Any]]) -> None:
    run = compile(build(lambda b: b.input("x", (2, 3)).reverse(axes=(0, 1)) * 2.0))
    out, x = make(np.arange(12, dtype=np.float32))
    want = x.copy()[::-1, ::-1] * 2
    run.run_into(out, x)
    np.testing.assert_array_equal(out, want)


def locked() -> Any:
    a = np.full((2, 3), 77, np.float32)
    a.flags.writeable = False
    return a


BAD_OUTPUTS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "too few": (lambda a, b: (a,), "1 outputs given"),
    "too many": (lambda a, b: (a, b, b), "3 outputs given"),
    "one array for two": (lambda a, b: a, "1 outputs given"),
    "none": (lambda a, b: None, "NoneType"),
    "a generator": (lambda a, b: (v for v in (a, b)), "generator"),
    "lists": (lambda a, b: (a, [0, 0]), "'sums'"),
    "the wrong shape": (lambda a, b: (a, np.full(3, 77, np.float32)), "'sums'"),
    "a shape that would broadcast": (lambda a, b: (np.full((1, 2, 3), 77, np.float32), b), "'more'"),
    "the wrong type": (lambda a, b: (a, np.full(2, 77.0)), "'sums'"),
    "read-only": (lambda a, b: (locked(), b), "'more'"),
    "stretched": (lambda a, b: (a, np.broadcast_to(np.float32(77), (2,))), "'sums'"),
    "two on the same bytes": (lambda a, b: (a, a[0, 1:]), "'more' and 'sums'"),
}


@pytest.mark.parametrize(("make", "says"), BAD_OUTPUTS.values(), ids=BAD_OUTPUTS)
def test_run_into_refuses_and_then_writes_nothing(make: Any, says: str) -> None:
    a, b = buffers()
    with pytest.raises(InputError) as caught:
        two().run_into(make(a, b), X)
    assert says in caught.value.what
    assert caught.value.why
    assert caught.value.fix
    assert (a == 77).all()
    assert (b == 77).all()


def test_a_refused_input_writes_nothing_either() -> None:
    outs = buffers()
    with pytest.raises(InputError):
        two().run_into(outs, X.astype(np.float64))
    assert all((o == 77).all() for o in outs)


def test_outputs_may_be_columns_of_one_array() -> None:
    run = compile(build(lambda b: ((x := b.input("x", (4, 2))), -x)))
    both = np.zeros((4, 4), np.float32)
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    run.run_into((both[:, :2], both[:, 2:]), x)
    np.testing.assert_array_equal(both, np.hstack([x, -x]))


# ---- weights
def weighted(options: CompileOptions, w: Any) -> CompiledGraph:
    """Values that only w decides, hoisted where the level allows: a transpose, a cast that grows, an affine chain; and w itself."""
    def make(b: Builder) -> Any:
        x, v = b.input("x", (2, 3)), b.param("w", (4, 3), "f16")
        wide = v.cast(to="f32")
        return x @ wide.T, x * ((wide + 1.0) * 2.0)[0], v

    return compile(build(make), {"w": w}, options=options)


def meaning(w: Any) -> tuple[Any, ...]:
    wide = w.astype(np.float32)
    return X @ wide.T, X * ((wide + 1) * 2)[0], w


def check(got: Any, w: Any) -> None:
    for g, want in zip(got, meaning(w), strict=True):
        np.testing.assert_allclose(g, want, rtol=1e-6)


OLD = np.arange(12, dtype=np.float16).reshape(4, 3)
NEW = np.arange(12, dtype=np.float16)[::-1].reshape(4, 3) * np.float16(0.5)


@levels
def test_set_param_leaves_nothing_stale(options: CompileOptions) -> None:
    run = weighted(options, OLD.copy())
    check(run(X), OLD)
    for w in (NEW, OLD, NEW[::-1]):
        run.set_param("w", w)
        check(run(X), w)
        check(run(X), w)


@levels
def test_what_the_caller_writes_later_does_not_reach_the_weights(options: CompileOptions) -> None:
    first, second = OLD.copy(), NEW.copy()
    run = weighted(options, first)
    first[...] = -1
    check(run(X), OLD)
    run.set_param("w", second)
    second[...] = -1
    check(run(X), NEW)
    run(X)[2][...] = -1  # the weight as a result is the caller's
    check(run(X), NEW)


def test_read_only_weights_are_used_where_they_lie() -> None:
    w = np.arange(3, dtype=np.float32)
    w.flags.writeable = False
    run = compile(build(lambda b: b.input("x", (2, 3)) * b.param("w", (3,))), {"w": w})
    np.testing.assert_array_equal(run(X), X * w)
    seen = w.view()
    assert not seen.flags.writeable
    base = np.arange(3, dtype=np.float32)  # a read-only view of an array that its owner still writes to
    view = base.view()
    view.flags.writeable = False
    run = compile(build(lambda b: b.input("x", (2, 3)) * b.param("w", (3,))), {"w": view})
    base[...] = 0
    np.testing.assert_array_equal(run(X), X * [0, 1, 2])


@pytest.mark.parametrize("weights", ["packed", "dense", "auto"])
def test_packed_weights_change_too(weights: str) -> None:
    def packed(seed: int) -> tuple[Any, Any]:
        dense = np.random.default_rng(seed).standard_normal((5, 32)).astype(np.float32)
        return quantize(dense, "q8_0")[0], dense

    (old, old_dense), (new, new_dense) = packed(1), packed(2)
    x = np.random.default_rng(3).standard_normal((2, 32)).astype(np.float32)
    graph = build(lambda b: b.input("x", (2, 32)).qmatmul(b.param("w", old.shape, "u8"), encoding="q8_0", shape=(5, 32)))
    run = compile(graph, {"w": old}, options=CompileOptions(weights=weights))
    np.testing.assert_allclose(run(x), x @ old_dense.T, atol=0.1)
    run.set_param("w", new)
    np.testing.assert_allclose(run(x), x @ new_dense.T, atol=0.1)


BAD_PARAMS: dict[str, tuple[str, Any, str]] = {
    "an unknown name": ("v", NEW, "'v'"),
    "a name that is no text": (3, NEW, "3"),  # type: ignore[dict-item]
    "the wrong shape": ("w", NEW.T, "[3,4] was given, f16[4,3]"),
    "the wrong type": ("w", NEW.astype(np.float32), "float32 was given, f16"),
    "numbers that do not fit": ("w", [[1e9] * 3] * 4, "1000000000.0"),
}


@pytest.mark.parametrize(("name", "value", "says"), BAD_PARAMS.values(), ids=BAD_PARAMS)
@levels
def test_a_refused_weight_changes_nothing(name: str, value: Any, says: str, options: CompileOptions) -> None:
    run = weighted(options, OLD.copy())
    with pytest.raises(InputError) as caught:
        run.set_param(name, value)
    assert says in str(caught.value)
    check(run(X), OLD)


def test_a_weight_that_cannot_be_computed_with_changes_nothing() -> None:
    """The hoisted gather of `table` at `at` raises: the old indices stay."""
    graph = build(lambda b: b.input("x", (2,)) + b.param("table", (3, 2)).gather(b.param("at", (), "i64"), axis=0) * 2.0)
    table = np.arange(6, dtype=np.float32).reshape(3, 2)
    run = compile(graph, {"table": table, "at": 1})
    with pytest.raises(IndexError, match="index 5"):
        run.set_param("at", 5)
    np.testing.assert_array_equal(run([0, 0]), table[1] * 2)
    run.set_param("table", table + 1)
    np.testing.assert_array_equal(run([0, 0]), (table[1] + 1) * 2)


def test_missing_weights_are_all_named_before_anything_is_planned() -> None:
    session = Session()
    graph = build(lambda b: b.input("x", (3,)) * b.param("a.weight", (3,)) + b.param("a.bias", (3,)))
    with pytest.raises(InputError) as caught:
        session.compile(graph, {"a.wieght": np.zeros(3, np.float32)})
    assert "'a.weight', 'a.bias'" in caught.value.why
    assert "2 of 2" in caught.value.what
    assert session.plans_made == 0


def test_weights_of_other_models_may_be_among_those_given() -> None:
    run = compile(build(lambda b: b.input("x", (3,)) * b.param("w", (3,))), {"w": np.full(3, 2, np.float32), "unused": "anything"})
    np.testing.assert_array_equal(run([1, 2, 3]), [2, 4, 6])


def test_a_hoisted_value_never_takes_a_name_that_a_weight_has() -> None:
    def make(b: Builder) -> Any:
        x = b.input("x", (3,))
        return x * (b.param("w", (3,)) + 1.0), x + b.param("hoisted.0", (3,))

    run = compile(build(make), {"w": np.full(3, 2, np.float32), "hoisted.0": np.full(3, 50, np.float32)})
    np.testing.assert_array_equal(run([1, 2, 3]), [[3, 6, 9], [51, 52, 53]])


def test_what_sizes_decide_is_not_hoisted() -> None:
    p = sym("P", 0, 3)
    run = compile(build(lambda b: b.param("table", (4, 2))[p:p + 1] * 2.0), {"table": np.arange(8, dtype=np.float32).reshape(4, 2)})
    for n in (2, 0, 3):
        np.testing.assert_array_equal(run(sizes={"P": n}), [[4 * n, 4 * n + 2]])


# ---- extensions outlive the block they were registered in
@dataclass(frozen=True)
class Times(Attrs):
    factor: float


def times(factor_of: float, *, lowered: bool) -> OpExtension:
    """x * factor * factor_of, so that a re-registered op shows."""
    return OpExtension("test.times", OpRow(
        1, lambda x, **_: x.shape, lambda x, **_: x.dtype, lambda x, factor: (x * np.float32(factor * factor_of)).astype(x.dtype),
        lower=(lambda x, factor: x * (factor * factor_of)) if lowered else None, attrs=Times))


@pytest.mark.parametrize("lowered", [True, False])
def test_a_compiled_graph_needs_no_registry(lowered: bool) -> None:
    with registry():
        op = register_op(times(1.0, lowered=lowered))
        graph = build(lambda b: op(b.input("x", (3,)), factor=3.0) + op(b.param("w", (3,)), factor=2.0))
        run = compile(graph, {"w": np.ones(3, np.float32)})
    np.testing.assert_array_equal(run([1, 2, 3]), [5, 8, 11])
    run.set_param("w", np.zeros(3, np.float32))
    np.testing.assert_array_equal(run([1, 2, 3]), [3, 6, 9])


# ---- one session, many graphs (A21)
def norm(eps: float) -> Callable[[Builder], Any]:
    return lambda b: b.input("x", (2, 3)).layer_norm(eps=eps)


FAMILIES: dict[str, list[tuple[Callable[[Builder], Any], Callable[[Any], Any]]]] = {
    "a constant": [(lambda b: b.input("x", (2, 3)) + 1.0, lambda x: x + 1), (lambda b: b.input("x", (2, 3)) + 2.0, lambda x: x + 2)],
    "the sign of a zero": [(lambda b: b.input("x", (2, 3)) * b.const(0.0), lambda x: x * np.float32(0.0)),
                           (lambda b: b.input("x", (2, 3)) * b.const(-0.0), lambda x: x * np.float32(-0.0))],
    "the sign of a zero parameter": [(lambda b: b.input("x", (2, 3)).pad(low=(1, 0), high=(0, 0), value=0.0), lambda x: np.pad(x, ((1, 0), (0, 0)))),
                                     (lambda b: b.input("x", (2, 3)).pad(low=(1, 0), high=(0, 0), value=-0.0), lambda x: np.pad(x, ((1, 0), (0, 0)), constant_values=-0.0))],
    "an axis": [(lambda b: b.input("x", (2, 3)).sum(axes=(0,), keep=True).expand(shape=(2, 3)), lambda x: np.broadcast_to(x.sum(0, keepdims=True), (2, 3))),
                (lambda b: b.input("x", (2, 3)).sum(axes=(-1,), keep=True).expand(shape=(2, 3)), lambda x: np.broadcast_to(x.sum(-1, keepdims=True), (2, 3)))],
    "an op": [(lambda b: b.input("x", (2, 3)).relu(), lambda x: np.maximum(x, 0)), (lambda b: b.input("x", (2, 3)).abs(), np.abs)],
    "the order of operands": [(lambda b: b.input("x", (2, 3)) - b.const(1.0), lambda x: x - 1), (lambda b: b.const(1.0) - b.input("x", (2, 3)), lambda x: 1 - x)],
    "the order of outputs": [(lambda b: ((x := b.input("x", (2, 3))), -x), lambda x: (x, -x)), (lambda b: (-(x := b.input("x", (2, 3))), x), lambda x: (-x, x))],
    "eps": [(norm(e), lambda x, e=e: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + np.float32(e))) for e in (1e-5, 10.0)],  # type: ignore[misc]
}


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
@pytest.mark.parametrize("optimise", [True, False])
def test_graphs_that_differ_a_little_have_plans_of_their_own(family: Any, optimise: bool) -> None:
    session = Session(options=CompileOptions(optimise=optimise))
    for _ in range(2):
        for make, want in family:
            for x in (X, np.asfortranarray(X), X[::-1]):
                got = session.compile(build(make))(x)
                for g, w in zip(got if isinstance(got, tuple) else (got,), want(x) if isinstance(want(x), tuple) else (want(x),), strict=True):
                    np.testing.assert_allclose(g, w, rtol=2e-6)
                    np.testing.assert_array_equal(np.signbit(g), np.signbit(w))


def test_element_types_have_plans_of_their_own() -> None:
    session = Session()
    for dtype, numpy in (("f32", np.float32), ("f16", np.float16), ("f64", np.float64), ("i32", np.int32), ("f32", np.float32)):
        got = session.compile(build(lambda b, d=dtype: (x := b.input("x", (2, 3), d)) * x))(X.astype(numpy))  # type: ignore[misc]
        assert got.dtype == numpy
        np.testing.assert_array_equal(got, X * X)
    assert session.plans_made == 4


def test_names_of_inputs_and_outputs_are_part_of_a_graph() -> None:
    session = Session()
    for name, out in (("x", "y"), ("z", "y"), ("x", "w"), ("x", "y")):
        run = session.compile(build(lambda b, n=name: b.input(n, (2, 3)) + 1.0, (out,)))  # type: ignore[misc]
        assert run.output_names == (out,)
        np.testing.assert_array_equal(run({name: X}), X + 1)
    assert session.plans_made == 3


def test_a_session_keeps_its_last_plans_alone() -> None:
    session = Session()
    for k in (*range(70), 69):
        session.compile(build(lambda b, k=k: b.input("x", (2,)) + float(k)))  # type: ignore[misc]
    assert session.plans_made == 70
    session.compile(build(lambda b: b.input("x", (2,)) + 0.0))
    assert session.plans_made == 71


def test_one_plan_serves_every_set_of_weights() -> None:
    session = Session()
    graph = build(lambda b: b.input("x", (2, 3)) * b.param("w", (3,)))
    runs = [session.compile(graph, {"w": np.full(3, k, np.float32)}) for k in (2, 3)]
    for k, run in zip((2, 3), runs, strict=True):
        np.testing.assert_array_equal(run(X), X * k)
    runs[0].set_param("w", np.full(3, 5, np.float32))
    np.testing.assert_array_equal(runs[1](X), X * 3)
    assert session.plans_made == 1
    assert session.compile(parse(show(graph)), {"w": np.ones(3, np.float32)})(X).tolist() == X.tolist()


def test_errors_name_the_lines_of_the_graph_that_was_compiled() -> None:
    """Two graphs that are equal but for the lines they were written on."""
    session = Session()
    first, second = Builder(), Builder()
    one = first.finish(first.input("t", (3,)).gather(first.input("i", (), "i64"), axis=0))
    two = second.finish(second.input("t", (3,)).gather(second.input("i", (), "i64"), axis=0))
    assert one == two
    for graph in (one, two, one):
        with pytest.raises(IndexError) as caught:
            session.compile(graph)([1, 2, 3], 7)
        assert graph.nodes[-1].where in str(caught.value)


@dataclass(frozen=True)
class AddOne:
    """A pass that shows: one is added to the first output."""

    name: str = "add-one"
    amount: float = 1.0

    def __call__(self, graph: Graph) -> Graph:
        b = Builder(graph.name)
        y = b.inline(graph, [b.input(n.name, *n.type) for n in graph.inputs])
        return b.finish(y + self.amount, names=graph.output_names)


def test_registered_passes_and_ops_are_part_of_the_key() -> None:
    session = Session()
    graph = build(lambda b: b.input("x", (2, 3)) * 2.0)
    np.testing.assert_array_equal(session.compile(graph)(X), X * 2)
    for amount in (1.0, 5.0):
        with pass_registry():
            register_ir_pass(AddOne(amount=amount))
            np.testing.assert_array_equal(session.compile(graph)(X), X * 2 + amount)
    np.testing.assert_array_equal(session.compile(graph)(X), X * 2)
    for factor in (1.0, 10.0):
        with registry():
            op = register_op(times(factor, lowered=True))
            np.testing.assert_array_equal(session.compile(build(lambda b, op=op: op(b.input("x", (2, 3)), factor=3.0)))(X), X * 3 * factor)  # type: ignore[misc]


def test_options_are_part_of_the_key() -> None:
    """The same graph with a near miss: an error when it is asked to be clean, in either order."""
    def make(b: Builder) -> Any:
        x = b.input("x", (2, 3))
        d = x - x.mean(axes=(-1,), keep=True)
        n = d * ((d * d).mean(axes=(-1,), keep=True) + 1e-5).rsqrt()
        return n * b.param("gamma", (2, 1))  # one for each row: not a layer norm's scale

    graph, params = build(make), {"gamma": np.ones((2, 1), np.float32)}
    compile(graph, params)
    with pytest.raises(FusionError):
        compile(graph, params, options=CompileOptions(assert_fusion_clean=True))
    assert not compile(graph, params, options=CompileOptions(optimise=False)).fusion.hits


@pytest.mark.parametrize("optimise", [True, False])
def test_one_plan_serves_every_batch(optimise: bool) -> None:
    """A26."""
    session = Session(options=CompileOptions(optimise=optimise, debug=True))
    graph = build(lambda b: b.input("x", (sym("B", 0, 8), 4)) @ b.param("w", (4, 3)) + b.param("b", (3,)))
    w, bias = np.arange(12, dtype=np.float32).reshape(4, 3), np.array([1, 2, 3], np.float32)
    run = session.compile(graph, {"w": w, "b": bias})
    for n in (1, 2, 7, 1, 0, 8, 2):
        x = np.random.default_rng(n).standard_normal((n, 4)).astype(np.float32)
        got = run(x)
        assert got.shape == (n, 3)
        np.testing.assert_allclose(got, x @ w + bias, rtol=1e-5, atol=1e-5)
    assert session.plans_made == 1


RUN_OF_A_LARGE_GRAPH = """
from rlxpy import Builder, CompileOptions, compile, sym
b = Builder()
x = b.input("x", (sym("B", 1, 1 << 14), sym("S", 1, 1 << 14)))
run = compile(b.finish((x + 1.0).softmax(axis=-1).sum(axes=(1,))), device="reference", options=CompileOptions(debug=True))
assert run.memory()["arena_nbytes"] >= 1 << 30
result = run([[1, -2, 3], [4, 5, -6]]).tolist()
most, = (line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))  # getrusage would count the parent before exec
print(result, int(most) >> 10)
"""


def test_a_run_touches_the_memory_of_its_own_sizes_in_debug_mode_too() -> None:
    """A GiB at the upper bounds; a run of 2 by 3 needs a page."""
    said = subprocess.run([sys.executable, "-c", RUN_OF_A_LARGE_GRAPH], capture_output=True, text=True, check=True).stdout
    result, _, mebibytes = said.rpartition(" ")
    np.testing.assert_allclose(ast.literal_eval(result), [1, 1], rtol=1e-6)
    assert int(mebibytes) < 500


def test_memory_that_cannot_be_had_is_an_error_with_the_bytes() -> None:
    n = sym("N", 1, 1 << 30)
    run = compile(build(lambda b: (b.input("x", (n, n)) + 1.0).relu()))
    with pytest.raises(InputError, match=str(4 << 60)) as caught:
        run(X[:, :2])
    assert "N up to 1073741824" in caught.value.why


def test_every_step_can_be_watched_and_dumped(tmp_path: Path) -> None:
    session, graph = Session(), build(lambda b: (b.input("x", (2, 3)) + 1.0) * 2.0)
    seen: list[tuple[str, Graph]] = []
    for _ in range(2):  # a plan that is kept is made again for whoever watches
        seen.clear()
        session.compile(graph, watch=lambda name, g: seen.append((name, g)))
        assert seen[0] == ("input", graph)
        assert {"canonicalise", "fuse"} <= {name for name, _ in seen}
    with settings.override(dump=tmp_path / "a" / "b"):
        session.compile(graph)
    files = sorted((tmp_path / "a" / "b").iterdir())
    assert [f.name.partition("-")[2] for f in files] == [f"{name}.rlx" for name, _ in seen]
    assert [parse(f.read_text()) for f in files] == [g for _, g in seen]
    (tmp_path / "file").touch()
    with settings.override(dump=tmp_path / "file" / "c"), pytest.raises(InputError, match="cannot be made") as caught:
        session.compile(graph)
    assert caught.value.where.startswith(__file__)


def test_explain_and_reports_speak_of_this_graph() -> None:
    run = compile(build(lambda b: (b.input("x", (2, 3)) + 1.0) * b.param("w", (3,))), {"w": np.ones(3, np.float32)})
    text = run.explain()
    assert f"device {run.device}" in text
    assert "canonicalise" in text
    assert [n.name for n in run.inputs] == ["x"]
    assert run.param_names == ("w",)
    assert run.memory()["param_nbytes"] >= 12
    rows: list[Any] = run.dispatch()
    assert len(rows) == 1
    assert __file__ in rows[0]["where"]

"""One session, many graphs: each has its own plan (A21), every batch and all weights share one (A26), and registries may be gone by then."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from rlxpy import Builder, CompileOptions, Graph, Session, compile, parse, show, sym
from rlxpy.errors import FusionError
from rlxpy.extend.passes import pass_registry, register_ir_pass
from rlxpy.ir.attrs import Attrs
from rlxpy.ir.extension import OpExtension, register_op, registry
from rlxpy.ir.row import OpRow

X = np.array([[1, -2, 3], [4, 5, -6]], np.float32)


def build(make: Callable[[Builder], Any], names: tuple[str, ...] = ()) -> Graph:
    b = Builder()
    made = make(b)
    return b.finish(*(made if isinstance(made, tuple) else (made,)), names=names)


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

"""Legalisation: what a backend refuses is lowered, staged on the host, or reported with every reason at once."""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from random_graphs import assert_same, random_arrays, random_graph, random_sizes

from rlxpy import Builder, Graph, Op, Value
from rlxpy.backends.host import LIBRARY
from rlxpy.compiler.devices import choose
from rlxpy.compiler.options import CompileOptions
from rlxpy.compiler.session import lower
from rlxpy.errors import BuildError, LegaliseError
from rlxpy.extend.backend import BackendSpec, Device, remembering
from rlxpy.extend.kernels import Choice, Constraint, KernelLibrary, KernelRow, KernelSearchPath, Refusal
from rlxpy.fusion.canonicalise import Canonicalise
from rlxpy.fusion.legalise import Legalise, LowerExtensions
from rlxpy.fusion.pipeline import run, standard
from rlxpy.fusion.plan import plan
from rlxpy.fusion.regions import Fuse
from rlxpy.ir.extension import OpExtension, register_op, registry
from rlxpy.ir.graph import Node
from rlxpy.ir.op import LEAVES
from rlxpy.ir.refs import evaluate
from rlxpy.ir.row import OpRow

BASICS = (Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.EXP, Op.MAX, Op.SUM, Op.ABS, Op.NEG, Op.GE, Op.WHERE, Op.RSQRT, Op.MEAN, Op.MATMUL, Op.RESHAPE, Op.TRANSPOSE)


def toy(*ops: Op, host: Sequence[Op] = (), constraints: tuple[Constraint, ...] = (), fuses: frozenset[str] = frozenset()) -> BackendSpec:
    """A backend that takes a few ops, and stages a few others."""
    rows = tuple(KernelRow(op.text, op, "nothing runs here", constraints=constraints) for op in ops)
    staged = KernelLibrary("host", tuple(r for r in LIBRARY.rows if r.op in host))
    return BackendSpec(Device("toy"), KernelSearchPath((KernelLibrary("toy", rows),)), fuses=fuses, host=KernelSearchPath((staged,)) if host else None)


def built(f: Callable[..., Any], *shapes: tuple[int, ...]) -> Graph:
    b = Builder()
    return b.finish(f(*(b.input(f"x{i}", s) for i, s in enumerate(shapes))))


def ops(g: Graph) -> set[Op]:
    return {n.op for n in g} - LEAVES - {Op.IOTA, Op.SIZE}


# ---- lowering ------------------------------------------------------------------------------------------------------
def test_what_is_refused_is_lowered_until_all_is_taken() -> None:
    g = built(lambda x: x.softmax(axis=-1) + x.silu(), (3, 5))
    spec = toy(*BASICS, Op.EQ)
    after, report = run(g, (Legalise(spec),))
    assert ops(after) <= set(BASICS) | {Op.EQ}
    assert {n.label for n in report.of("lowered")} == {"softmax", "silu", "sigmoid"}  # silu is made of sigmoid
    assert all(n.text == f"no kernel row serves {n.label}" and __file__ in n.where for n in report.of("lowered"))
    assert len(plan(after, spec).steps) > 5
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    for got, want in zip(evaluate(after, {0: x}), evaluate(g, {0: x}), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_what_is_taken_is_kept() -> None:
    g = built(lambda x: x.softmax(axis=-1).exp(), (3, 5))
    assert Legalise(toy(Op.SOFTMAX, Op.EXP))(g) is g


def test_a_constraint_decides_node_by_node_and_says_why() -> None:
    b = Builder()
    g = b.finish(b.input("x", (3, 128)).softmax(axis=-1), b.input("y", (3, 5)).softmax(axis=-1))
    narrow = KernelRow("wide", Op.SOFTMAX, "", args=("x",), constraints=(Constraint("x.shape[-1]", "DIV", 128),))
    rest = tuple(KernelRow(op.text, op, "") for op in BASICS)
    spec = BackendSpec(Device("toy"), KernelSearchPath((KernelLibrary("toy", (narrow, *rest)),)))
    after, report = run(g, (Legalise(spec),))
    assert [n.type.shape for n in after if n.op is Op.SOFTMAX] == [(3, 128)]
    assert [n.text for n in report.of("lowered")] == ["toy/wide refuses: x.shape[-1] DIV 128: x.shape[-1] = 5"]


def test_all_that_is_missing_is_told_at_once() -> None:
    b = Builder()
    x = b.input("x", (3, 5))
    g = b.finish(x.sin() + x.cos(), x.sort(axis=0, descending=False)[0], x.exp())
    with pytest.raises(LegaliseError, match="toy cannot run 3 nodes") as e:
        run(g, (Legalise(toy(Op.EXP, Op.ADD)),))
    for op in ("sin", "cos", "sort"):
        assert f"{op} : f32[3,5] at {__file__}" in e.value.why
        assert f"no kernel row serves {op}" in e.value.why
    assert "exp" not in e.value.why
    assert __file__ in e.value.where


def test_what_a_lowering_needs_and_nobody_has_is_told() -> None:
    with pytest.raises(LegaliseError, match="toy cannot run 1 node") as e:
        run(built(lambda x: x.softmax(axis=-1), (3, 5)), (Legalise(toy(Op.SUB, Op.MAX, Op.EXP, Op.SUM)),))
    assert "div" in e.value.why


# ---- host tier -----------------------------------------------------------------------------------------------------
def test_the_host_takes_what_cannot_be_lowered_and_it_is_noted() -> None:
    g = built(lambda x: x.sin().exp().softmax(axis=-1), (3, 5))
    spec = toy(*BASICS, host=(Op.SIN, Op.SOFTMAX))
    after, report = run(g, (Legalise(spec),))
    assert [(n.label, n.text) for n in report.of("host")] == [("sin", "no kernel row serves sin")]
    assert [n.label for n in report.of("lowered")] == ["softmax"]  # lowered first: only what has no lowering is staged
    tiers = {s.node.op: s.choice.tier for s in plan(after, spec).steps}
    assert tiers[Op.SIN] == "host"
    assert tiers[Op.EXP] == "kernel"


def test_nothing_falls_back_in_silence() -> None:
    g = built(lambda x: x.sin(), (3,))
    with pytest.raises(LegaliseError, match="cannot run sin"):
        plan(g, toy(Op.EXP))
    with pytest.raises(LegaliseError):
        run(g, (Legalise(toy(Op.EXP, host=(Op.COS,))),))


# ---- fused nodes ---------------------------------------------------------------------------------------------------
def test_a_fused_node_that_the_backend_refuses_becomes_its_chain_again() -> None:
    g = built(lambda x, y: ((x + y).exp() * 2.0).sum(axes=(0,)), (3, 5), (3, 5))
    fused = Fuse()(g)
    assert ops(fused) == {Op.FUSED}
    again, report = run(fused, (Legalise(toy(*BASICS)),))
    assert again == g
    assert [n.label for n in report.of("lowered")] == ["fused reduce"]
    assert [n.loc for n in again if n.inputs] == [n.loc for n in g if n.inputs]


@pytest.mark.parametrize("seed", range(40))
def test_fusing_and_refusing_gives_back_the_nodes(seed: int) -> None:
    """In another order perhaps: a chain stands where its root stood."""
    g = Canonicalise()(random_graph(seed).graph)
    spec = toy(*(op for op in Op if op not in LEAVES and op not in (Op.FUSED, Op.CUSTOM)))
    again = Legalise(spec)(Fuse()(g))
    nodes, same = (Counter((n.op, n.attrs, n.types, n.loc) for n in graph) for graph in (g, again))
    assert nodes == same
    assert again.output_types == g.output_types


def test_a_composite_that_the_backend_refuses_fuses_as_plain_ops() -> None:
    def softmax(x: Value) -> Any:
        e = (x - x.max(axes=(-1,), keep=True)).exp()
        return e / e.sum(axes=(-1,), keep=True)
    g = built(lambda x: (softmax(x + 1.0) * 2.0).sum(axes=(0,)), (3, 5))
    spec = replace(toy(*BASICS, fuses=frozenset({"elementwise", "reduce"})), native=lambda spec, graph, n: None if n.op is Op.FUSED else "a generator of regions")
    after, _ = run(g, standard(spec))
    assert Op.SOFTMAX not in ops(after)
    assert [n.kind or n.op.text for n in after if n.inputs] == ["add", "max", "elementwise", "sum", "reduce"]
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    np.testing.assert_allclose(evaluate(after, {0: x})[0], evaluate(g, {0: x})[0], rtol=1e-5)


# ---- lowerings that go wrong ---------------------------------------------------------------------------------------
def row(lower: Any) -> OpRow:
    """Of vectors of three elements: a trial at registration has none."""
    def shape(x: Any, **_: Any) -> Any:
        if x.shape != (3,):
            raise BuildError("three elements")
        return x.shape
    return OpRow(1, shape, lambda x, **_: x.dtype, lower=lower)


@pytest.mark.parametrize(("lower", "words"), [
    (lambda x: x.cast(to="f64"), "lower of test.op gives f64[3]\n.*\n  because: its row promises f32[3]"),
    (lambda x: x.reshape(shape=(3, 1)), "lower of test.op gives f32[3,1]"),
    (lambda x: (x, x), "lower of test.op gives f32[3], f32[3]"),
    (lambda x: None, "lower of test.op failed"),
    (lambda x: 1 / 0, "because: ZeroDivisionError"),
    (lambda x: x @ x, "because: BuildError"),
    (lambda x: x.builder.custom_op("test.op", x), "lowering for toy never ends"),
    (lambda x: x.builder.custom_op("test.op", x + 1.0), "lowering for toy never ends"),
])
def test_a_lowering_that_lies_or_fails_is_named(lower: Any, words: str) -> None:
    with registry():
        register_op(OpExtension("test.op", row(lower)))
        g = built(lambda x: x.builder.custom_op("test.op", x), (3,))
        for legalise in (Legalise, LowerExtensions):
            with pytest.raises(LegaliseError, match=words.replace("[", r"\[").replace("]", r"\]")) as e:
                run(g, (legalise(toy(*BASICS)),))
            assert "test.op" in str(e.value)
            assert __file__ in e.value.where


def test_only_extensions_are_lowered_before_fusion() -> None:
    with registry():
        register_op(OpExtension("test.twice", row(lambda x: x + x)))
        g = built(lambda x: x.builder.custom_op("test.twice", x.silu()), (3,))
        assert ops(LowerExtensions(toy(*BASICS))(g)) == {Op.SILU, Op.ADD}


# ---- over random graphs --------------------------------------------------------------------------------------------
PRIMITIVE = tuple(op for op in Op if op not in LEAVES and not callable(op.row.lower) and op not in (Op.FUSED, Op.CUSTOM))


@pytest.mark.parametrize("seed", range(60))
def test_everything_lowers_to_primitives_with_the_same_values(seed: int) -> None:
    sample = random_graph(seed)
    g = sample.graph
    after, _ = run(g, standard(toy(*PRIMITIVE), optimise=bool(seed % 2)))
    assert ops(after) <= set(PRIMITIVE)
    rng = np.random.default_rng(seed)
    sizes = random_sizes(g, rng)
    leaves = random_arrays((*g.inputs, *g.params, *g.states), sizes, rng)
    with np.errstate(all="ignore"):
        got, want = (evaluate(b := graph.bind(sizes), {n.id: leaves[n.name] for n in (*b.inputs, *b.params, *b.states)}) for graph in (after, g))
    for name, x, y, t in zip(g.output_names, got, want, g.output_types, strict=True):
        assert_same(x, y, t.dtype, f"{sample} {name}", loose=name in sample.loose_outputs)


def test_a_broken_graph_is_refused_where_it_was_written() -> None:
    with pytest.raises(BuildError) as e:
        built(lambda x: x @ x, (3, 5))
    assert __file__ in e.value.where


# ---- asking once ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(20))
def test_a_spec_that_remembers_says_what_it_would_say_anew(seed: int) -> None:
    spec = toy(*BASICS, constraints=(Constraint("out.rank", "LE", 2),), fuses=frozenset({"elementwise"}))
    graph, asked = random_graph(seed, 40).graph, remembering(spec)
    for g in (graph, run(graph, standard(BackendSpec(Device("any"), KernelSearchPath((LIBRARY,)), fuses=frozenset({"elementwise"}))))[0]):
        for n in g:
            if n.op not in LEAVES:
                assert asked.verdict(g, n) == asked.verdict(g, n) == spec.verdict(g, n)


def test_of_equal_layers_each_question_is_asked_once_in_a_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    real = BackendSpec.verdict

    def counted(spec: BackendSpec, graph: Graph, node: Node) -> Choice | Refusal:
        asked.append(node.label)
        return real(spec, graph, node)

    monkeypatch.setattr(BackendSpec, "verdict", counted)

    def layers(count: int) -> list[str]:
        asked.clear()
        b = Builder()
        x = b.input("x", (3, 5))
        for k in range(count):
            x = (x @ b.param(f"w{k}", (5, 5))).softmax(axis=-1).layer_norm(eps=1e-5) + x
        lower(b.finish(x), choose("reference").backend.spec, CompileOptions())
        return sorted(asked)

    assert layers(2) == layers(7)


def test_a_spec_with_another_promise_remembers_nothing_of_the_first() -> None:
    first = remembering(toy(Op.EXP))
    g = built(lambda x: x.exp(), (2,))
    node = g[g.outputs[0]]
    assert isinstance(first.verdict(g, node), Choice)
    assert remembering(first) is first
    assert isinstance(replace(first, kernels=KernelSearchPath(())).verdict(g, node), Refusal)

"""Fused regions: nothing is computed twice or lost, every group is convex, and a fused node is its chain, bit for bit."""
from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations

import networkx as nx
import numpy as np
import pytest
from random_graphs import assert_same, random_arrays, random_graph, random_sizes

from rlxpy import Builder, Graph, Op, Value, compile, sym
from rlxpy.extend.passes import Note
from rlxpy.fusion.canonicalise import Canonicalise
from rlxpy.fusion.pipeline import run
from rlxpy.fusion.regions import Fuse
from rlxpy.ir.graph import Node
from rlxpy.ir.op import ELEMENTWISE
from rlxpy.ir.place import Loc
from rlxpy.ir.refs import evaluate
from rlxpy.ir.verify import verify

KINDS = ("elementwise", "matmul", "gated_mlp", "reduce", "rows")


def fused(g: Graph, **options: object) -> tuple[Graph, tuple[Note, ...]]:
    after, notes = Fuse(**options).noted(g)  # type: ignore[arg-type]
    return verify(after), notes


def bodies(g: Graph) -> list[tuple[Node, Graph]]:
    return [(n, body) for n in g if n.op is Op.FUSED for _, body in n.attrs.graphs()]


def numbered(g: Graph) -> Graph:
    """Each node's line is its id, by which it is found again in a body."""
    return replace(g, nodes=tuple(replace(n, loc=Loc("node", n.id)) for n in g))


SEEDS = range(80)


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_computed_twice_or_lost(seed: int) -> None:
    g = Canonicalise()(random_graph(seed).graph)
    after, _ = fused(g)
    def computed(graph: Graph) -> Counter[Op]:
        return Counter(n.op for n in graph if n.op not in (Op.INPUT, Op.CONST, Op.FUSED))
    inside = sum((computed(body) for _, body in bodies(after)), Counter[Op]())
    assert computed(after) + inside == computed(g)


@pytest.mark.parametrize("seed", SEEDS)
def test_groups_are_convex_and_only_their_outputs_are_read(seed: int) -> None:
    """networkx, on the graph before fusion: no path leaves a group and comes back."""
    g = numbered(Canonicalise()(random_graph(seed).graph))
    flow = nx.DiGraph([(r.node, n.id) for n in g for r in n.inputs])
    flow.add_nodes_from(range(len(g)))
    for node, body in bodies(fused(g)[0]):
        members = {n.loc.line for n in body if n.op not in (Op.INPUT, Op.CONST)}
        root = node.loc.line
        assert root in members
        below = set().union(*(nx.descendants(flow, m) for m in members)) - members
        above = set().union(*(nx.ancestors(flow, m) for m in members)) - members
        assert not below & above
        outputs = {body[r].loc.line for r in body.outputs}
        assert root in outputs
        for m in members:
            others = set(flow.successors(m)) - members
            assert (m in outputs) == bool(others or m in g.escaping)
            assert all(u > root for u in others)


@pytest.mark.parametrize("seed", SEEDS)
def test_values_are_those_of_the_chain(seed: int) -> None:
    sample = random_graph(seed)
    g = Canonicalise()(sample.graph)
    after, rng = fused(g)[0], np.random.default_rng(seed)
    again = Fuse()(after)
    assert again is after or Fuse()(again) is again
    sizes = random_sizes(g, rng)
    leaves = random_arrays((*g.inputs, *g.params, *g.states), sizes, rng, special=True)
    with np.errstate(all="ignore"):
        got, want = (evaluate(b := graph.bind(sizes), {n.id: leaves[n.name] for n in (*b.inputs, *b.params, *b.states)}) for graph in (after, g))
    for name, x, y, t in zip(g.output_names, got, want, g.output_types, strict=True):
        assert_same(x, y, t.dtype, f"{sample} {name}", loose=name in sample.loose_outputs)


# ---- shapes of regions ---------------------------------------------------------------------------------------------
def kinds(g: Graph, **options: object) -> list[str]:
    return [n.kind if n.op is Op.FUSED else n.op.text for n in fused(g, **options)[0] if n.inputs]


def test_a_size_one_axis_in_the_middle() -> None:  # A10
    b = Builder()
    g = b.finish((b.input("a", (2, 4, 3)) + b.input("b", (2, 1, 3))).relu())
    assert kinds(g) == ["elementwise"]
    y = compile(g).run(np.arange(24, dtype=np.float32).reshape(2, 4, 3), np.array([[[100, 200, 300]], [[1000, 2000, 3000]]], np.float32))
    np.testing.assert_array_equal(y[0, 1], [103, 204, 305])
    np.testing.assert_array_equal(y[1, 0], [1012, 2013, 3014])


def test_a_smaller_value_is_made_once_not_for_every_element() -> None:
    b = Builder()
    for shape in ((3,), (1, 3), (8, 1), ()):
        assert kinds(b.finish(b.input("a", (8, 3)) * b.input(f"b{shape}", shape).exp())) == ["exp", "mul"]


def test_symbolic_shapes_that_are_equal_fuse() -> None:
    b = Builder()
    x = b.input("x", (sym("B", 1, 4), sym("S", 1, 8)))
    assert kinds(b.finish((x.exp() + 1.0).tanh())) == ["elementwise"]


def test_what_others_read_is_not_swallowed() -> None:  # A12
    b = Builder()
    x = b.input("x", (4,))
    s = x + 1.0
    g = b.finish(s, (s * 2.0).exp(), s.sin().cos())
    after, _ = fused(g)
    assert kinds(g) == ["add", "elementwise", "elementwise"]
    got = compile(after).run(np.zeros(4, np.float32))
    np.testing.assert_array_equal(got[0], np.ones(4))


def test_a_state_that_changes_is_not_swallowed() -> None:
    b = Builder()
    s = b.state("s", (2,))
    new = s + 1.0
    c = compile(b.finish(new.exp(), updates=[(s, new)]))
    assert [n.op for n in c.plan.graph if n.inputs] == [Op.ADD, Op.EXP]
    np.testing.assert_allclose([c.run()[0], c.run()[0]], np.exp([1, 2]), rtol=1e-6)


def test_a_value_read_twice_by_one_reader_joins_it() -> None:
    b = Builder()
    x = b.input("x", (4,)).exp()
    assert kinds(b.finish(x * x)) == ["elementwise"]


def test_products_take_their_epilogue() -> None:
    b = Builder()
    x, w, bias, residual = b.input("x", (5, 8)), b.param("w", (8, 4)), b.param("bias", (4,)), b.input("r", (5, 4))
    assert kinds(b.finish((x @ w + bias).gelu() * 0.5 + residual)) == ["matmul"]


def test_what_feeds_a_product_stays_outside() -> None:
    """Though its shape is the same: a kernel would make it again for every column."""
    b = Builder()
    x, w = b.input("x", (4, 4)), b.param("w", (4, 4))
    assert kinds(b.finish(x.relu().tanh() @ w + 1.0)) == ["elementwise", "matmul"]
    assert kinds(b.finish((x.relu() @ w).exp() @ w)) == ["relu", "matmul", "matmul"]


def test_gated_products_share_their_input() -> None:
    b = Builder()
    x, g, u = b.input("x", (3, 8)), b.param("g", (8, 5)), b.param("u", (8, 5))
    gated = b.finish((x @ g).silu() * (x @ u))
    assert kinds(gated) == ["gated_mlp"]
    assert kinds(gated, kinds=frozenset({"matmul"})) == ["matmul", "matmul"]
    other = b.finish((x @ g).silu() * (b.input("z", (3, 8)) @ u))
    after, notes = fused(other)
    assert kinds(other) == ["matmul", "matmul"]
    assert [n.text for n in notes if n.kind == "near miss"] == [f"its reader already has the product at {__file__}:{after[-1].loc.line}"]


def test_reductions_take_what_feeds_them() -> None:
    b = Builder()
    x = b.input("x", (3, 5))
    assert kinds(b.finish(((x - 1.0) * x).sum(axes=(1,)))) == ["reduce"]
    assert kinds(b.finish((x.exp().max(axes=(0,), keep=True) - x).sum(axes=(1,)))) == ["reduce", "reduce"]
    w = b.param("w", (5, 5))
    assert kinds(b.finish((x @ w).sum(axes=(0,)))) == ["matmul", "sum"]


def test_reductions_take_what_follows() -> None:
    b = Builder()
    x, y, z = b.input("x", (3, 5)), b.input("y", (3,)), b.input("z", (3, 1))
    assert kinds(b.finish(((x - 1.0) * x).sum(axes=(1,)).sqrt() * y)) == ["reduce"]
    assert kinds(b.finish(((x * x).mean(axes=(1,), keep=True) + 1e-6).rsqrt() * z)) == ["reduce"]
    assert kinds(b.finish((x - z.exp()).sum(axes=(1,), keep=True) * z.sin())) == ["exp", "reduce"], "exp(z) is made once, not for every element of x"
    assert kinds(b.finish(x.sum(axes=(1,), keep=True) + x)) == ["sum", "add"]


def test_rows_take_what_feeds_them_and_what_follows() -> None:
    b = Builder()
    x, r, g, w = b.input("x", (3, 5)), b.input("r", (3, 5)), b.param("g", (5,)), b.param("w", (5, 5))
    assert kinds(b.finish((x + r).layer_norm(g, g, eps=1e-5).gelu())) == ["rows"]
    assert kinds(b.finish((x * 0.5 + r).softmax(axis=-1) * r)) == ["rows"]
    assert kinds(b.finish(x.softmax(axis=1).softmax(axis=1).exp())) == ["softmax", "rows"]
    assert kinds(b.finish(x.exp().softmax(axis=0))) == ["exp", "softmax"]
    assert kinds(b.finish((x + r).rms_norm(g.exp(), eps=1e-5))) == ["exp", "rows"]
    assert kinds(b.finish((x @ w + r).rms_norm(g, eps=1e-5))) == ["matmul", "rms_norm"], "the sum is free in the product's loop"
    assert kinds(b.finish((x @ w + r).rms_norm(g, eps=1e-5)), kinds=frozenset({"rows"})) == ["matmul", "rows"]


def test_a_sum_that_later_readers_need_is_a_further_output() -> None:
    b = Builder()
    x, r, g, w = b.input("x", (3, 5)), b.input("r", (3, 5)), b.param("g", (5,)), b.param("w", (5, 5))
    s = x + r
    after, notes = fused(b.finish(s + (s.rms_norm(g, eps=1e-5) @ w).relu()))
    assert [n.kind for n in after if n.inputs] == ["rows", "matmul"]
    assert [n.types for n in after if n.kind == "rows"] == [(s.type, s.type)]
    assert notes[0].saved_nbytes == 3 * 5 * 4, "the sum is written, but not read again"
    early = b.finish(s.exp() @ w, s.rms_norm(g, eps=1e-3))
    assert kinds(early) == ["add", "exp", "matmul", "rms_norm"], "a reader that runs before the row function has the sum made before"


@pytest.mark.parametrize("wanted", [frozenset(c) for k in range(6) for c in combinations(KINDS, k)], ids=lambda w: "+".join(sorted(w)) or "none")
def test_only_the_wanted_kinds_are_made(wanted: frozenset[str]) -> None:
    b = Builder()
    x, w, v = b.input("x", (4, 4)), b.param("w", (4, 4)), b.param("v", (4, 4))
    h = (x.exp() + 1.0) @ w
    y = (h @ w).sigmoid() * (h @ v) + x
    g = b.finish((y.tanh() * 2.0).sum(axes=(0,)), ((y @ v) * 3.0).neg().abs())
    after, _ = fused(g, kinds=wanted)
    assert {n.kind for n, _ in bodies(after)} <= wanted
    assert {"elementwise", "matmul"} & wanted <= {n.kind for n, _ in bodies(after)}
    rng = np.random.default_rng(0)
    given = {n: rng.standard_normal((4, 4)).astype(np.float32) for n in ("x", "w", "v")}
    for got, want in zip(*(evaluate(a, {n.id: given[n.name] for n in (*a.inputs, *a.params)}) for a in (after, g)), strict=True):
        np.testing.assert_array_equal(got, want)


# ---- limits --------------------------------------------------------------------------------------------------------
def chain(b: Builder, x: Value, length: int) -> Value:
    for _ in range(length):
        x = x.sin()
    return x


def test_a_region_has_no_more_ops_than_it_may() -> None:
    b = Builder()
    g = b.finish(chain(b, b.input("x", (3,)), 100))
    after, _ = fused(g, max_ops=30)
    sizes = [sum(n.op is not Op.INPUT for n in body) for _, body in bodies(after)]
    assert max(sizes) == 30
    assert sum(sizes) == 100


def test_too_many_operands_are_a_near_miss_with_both_numbers() -> None:
    b = Builder()
    total = b.input("x0", (3,))
    for i in range(1, 6):
        total = total + b.input(f"x{i}", (3,))
    g = b.finish(total)
    assert kinds(g, max_operands=6) == ["elementwise"]
    after, notes = fused(g, max_operands=5)
    assert after == g
    assert [n.text for n in notes] == ["6 operands, a fused node takes 5"]


def test_scalars_move_into_the_body_and_arrays_do_not() -> None:
    b = Builder()
    g = b.finish((b.input("x", (3,)) * 2.0 + b.const(np.arange(3.0, dtype=np.float32))).exp())
    (node, body), = bodies(fused(g)[0])
    assert len(node.inputs) == 2
    assert [n.op for n in body].count(Op.CONST) == 1


def test_a_region_of_scalars_alone_reads_nothing_and_is_left() -> None:
    b = Builder()
    g = b.finish((b.const(2.0).exp() + 1.0).sin())
    assert kinds(g) == ["exp", "add", "sin"]


# ---- equal layers --------------------------------------------------------------------------------------------------
def test_equal_layers_have_one_body() -> None:
    b = Builder()
    x = b.input("x", (sym("T", 1, 8), 16))
    for i in range(12):
        h = (x @ b.param(f"{i}.up", (16, 32)) + b.param(f"{i}.bias", (32,))).silu()
        x = x + h @ b.param(f"{i}.down", (32, 16))
    found = bodies(fused(b.finish(x))[0])
    assert len(found) == 24
    assert len({body for _, body in found}) == 2


def test_notes_give_ops_line_and_traffic_saved() -> None:
    b = Builder()
    x = b.input("x", (100,))
    _, (note,) = fused(b.finish((x + 1.0).exp()))
    assert (note.kind, note.label, note.saved_nbytes) == ("fused", "elementwise", 2 * 400)
    assert note.text == "add exp : f32[100]"
    assert note.where.startswith(__file__)


def test_fusion_is_a_matter_of_the_graph_alone() -> None:
    g = random_graph(7).graph
    assert Fuse()(g) == Fuse()(random_graph(7).graph)


def test_every_elementwise_op_fuses() -> None:
    assert {op.row.scalar is not None for op in ELEMENTWISE} == {True}
    for op in sorted(ELEMENTWISE - {Op.CAST}, key=lambda o: o.text):
        b, arity = Builder(), op.row.arity
        assert isinstance(arity, int)
        d = next(t for t in ("f32", "i32", "bool") if b.input(t, (3,), t).dtype in op.row.dtypes[-1])
        xs = [b.input(f"x{i}", (3,), "bool" if op is Op.WHERE and i == 0 else d) for i in range(arity)]
        y = op(*xs)
        again = op(y, *xs[1:]) if y.dtype in op.row.dtypes[0] and (arity == 1 or y.dtype is xs[-1].dtype) else y.logical_not() if y.dtype.text == "bool" else y + y
        g = b.finish(again)
        assert kinds(g)[-1] == "elementwise", op
        run(g, (Canonicalise(), Fuse()))

"""What weights alone decide is computed once, at load, and again when a weight changes; everything else stays in the run."""
from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from random_graphs import assert_same, random_arrays, random_graph, random_sizes

from rlxpy import Builder, CompileOptions, Graph, Op, compile, sym
from rlxpy.compiler.hoist import hoist
from rlxpy.errors import IndexOutOfRange
from rlxpy.ir.dtypes import Array
from rlxpy.ir.quantize import quantize
from rlxpy.ir.refs import evaluate

W = np.arange(12, dtype=np.float32).reshape(3, 4)


def left(g: Graph, *, may_grow: bool = False) -> list[Op]:
    """Ops that every run still does."""
    return [n.op for n in hoist(g, may_grow=may_grow)[0] if n.inputs]


def test_a_chain_over_weights_leaves_the_run() -> None:
    b = Builder()
    x, w, v = b.input("x", (2, 3)), b.param("w", (3, 4)), b.param("v", (4,))
    g = b.finish(x @ (w * 2.0 + v).exp() + v)
    main, (prologue,) = hoist(g, may_grow=False)
    assert [n.op for n in main if n.inputs] == [Op.MATMUL, Op.ADD]
    assert prologue.params == ("v", "w")
    np.testing.assert_allclose(prologue.compute({"w": W, "v": np.ones(4, np.float32)}), np.exp(W * 2 + 1), rtol=1e-6)
    assert [n.name for n in main.params] == ["v", "hoisted.0"]


def test_several_uses_of_one_value_are_one_prologue() -> None:
    b = Builder()
    x, w = b.input("x", (3, 4)), b.param("w", (3, 4))
    t = w.tanh()
    _, prologues = hoist(b.finish(x + t, x * t, x - t.square()), may_grow=False)
    assert len(prologues) == 2


def shapes_of(b: Builder) -> tuple[Any, Any]:
    return b.input("x", (3, 4)), b.param("w", (3, 4))


def test_what_stays() -> None:
    b = Builder()
    x, w = shapes_of(b)
    s = b.state("s", (3, 4))
    S = sym("S", 1, 2)
    assert left(b.finish(x.exp() + w)) == [Op.EXP, Op.ADD]                        # an input decides it
    assert left(b.finish(s.exp() + w, updates=[(s, x)])) == [Op.EXP, Op.ADD]      # a state decides it
    assert left(b.finish(x @ w.T)) == [Op.TRANSPOSE, Op.MATMUL]                   # a view costs nothing
    assert left(b.finish(w.exp(), x)) == [Op.EXP]                                 # an output: the caller owns what it gets
    assert left(b.finish(x[:S] + w[:1].exp().expand(shape=(S, 4)))) == [Op.SLICE, Op.EXPAND, Op.ADD]  # sizes known at run time
    assert left(b.finish(w[S:S + 1].exp() + x[:1])) == [Op.SLICE, Op.EXP, Op.SLICE, Op.ADD]           # a place known at run time
    assert left(b.finish(w.sort(axis=0, descending=False)[0] + x)) == [Op.SORT, Op.ADD]               # several outputs


def test_what_would_take_more_memory_stays_unless_it_may_grow() -> None:
    b = Builder()
    x, w = b.input("x", (3, 4)), b.param("w", (4,))
    g = b.finish(x + w.exp().expand(shape=(3, 4)) * w.sin().expand(shape=(3, 4)))
    assert Op.MUL in left(g)
    assert left(g, may_grow=True) == [Op.ADD]
    big = b.finish(x + b.param("u", (4,)).cast(to="f64").cast(to="f32"))
    assert left(big) == [Op.ADD]


def test_packed_weights_are_unpacked_once_only_when_asked() -> None:
    packed = quantize(np.linspace(-1, 1, 4 * 64, dtype=np.float32).reshape(4, 64), "q8_0")
    b = Builder()
    w = b.param("w", packed[0].shape, "u8")
    g = b.finish(b.input("x", (2, 64)).apply("qmatmul", (b.input("x", (2, 64)), w), {"encoding": "q8_0", "shape": (4, 64)}))
    x = np.random.default_rng(0).standard_normal((2, 64)).astype(np.float32)
    runs = {}
    for weights, wanted in (("packed", Op.QMATMUL), ("dense", Op.MATMUL)):
        c = compile(g, {"w": packed[0]}, options=CompileOptions(weights=weights, debug=True))
        assert wanted in {n.op for n in c.plan.graph}
        assert Op.DEQUANTIZE not in {n.op for n in c.plan.graph}
        runs[weights] = c.run(x)
    np.testing.assert_allclose(runs["packed"], runs["dense"], rtol=1e-5, atol=1e-5)


def test_a_new_weight_reaches_everything_computed_from_it() -> None:
    b = Builder()
    x, w, v = b.input("x", (3, 4)), b.param("w", (3, 4)), b.param("v", (4,))
    c = compile(b.finish(x * w.exp() + v.sin() + (w + v).cos()), {"w": W, "v": W[0]})
    one = np.ones((3, 4), np.float32)

    def want(w: Array, v: Array) -> Any: return np.exp(w) + np.sin(v) + np.cos(w + v)

    np.testing.assert_allclose(c.run(one), want(W, W[0]), rtol=1e-5)
    c.set_param("v", W[1])
    np.testing.assert_allclose(c.run(one), want(W, W[1]), rtol=1e-5)
    c.set_param("w", W / 8)
    np.testing.assert_allclose(c.run(one), want(W / 8, W[1]), rtol=1e-5)


def test_a_weight_may_have_the_name_we_would_choose() -> None:
    b = Builder()
    x, w, other = b.input("x", (3, 4)), b.param("w", (3, 4)), b.param("hoisted.0", (3, 4))
    g = b.finish(x + w.exp() * other)
    np.testing.assert_allclose(compile(g, {"w": W * 0, "hoisted.0": W}).run(W), W + W, rtol=1e-6)
    g = b.finish((x + w.exp()) * other)
    np.testing.assert_allclose(compile(g, {"w": W * 0, "hoisted.0": W}).run(W), (W + 1) * W, rtol=1e-6)


def test_an_index_out_of_range_names_the_line_of_the_gather() -> None:
    b = Builder()
    line = sys._getframe().f_lineno + 1
    rows = b.param("w", (3, 4)).gather(b.const([7]), axis=0)
    with pytest.raises(IndexOutOfRange, match="gather: index 7") as e:
        compile(b.finish(b.input("x", (4,)) + rows), {"w": W})
    assert f"{__file__}:{line}" in e.value.where


@pytest.mark.parametrize("seed", range(80))
def test_random_graphs_mean_the_same(seed: int) -> None:
    sample = random_graph(seed)
    g, rng = sample.graph, np.random.default_rng(seed)
    params, sizes = random_arrays(g.params, {}, rng), random_sizes(g, rng)
    given = random_arrays((*g.inputs, *g.states), sizes, rng)
    with np.errstate(all="ignore"):
        want = evaluate(b := g.bind(sizes), {n.id: {**given, **params}[n.name] for n in (*b.inputs, *b.params, *b.states)})
        for may_grow in (False, True):
            main, prologues = hoist(g, may_grow=may_grow)
            known = {**given, **params, **{h.name: h.compute(params) for h in prologues}}
            got = evaluate(m := main.bind(sizes), {n.id: known[n.name] for n in (*m.inputs, *m.params, *m.states)})
            assert main.output_names == g.output_names
            for name, x, y, t in zip(g.output_names, got, want, g.output_types, strict=True):
                assert_same(x, y, t.dtype, f"{sample} {name}", loose=name in sample.loose_outputs)


def test_random_graphs_have_something_to_hoist() -> None:
    assert sum(len(hoist(random_graph(seed).graph, may_grow=True)[1]) for seed in range(80)) > 10

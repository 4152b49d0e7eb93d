"""Memory that persists: kv_append in place only where nobody needs the old rows, and states that hold what the graph says."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from plans import planned
from random_graphs import random_array, random_arrays, random_graph, random_sizes

from rlxpy import Builder, CompileOptions, Graph, Op, Value, compile
from rlxpy.fusion.check_plan import check_plan
from rlxpy.ir.dtypes import Array
from rlxpy.ir.refs import evaluate
from rlxpy.ir.types import bind


def simulated(g: Graph, states: dict[str, Array], given: Mapping[str, Array]) -> tuple[Array, ...]:
    """One run as the graph says it: a pure function of inputs and states, then all updates at once."""
    leaves = {n.id: states[n.name] if n.op is Op.STATE else given[n.name] for n in (*g.inputs, *g.params, *g.states)}
    with np.errstate(all="ignore"):
        everything = evaluate(replace(g, outputs=g.results), leaves)
    states.update({g[s].name: np.array(v) for (s, _), v in zip(g.updates, everything[len(g.outputs):], strict=True)})
    return everything[:len(g.outputs)]


def assert_runs_like_the_graph(g: Graph, runs: int = 3, **fixed: Any) -> None:
    for optimise in (True, False):
        rng = np.random.default_rng(0)
        params = random_arrays(g.params, {}, rng)
        c = compile(g, params, options=CompileOptions(optimise=optimise, debug=True))
        states = {n.name: np.zeros(n.type.shape, n.type.dtype.numpy) for n in g.states}
        for k in range(runs):
            given = {n.name: np.asarray(k % 3, n.type.dtype.numpy) if n.name == "pos" else random_array(bind(n.type.shape, {}), n.type.dtype, rng) for n in g.inputs} | fixed
            want = simulated(g, states, {**given, **params})
            before = {n: a.copy() for n, a in given.items()}
            got = c.run(given)
            for x, y in zip(got if isinstance(got, tuple) else (got,), want, strict=True):
                np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6, err_msg=f"run {k}, optimise={optimise}")
            for n, a in before.items():
                np.testing.assert_array_equal(given[n], a)


def append(cache: Value, new: Value, pos: Value) -> Any: return cache.kv_append(new, pos, axis=0)


Case = Callable[[Builder, Value, Value, Value], tuple[list[Value], list[tuple[Value, Value]]]]


def _cases() -> Iterator[tuple[str, list[bool], Case]]:
    """Name, which appends are in place, and the graph."""
    yield "plain", [True], lambda b, s, n, p: ([(g := append(s, n, p)).sum(axes=(0,))], [(s, g)])
    yield "the new cache is an output", [True], lambda b, s, n, p: ([g := append(s, n, p)], [(s, g)])
    yield "the old cache is an output", [False], lambda b, s, n, p: ([g := append(s, n, p), s], [(s, g)])
    yield "the old cache is read later", [False], lambda b, s, n, p: ([(g := append(s, n, p)) - s], [(s, g)])
    yield "a view of the old cache is read later", [False], lambda b, s, n, p: ([v := s[1:].T, (g := append(s, n, p)).sum(axes=(0,)), v.exp()], [(s, g)])
    yield "the old cache is read before", [True], lambda b, s, n, p: ([h := s.exp(), g := append(s, n + h[:1], p)], [(s, g)])
    yield "one after the other", [True, True], lambda b, s, n, p: ([g := append(append(s, n, p), n * 2.0, p + 1)], [(s, g)])
    yield "two from one", [False, True], lambda b, s, n, p: ([append(s, n, p), g := append(s, n * 2.0, p)], [(s, g)])
    yield "rows of the cache itself", [False], lambda b, s, n, p: ([g := append(s, s[:1], p)], [(s, g + n)])
    yield "never updated", [False], lambda b, s, n, p: ([append(s, n, p)], [])
    yield "updated with something else", [True], lambda b, s, n, p: ([append(s, n, p)], [(s, n.expand(shape=s.shape))])
    yield "updated with itself", [False], lambda b, s, n, p: ([append(s, n, p)], [(s, s)])
    yield "a value made on the way", [True], lambda b, s, n, p: ([append(s + 1.0, n, p)], [])
    yield "a value that is also read", [False], lambda b, s, n, p: ([append(h := s + 1.0, n, p), h], [(s, h)])
    yield "a transposed cache", [False], lambda b, s, n, p: ([g := (s.T + 0.5).T.kv_append(n, p, axis=0)], [(s, g)])
    yield "an input as cache", [False], lambda b, s, n, p: ([append(b.input("c", s.shape), n, p)], [(s, s + 1.0)])
    yield "a param as cache", [False], lambda b, s, n, p: ([append(b.param("c", s.shape), n, p)], [])
    yield "a constant as cache", [False], lambda b, s, n, p: ([append(b.const(np.ones(s.shape, np.float32)), n, p)], [])


CASES = {name: (inplace, case) for name, inplace, case in _cases()}


@pytest.mark.parametrize("name", CASES)
def test_appending_in_place_only_where_nobody_needs_the_old_rows(name: str) -> None:
    inplace, case = CASES[name]
    b = Builder()
    outputs, updates = case(b, b.state("s", (5, 2)), b.input("new", (1, 2)), b.input("pos", (), "i64"))
    g = b.finish(*outputs, updates=updates)
    p = check_plan(planned(g), 64)
    assert [p.places[n.refs[0]] == p.places[n.inputs[0]] for n in p.graph if n.op is Op.KV_APPEND] == inplace
    assert_runs_like_the_graph(g)


def test_an_appended_cache_is_not_copied_at_the_end() -> None:
    b = Builder()
    s = b.state("s", (5, 2))
    g = append(s, b.input("new", (1, 2)), b.input("pos", (), "i64"))
    assert planned(b.finish(g.exp(), updates=[(s, g)])).commits == ()


UPDATES: dict[str, Callable[[Builder, Value, Value, Value], Graph]] = {
    "trade places": lambda b, s, t, x: b.finish(s - t, updates=[(s, t), (t, s)]),
    "trade places with a step": lambda b, s, t, x: b.finish(s, t, updates=[(s, t + x), (t, s)]),
    "round": lambda b, s, t, x: b.finish(s, t, updates=[(s, t), (t, b.state("u", (3, 3)) + x), (b.state("u", (3, 3)), s)]),
    "a view of itself": lambda b, s, t, x: b.finish(s, updates=[(s, s.T), (t, x)]),
    "itself, and used": lambda b, s, t, x: b.finish(s + x, updates=[(s, s), (t, s + x)]),
    "two states, one value": lambda b, s, t, x: b.finish(s * t, updates=[(s, x), (t, x)]),
    "an input": lambda b, s, t, x: b.finish(s, updates=[(s, x)]),
    "a param": lambda b, s, t, x: b.finish(s, updates=[(s, b.param("w", (3, 3)))]),
    "a constant": lambda b, s, t, x: b.finish(s + 0.0, updates=[(s, b.const(np.arange(9, dtype=np.float32).reshape(3, 3)))]),
    "no update": lambda b, s, t, x: b.finish(s + x, updates=[(t, t + 1.0)]),
    "an output that is the state": lambda b, s, t, x: b.finish(s, s, t, updates=[(s, s + x)]),
}


@pytest.mark.parametrize("name", UPDATES)
def test_states_hold_what_the_graph_says(name: str) -> None:
    b = Builder()
    g = UPDATES[name](b, b.state("s", (3, 3)), b.state("t", (3, 3)), b.input("x", (3, 3)))
    check_plan(planned(g), 64)
    assert_runs_like_the_graph(g, runs=4)


def test_a_result_is_not_the_caller_s_array() -> None:  # A14
    b = Builder()
    x = b.input("x", (3,))
    c = compile(b.finish(b.const(0.0), x, x + 1.0, x.reverse(axes=(0,))))
    given = np.array([1, 2, 3], np.float32)
    zero, same, more, back = c.run(given)
    given[:] = 9
    assert zero == 0
    np.testing.assert_array_equal(same, [1, 2, 3])
    np.testing.assert_array_equal(more, [2, 3, 4])
    np.testing.assert_array_equal(back, [3, 2, 1])


def test_results_of_several_calls() -> None:  # A15
    b = Builder()
    f = compile(b.finish(b.input("x", (2,)).sum(axes=(0,)))).run
    results = [f(np.full(2, k, np.float32)) for k in (1, 2, 3)]
    assert results == [2, 4, 6]


@pytest.mark.parametrize("seed", range(40))
def test_random_graphs_run_in_their_plan_like_the_graph_says(seed: int) -> None:
    """Three runs, so that states change; the oracle knows no memory at all."""
    g = random_graph(seed, 60).graph
    rng = np.random.default_rng(seed)
    sizes = random_sizes(g, rng)
    g = g.bind(sizes)
    params = random_arrays(g.params, sizes, rng)
    c = compile(g, params, options=CompileOptions(optimise=False, debug=True))
    states = {n.name: np.zeros(bind(n.type.shape, {}), n.type.dtype.numpy) for n in g.states}
    for k in range(3):
        given = random_arrays(g.inputs, sizes, rng)
        for x, y in zip(c.run(given), simulated(g, states, {**given, **params}), strict=True):
            wide = np.complex128 if x.dtype.kind == "c" else np.float64
            np.testing.assert_allclose(x.astype(wide), y.astype(wide), rtol=1e-2, atol=1e-3, err_msg=f"seed {seed} run {k}")

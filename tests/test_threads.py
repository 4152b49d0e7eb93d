"""One compiled graph, one session and one state under many threads (A23); results are checked, not only survival."""
from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np
import pytest

from rlxpy import Builder, CompiledGraph, CompileOptions, Session, compile, settings, sym
from rlxpy.errors import RlxError
from rlxpy.extend.passes import pass_registry, register_ir_pass
from rlxpy.fusion.canonicalise import Canonicalise

THREADS, CALLS = 8, 20
levels = pytest.mark.parametrize("options", [CompileOptions(debug=True), CompileOptions(optimise=False)], ids=["optimised", "as written"])


@pytest.fixture(autouse=True)
def eager_switching() -> Iterator[None]:
    """Threads change places a thousand times more often than usual, so that races show."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(before)


def together(work: Callable[[int], Any], count: int = THREADS) -> list[Any]:
    """Results of work(0), work(1).., all started at the same moment; the first error is raised."""
    ready = Barrier(count)

    def start(k: int) -> Any:
        ready.wait(timeout=60)
        return work(k)

    with ThreadPoolExecutor(count) as pool:
        return [f.result(timeout=120) for f in [pool.submit(start, k) for k in range(count)]]


def perceptron(options: CompileOptions) -> tuple[CompiledGraph, Callable[[Any], Any]]:
    """Two products with a wide middle, B and S symbolic, so that an arena that is shared would show; and its meaning in NumPy."""
    rng = np.random.default_rng(0)
    w, v = (rng.standard_normal(s).astype(np.float32) for s in ((5, 16), (16, 3)))
    b = Builder()
    x = b.input("x", (sym("B", 1, 8), sym("S", 1, 32), 5))
    y = (x @ b.param("w", (5, 16)) + 1.0).relu() @ b.param("v", (16, 3))
    return compile(b.finish(y, y.sum(axes=(-1,))), {"w": w, "v": v}, options=options), lambda x: (y := np.maximum(x @ w + 1, 0) @ v, y.sum(-1))


@levels
def test_one_graph_many_threads_many_sizes(options: CompileOptions) -> None:
    run, meaning = perceptron(options)

    def work(k: int) -> None:
        rng = np.random.default_rng(k)
        kept = []
        for call in range(CALLS):
            x = rng.standard_normal((1 + (k + call) % 8, 1 + (7 * k + call) % 32, 5)).astype(np.float32)
            kept.append((x, run(x)))
        for x, got in kept:  # after all calls: nothing was overwritten
            for g, want in zip(got, meaning(x), strict=True):
                np.testing.assert_allclose(g, want, rtol=1e-4, atol=1e-4)

    together(work)


def test_run_into_from_many_threads() -> None:
    run, meaning = perceptron(CompileOptions())
    out = np.zeros((THREADS, 4, 6, 3), np.float32)
    sums = np.zeros((THREADS, 4, 6), np.float32)
    x = np.random.default_rng(1).standard_normal((THREADS, 4, 6, 5)).astype(np.float32)

    def work(k: int) -> None:
        for _ in range(CALLS):
            run.run_into((out[k], sums[k]), x[k])

    together(work)
    np.testing.assert_allclose(out, meaning(x)[0], rtol=1e-4, atol=1e-4)


def test_one_thread_that_fails_does_not_disturb_the_others() -> None:
    b = Builder()
    run = compile(b.finish(b.input("t", (sym("N", 1, 64),)).gather(b.input("i", (), "i64"), axis=0) * 2.0))

    def work(k: int) -> None:
        for call in range(1, CALLS):
            t = np.arange(call, dtype=np.float32) + k
            if k % 2:
                with pytest.raises(IndexError, match=f"index {call}"):
                    run(t, call)
            else:
                assert run(t, call - 1) == 2 * (call - 1 + k)

    together(work)


# ---- compiling
def scaled(k: int) -> Any:
    b = Builder()
    return b.finish((b.input("x", (k + 1, 3)) * float(k)).sum(axes=(0,)) + b.input("y", (3,)))


@pytest.mark.parametrize("shared", [True, False])
def test_many_threads_compile_many_shapes(shared: bool) -> None:
    session = Session()

    def work(k: int) -> None:
        for j in range(CALLS // 4):
            n = (k + j) % THREADS
            run = (session if shared else Session()).compile(scaled(n))
            x = np.random.default_rng(n).standard_normal((n + 1, 3)).astype(np.float32)
            np.testing.assert_allclose(run(x, [1, 2, 3]), (x * n).sum(0) + np.array([1, 2, 3]), rtol=1e-5, atol=1e-5)

    together(work)
    assert session.plans_made == (THREADS if shared else 0)


def test_one_graph_is_planned_once_whoever_comes_first() -> None:
    session, graph = Session(), scaled(5)
    runs = together(lambda k: session.compile(graph))
    assert session.plans_made == 1
    assert len({id(r.plan) for r in runs}) == 1


def test_options_belong_to_their_thread() -> None:
    graph = scaled(3)

    def work(k: int) -> list[int]:
        options = CompileOptions(optimise=k % 2 == 0)
        return [len(compile(graph, options=options).plan.steps) for _ in range(CALLS)]

    seen = together(work)
    assert all(len(set(lengths)) == 1 for lengths in seen)
    assert {lengths[0] for lengths in seen[::2]} != {lengths[0] for lengths in seen[1::2]}


def test_settings_and_passes_of_one_thread_are_not_seen_by_others() -> None:
    graph = scaled(2)

    def work(k: int) -> None:
        for _ in range(CALLS):
            if k % 2:
                with settings.override(debug=1), pass_registry():
                    register_ir_pass(Canonicalise(name=f"mine-{k}"))
                    run = compile(graph)
                    assert run.options.checks
                    assert [r.name for r in run.report.runs if r.name.startswith("mine")] == [f"mine-{k}"]
            else:
                run = compile(graph)
                assert not run.options.checks
                assert not [r for r in run.report.runs if r.name.startswith("mine")]

    together(work)


# ---- states
def summing(options: CompileOptions) -> CompiledGraph:
    """A cache of rows and a running total: (everything appended so far, its sum)."""
    b = Builder()
    new, at = b.input("new", (1, 4)), b.input("at", (), "i64")
    rows, total = b.state("rows", (CALLS, 4)), b.state("total", (4,))
    full, sums = rows.kv_append(new, at, axis=0), total + new[0]
    b.update(rows, full)
    b.update(total, sums)
    return compile(b.finish(full * 1.0, sums * 1.0), options=options)


def conversation(run: CompiledGraph, state: Any, k: int) -> list[Any]:
    rng = np.random.default_rng(k)
    return [run(rng.standard_normal((1, 4)).astype(np.float32), at, state=state) for at in range(CALLS)]


def same(a: list[Any], b: list[Any]) -> None:
    for (rows, total), (more, sums) in zip(a, b, strict=True):
        np.testing.assert_array_equal(rows, more)
        np.testing.assert_array_equal(total, sums)


@levels
def test_conversations_in_threads_equal_each_alone(options: CompileOptions) -> None:
    run = summing(options)
    alone = [conversation(summing(options), None, k) for k in range(THREADS)]
    for k, got in enumerate(together(lambda k: conversation(run, run.new_state(), k))):
        same(got, alone[k])


@levels
def test_conversations_that_take_turns_equal_each_alone(options: CompileOptions) -> None:
    run, states = summing(options), []
    rngs = [np.random.default_rng(k) for k in range(2)]
    states = [run.new_state() for _ in rngs]
    turns = [[run(rng.standard_normal((1, 4)).astype(np.float32), at, state=s) for rng, s in zip(rngs, states, strict=True)] for at in range(CALLS)]
    for k in range(2):
        same([turn[k] for turn in turns], conversation(summing(options), None, k))


@levels
def test_one_state_takes_one_call_at_a_time(options: CompileOptions) -> None:
    """Every thread adds ones to one total: no call is lost, and each sees a total of its own."""
    run = summing(options)
    state = run.new_state()
    seen = together(lambda k: [float(run(np.ones((1, 4), np.float32), 0, state=state)[1][0]) for _ in range(CALLS)])
    assert sorted(v for row in seen for v in row) == list(range(1, THREADS * CALLS + 1))
    assert all(row == sorted(row) for row in seen)


def test_calls_that_fail_on_a_shared_state_leave_no_trace() -> None:
    run = summing(CompileOptions())
    state = run.new_state()

    def work(k: int) -> None:
        for _ in range(CALLS):
            if k % 2:
                with pytest.raises(RlxError):
                    run(np.full((1, 4), 100, np.float32), CALLS, state=state)
            else:
                run(np.ones((1, 4), np.float32), 0, state=state)

    together(work)
    assert run(np.zeros((1, 4), np.float32), 0, state=state)[1].tolist() == [THREADS // 2 * CALLS] * 4


# ---- weights that change meanwhile
@pytest.mark.parametrize("options", [CompileOptions(), CompileOptions(optimise=False), CompileOptions(weights="dense")], ids=["optimised", "as written", "dense"])
def test_no_result_mixes_two_sets_of_weights(options: CompileOptions) -> None:
    """The weight is read plainly, hoisted, and as an output: each result comes from one version of it."""
    b = Builder()
    x, w = b.input("x", (sym("B", 1, 8), 6)), b.param("w", (6, 6))
    run = compile(b.finish(x @ w, x @ ((w.T * 2.0 + 1.0)[::2].T), w, (w * 3.0)[0]), {"w": np.full((6, 6), 0, np.float32)}, options=options)
    writers = 2

    def work(k: int) -> None:
        if k < writers:
            for version in range(k, 200, writers):
                run.set_param("w", np.full((6, 6), version, np.float32))
            return
        for call in range(CALLS * 5):
            ones = np.ones((1 + (k + call) % 8, 6), np.float32)
            plain, hoisted, itself, tripled = run(ones)
            version = itself[0, 0]
            assert (itself == version).all()
            assert (plain == 6 * version).all()
            assert (hoisted == 6 * (2 * version + 1)).all()
            assert (tripled == 3 * version).all()

    together(work)
    assert run(np.ones((1, 6), np.float32))[2][0, 0] in (198, 199)

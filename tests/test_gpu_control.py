"""scan, while and cond on GPUs: the laws of test_control.py, and what is a device's own: recorded rounds, predicates read back, faults inside a body."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import test_control as laws
from gpu_device import WAVES, gpu as gpu, rocm as rocm, simulation
from sim_device import needs_clang
from test_control import CHECKED, normal, recurrent, recurrent_oracle, twice

from rlxpy import Builder, CompileOptions, Graph, Op, Value, compile, cond, scan, sym, while_loop
from rlxpy.backends.gpu import bind
from rlxpy.errors import IndexOutOfRange


def native(f: Any) -> None:
    """Nothing of it runs on the host."""
    assert {row["tier"] for row in f.dispatch()} <= {"kernel", "native"}, f.dispatch()


def test_the_laws_of_loops(gpu: str) -> None:
    laws.test_a_recurrence(gpu, 5, "param", True, 1)
    laws.test_a_recurrence(gpu, 64, "input", False, 1)
    for view in laws.VIEWS:
        laws.test_slices_of_views(gpu, view, reverse=view != "plain")
    laws.test_loops_in_loops_see_values_of_every_graph_around_them(gpu, 1)
    laws.test_only_one_side_of_a_cond_runs(gpu, 1)
    laws.test_a_cache_carried_by_a_loop_is_written_in_place(gpu)


def test_gradients_of_loops(gpu: str) -> None:
    laws.test_gradients_go_through_loops_in_branches_in_loops(gpu)


@needs_clang
@pytest.mark.parametrize("arch", WAVES)
def test_a_recurrence_as_machine_code(arch: str) -> None:
    x, h, w = normal(4, 3, 5), normal(3, 5, seed=1), normal(5, 5, seed=2) / 2
    with simulation(arch, by="isa"):
        f = compile(recurrent(sym("N", 0, 9), 5), {"w": w}, device="rocm", options=CHECKED)
        native(f)
        for got, want in zip(twice(f, x, h), recurrent_oracle(x, h, w), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def collatz() -> Graph:
    """Steps to 1: a while that the data ends, with carries that trade places in the middle."""
    b = Builder("collatz")
    n, bound = b.input("n", (), "i64"), b.input("bound", (), "i64")

    def step(s: tuple[Value, Value, Value]) -> tuple[Value, Value, Value]:
        n, count, other = s
        return cond((n % 2).eq(0), lambda: n // 2, lambda: n * 3 + 1), other + 1, count

    out = while_loop(lambda s: (s[0] > 1) & (s[1] + s[2] < bound), step, (n, b.const(0), b.const(0)))
    return b.finish(out[0], out[1] + out[2])


def test_a_while_runs_as_often_as_its_data_says_and_again(gpu: str) -> None:
    """Even and odd numbers of rounds: carries that trade places lie in either slot at the end."""
    for options in (CHECKED, CompileOptions()):
        f = compile(collatz(), device=gpu, options=options)
        native(f)
        for start in (1, 2, 27, 6, 7, 97, 27):
            n, count = start, 0
            while n > 1:
                n, count = (n // 2, count + 1) if n % 2 == 0 else (3 * n + 1, count + 1)
            assert [int(x) for x in f.run(start, 1000)] == [1, count]
            assert int(f.run(start, 5)[1]) == min(count, 5)


def test_a_scan_too_long_to_be_kept_gives_what_a_recorded_one_gives(gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    n = sym("N", 0, 40)
    x, h, w = normal(33, 3, 5), normal(3, 5, seed=1), normal(5, 5, seed=2) / 2
    kept = compile(recurrent(n, 5), {"w": w}, device=gpu)
    want = [twice(kept, x[:k], h) for k in (33, 0, 4)]
    monkeypatch.setattr(bind, "UNROLLED", 8)
    for debug in (False, True):
        f = compile(recurrent(n, 5), {"w": w}, device=gpu, options=CompileOptions(debug=debug))
        for k, ws in zip((33, 0, 4), want, strict=True):
            for got, wanted in zip(twice(f, x[:k], h), ws, strict=True):
                np.testing.assert_array_equal(got, wanted)


def test_a_bad_index_inside_a_body_is_named_and_leaves_state_as_it_was(gpu: str) -> None:
    """The cache was appended to before the loop met it, in place; the condition is a value that the bad index left."""
    b = Builder("undo")
    s, row, x, at = b.state("s", (4, 3)), b.input("row", (1, 3)), b.input("x", (5, 3)), b.input("at", (), "i64")
    cache = s.kv_append(row, b.const(1), axis=0)
    b.update(s, cache)
    i, total = while_loop(lambda c: (c[0] < 3) & c[1].eq(c[1]).all(axes=(0,)), lambda c: (c[0] + 1, x.gather(at + c[0], axis=0)), (b.const(0), cache[1]))
    graph = b.finish(i, total, cache * 1.0)
    runs = [compile(graph, device=device) for device in (gpu, "reference")]
    native(runs[0])
    given = normal(5, 3)
    for k, index in enumerate((0, 3, 1, 5, 2, -9)):
        said = []
        for f in runs:
            try:
                said.append([a.tolist() for a in f.run(np.full((1, 3), k, np.float32), given, index)])
            except IndexOutOfRange as e:
                said.append([e.what, e.why, e.fix, e.where])
        assert said[0] == said[1], index
        assert isinstance(said[0][0], str) is (index in (3, 5, -9)), said[0]


def test_a_profile_shows_every_launch_of_a_loop_and_every_predicate_that_was_read_back(gpu: str) -> None:
    f = compile(collatz(), device=gpu)
    spans = f.profile(6, 1000)
    (step,) = [s for s in f.plan.steps if s.node.op is Op.WHILE]
    inside = [s for s in spans if s.step is step]
    assert sum(s.kernel == "predicate, read back" for s in inside) == 9 + 8  # of the while before each of 8 rounds and at its end; of the cond in each
    assert len({s.kernel for s in inside}) > 3
    assert "its condition read back before every round" in str(f.explain())


@pytest.mark.parametrize("kept", [True, False])
def test_of_several_bad_indices_the_first_round_s_is_named(gpu: str, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of the least place, nor that of a node behind the loop."""
    monkeypatch.setattr(bind, "UNROLLED", 1 << 12 if kept else 1)
    b = Builder("several")
    x, at, last = b.input("x", (5, 3)), b.input("at", (4, 2), "i64"), b.input("last", (1,), "i64")
    _, ys = scan(lambda c, i: (c + 1, x.gather(i, axis=0).sum(axes=(0,)) + x.gather(i + c, axis=0).sum(axes=(0,))), b.const(0), at)
    runs = [compile(b.finish(ys, x.gather(last, axis=0)), device=device) for device in (gpu, "reference")]
    given = normal(5, 3)
    for rows, end in (([[0, 1], [3, 9], [7, 0], [0, 0]], 11), ([[0, 4], [4, 0], [6, 8], [0, 0]], 0), ([[0, 0]] * 4, -7), ([[0, 0]] * 4, 4)):
        said = []
        for f in runs:
            try:
                said.append([np.round(a, 4).tolist() for a in f.run(given, rows, [end])])
            except IndexOutOfRange as e:
                said.append([e.what, e.why])
        assert said[0] == said[1], rows


FAULTS = {"swapped": lambda frame, slots: slots, "slice": lambda frame, k, i: frame.scope.at(frame.node.refs[k])}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(rocm: object, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Carries that never trade places; slices that all lie where the first does."""
    monkeypatch.setattr(bind._Frame, fault, FAULTS[fault])
    with pytest.raises(AssertionError):
        laws.test_a_recurrence("rocm", 5, "param", True, 1)

"""Memory that lives from run to run: what it holds next, whose it is, and that a failed run leaves it as it was."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from rlxpy import Builder, CompiledGraph, CompileOptions, Session, Value, compile, sym
from rlxpy.errors import BuildError, InputError, RlxError
from rlxpy.ir import functions as F
from rlxpy.ir.attrs import Attrs
from rlxpy.ir.extension import OpExtension, register_op, registry
from rlxpy.ir.row import OpRow

levels = pytest.mark.parametrize("options", [CompileOptions(debug=True), CompileOptions(optimise=False, debug=True)], ids=["optimised", "as written"])


def counter(options: CompileOptions) -> CompiledGraph:
    """n becomes n + x; gives the n before."""
    b = Builder()
    n = b.state("n", (2,))
    b.update(n, n + b.input("x", (2,)))
    return compile(b.finish(n), options=options)


@levels
def test_a_counter_starts_at_zero_counts_and_is_reset(options: CompileOptions) -> None:
    run = counter(options)
    for _ in range(2):
        assert [run([1, 10]).tolist() for _ in range(3)] == [[0, 0], [1, 10], [2, 20]]
        run.reset()


@levels
def test_states_are_apart(options: CompileOptions) -> None:
    run = counter(options)
    a, b = run.new_state(), run.new_state()
    assert run([1, 1], state=a).tolist() == [0, 0]
    assert run([5, 5], state=b).tolist() == [0, 0]
    assert run([7, 7]).tolist() == [0, 0]
    assert [run([0, 0], state=s)[0] for s in (a, b, None)] == [1, 5, 7]
    run.reset()
    assert [run([0, 0], state=s)[0] for s in (a, b, None)] == [1, 5, 0]


@levels
def test_results_do_not_follow_the_state(options: CompileOptions) -> None:
    run = counter(options)
    first = run([1, 1])
    second = run([1, 1])
    first[...] = 99
    assert second.tolist() == [1, 1]
    assert run([1, 1]).tolist() == [2, 2]


@levels
def test_states_trade_places(options: CompileOptions) -> None:
    """(a, b) becomes (b, a + b + 1): each new value reads the other's old one."""
    b = Builder()
    p, q = b.state("p", ()), b.state("q", ())
    b.update(p, q)
    b.update(q, p + q + 1.0)
    run = compile(b.finish(p, q), options=options)
    want = (0.0, 0.0)
    for _ in range(6):
        assert tuple(float(v) for v in run()) == want
        want = want[1], want[0] + want[1] + 1


@levels
def test_a_state_that_nothing_updates_stays_zero(options: CompileOptions) -> None:
    b = Builder()
    run = compile(b.finish(b.state("still", (3,)) + b.input("x", (3,))), options=options)
    for _ in range(2):
        assert run([1, 2, 3]).tolist() == [1, 2, 3]


@levels
def test_a_state_may_become_an_input_a_constant_or_a_weight(options: CompileOptions) -> None:
    b = Builder()
    s, t, u = (b.state(n, (2,)) for n in "stu")
    b.update(s, b.input("x", (2,)))
    b.update(t, b.const([7.0, 8.0]))
    b.update(u, b.param("w", (2,)))
    run = compile(b.finish(s, t, u), {"w": np.array([3, 4], np.float32)}, options=options)
    run([1, 2])
    assert [v.tolist() for v in run([5, 6])] == [[1, 2], [7, 8], [3, 4]]


# ---- caches
ROWS, WIDTH = 6, 2
STEP = sym("T", 1, ROWS)


def cache(options: CompileOptions, extra: Callable[[Builder, Value], Any] = lambda b, full: ()) -> CompiledGraph:
    """New rows go in at `at`; gives the whole cache times two (and what `extra` makes of it)."""
    b = Builder()
    kept = b.state("kv", (ROWS, WIDTH))
    full = kept.kv_append(b.input("new", (STEP, WIDTH)), b.input("at", (), "i64"), axis=0)
    b.update(kept, full)
    return compile(b.finish(full * 2.0, *extra(b, full)), options=options)


def rows(*numbers: int) -> Any:
    return np.repeat(np.array(numbers, np.float32)[:, None], WIDTH, 1) * [1, -1]


@levels
def test_a_cache_fills_row_by_row_and_in_chunks(options: CompileOptions) -> None:
    run = cache(options)
    want = np.zeros((ROWS, WIDTH), np.float32)
    for at, new in ((0, (1,)), (1, (2, 3, 4)), (4, (5,)), (2, (9, 8)), (5, (6,))):
        want[at:at + len(new)] = rows(*new)
        np.testing.assert_array_equal(run(rows(*new).astype(np.float32), at), want * 2)


@levels
def test_a_full_cache_says_so_and_keeps_what_it_has(options: CompileOptions) -> None:
    run = cache(options)
    before = run(rows(1, 2, 3, 4, 5).astype(np.float32), 0)
    for at, new in ((5, (6, 7)), (6, (6,)), (-1, (6,))):
        with pytest.raises(IndexError, match="kv_append") as caught:
            run(rows(*new).astype(np.float32), at)
        assert __file__ in str(caught.value)
    np.testing.assert_array_equal(run(rows(5).astype(np.float32), 4), before)


# ---- a run that fails midway
def kept_rows(run: CompiledGraph) -> Any:
    """What the cache holds, asked by a run that changes nothing: row 0 is written as it is."""
    return run(rows(1).astype(np.float32), 0, 0)[0]


@levels
def test_a_run_that_raises_after_a_state_was_touched_leaves_it_as_it_was(options: CompileOptions) -> None:
    run = cache(options, lambda b, full: (full.gather(b.input("pick", (), "i64"), axis=0),))
    run(rows(1, 2, 3).astype(np.float32), 0, 0)
    before = kept_rows(run)
    for at, new in ((3, (7,)), (1, (7, 8)), (0, (9, 9, 9, 9, 9, 9))):
        with pytest.raises(IndexError, match="gather: index 6"):
            run(rows(*new).astype(np.float32), at, 6)
        np.testing.assert_array_equal(kept_rows(run), before)


@levels
def test_two_caches_and_a_counter_fail_together(options: CompileOptions) -> None:
    """The second cache is full when the first has its row already."""
    b = Builder()
    new, at = b.input("new", (1, WIDTH)), b.input("at", (), "i64")
    long, short, count = b.state("long", (ROWS, WIDTH)), b.state("short", (2, WIDTH)), b.state("count", ())
    first = long.kv_append(new, at, axis=0)
    second = short.kv_append(new + first.sum(axes=(0, 1)), at, axis=0)
    for state, value in ((long, first), (short, second), (count, count + 1.0)):
        b.update(state, value)
    run = compile(b.finish(first * 1.0, second * 1.0, count), options=options)
    for k in (0, 1):
        run(rows(k + 1).astype(np.float32), k)
    with pytest.raises(IndexError, match="kv_append"):
        run(rows(50).astype(np.float32), 2)
    after = run(rows(2).astype(np.float32), 1)
    np.testing.assert_array_equal(after[0], [*rows(1, 2), *np.zeros((4, WIDTH))])
    assert after[2] == 2


@dataclass(frozen=True)
class NoAttrs(Attrs):
    pass


def _halve_in_place(x: Any) -> Any:
    if (x > 100).any():
        raise ArithmeticError("too large")
    return x / np.float32(2)


@levels
def test_an_extension_that_works_in_place_is_undone_too_and_its_own_error_is_kept(options: CompileOptions) -> None:
    """The op takes over the state's memory; the gather after it raises."""
    with registry():
        halve = register_op(OpExtension("test.halve", OpRow(1, lambda x: x.shape, lambda x: x.dtype, _halve_in_place, lower=None, attrs=NoAttrs, inplace=0)))
        b = Builder()
        s = b.state("s", (3,))
        half = halve(s)
        grown = F.reshape(half, (3,)) + b.input("x", (3,))
        b.update(s, grown)
        run = compile(b.finish(half.gather(b.input("pick", (), "i64"), axis=0)), options=options)
    run([8, 8, 8], 0)
    with pytest.raises(IndexError):
        run([1, 1, 1], 3)
    assert run([1, 1, 1000], 0) == 4
    with pytest.raises(RlxError, match=r"test\.halve") as caught:
        run([0, 0, 0], 0)
    assert isinstance(caught.value.__cause__, ArithmeticError)
    assert "ArithmeticError: too large" in caught.value.why
    assert __file__ in caught.value.where


@levels
def test_a_failed_run_writes_no_output(options: CompileOptions) -> None:
    run = cache(options, lambda b, full: (full.gather(b.input("pick", (), "i64"), axis=0),))
    outs = (np.full((ROWS, WIDTH), 77, np.float32), np.full(WIDTH, 77, np.float32))
    with pytest.raises(IndexError):
        run.run_into(outs, rows(1).astype(np.float32), 0, 6)
    assert all((o == 77).all() for o in outs)


# ---- misuse
def test_a_state_of_another_graph_is_refused() -> None:
    run, other = counter(CompileOptions()), cache(CompileOptions())
    for state in (other.new_state(), "conversation", 3):
        with pytest.raises(InputError, match="not one of this graph"):
            run([1, 1], state=state)
    assert run([1, 1]).tolist() == [0, 0]


def test_a_state_serves_any_weights_of_its_plan() -> None:
    b = Builder()
    s = b.state("s", ())
    b.update(s, s + b.param("w", ()))
    session, graph = Session(), b.finish(s)
    one, ten = (session.compile(graph, {"w": np.float32(w)}) for w in (1, 10))
    state = one.new_state()
    got = [float(run(state=state)) for run in (one, ten, one, ten)]
    assert got == [0, 1, 11, 12]


UPDATES: dict[str, tuple[Callable[[Builder, Value], Any], str]] = {
    "not a state": (lambda b, s: b.update(b.input("x", (2,)), s), "update of input 'x'"),
    "another type": (lambda b, s: b.update(s, b.input("x", (3,))), "f32[2] with f32[3]"),
    "twice": (lambda b, s: (b.update(s, s + 1.0), b.update(s, s + 2.0)), "'s' is updated twice"),
    "no value": (lambda b, s: b.update(s, 3.0), "3.0 is not a value"),  # type: ignore[arg-type]
    "another builder's": (lambda b, s: b.update(s, Builder("other").input("x", (2,))), "'other'"),
}


@pytest.mark.parametrize(("mistake", "says"), UPDATES.values(), ids=UPDATES)
def test_mistaken_updates(mistake: Any, says: str) -> None:
    b = Builder()
    with pytest.raises(BuildError) as caught:
        mistake(b, b.state("s", (2,)))
    assert says in caught.value.what
    assert __file__ in caught.value.where

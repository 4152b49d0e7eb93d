"""Laws of a compiled graph, whatever it computes: sizes, states, weights, errors, ownership, threads, fusion.  By device; each raises what is wrong."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np

from rlxpy.compiler.options import CompileOptions
from rlxpy.compiler.session import compile
from rlxpy.errors import IndexOutOfRange, InputError, RlxError
from rlxpy.ir.builder import Builder, Value
from rlxpy.ir.dims import sym
from rlxpy.ir.dtypes import Array, DType, dtype
from rlxpy.ir.graph import Graph
from rlxpy.ir.refs import evaluate
from rlxpy.tools.samples import as_tuple, plain

CLOSE = {  # of a result, relative to it and to one; of narrow floats one unit in the last place
    DType.F64: 1e-12, DType.C128: 1e-12, DType.F32: 2e-6, DType.C64: 2e-6, DType.F16: 2.0 ** -10, DType.BF16: 2.0 ** -7, DType.F8E4M3FN: 2.0 ** -3, DType.F8E5M2: 2.0 ** -2, DType.F4E2M1: 2.0 ** -1}
THREADS, TURNS = 4, 5


class Broken(Exception):
    """A promise that was not kept."""


def same(got: Any, want: Array, where: str = "") -> None:
    """Equal in type and shape, and in value as near as the type lets results of another order of sums be."""
    if not isinstance(got, np.ndarray) or (got.dtype, got.shape) != (want.dtype, want.shape):
        raise Broken(f"{where}: {getattr(got, 'dtype', type(got).__name__)}{list(np.shape(got))} where {want.dtype}{list(want.shape)} is wanted")
    a, b, tolerance = plain(got), plain(want), CLOSE.get(dtype(want.dtype), 0.0)
    with np.errstate(all="ignore"):
        near = np.isclose(a, b, tolerance, tolerance, equal_nan=True) if a.dtype.kind in "fc" else a == b
    if not near.all():
        first = tuple(int(k) for k in np.argwhere(~near)[0])
        raise Broken(f"{where}: {int((~near).sum())} of {near.size} values differ, first at {list(first)}: {a[first]} where {b[first]} is wanted")


@contextmanager
def refusing(kind: type[RlxError], what: str) -> Iterator[None]:
    try:
        yield
    except kind:
        return
    except Exception as e:
        raise Broken(f"{what} raises {type(e).__name__} where {kind.__name__} is promised: {e}") from e
    raise Broken(f"{what} is taken, where {kind.__name__} is promised")


def compiled(graph: Graph, device: str, params: Mapping[str, Array] | None = None, **options: Any) -> Any:
    return compile(graph, params or {}, device=device, options=CompileOptions(**{"debug": True, **options}), wait=True)


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).uniform(-2, 2, shape).astype(np.float32)


# ---- sizes ---------------------------------------------------------------------------------------------------------
def one_compile_serves_every_size(device: str) -> None:
    """Growing, shrinking, one and none."""
    b, rows = Builder("sizes"), sym("B", 0, 9)
    x, w = b.input("x", (rows, 4)), b.input("w", (4, 3))
    g = b.finish(x @ w + 1.0, x.sum(axes=(1,)), x.reshape(shape=(rows * 4,)) * 2.0)
    run, w_given = compiled(g, device), numbers(4, 3, seed=1)
    for n in (1, 2, 7, 1, 9, 0, 3):
        given = numbers(n, 4, seed=n)
        for got, want in zip(run(given, w_given), (given @ w_given + 1, given.sum(1), given.reshape(-1) * 2), strict=True):
            same(got, want, f"B = {n}")


def a_size_outside_its_range_is_refused(device: str) -> None:
    b = Builder("range")
    run = compiled(b.finish(b.input("x", (sym("B", 2, 8, 2),)) * 2.0), device)
    for n in (0, 3, 10):
        with refusing(InputError, f"B = {n}"):
            run(numbers(n))
    same(run(numbers(4)), numbers(4) * 2)


# ---- states --------------------------------------------------------------------------------------------------------
def counting() -> Graph:
    """Two states that trade places, one of them counting, and a row of a third by index."""
    b = Builder("states")
    step, at = b.input("step", (3,)), b.input("at", (1,), "i64")
    s, t, table = b.state("s", (3,)), b.state("t", (3,)), b.state("table", (4, 3))
    return b.finish(s + t, table.gather(at, axis=0), updates=[(s, t + step), (t, s), (table, table + step)])


def states_live_from_run_to_run_and_trade_places(device: str) -> None:
    run, s, t, table = compiled(counting(), device), np.zeros(3, np.float32), np.zeros(3, np.float32), np.zeros((4, 3), np.float32)
    for k in range(5):
        step = numbers(3, seed=k)
        total, row = run(step, [k % 4])
        same(total, s + t, f"run {k}")
        same(row, table[[k % 4]], f"run {k}")
        s, t, table = t + step, s, table + step


def every_state_is_its_own(device: str) -> None:
    """One for each conversation; a fresh one is zero; reset forgets."""
    run, one, other = compiled(counting(), device), np.ones(3, np.float32), np.full(3, 5, np.float32)
    first, second = run.new_state(), run.new_state()
    run(one, [0], state=first)
    run(other, [0], state=second)
    same(run(one, [0], state=first)[0], one, "the first conversation")
    same(run(one, [0], state=second)[0], other, "the second conversation")
    same(run(one, [0])[0], one * 0, "the graph's own, untouched so far")
    run.reset()
    same(run(one, [0])[0], one * 0, "after reset")


def a_run_that_raises_leaves_its_state(device: str) -> None:
    run, one = compiled(counting(), device), np.ones(3, np.float32)
    run(one, [0])
    for bad in (4, -5):
        with refusing(IndexOutOfRange, f"index {bad} of 4 rows"):
            run(one, [bad])
    same(run(one, [3])[1], np.ones((1, 3), np.float32), "the run after two that failed")


def a_state_of_another_graph_is_refused(device: str) -> None:
    b = Builder("other")
    s = b.state("s", (50,))
    other = compiled(b.finish(s + 0.0, updates=[(s, s + 1.0)]), device)
    run = compiled(counting(), device)
    for what, state in (("the state of another graph", other.new_state()), ("a number", 7)):
        with refusing(InputError, what):
            run(np.ones(3, np.float32), [0], state=state)


def a_cache_grows_in_place(device: str) -> None:
    b = Builder("cache")
    new, pos, cache = b.input("new", (2, 1, 3)), b.input("pos", (), "i64"), b.state("cache", (2, 5, 3))
    grown = cache.apply("kv_append", (cache, new, pos), {"axis": 1})
    run, want = compiled(b.finish(grown.sum(axes=(2,)), updates=[(cache, grown)]), device), np.zeros((2, 5, 3), np.float32)
    for k in range(5):
        row = numbers(2, 1, 3, seed=k)
        want[:, k:k + 1] = row
        same(run(row, np.int64(k)), want.sum(2), f"row {k}")


# ---- weights -------------------------------------------------------------------------------------------------------
def weighted() -> Graph:
    b = Builder("weights")
    x, w, v = b.input("x", (2, 4)), b.param("w", (4, 3)), b.param("v", (3,))
    return b.finish(x @ (w * 2.0) + v)


def weights_may_be_replaced(device: str) -> None:
    """What was computed from them too; the caller's arrays stay the caller's."""
    x, w, v = numbers(2, 4), numbers(4, 3, seed=1), numbers(3, seed=2)
    given = w.copy()
    run = compiled(weighted(), device, {"w": given, "v": v})
    same(run(x), x @ (w * 2) + v, "as loaded")
    given[...] = 9
    same(run(x), x @ (w * 2) + v, "after the caller wrote over what it had given")
    for k in (3, 4):
        run.set_param("w", numbers(4, 3, seed=k))
        same(run(x), x @ (numbers(4, 3, seed=k) * 2) + v, f"weight {k}")
    run.set_param("v", v * 0)
    same(run(x), x @ (numbers(4, 3, seed=4) * 2), "the other weight")


# ---- errors --------------------------------------------------------------------------------------------------------
def an_index_out_of_range_is_told_and_the_next_run_is_right(device: str) -> None:
    b = Builder("gather")
    g = b.finish(b.input("x", (4, 3)).gather(b.input("at", (2,), "i64"), axis=0))
    run, x = compiled(g, device), numbers(4, 3)
    for bad in (4, -5, 2**40):
        with refusing(IndexOutOfRange, f"index {bad} of 4"):
            run(x, [0, bad])
    same(run(x, [3, -4]), x[[3, -4]], "after the errors")


def what_does_not_fit_is_refused(device: str) -> None:
    run = compiled(weighted(), device, {"w": numbers(4, 3), "v": numbers(3)})
    for what, given in (("another shape", numbers(4, 2)), ("another type", numbers(2, 4).astype(np.complex64)), ("text", "x")):
        with refusing(InputError, what):
            run(given)


# ---- ownership -----------------------------------------------------------------------------------------------------
def results_belong_to_the_caller(device: str) -> None:
    """Nothing returned changes later, is an input, or matters to a later run; an output that is an input or a constant too."""
    b = Builder("own")
    x = b.input("x", (3, 4))
    run, given = compiled(b.finish(x, x * 2.0, x.transpose(perm=(1, 0)), b.const(np.arange(3.0))), device), numbers(3, 4)
    before, first = given.copy(), run(given)
    kept = [a.copy() for a in first]
    run(numbers(3, 4, seed=1))
    for k, (a, was) in enumerate(zip(first, kept, strict=True)):
        same(a, was, f"output {k} after a later run")
        a[...] = 7
    same(given, before, "the caller's input")
    for k, (a, want) in enumerate(zip(run(given), (given, given * 2, given.T, np.arange(3.0)), strict=True)):
        same(a, want, f"output {k} after the caller wrote over an earlier one")


def outputs_may_be_the_callers_arrays(device: str) -> None:
    b = Builder("into")
    x = b.input("x", (3, 4))
    run, given = compiled(b.finish(x + 1.0, x.sum(axes=(0,))), device), numbers(3, 4)
    outs = (np.full((4, 3), 9, np.float32).T, np.full(8, 9, np.float32)[::2])
    run.run_into(outs, given)
    for got, want in zip(outs, (given + 1, given.sum(0)), strict=True):
        same(got, want, "run_into")
    same_array = given.copy()
    run.run_into((same_array, outs[1]), same_array)
    same(same_array, given + 1, "run_into its own input")


# ---- threads -------------------------------------------------------------------------------------------------------
def threads_may_share_a_graph(device: str) -> None:
    run = compiled(weighted(), device, {"w": numbers(4, 3), "v": numbers(3)})

    def turns(k: int) -> None:
        for turn in range(TURNS):
            x = numbers(2, 4, seed=k * TURNS + turn)
            same(run(x), x @ (numbers(4, 3) * 2) + numbers(3), f"thread {k}")

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(turns, range(THREADS)))


# ---- chains that passes may fuse -----------------------------------------------------------------------------------
def _softmax(x: Value, w: Value) -> Any: return ((x - x.max(axes=(-1,), keep=True)).exp() / (x - x.max(axes=(-1,), keep=True)).exp().sum(axes=(-1,), keep=True)) @ w
def _mlp(x: Value, w: Value) -> Any: return (x @ w).silu() * (x @ (w + 1.0)) + 0.5
def _norm(x: Value, w: Value) -> Any: return ((x - x.mean(axes=(-1,), keep=True)) * ((x * x).mean(axes=(-1,), keep=True) + 1e-5).rsqrt()) @ w
def _epilogue(x: Value, w: Value) -> Any: return ((x @ w).relu() + x.sum(axes=(1,), keep=True)).tanh()
def _chain(x: Value, w: Value) -> Any: return (x * 2.0 + 1.0).sigmoid().sum(axes=(0,)) * w.T.max(axes=(0,))


CHAINS: dict[str, Callable[[Value, Value], Any]] = {"softmax": _softmax, "gated mlp": _mlp, "norm": _norm, "matmul and what follows": _epilogue, "elementwise and sums": _chain}


def _fused(make: Callable[[Value, Value], Any], device: str) -> None:
    b = Builder("chain")
    g = b.finish(make(b.input("x", (5, 7)), b.input("w", (7, 7))))
    given = numbers(5, 7), numbers(7, 7, seed=1)
    (want,) = evaluate(g, dict(enumerate(given)))
    scale = max(float(np.abs(want).max()), 1.0)
    for optimise in (True, False):
        run = compiled(g, device, optimise=optimise)
        for _ in range(2):
            for got in as_tuple(run(*given)):
                same(got / np.float32(scale), want / np.float32(scale), f"optimise={optimise}")


def _named(*laws: Callable[[str], None]) -> dict[str, Callable[[str], None]]:
    return {law.__name__.replace("_", " "): law for law in laws}


def _by_chain(make: Callable[[Value, Value], Any]) -> Callable[[str], None]:
    return lambda device: _fused(make, device)


BEHAVIOUR: dict[str, dict[str, Callable[[str], None]]] = {  # law -> subject -> trial of a device
    "sizes": _named(one_compile_serves_every_size, a_size_outside_its_range_is_refused),
    "states": _named(states_live_from_run_to_run_and_trade_places, every_state_is_its_own, a_run_that_raises_leaves_its_state, a_state_of_another_graph_is_refused, a_cache_grows_in_place),
    "weights": _named(weights_may_be_replaced),
    "errors": _named(an_index_out_of_range_is_told_and_the_next_run_is_right, what_does_not_fit_is_refused),
    "ownership": _named(results_belong_to_the_caller, outputs_may_be_the_callers_arrays),
    "threads": _named(threads_may_share_a_graph),
    "fusion": {name: _by_chain(make) for name, make in CHAINS.items()},
}

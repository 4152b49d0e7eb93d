"""What a run that broke off leaves behind on a device, and what graphs, states and processes leave behind when they go."""
from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from gpu_device import gpu, rocm
from sim_device import needs_simulation

from rlxpy import Builder, CompiledGraph, Graph, compile, sym
from rlxpy.backends.gpu.backend import Gpu
from rlxpy.backends.gpu.sim import Simulation, simulated
from rlxpy.backends.gpu.vendor import VENDORS
from rlxpy.errors import DeviceError, IndexOutOfRange, RlxError
from rlxpy.extend import declare_op, register_cpu_kernel, registry

__all__ = ["gpu", "rocm"]
ONE = np.ones((1, 3), np.float32)


@pytest.fixture
def refuses() -> Iterator[list[bool]]:
    """Inside, acme.may gives twice what it is given, on the host; or raises, while the list is not empty."""
    raising: list[bool] = []
    with registry():
        @declare_op("acme.may")
        def may(x): return x  # type: ignore[no-untyped-def]

        @register_cpu_kernel("acme.may")
        def double(x: Any) -> Any:
            if raising:
                raise ValueError("it may not")
            return x * 2
        yield raising


def opened(device: str) -> Any:
    return Gpu(VENDORS[device]).api()


def running(device: str, build: Callable[[Builder], Any]) -> tuple[CompiledGraph, CompiledGraph]:
    """On the device, and on the reference."""
    b = Builder("lives")
    made = build(b)
    graph = b.finish(*(made if isinstance(made, tuple) else (made,)))
    return compile(graph, device=device), compile(graph, device="reference")


def caches(b: Builder) -> Any:
    """A sum that is kept, and a cache of the sums; sizes of its own."""
    x, p, total, cache = b.input("x", (sym("N", 0, 40), 3)), b.input("p", (), "i64"), b.state("total", (3,)), b.state("cache", (50, 3))
    now = total + x.sum(axes=(0,))
    rows = cache.kv_append(now.reshape(shape=(1, 3)), p, axis=0)
    b.update(total, now)
    b.update(cache, rows)
    return now, rows.sum(axes=(0,))


def same(f: CompiledGraph, g: CompiledGraph, *given: Any, states: tuple[Any, Any] = (None, None)) -> None:
    for a, b in zip(*(h(*given, state=s) for h, s in zip((f, g), states, strict=True)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


# ---- runs that broke off -------------------------------------------------------------------------------------------
def test_a_record_that_is_interrupted_is_not_replayed(gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    f, g = running(gpu, lambda b: ((y := b.input("x", (5,)).softmax(axis=-1)).cumsum(axis=0), y.reverse(axes=(0,)) * 3.0 + y.sum(axes=(0,))))
    x, kind, left = np.arange(5, dtype=np.float32), type(opened(gpu)), [1]
    node = kind._node

    def interrupted(self: Any, launch: Any) -> Any:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        return node(self, launch)

    same(f, g, x)
    with monkeypatch.context() as m:
        m.setattr(kind, "_node", interrupted)
        with pytest.raises(KeyboardInterrupt):
            f(x)
    for k in range(3):
        same(f, g, x * -k)


def test_a_capture_that_cannot_begin_keeps_nobody_waiting(gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    api = opened(gpu)
    with monkeypatch.context() as m:
        m.setattr(api, "_stream", object())
        with pytest.raises((DeviceError, TypeError, ValueError)):
            api.capture(api.sync)
    other = threading.Thread(target=api.sync)
    other.start()
    other.join(10)
    assert not other.is_alive()


def test_what_other_threads_copy_is_no_part_of_a_capture(gpu: str) -> None:
    api = opened(gpu)
    at, first, second, got = api.alloc(4), np.array([1], np.int32), np.array([2], np.int32), np.zeros(1, np.int32)
    others = [threading.Thread(target=lambda: api.write(at, first)), threading.Thread(target=lambda: api.fill(at, 0, 0))]

    def meanwhile() -> None:
        for t in others:
            t.start()
        others[0].join(0.1)

    graph = api.capture(meanwhile)
    for t in others:
        t.join()
    api.read(at, got)
    assert got[0] == 1
    api.write(at, second)
    api.replay(graph)
    api.read(at, got)
    api.free(at)
    assert got[0] == 2


def test_a_bad_index_is_told_before_the_host_works_on_what_it_left_and_once(gpu: str, refuses: list[bool]) -> None:
    f, _ = running(gpu, lambda b: b.custom_op("acme.may", b.input("t", (4, 3)).gather(b.input("i", (2,), "i64"), axis=0)))
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    for _ in range(2):
        refuses.append(True)
        with pytest.raises(IndexOutOfRange, match="index 9"):
            f(table, np.array([0, 9]))
        with pytest.raises(RlxError, match="may not"):
            f(table, np.array([0, 1]))
        refuses.clear()
        np.testing.assert_array_equal(f(table, np.array([0, -1])), table[[0, 3]] * 2)


def test_an_append_that_did_not_come_to_pass_is_not_undone(gpu: str, refuses: list[bool]) -> None:
    def build(b: Builder) -> Any:
        x, p, cache = b.input("x", (1, 3)), b.input("p", (), "i64"), b.state("cache", (4, 3))
        rows = cache.kv_append(b.custom_op("acme.may", x), p, axis=0)
        b.update(cache, rows)
        return rows * 1.0

    f, _ = running(gpu, build)
    for k in (1, 2, 3):
        want = f(ONE * k, np.array(k))
    for k in (1, 2):
        refuses.append(True)
        with pytest.raises(RlxError, match="it may not"):
            f(ONE * 9, np.array(k))
        refuses.clear()
        np.testing.assert_array_equal(f(ONE * 3, np.array(3)), want)


def test_rows_are_put_back_where_they_were_when_the_position_is_gone(gpu: str) -> None:
    """The position is computed, and its memory is another value's at the end of the run."""
    def build(b: Builder) -> Any:
        x, p, cache = b.input("x", (2, 3)), b.input("p", (), "i64"), b.state("cache", (5, 3))
        rows = cache.kv_append(x, p * 2 - 1, axis=0)
        b.update(cache, rows)
        return rows.sum(axes=(0,)), (rows.sum(axes=(0,)) * 3.0).softmax(axis=-1).exp().cumsum(axis=0).gather(b.input("i", (1,), "i64"), axis=0)

    f, g = running(gpu, build)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for k in range(4):
        for p in (np.array(1), np.array(2)):
            same(f, g, x + k, p, np.array([0]))
            for h in (f, g):
                with pytest.raises(IndexOutOfRange):
                    h(x * 99, p, np.array([7]))
    same(f, g, x * 0, np.array(1), np.array([1]))


@pytest.mark.parametrize("before", [0, 1, 3])
def test_an_interrupt_at_any_call_of_the_runtime_leaves_all_of_the_state_old_or_all_of_it_new(gpu: str, monkeypatch: pytest.MonkeyPatch, before: int) -> None:
    """before: runs until then, of launches one by one, of a capture, of its replay.  One state is written in place, two trade places."""
    def build(b: Builder) -> Any:
        x, p, cache, left, right = b.input("x", (2, 3)), b.input("p", (), "i64"), b.state("cache", (6, 3)), b.state("left", (3,)), b.state("right", (3,))
        rows = cache.kv_append(x * 2.0, p, axis=0)
        for s, new in ((cache, rows), (left, right + rows.sum(axes=(0,))), (right, left)):
            b.update(s, new)
        return rows * 1.0, left, right

    f, g = running(gpu, build)
    kind, ended, moved = type(opened(gpu)), 0, 0
    for at in range(1, 60):
        states, given = (f.new_state(), g.new_state()), (np.full((2, 3), at, np.float32), np.array(at % 5))
        for _ in range(before):
            same(f, g, np.ones((2, 3), np.float32), np.array(1), states=states)
        with suppress(KeyboardInterrupt), monkeypatch.context() as m:
            calls = iter(range(at, 0, -1))
            for name in ("write", "read", "fill", "launch", "sync", "capture", "record", "patch", "replay"):
                m.setattr(kind, name, interrupting(getattr(kind, name), calls))
            f(*given, state=states[0])
            ended += 1
        old, new = (g.new_state() for _ in range(2))
        for s in (old, new):
            s.memory[...] = states[1].memory
        g(*given, state=new)
        look = np.zeros((2, 3), np.float32), np.array(4)
        got, wanted = f(*look, state=states[0]), [g(*look, state=s) for s in (old, new)]
        fits = [all(np.allclose(a, b, rtol=1e-5) for a, b in zip(got, want, strict=True)) for want in wanted]
        assert any(fits), at
        moved += fits[1] and not ended
        if ended:
            assert fits[1]
            break
    assert ended
    assert at > 10
    assert 0 < moved < at - 5


def interrupting(call: Callable[..., Any], calls: Iterator[int]) -> Callable[..., Any]:
    def counted(self: Any, *args: Any) -> Any:
        if next(calls, 0) == 1:
            raise KeyboardInterrupt
        return call(self, *args)

    return counted


# ---- what is left when they go -------------------------------------------------------------------------------------
def test_nothing_is_left_of_graphs_and_states(rocm: Simulation) -> None:
    """Memory, modules, captured graphs: with more sizes than are kept, whichever goes first."""
    opened("rocm")
    gc.collect()
    empty = rocm.alive()
    f, g = running("rocm", caches)
    states = [f.new_state() for _ in range(3)]
    for s in states:
        t = g.new_state()
        for n in (*range(20), 0, 0, 1, 1):
            same(f, g, np.full((n, 3), n, np.float32), np.array(n), states=(s, t))
    held = rocm.alive()
    assert held.modules == empty.modules + 1
    assert held.executables > empty.executables
    del s, states[1:]
    gc.collect()
    fewer = rocm.alive()
    assert (held.allocations - fewer.allocations, fewer.modules) == (2, held.modules)
    assert fewer.executables < held.executables
    del f
    gc.collect()
    assert rocm.alive().modules == empty.modules
    assert rocm.alive().executables == empty.executables
    states.clear()
    gc.collect()
    assert rocm.alive() == empty


@needs_simulation
def test_nothing_is_left_of_a_graph_that_finds_no_room() -> None:
    with simulated(memory_nbytes=1 << 20) as small:
        opened("rocm")
        gc.collect()
        empty = small.alive()
        for most in (2**20, 2**40, 2**60, 2**70):
            with pytest.raises(DeviceError, match=r"no [0-9,]* bytes on"):
                running("rocm", lambda b, most=most: (b.input("x", (sym("N", 1, most),)) + 1.0).cumsum(axis=0))  # type: ignore[misc]
            gc.collect()
            assert small.alive() == empty


def test_threads_run_graphs_with_states_that_come_and_go(gpu: str) -> None:
    pairs, failures = [running(gpu, caches) for _ in range(2)], list[BaseException]()

    def work(seed: int) -> None:
        rng, (f, g) = np.random.default_rng(seed), pairs[seed % 2]
        try:
            for _ in range(3):
                s, t = f.new_state(), g.new_state()
                for k in range(8):
                    x, p = rng.normal(size=(rng.integers(0, 6), 3)).astype(np.float32), np.array(rng.integers(0, 50))
                    if k % 3 == 2:
                        with pytest.raises(IndexOutOfRange):
                            f(x, np.array(50), state=s)
                    same(f, g, x, p, states=(s, t))
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures, failures


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_is_told_that_the_device_did_not_come_along(gpu: str) -> None:
    f, g = running(gpu, caches)
    same(f, g, ONE, np.array(0))
    graph: Graph = f.source
    asks: tuple[Callable[[], Any], ...] = (lambda: f(ONE, np.array(0)), f.new_state, f.reset, lambda: compile(graph, device=gpu))
    others = gpu == "rocm"  # there, who asks what devices there are is told, and takes another
    child = os.fork()
    if not child:
        told = 0
        for ask in asks:
            try:
                ask()
            except RlxError as e:
                told += "forked" in e.why
        told += others and compile(graph, device=("rocm", "reference")).device == "reference"
        os._exit(told)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == len(asks) + others
    same(f, g, ONE, np.array(1))

"""Sizes that change from run to run: launches are bound anew where a size changes them, and patched in what is replayed."""
from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from gpu_device import gpu as gpu, rocm as rocm
from samples import assert_close

from rlxpy import Builder, Graph, compile, sym
from rlxpy.backends.gpu import bind
from rlxpy.backends.gpu.backend import Gpu
from rlxpy.backends.gpu.execute import GpuGraph
from rlxpy.backends.gpu.replay import mentioned
from rlxpy.backends.gpu.sim import Simulation
from rlxpy.backends.gpu.vendor import VENDORS
from rlxpy.ir.dtypes import Array, DType
from rlxpy.tools.samples import as_tuple

RNG = np.random.default_rng(41)
TABLE = RNG.normal(size=(11, 6)).astype("f4")


def decoder() -> Graph:
    """Rows T, a past P, a cache that grows in place, a state that is kept by a copy; a kernel of every row count, and some that no size changes."""
    b, t, p = Builder("decoder"), sym("T", 1, 20), sym("P", 0, 30)
    ids, pos, cache, last = b.input("ids", (t,), "i64"), b.input("pos", (p + 1,)), b.state("cache", (50, 6)), b.state("last", (6,))
    x = b.const(TABLE).gather(ids, axis=0)
    rows = cache.kv_append(x @ b.const(TABLE[:6]), b.input("at", (), "i64"), axis=0)
    b.update(cache, rows)
    b.update(last, last * 0.5 + x.sum(axes=(0,)))
    seen = (x @ rows[:p + t].T).softmax(axis=-1) @ rows[:p + t]
    fixed = last
    for _ in range(6):
        fixed = (fixed * 1.5).softmax(axis=0)
    return b.finish(seen, fixed, pos.cumsum(axis=0), last * 2.0)


def given(t: int, p: int) -> tuple[Array, ...]:
    return RNG.integers(-11, 11, (t,)), RNG.normal(size=(p + 1,)).astype("f4"), np.array(p)


def executable(f: Any) -> GpuGraph:
    assert isinstance(f._executable, GpuGraph)
    return f._executable


RUNS = [(3, 0), (1, 3), (1, 4), (1, 5), (17, 6), (1, 23), (2, 24), (1, 26), (20, 2), (1, 5), (17, 6), (1, 4)]


def test_any_sizes_in_any_order_give_what_the_reference_gives(gpu: str) -> None:
    f, g = compile(decoder(), device=gpu), compile(decoder(), device="reference")
    for t, p in (*RUNS, *RUNS[:4]):
        arrays = given(t, p)
        for got, want in zip(as_tuple(f(*arrays)), as_tuple(g(*arrays)), strict=True):
            assert_close(got, want, DType.F32, f"T={t} P={p}")


def test_a_kernel_that_a_size_does_not_change_is_not_patched(gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is recorded is recorded once, for all sizes with these kernels."""
    api = Gpu(VENDORS[gpu]).api()
    f, counts = compile(decoder(), device=gpu), dict.fromkeys(("launch", "record", "patch", "replay"), 0)

    def counting(name: str, call: Any) -> Any:
        def counted(self: Any, *args: Any) -> Any:
            counts[name] += 1
            return call(self, *args)

        return counted

    for name in counts:
        monkeypatch.setattr(type(api), name, counting(name, getattr(type(api), name)))
    for p in range(2):
        f(*given(1, p))
    once = counts["launch"] - 2  # the commit is one launch by itself, and made as such
    for p in range(2, 12):
        f(*given(1, p))
    assert counts["launch"] == once + 12
    assert counts["record"] == 1
    assert 0 < counts["patch"] <= 10 * once // 2
    patched = counts["patch"]
    for _ in range(3):
        f(*given(1, 11))
    assert counts["patch"] == patched


def test_what_is_kept_is_what_would_be_bound_anew(rocm: Simulation) -> None:
    f = compile(decoder(), device="rocm")
    g, state = executable(f), f.new_state()
    assert differences(g, state) == []


@pytest.mark.parametrize("forgotten", ["T", "P"])
def test_a_size_that_is_forgotten_is_seen(rocm: Simulation, monkeypatch: pytest.MonkeyPatch, forgotten: str) -> None:
    monkeypatch.setattr("rlxpy.backends.gpu.bind.mentioned", lambda k, offsets: mentioned(k, offsets) - {forgotten})
    f = compile(decoder(), device="rocm")
    assert differences(executable(f), f.new_state())


def differences(g: GpuGraph, state: Any) -> list[str]:
    found = []
    for t, p in RUNS:
        sizes = {"T": t, "P": p}
        kept = g._bind(sizes, state)
        anew = bind.bound(g.program, g._code, bind.Rooms(g._notes.address, g._undo.address, g._staging.address, {}), g.plan, g._base(state), sizes)
        for a, b in zip(launches(kept), launches(anew), strict=True):
            facts = [(c.name, c.grid, c.threads, c.shared_nbytes, bytes(c.arguments.buffer)) for c in (a, b)]
            found += [f"T={t} P={p}: {a.name}"] * (facts[0] != facts[1])
        assert kept.nodes == anew.nodes
    return found


def launches(b: bind.Bound) -> list[bind.Call]:
    return [*(c for s in (*b.items, b.commits) if isinstance(s, bind.Segment) for c in s.launches), *b.restores]


def test_what_was_recorded_goes_with_the_sizes_that_it_is_for(rocm: Simulation) -> None:
    gc.collect()
    before = rocm.alive()
    f = compile(decoder(), device="rocm")
    for _ in range(2):
        for t in range(1, 21):  # more than are kept
            f(*given(t, 3))
    assert rocm.alive().executables - before.executables <= 6  # a line for each set of kernels, not for each size
    del f
    gc.collect()
    assert rocm.alive() == before

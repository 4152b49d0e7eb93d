"""Counts of launches: every run, the row of its band, what stood in for code that was not there yet; and a row that ran nothing."""
from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from rlxpy import Builder, Op, compile, dispatch_stats, force_row, sym
from rlxpy.errors import InputError
from rlxpy.extend import Constraint, KernelLibrary, KernelRow, kernel_registry, register_kernel_library
from rlxpy.ir.dtypes import Array

X = np.ones((2, 3), np.float32)


@pytest.fixture(autouse=True)
def _scope() -> Iterator[None]:
    with kernel_registry():
        yield


def exp(ins: Sequence[Array], outs: Sequence[Array], attrs: Mapping[str, Any]) -> None:
    np.exp(ins[0], out=outs[0])


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_every_run_is_counted_and_only_inside_the_block(device: str) -> None:
    b = Builder("two")
    f = compile(b.finish((b.input("x", (2, 3)).sort(axis=1)[0].cumsum(axis=1)).exp()), device=device, wait=True)
    f(X)
    with dispatch_stats() as stats:
        for _ in range(3):
            f(X)
        f.run_into(np.empty((2, 3), np.float32), X)
    f(X)
    assert stats.runs == 4
    assert stats.launches.total() == 4 * len(f.plan.steps)
    for row in f.dispatch():
        assert stats.hits(str(row["kernel"])) == 4
        assert stats.launches[str(row["kernel"]), str(row["tier"])] == 4
    assert str(stats).startswith(f"4 runs, {4 * len(f.plan.steps)} launches\n       4 ")


def test_a_run_counts_for_the_row_of_its_band() -> None:
    register_kernel_library(KernelLibrary("mine", (KernelRow("short", Op.EXP, exp, args=("x",), constraints=(Constraint("x.shape[0]", "LE", 8),)), KernelRow("long", Op.EXP, exp))))
    b = Builder("banded")
    f = compile(b.finish(b.input("x", (sym("T", 1, 20), 3)).exp()), device="cpu", wait=True)
    with dispatch_stats() as stats:
        for rows in (1, 8, 9, 20, 20):
            f(np.zeros((rows, 3), np.float32))
    assert (stats.hits("mine/short"), stats.hits("mine/long")) == (2, 3)


def test_a_row_that_ran_nothing_is_an_error_that_says_what_did() -> None:
    b = Builder("one")
    with force_row("reference/exp"):
        f = compile(b.finish(b.input("x", (2, 3)).exp()), device="cpu", wait=True)
    with dispatch_stats() as stats:
        f(X)
    stats.need("reference/exp")
    with pytest.raises(InputError, match=r"cpu/exp ran nothing in 1 runs\n.*these did: reference/exp"):
        stats.need("reference/exp", "cpu/exp")


def test_what_ran_before_the_code_was_there_is_no_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlxpy.backends.cpu.tiers.TieredGraph.start", lambda self: None)
    b = Builder("early")
    f = compile(b.finish(b.input("x", (2, 3)).exp()), device="cpu", wait=False)
    with dispatch_stats() as stats:
        f(X)
        f.wait()
        f(X)
    assert dict(stats.launches) == {("cpu/exp", "reference"): 1, ("cpu/exp", "kernel"): 1}
    assert stats.hits("cpu/exp") == 1
    with dispatch_stats() as none, pytest.raises(InputError, match="these did: none"):
        none.need("cpu/exp")


def test_a_failed_run_counts_nothing_and_blocks_stay_in_their_thread() -> None:
    def broken(ins: Sequence[Array], outs: Sequence[Array], attrs: Mapping[str, Any]) -> None:
        raise KeyError("broken")

    register_kernel_library(KernelLibrary("mine", (KernelRow("broken", Op.EXP, broken),)))
    x, y = Builder("f").input("x", (2, 3)), Builder("g").input("y", (2, 3))
    f, g = compile(x.builder.finish(x.exp()), device="reference"), compile(y.builder.finish(y + 1.0), device="reference")
    with dispatch_stats() as outer:
        with pytest.raises(Exception, match="broken"):
            f(X)
        thread = threading.Thread(target=g, args=(X,))
        thread.start()
        thread.join()
        with dispatch_stats() as inner:
            g(X)
    assert (outer.runs, inner.runs) == (0, 1)

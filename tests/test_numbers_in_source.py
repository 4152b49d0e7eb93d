"""Numbers in generated source are the graph's to the last bit, whatever the language: infinities, NaN, the smallest, the largest, 0.1, -0.0 (A24)."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from c_projects import project, reason
from gpu_device import rocm as rocm

from rlxpy import Builder, DType, Graph, Value, compile
from rlxpy.backends.gpu.sim import Simulation
from rlxpy.ir.differentiate import replay
from rlxpy.ir.dtypes import Array

NUMBERS = {
    DType.F64: (np.inf, -np.inf, np.nan, 5e-324, 1.7976931348623157e308, 0.1, -0.0, 1 / 3),
    DType.F32: (np.inf, -np.inf, np.nan, 1e-45, 3.4e38, 0.1, -0.0, 1 / 3),
    DType.F16: (np.inf, -np.inf, np.nan, 6e-8, 65504.0, 0.1, -0.0, 1 / 3),
    DType.BF16: (np.inf, -np.inf, np.nan, 1e-40, 3.3e38, 0.1, -0.0, 1 / 3),
    DType.I64: (2**63 - 1, -2**63, 0, -1), DType.U64: (2**64 - 1, 2**63, 0), DType.I8: (-128, 127), DType.U32: (2**32 - 1, 7),
}
cpu = pytest.mark.skipif(isinstance(reason, str), reason=f"generated C did not run: {reason}")


def chosen(d: DType) -> Graph:
    """where(x, y, c) for each number, so that none is folded."""
    b = Builder("numbers")
    x, y = b.input("x", (3,), "bool"), b.input("y", (3,), d)
    return b.finish(*(x.where(y, c) for c in NUMBERS[d]))


def same(got: tuple[Array, ...], d: DType) -> None:
    for a, c in zip(got, NUMBERS[d], strict=True):
        want = np.array([1, c, c]).astype(d.numpy) if isinstance(c, float) else np.array([1, c, c], d.numpy)
        if c != c:
            assert (a == a).tolist() == [True, False, False]
        else:
            assert a.tobytes() == want.tobytes(), (d, c, a)


ARGS = (np.array([True, False, False]), 1)


@pytest.mark.parametrize("device", ["reference", pytest.param("cpu", marks=cpu)])
@pytest.mark.parametrize("d", NUMBERS, ids=str)
def test_on_a_device(d: DType, device: str) -> None:
    same(compile(chosen(d), device=device, wait=True).run(ARGS[0], np.ones(3, d.numpy)), d)


def test_on_a_gpu(rocm: Simulation) -> None:
    graphs = {d: chosen(d) for d in NUMBERS}
    b, found = Builder("every type"), list[Value]()
    for d, g in graphs.items():
        found += replay(g, [b.input(f"x {d}", (3,), "bool"), b.input(f"y {d}", (3,), d)])
    run = compile(b.finish(*found), device="rocm")
    got = iter(run.run(*(a for d in graphs for a in (ARGS[0], np.ones(3, d.numpy)))))
    for d in graphs:
        same(tuple(next(got) for _ in NUMBERS[d]), d)


def take_away(d: DType, x: Value) -> list[Value]:
    """Where a sign stands before the number's own."""
    return [made for c in ((-0.0, -2.5) if d.is_float else (-3,)) for k in (x.builder.const(c, d),) for made in (x * x - k, (k - x).square(), -(x - k) * x)]


def signs(device: str) -> None:
    b, signed = Builder("signs"), [d for d in NUMBERS if d.kind != "u"]
    graph = b.finish(*(y for d in signed for y in take_away(d, b.input(f"x {d}", (3,), d))))
    given = [np.array([3, -2, 1]).astype(d.numpy) for d in signed]
    for got, want in zip(compile(graph, device=device).run(*given), compile(graph, device="reference").run(*given), strict=True):
        np.testing.assert_array_equal(got, want)


@cpu
def test_a_negative_number_behind_a_minus_on_the_cpu() -> None:
    signs("cpu")


def test_a_negative_number_behind_a_minus_on_a_gpu(rocm: Simulation) -> None:
    signs("rocm")


@cpu
@pytest.mark.parametrize("d", NUMBERS, ids=str)
def test_in_a_project(d: DType, tmp_path: Path) -> None:
    same(project(chosen(d), tmp_path).run(ARGS[0], np.ones(3, d.numpy)), d)

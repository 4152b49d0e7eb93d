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


@cpu
@pytest.mark.parametrize("d", NUMBERS, ids=str)
def test_in_a_project(d: DType, tmp_path: Path) -> None:
    same(project(chosen(d), tmp_path).run(ARGS[0], np.ones(3, d.numpy)), d)

"""Chains of several slow ops on the cpu go strip by strip, one loop for each, and give what the ops give one by one."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rlxpy import Builder, CompileOptions, compile, sym
from rlxpy.backends.cpu import elementwise
from rlxpy.backends.cpu.compilers import find_compiler
from rlxpy.ir.dtypes import Array
from rlxpy.ir.graph import Graph
from rlxpy.tools.emit import emit

reason = find_compiler()
pytestmark = pytest.mark.skipif(isinstance(reason, str), reason=f"the cpu backend did not run: {reason}")
STRIP = elementwise.STRIP
RNG = np.random.default_rng(41)
CHAINS: dict[str, tuple[int, Callable[..., Any]]] = {  # how many loops each is, and what it computes
    "one after another": (3, lambda x, y: ((x * 0.5 + 1.0).sigmoid() * x - 0.25).tanh().exp()),
    "side by side": (1, lambda x, y: x.exp() + y.tanh()),
    "kept over two loops": (3, lambda x, y: (lambda e: e.tanh().sin() + e * x)((x + y).sigmoid())),
    "with a test": (2, lambda x, y: ((x.sigmoid() + y).tanh() > 0.0).where(x.sigmoid(), y)),
    "a remainder between": (3, lambda x, y: (x.exp() % (y.abs() + 1.0)).silu()),
    "none": (1, lambda x, y: (x + y) * x - y),
}


def chains(shape: tuple[Any, ...], dtype: str, *names: str) -> Graph:
    b = Builder("chains")
    x, y = b.input("x", shape, dtype), b.input("y", shape, dtype)
    return b.finish(*(CHAINS[name][1](x, y) for name in names))


def numbers(shape: tuple[int, ...], dtype: str) -> Array:
    x = RNG.normal(0, 3, shape).astype(dtype)
    x.reshape(-1)[:4] = [np.inf, -np.inf, np.nan, -0.0]
    return x


def kernel(graph: Graph) -> str:
    found = emit(graph).kernels
    assert len(found) == 1
    return next(iter(found.values()))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_strips_give_what_the_ops_give_one_by_one(dtype: str) -> None:
    """At sizes around a strip, of rows and of one long row, from memory that lies in order and that does not."""
    n = sym("N", 1, 40 * STRIP)
    fused, single = (compile(chains((2, n), dtype, *CHAINS), device="cpu", options=CompileOptions(debug=True, optimise=o), wait=True) for o in (True, False))
    for size in (3, STRIP, STRIP + 1, 3 * STRIP - 1, 20 * STRIP + 7):
        x, y = numbers((2, size), dtype), numbers((size, 2), dtype).T
        want = single.run(x, y)
        for _ in range(2):
            for name, got, one in zip(CHAINS, fused.run(x, y), want, strict=True):
                np.testing.assert_array_equal(got, one, name)


@pytest.mark.parametrize("name", CHAINS)
def test_each_slow_op_of_a_path_has_a_loop(name: str) -> None:
    assert kernel(chains((3, 5 * STRIP), "float32", name)).count("RLX_SIMD") == CHAINS[name][0]


def test_rows_shorter_than_a_strip_are_one_loop() -> None:
    b = Builder("rows")
    x, y = b.input("x", (64, STRIP)), b.input("y", (64, 1))
    assert kernel(b.finish((x.sigmoid() + y).tanh())).count("RLX_SIMD") == 1

"""Rope on the CPU backend against complex numbers in float64: near and far positions, views, every pairing and instruction set."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from samples import CLOSE, ISAS

from rlxpy import Builder, CompileOptions, compile, settings, sym
from rlxpy.backends.cpu.compilers import find_compiler
from rlxpy.ir.dtypes import Array, dtype

reason = find_compiler()
pytestmark = pytest.mark.skipif(isinstance(reason, str), reason=f"the cpu backend did not run: {reason}")
FAR = np.array([0, 1, 7, 4095, 2**20 - 1, 2**20, 2**31 + 5, -3, -(2**24)])
CASES: tuple[tuple[tuple[int, ...], tuple[int, ...], str, dict[str, Any]], ...] = (  # shape of x and of positions, dtype, attrs
    ((2, 3, 9, 10), (9,), "f32", {}), ((2, 3, 9, 10), (9,), "f32", {"style": "interleaved", "dims": 6}), ((2, 9, 4), (2, 9), "f16", {"theta": 100.0}),
    ((2, 3, 9, 10), (2, 1, 9), "bf16", {"dims": 4}), ((9, 2), (9,), "f64", {}), ((3, 9, 4), (1,), "f32", {}), ((0, 9, 4), (9,), "f32", {}), ((9, 0), (9,), "f32", {}),
)


def turned(x: Array, position: Array, theta: float = 10_000.0, style: str = "half", dims: int = 0) -> Array:
    """Pairs are complex numbers; turning is a product."""
    n = dims or x.shape[-1]
    half = n // 2
    first, second = (slice(0, half), slice(half, n)) if style == "half" else (slice(0, n, 2), slice(1, n, 2))
    wide = x.astype(np.float64)
    angle = position[..., None].astype(np.float64) * theta ** (-np.arange(half) / max(half, 1))
    z = (wide[..., first] + 1j * wide[..., second]) * (np.cos(angle) + 1j * np.sin(angle))
    wide[..., first], wide[..., second] = z.real, z.imag
    return wide


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("view", [False, True])
def test_rope(isa: str, view: bool) -> None:
    """view: x lies with its last two axes changed over."""
    b, rng = Builder("rope"), np.random.default_rng(0)
    outputs, arrays, want = [], [], []
    for i, (shape, places, name, attrs) in enumerate(CASES):
        x = rng.normal(size=shape).astype(dtype(name).numpy)
        position = np.resize(FAR, places)
        stored = x.swapaxes(-1, -2) if view else x
        value = b.input(f"x{i}", stored.shape, name)
        outputs.append((value.T if view else value).rope(b.input(f"p{i}", places, "i64"), **attrs))
        arrays += [stored, position]
        want.append(turned(x, position, **attrs))
    with settings.override(isa=isa):
        f = compile(b.finish(*outputs), device="cpu", options=CompileOptions(debug=True))
    for _ in range(2):
        for got, expected, case in zip(f.run(*arrays), want, CASES, strict=True):
            np.testing.assert_allclose(got.astype(np.float64), expected, rtol=CLOSE[dtype(case[2])], atol=CLOSE[dtype(case[2])], err_msg=str(case))


def test_given_frequencies_and_any_length() -> None:
    t = sym("T", 0, 40)
    b = Builder("rope")
    f = compile(b.finish(b.input("x", (2, 3, t, 6)).rope(b.input("p", (t,), "i32"), b.input("f", (3,), "f64"))), device="cpu", options=CompileOptions(debug=True))
    rng = np.random.default_rng(0)
    for size in (1, 40, 0, 13):
        x, position, freq = rng.normal(size=(2, 3, size, 6)).astype(np.float32), np.arange(size, dtype=np.int32) + 1000, np.array([1.0, 0.01, 1e-5])
        want = turned(x, position, theta=1.0)  # of one frequency, for its shape
        z = (x[..., :3] + 1j * x[..., 3:].astype(np.float64)) * np.exp(1j * position[:, None] * freq)
        want[..., :3], want[..., 3:] = z.real, z.imag
        np.testing.assert_allclose(f.run(x, position, freq), want, atol=2e-6)

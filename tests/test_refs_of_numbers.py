"""What the reference makes of single numbers, against the C library's own functions: a few units of the type, over whole ranges."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from samples import CLOSE, plain

from rlxpy import DType, Op

NAN, INF = np.nan, np.inf
NARROW = (DType.F16, DType.BF16)

# One argument against the C library's own functions, through Python's math
MATH: dict[Op, Callable[[float], float]] = {
    Op.NEG: lambda x: -x, Op.ABS: abs, Op.SIGN: lambda x: (x > 0) - (x < 0), Op.SQUARE: lambda x: x * x, Op.RECIP: lambda x: 1 / x,
    Op.SQRT: math.sqrt, Op.RSQRT: lambda x: 1 / math.sqrt(x), Op.EXP: math.exp, Op.EXP2: lambda x: 2.0 ** x, Op.EXPM1: math.expm1, Op.LOG: math.log, Op.LOG2: math.log2,
    Op.LOG1P: math.log1p, Op.SIN: math.sin, Op.COS: math.cos, Op.TAN: math.tan, Op.ASIN: math.asin, Op.ACOS: math.acos, Op.ATAN: math.atan,
    Op.SINH: math.sinh, Op.COSH: math.cosh, Op.TANH: math.tanh, Op.ERF: math.erf, Op.FLOOR: math.floor, Op.CEIL: math.ceil, Op.TRUNC: math.trunc, Op.ROUND: round,
    Op.RELU: lambda x: max(x, 0.0), Op.SIGMOID: lambda x: 1 / (1 + math.exp(-x)), Op.SILU: lambda x: x / (1 + math.exp(-x)),
    Op.GELU: lambda x: x * 0.5 * math.erfc(-x * math.sqrt(0.5)), Op.SOFTPLUS: lambda x: math.log1p(math.exp(x)),
    Op.GELU_TANH: lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3))),
}
PAIRS: dict[Op, Callable[[float, float], float]] = {
    Op.ADD: lambda a, b: a + b, Op.SUB: lambda a, b: a - b, Op.MUL: lambda a, b: a * b, Op.DIV: lambda a, b: a / b, Op.POW: math.pow, Op.ATAN2: math.atan2,
    Op.FLOOR_DIV: lambda a, b: a // b, Op.MOD: lambda a, b: a % b, Op.MAXIMUM: max, Op.MINIMUM: min}
UNIT = {DType.F64: 2.0 ** -52, DType.F32: 2.0 ** -23}
CANCELS = {Op.GELU: 5, Op.GELU_TANH: 5, Op.MOD: 4}  # units of 1 that are lost where large parts cancel: 1 + erf(x), a - n * b


def bounds(op: Op, dt: DType) -> dict[str, Any]:
    """A few units of the type calculated in; narrow floats are that rounded once: half a unit, or half the smallest number."""
    return {"rtol": 1.001 * CLOSE[dt] / 2 if dt in NARROW else 40 * UNIT[dt] if dt is DType.F64 else 4 * UNIT[dt],
            "atol": CANCELS.get(op, 0) * UNIT[dt.accumulator] + (2.0 ** -25 if dt is DType.F16 else 0)}


@pytest.mark.parametrize("op", MATH, ids=lambda op: op.text)
@pytest.mark.parametrize("dt", [DType.F64, DType.F32, *NARROW], ids=str)
def test_functions_of_one_number(op: Op, dt: DType) -> None:
    positive = dict.fromkeys((Op.SQRT, Op.RSQRT, Op.LOG, Op.LOG2, Op.RECIP), (0.01, 9))
    low, high = {Op.ASIN: (-1, 1), Op.ACOS: (-1, 1), Op.LOG1P: (-0.99, 9), **positive}.get(op, (-9, 9))
    x = np.linspace(low, high, 1003).astype(dt.numpy)
    assert callable(op.row.ref)
    got = plain(op.row.ref(x)).astype(np.float64)
    want = np.array([MATH[op](float(v)) for v in x])
    assert_allclose(got, want, **bounds(op, dt))


@pytest.mark.parametrize("op", PAIRS, ids=lambda op: op.text)
@pytest.mark.parametrize("dt", [DType.F64, DType.F32, *NARROW], ids=str)
def test_functions_of_two_numbers(op: Op, dt: DType) -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.uniform(0.1 if op is Op.POW else -4, 4, 501).astype(dt.numpy) for _ in range(2))
    assert callable(op.row.ref)
    want = np.array([PAIRS[op](float(v), float(w)) for v, w in zip(a, b, strict=True)])
    assert_allclose(plain(op.row.ref(a, b)).astype(np.float64), want, **bounds(op, dt))


@pytest.mark.parametrize(("dt", "unit"), [(DType.F64, 2.0 ** -52), (DType.F32, 2.0 ** -23)], ids=str)
def test_erf_over_its_whole_range(dt: DType, unit: float) -> None:
    tiny = np.geomspace(1e-300 if dt is DType.F64 else 1e-37, 1, 4_001)
    x = np.concatenate([np.linspace(-7, 7, 40_001), tiny, [0.46875, 4.0, 30.0, 1e4]]).astype(dt.numpy)
    want = np.array([math.erf(float(v)) for v in x])
    assert callable(Op.ERF.row.ref)
    got = Op.ERF.row.ref(x)
    assert got.dtype == dt.numpy
    assert_allclose(got, want, rtol=4 * unit if dt is DType.F64 else unit, atol=0)
    assert_array_equal(Op.ERF.row.ref(np.array([0.0, -0.0, INF, -INF, NAN], dt.numpy)), np.array([0, -0.0, 1, -1, NAN], dt.numpy))

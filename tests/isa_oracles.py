"""What single instructions compute, said again in NumPy and fractions, and values that try their corners."""
from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from rlxpy.ir.dtypes import Array

LAYOUT = {"f": "f4", "d": "f8", "h": "f2", "u": "u4", "i": "i4", "U": "u8", "I": "i8", "s": "u2", "t": "i2", "p": "u4", "q": "u8"}
COUNT = 256
_BITS: dict[str, list[int]] = {
    "f": [0, 1 << 31, 1, 0x80000001, 0x7f800000, 0xff800000, 0x7fc00001, 0x7f7fffff, 0xff7fffff, 0x800000, 0x7fffff, 0x3f800000, 0xbf800000, 0x3f000000, 0x3fc00000, 0x4f000000,
          0xcf000000, 0x4f7fffff, 0x5f000000, 0x4b000001, 0xc0200000, 0x477fe000, 0x477ff000, 0x33000000, 0x33000001],
    "h": [0, 0x8000, 1, 0x8001, 0x7c00, 0xfc00, 0x7e01, 0x7bff, 0xfbff, 0x400, 0x3ff, 0x3c00, 0xbc00, 0x3800, 0x3e00, 0x7800],
    "u": [0, 1, 0xffffffff, 0x80000000, 0x7fffffff, 0x8000, 0xffff, 0x10000, 0xff, 0x100, 31, 32, 33, 0x55555555],
    "s": [0, 1, 0xffff, 0x8000, 0x7fff, 0xff, 0x100, 15, 16, 17],
    "U": [0, 1, (1 << 64) - 1, 1 << 63, (1 << 63) - 1, 1 << 32, (1 << 32) - 1, 63, 64],
}
_BITS["d"] = [int(b) for b in np.array([0.0, -0.0, 5e-324, np.inf, -np.inf, np.nan, 1.7e308, 2.2e-308, 1.0, -1.5, 2.0**31, -(2.0**31) - 1, 2.0**32, 0.5, 2.5, 3.4e38, 1e-46]).view("u8")]
_BITS["i"], _BITS["t"], _BITS["I"] = _BITS["u"], _BITS["s"], _BITS["U"]


def values(kind: str, seed: int) -> Array:
    """COUNT values of a type letter: corners first, in an order of their own for every seed, then any bits, then near one."""
    rng, width = np.random.default_rng(seed), np.dtype(LAYOUT[kind]).itemsize
    corners = rng.permutation(np.array(_BITS[kind], "u8"))
    bits = rng.integers(0, 1 << 63, COUNT, dtype="u8") * np.uint64(2) + rng.integers(0, 2, COUNT, dtype="u8")
    out = (bits & np.uint64((1 << 8 * width) - 1)).astype(f"u{width}")
    out[: len(corners)] = corners.astype(f"u{width}")
    found = out.view(LAYOUT[kind])
    if kind in "fdh":
        found[COUNT // 2:] = (rng.standard_normal(COUNT // 2) * 3).astype(LAYOUT[kind])
    else:
        found[3 * COUNT // 4:] = rng.integers(0, 100, COUNT - 3 * COUNT // 4).astype(LAYOUT[kind])
    return found


def each(function: Callable[..., Any], *arrays: Array) -> list[Any]:
    return [function(*(x.item() for x in row)) for row in zip(*arrays, strict=True)]


def exact_fma(a: float, b: float, c: float, mantissa: int, least: int) -> float:
    """a * b + c, rounded once to a float of so many bits, the last of a denormal being 2^least."""
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        return float(np.float64(a) * np.float64(b) + np.float64(c))
    x = Fraction(a) * Fraction(b) + Fraction(c)
    if x == 0:
        return a * b + c if a * b == 0 else 0.0
    exponent = math.floor(math.log2(abs(x.numerator))) - math.floor(math.log2(x.denominator))
    while Fraction(2) ** exponent > abs(x):
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= abs(x):
        exponent += 1
    unit = Fraction(2) ** max(exponent - mantissa, least)
    rounded = round(x / unit) * unit  # to even
    top = Fraction(2) ** {23: 128, 10: 16, 52: 1024}[mantissa]
    sign = -1.0 if x < 0 else 1.0
    return sign * math.inf if abs(rounded) >= top else float(rounded) if rounded else sign * 0.0


def fma_f32(a: Array, b: Array, c: Array) -> Array:
    return np.array(each(lambda x, y, z: exact_fma(x, y, z, 23, -149), a, b, c), "f4")


def fma_f16(a: Array, b: Array, c: Array) -> Array:
    return np.array(each(lambda x, y, z: exact_fma(x, y, z, 10, -24), a, b, c), "f2")


def fma_f64(a: Array, b: Array, c: Array) -> Array:
    return np.array(each(lambda x, y, z: exact_fma(x, y, z, 52, -1074), a, b, c), "f8")


def number_wins(pick: Callable[[Any, Any], Any]) -> Callable[[Array, Array], Array]:
    """minNum and maxNum: nan loses, +0 is above -0."""
    def one(a: float, b: float) -> float:
        if math.isnan(a) or math.isnan(b):
            return b if math.isnan(a) else a
        return a if pick((a, math.copysign(1, a)), (b, math.copysign(1, b))) == (a, math.copysign(1, a)) else b
    return lambda a, b: np.array(each(one, a, b), a.dtype)


def to_int(low: int, high: int, kind: str) -> Callable[[Array], Array]:
    """Truncated, saturated, nan to 0."""
    return lambda a: np.array([0 if math.isnan(x) else low if x <= low else high if x >= high else int(x) for x in a.astype("f8")], kind)


def same(a: Array, b: Array) -> bool:
    """Bit by bit, every nan being alike."""
    if a.dtype.kind == "f":
        a, b = (np.where(np.isnan(x), np.array(np.nan, x.dtype), x).view(f"u{x.dtype.itemsize}") for x in (a, b))
    return bool(np.array_equal(a, b))

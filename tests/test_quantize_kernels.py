"""Rounding to the nearest codes in generated code: the bytes of rlxpy/ir/quantize.py, of every encoding it writes, every float, rows in any order and of any length."""
from __future__ import annotations

from typing import Any

import numpy as np
from gpu_device import on_host
from test_complex import device as device

from rlxpy import Builder, CompileOptions, DType, compile, sym
from rlxpy.backends.cpu.encode import WRITTEN
from rlxpy.ir import refs
from rlxpy.ir.dtypes import Array, dtype
from rlxpy.ir.encoding import ENCODINGS
from rlxpy.ir.quantize import refusal
from rlxpy.tools.samples import as_tuple

RNG = np.random.default_rng(9)


def rows(width: int) -> Array:
    """Plain ones, ties, and what scales cannot hold: NaN, infinities, nothing but zeros of either sign, the least and the greatest numbers."""
    x = RNG.normal(size=(11, width)).astype(np.float32)
    x[1] = RNG.integers(-9, 9, width) * 0.5
    x[2, width // 2], x[3, 0], x[3, -1] = np.nan, np.inf, -np.inf
    x[4], x[5], x[6], x[7] = 0.0, -0.0, 1e-42, -2.5
    x[8] = np.where(np.arange(width) % 2, 3e38, -3e38)
    x[9] *= 1e6
    x[10] = np.where(np.arange(width) % 3, -1.0, 1.0)  # the first of the greatest counts
    return x


def agrees(device: str, cases: list[tuple[str, Any, Array]], counts: tuple[int, ...] = ()) -> None:
    """cases: an encoding, which walk over its input is packed, by values and arrays alike, and the input.  counts: of rows; without them, all at once."""
    b = Builder("packs")
    n = sym("N", 0, max(counts, default=0))
    inputs = [b.input(f"x{k}", (n if counts else len(a), *a.shape[1:]), dtype(a.dtype)) for k, (_, _, a) in enumerate(cases)]
    made = [v for x, (name, walk, _) in zip(inputs, cases, strict=True) for v in as_tuple(x.apply("quantize", (walk(x),), {"encoding": name}))]
    f = compile(b.finish(*made), device=device, options=CompileOptions(debug=True), wait=True)
    assert not on_host(f)
    for count in counts or (max(len(a) for *_, a in cases),):
        given = [a[:count] for *_, a in cases]
        with np.errstate(all="ignore"):
            want = [(name, w) for (name, walk, _), a in zip(cases, given, strict=True) for w in as_tuple(refs.quantize(walk(a), name))]
        for turn in range(2):
            for g, (name, w) in zip(f.run(*given), want, strict=True):
                np.testing.assert_array_equal(g.view(np.uint8), w.view(np.uint8), f"{name}, {count} rows, run {turn}")


def test_every_encoding_that_rounding_writes_has_a_kernel() -> None:
    assert set(WRITTEN) == {e.name for e in ENCODINGS.values() if e.is_packed and not refusal(e)}


def test_rows_become_the_reference_s_bytes(device: str) -> None:
    """Planes of their own may end with a short group, and with half a byte."""
    agrees(device, [(name, lambda x: x, rows(2 * ENCODINGS[name].block if ENCODINGS[name].block > 1 else 131)) for name in WRITTEN], (11, 0, 1, 4))


def test_of_every_float(device: str) -> None:
    with np.errstate(all="ignore"):
        agrees(device, [(name, lambda x: x, rows(64).astype(d.numpy)) for d in DType if d.is_float and d is not DType.F4E2M1 for name in ("q8_0", "q5_1")])


def test_rows_that_lie_across_memory(device: str) -> None:
    """Read where they lie: a column of the input is a row."""
    agrees(device, [(name, lambda x: x.T, np.ascontiguousarray(rows(64).T)) for name in ("q4_0", "int4_128", "int8_rows")])

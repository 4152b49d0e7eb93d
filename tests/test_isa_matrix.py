"""Matrix instructions as machine code against matrix products: which lane and register hold which element, and what comes out."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from isa_device import module, run
from sim_device import needs_clang

from rlxpy.backends.gpu.sim.isa import Module
from rlxpy.errors import KernelFault
from rlxpy.ir.dtypes import Array

pytestmark = needs_clang
VECTORS = "".join(f"typedef {t} {n}{k} __attribute__((ext_vector_type({k})));\n" for t, n in (("_Float16", "h"), ("short", "s"), ("__bf16", "b"), ("float", "f"), ("int", "i"), ("double", "d"))
                  for k in (2, 4, 8, 16, 32))
DTYPES: dict[str, Any] = {"f32": "f4", "f16": "f2", "bf16": ml_dtypes.bfloat16, "f64": "f8", "i8": "i1", "i32": "i4", "fnuz": ml_dtypes.float8_e4m3fnuz, "ocp": ml_dtypes.float8_e4m3fn,
                          "bf8": ml_dtypes.float8_e5m2, "u8": "u1"}


@dataclass(frozen=True)
class Form:
    """inputs, outputs: C types of a lane's share of A and B, and of C and D.  call: builtin with a, b and c.  size: M, N, K, blocks."""

    chip: str
    call: str
    inputs: str
    outputs: str
    size: tuple[int, int, int, int]
    kind: str
    out: str = "f32"

    @property
    def source(self) -> str:
        return (f'{VECTORS}extern "C" __global__ void one(const {self.inputs}* a, const {self.inputs}* b, {self.outputs}* c) '
                f"{{ int t = threadIdx.x; c[t] = {self.call}; }}")


def mfma(chip: str, name: str, inputs: str, outputs: str, size: tuple[int, int, int, int], kind: str, out: str = "f32") -> Form:
    return Form(chip, f"__builtin_amdgcn_mfma_{name}(a[t], b[t], c[t], 0, 0, 0)", inputs, outputs, size, kind, out)


MFMA = (
    mfma("gfx90a", "f32_4x4x1f32", "float", "f4", (4, 4, 1, 16), "f32"), mfma("gfx90a", "f32_16x16x1f32", "float", "f16", (16, 16, 1, 4), "f32"),
    mfma("gfx90a", "f32_32x32x1f32", "float", "f32", (32, 32, 1, 2), "f32"), mfma("gfx90a", "f32_32x32x2f32", "float", "f16", (32, 32, 2, 1), "f32"),
    mfma("gfx942", "f32_16x16x4f32", "float", "f4", (16, 16, 4, 1), "f32"), mfma("gfx90a", "f32_4x4x4f16", "h4", "f4", (4, 4, 4, 16), "f16"),
    mfma("gfx90a", "f32_16x16x16f16", "h4", "f4", (16, 16, 16, 1), "f16"), mfma("gfx942", "f32_32x32x8f16", "h4", "f16", (32, 32, 8, 1), "f16"),
    mfma("gfx942", "f32_32x32x4f16", "h4", "f32", (32, 32, 4, 2), "f16"), mfma("gfx90a", "f32_16x16x16bf16_1k", "s4", "f4", (16, 16, 16, 1), "bf16"),
    mfma("gfx942", "f32_32x32x8bf16_1k", "s4", "f16", (32, 32, 8, 1), "bf16"), mfma("gfx90a", "f64_16x16x4f64", "double", "d4", (16, 16, 4, 1), "f64", "f64"),
    mfma("gfx942", "f64_4x4x4f64", "double", "double", (4, 4, 4, 4), "f64", "f64"), mfma("gfx90a", "i32_16x16x16i8", "int", "i4", (16, 16, 16, 1), "i8", "i32"),
    mfma("gfx942", "i32_16x16x32_i8", "long", "i4", (16, 16, 32, 1), "i8", "i32"), mfma("gfx942", "f32_16x16x32_fp8_fp8", "long", "f4", (16, 16, 32, 1), "fnuz"),
    mfma("gfx950", "f32_16x16x32_fp8_fp8", "long", "f4", (16, 16, 32, 1), "ocp"), mfma("gfx950", "f32_16x16x32_bf8_bf8", "long", "f4", (16, 16, 32, 1), "bf8"),
    mfma("gfx950", "f32_16x16x32_f16", "h8", "f4", (16, 16, 32, 1), "f16"), mfma("gfx950", "f32_32x32x16_bf16", "b8", "f16", (32, 32, 16, 1), "bf16"),
    mfma("gfx950", "i32_16x16x64_i8", "i4", "i4", (16, 16, 64, 1), "i8", "i32"),
)


def wmma(chip: str, call: str, inputs: str, outputs: str, kind: str, out: str = "f32", depth: int = 16) -> Form:
    return Form(chip, f"__builtin_amdgcn_wmma_{call}", inputs, outputs, (16, 16, depth, 1), kind, out)


WMMA = (
    wmma("gfx1100", "f32_16x16x16_f16_w32(a[t], b[t], c[t])", "h16", "f8", "f16"),
    wmma("gfx1151", "f32_16x16x16_bf16_w32(a[t], b[t], c[t])", "s16", "f8", "bf16"),
    wmma("gfx1100", "f16_16x16x16_f16_w32(a[t], b[t], c[t], false)", "h16", "h16", "f16", "f16"),
    wmma("gfx1100", "f16_16x16x16_f16_w32(a[t], b[t], c[t], true)", "h16", "h16", "f16", "f16"),
    wmma("gfx1100", "i32_16x16x16_iu8_w32(true, a[t], true, b[t], c[t], false)", "i4", "i8", "i8", "i32"),
    wmma("gfx1151", "i32_16x16x16_iu8_w32(false, a[t], false, b[t], c[t], false)", "i4", "i8", "u8", "i32"),
    wmma("gfx1201", "f32_16x16x16_f16_w32_gfx12(a[t], b[t], c[t])", "h8", "f8", "f16"),
    wmma("gfx1201", "f32_16x16x16_bf16_w32_gfx12(a[t], b[t], c[t])", "s8", "f8", "bf16"),
    wmma("gfx1201", "f16_16x16x16_f16_w32_gfx12(a[t], b[t], c[t])", "h8", "h8", "f16", "f16"),
    wmma("gfx1201", "i32_16x16x16_iu8_w32_gfx12(true, a[t], true, b[t], c[t], false)", "i2", "i8", "i8", "i32"),
    wmma("gfx1201", "f32_16x16x16_fp8_fp8_w32_gfx12(a[t], b[t], c[t])", "i2", "f8", "ocp"),
)


def spots_in(form: Form, lanes: int, side: int, each: int) -> tuple[Array, Array, Array]:
    """Of each lane and item of A or B: row or column, k, block."""
    _, _, depth, blocks = form.size
    lane, item = np.indices((lanes, each))
    if form.chip.startswith("gfx11"):
        return lane % side, item, lane * 0
    if form.kind == "f64" and blocks > 1:
        return lane % side, lane // (side * blocks), lane // side % blocks
    group = lane // side
    return lane % side, each * (group % (depth // each)) + item, group // (depth // each)


def spots_out(form: Form, lanes: int, each: int) -> tuple[Array, Array, Array]:
    """Of each lane and item of C and D: row, column, block."""
    rows, columns, _, blocks = form.size
    lane, item = np.indices((lanes, each))
    if form.chip.startswith("gfx11"):
        return 2 * item + lane // 16, lane % 16, lane * 0
    if form.chip.startswith("gfx12"):
        return 8 * (lane // 16) + item, lane % 16, lane * 0
    if form.out == "f64":
        return (lane // 16, lane % 4, lane // 4 % 4) if blocks > 1 else (4 * item + lane // 16, lane % 16, lane * 0)
    group = lane // columns + lanes // columns * (item // 4)
    return 4 * (group % (rows // 4)) + item % 4, lane % columns, group // (rows // 4)


def check(form: Form, m: Module) -> None:
    rows, columns, depth, blocks = form.size
    rng, lanes, kind, out = np.random.default_rng(7), m.wave, np.dtype(DTYPES[form.kind]), np.dtype(DTYPES[form.out])
    integers = kind.kind in "iu"
    a, b, c = (rng.integers(-100 if kind.kind == "i" else 0, 100, shape) if integers else rng.standard_normal(shape)
               for shape in ((blocks, rows, depth), (blocks, depth, columns), (blocks, rows, columns)))
    a, b, c = a.astype(kind), b.astype(kind), c.astype(out)
    each = depth if form.chip.startswith("gfx11") else rows * depth * blocks // lanes
    row, k, block = spots_in(form, lanes, rows, each)
    left = np.ascontiguousarray(a[block, row, k])
    column, k, block = spots_in(form, lanes, columns, each)
    right = np.ascontiguousarray(b[block, k, column])
    row, column, block = spots_out(form, lanes, rows * columns * blocks // lanes)
    result = np.ascontiguousarray(c[block, row, column])
    apart = form.chip.startswith("gfx11") and out.itemsize == 2  # one a register, in the half that is asked for
    if apart:
        wide = np.full((lanes, 16), 5, out)
        wide[:, int("true" in form.call)::2] = result
        result = wide
    for _ in range(2):
        before = result.copy()
        run(m, "one", 1, lanes, left.view("u1"), right.view("u1"), result)
        got = result[:, int("true" in form.call)::2] if apart else result
        start = before[:, int("true" in form.call)::2] if apart else before
        wanted = (a.astype("f8") @ b.astype("f8"))[block, row, column] + start.astype("f8")
        np.testing.assert_allclose(got.astype("f8"), wanted, rtol=2e-3 if out.itemsize == 2 else 1e-5, atol=2e-3 if out.itemsize == 2 else 1e-5)
        if apart:
            assert (result[:, int("true" not in form.call)::2] == 5).all()


@pytest.mark.parametrize("form", [*MFMA, *WMMA], ids=lambda f: f"{f.chip}-{f.call.split('(')[0].removeprefix('__builtin_amdgcn_')}-{f.kind}")
def test_a_matrix_instruction_is_a_matrix_product(form: Form) -> None:
    check(form, module(form.source, form.chip))


def test_a_broadcast_is_refused_by_name_and_never_run_as_something_else() -> None:
    source = MFMA[0].source.replace("0, 0, 0)", "1, 0, 0)")
    m = module(source, "gfx90a")
    x, c = np.ones(64, "f4"), np.zeros((64, 4), "f4")
    with pytest.raises(KernelFault, match=r"v_mfma_f32_4x4x1[\s\S]*cbsz is not simulated") as caught:
        run(m, "one", 1, 64, x, x, c)
    assert caught.value.kind == "unknown instruction"
    assert list(m.unknown) == [caught.value.pc]

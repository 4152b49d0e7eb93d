"""Kernels in AMD's assembly, one for each wave size, for ops that are lowered everywhere else.  Run: python examples/asm_kernels.py"""
from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np

import rlxpy
from rlxpy.extend import *

HERE = Path(__file__).parent / "asm"
SHORT = Constraint("x.shape[-1]", "LE", 2**30 - 1)  # offsets inside of a row have 32 bits


@op("asm.softmax")
def softmax(x): return x.softmax(axis=-1)


@op("asm.rms_norm")
def rms_norm(x, scale, eps: float = 1e-6): return x.rms_norm(scale, eps=eps)


register_gpu_kernel(RocmAsmKernel(
    "asm.softmax", (HERE / "softmax_rows.s").read_text(), "softmax_rows", block_size=32, grid=lambda shapes: prod(shapes["x"][:-1]), constraints=(SHORT,),
    signature="const float *x, float *out, unsigned x_last", archs=("gfx11-generic",), wave=32))
register_gpu_kernel(RocmAsmKernel(
    "asm.rms_norm", (HERE / "rms_norm_rows.s").read_text(), "rms_norm_rows", block_size=256, grid=lambda shapes: prod(shapes["x"][:-1]), constraints=(SHORT,),
    signature="const float *x, const float *scale, float *out, unsigned x_last, float eps", archs=("gfx90a", "gfx942"), wave=64, lds_nbytes=16))


def main() -> None:
    b = Builder("m")
    x, scale = b.input("x", (3, 67)), b.input("scale", (67,))
    f = rlxpy.compile(b.finish(softmax(rms_norm(x, scale))))

    rng = np.random.default_rng(1)
    x, scale = rng.standard_normal((3, 67), np.float32), rng.standard_normal(67, np.float32)
    y = np.exp(x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale)
    np.testing.assert_allclose(f(x, scale), y / y.sum(-1, keepdims=True), rtol=1e-5)
    print(f"on {f.device}, by hand:", ", ".join(row["op"] for row in f.dispatch() if row["kernel"].startswith("extension/asm.")) or "nothing")


if __name__ == "__main__":
    main()

"""Nanoseconds an element of the C prelude's functions, on arrays in the first caches, beside NumPy.  Usage: prelude.py [ROUNDS] [--json]

RLX_ISA and RLX_CC choose the instruction set and the compiler.  Each function and its NumPy twin run in turns; the least time counts."""
from __future__ import annotations

import ctypes
import sys
from time import perf_counter
from typing import Any

import numpy as np
from machine import report

from rlxpy.backends.cpu.build import build, prelude
from rlxpy.backends.cpu.compilers import Compiler, find_compiler
from rlxpy.backends.cpu.isa import detect

NUMEL = 8192
NAMES = {"f32": np.float32, "f64": np.float64}
NUMPY = {"exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2, "log1p": np.log1p, "sqrt": np.sqrt, "sin": np.sin, "cos": np.cos,
         "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "erf": None, "sigmoid": None,
         "silu": None, "gelu": None, "gelu_tanh": None, "softplus": None, "floor": np.floor, "pow": np.power, "atan2": np.arctan2, "mod": np.mod}
TWO = ("pow", "atan2", "mod")


def source() -> str:
    kernels = []
    for t in NAMES:
        for f in NUMPY:
            second, args = (f"const {t} *restrict y, ", "x[i], y[i]") if f in TWO else ("", "x[i]")
            kernels.append(f"RLX_EXPORT void {f}_{t}(const {t} *restrict x, {second}{t} *restrict out) {{ RLX_SIMD\n for (i64 i = 0; i < {NUMEL}; i++) out[i] = rlx_{f}({args}); }}")
    return "\n".join([prelude(), *kernels])


def operands(f: str, kind: Any) -> list[Any]:
    x = np.random.default_rng(0).uniform(-6, 6, NUMEL)
    x = np.abs(x) if f in ("log", "log2", "log1p", "sqrt", "pow") else x / 6 if f in ("asin", "acos") else x
    return [x.astype(kind)] + ([x[::-1].astype(kind)] if f in TWO else [])


def ns(call: Any, best: float) -> float:
    start = perf_counter()
    call()
    return min(best, (perf_counter() - start) / NUMEL * 1e9)


def main() -> None:
    rounds = next((int(a) for a in sys.argv[1:] if a.isdigit()), 300)
    compiler, isa = find_compiler(), detect()
    if not isinstance(compiler, Compiler):
        sys.exit(compiler)
    library = ctypes.CDLL(str(build(source(), isa, compiler)))
    rows = []
    for f, twin in NUMPY.items():
        row: dict[str, Any] = {"function": f}
        for t, kind in NAMES.items():
            xs = operands(f, kind)
            out = np.empty_like(xs[0])
            entry, pointers = library[f"{f}_{t}"], [ctypes.c_void_p(a.ctypes.data) for a in (*xs, out)]
            ours = theirs = float("inf")
            for _ in range(rounds):
                ours = ns(lambda entry=entry, pointers=pointers: entry(*pointers), ours)
                theirs = ns(lambda twin=twin, xs=xs, out=out: twin(*xs, out=out), theirs) if twin else theirs
            row |= {f"{t}_ns": ours, f"{t}_numpy_ns": theirs if twin else None}
        rows.append(row)
    report("prelude", rows, rounds=rounds, compiler=compiler.text, isa=isa.name)


if __name__ == "__main__":
    main()

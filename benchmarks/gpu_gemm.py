"""Products on a GPU: the vendor's library beside kernels of ours, in turns, by the device's own clock.

    python benchmarks/gpu_gemm.py [--device cuda] [--rounds N] [--json]

Microseconds of the median round, and how many times ours take what the library takes: where that is below 1 a product should be ours, which is what
LEAST of rlxpy/backends/gpu/gemm.py decides.  Weights are params; error is the greatest against float64, in parts of the greatest result."""
from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from machine import report

from rlxpy import Builder, CompileOptions, DType, compile
from rlxpy.backends.gpu import gemm
from rlxpy.compiler.devices import backend

SHAPES = ((32, 576, 576), (64, 576, 576), (128, 384, 384), (128, 576, 1536), (128, 4096, 4096), (512, 576, 576), (512, 1536, 384), (1024, 1536, 576), (2048, 4096, 4096))
KINDS = ((DType.F32, "highest"), (DType.F32, "medium"), (DType.BF16, "highest"), (DType.F16, "highest"))
Array = np.ndarray[Any, Any]


def product(x: Array, w: Array, d: DType, device: str, options: CompileOptions) -> tuple[Callable[[], float], Array, str]:
    """Microseconds of a run, a result, and the row that made it."""
    b = Builder("gemm")
    f = compile(b.finish(b.input("x", x.shape, d) @ b.param("w", w.shape, d)), {"w": w}, device=device, options=options)

    def run() -> float:
        return 1e-3 * sum(s.end_ns - s.begin_ns for s in f.profile(x))

    return run, f(x), f.plan.steps[0].choice.name


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--device", default="cuda")
    options.add_argument("--rounds", type=int, default=15)
    options.add_argument("--json", action="store_true")
    given = options.parse_args()
    gemm.LEAST = 1  # before the device is asked for its rows: the library's wherever it can
    library = backend(given.device).spec.facts["gemm"]
    if library == "none":
        raise SystemExit(f"{given.device} has no library of products here; `rlx doctor` says more")
    rows: list[dict[str, Any]] = []
    rng = np.random.default_rng(0)
    for m, n, k in SHAPES:
        for d, numerics in KINDS:
            x, w = (rng.normal(size=s).astype(np.float32).astype(d.numpy) for s in ((m, k), (k, n)))
            made = [product(x, w, d, given.device, CompileOptions(numerics=numerics, kernels=names)) for names in ((library, "gpu"), ("gpu",))]
            rounds = [[run() for run, _, _ in made] for _ in range(given.rounds + 2)][2:]  # the first are for caches and clocks
            theirs, ours = (median(r[which] for r in rounds) for which in range(2))
            want = x.astype(np.float64) @ w.astype(np.float64)
            errors = [f"{np.abs(y.astype(np.float64) - want).max() / np.abs(want).max():.1e}" for _, y, _ in made]
            rows.append({"M,N,K": f"{m},{n},{k}", "type": d.text, "numerics": numerics, "library": made[0][2], "us": round(theirs, 1), "ours": made[1][2], "our us": round(ours, 1),
                                 "ratio": round(ours / theirs, 2), "error": errors[0], "our error": errors[1]})
    report("Products by the vendor's library and by kernels of ours", rows, device=given.device)


if __name__ == "__main__":
    main()

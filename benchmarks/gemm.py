"""Products of f32: rlxpy at each `numerics` beside NumPy and, where it is installed, PyTorch, in turns, on one thread.

    python benchmarks/gemm.py [--threads N] [--rounds N] [--shapes N] [--error] [--json]

GFLOP/s of the median round; weights are params, so rlxpy packs them once.  --error adds the root mean square error against float64, relative
to that of the results."""
from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from machine import report

SHAPES = ((1, 1536, 384), (4, 1536, 384), (16, 1536, 384), (128, 1536, 384), (1024, 1536, 384), (16, 384, 1536), (1024, 384, 1536), (1024, 192, 576),
          (1024, 576, 576), (16, 49152, 576))
ROUND_SECONDS = 0.05
Array = np.ndarray[Any, Any]


def rlxpy_product(x: Array, w: Array, numerics: str) -> Callable[[], Array]:
    from rlxpy import Builder, CompileOptions, compile

    b = Builder("gemm")
    f = compile(b.finish(b.input("x", x.shape) @ b.param("w", w.shape)), {"w": w}, device="cpu", options=CompileOptions(numerics=numerics), wait=True)
    out = np.empty((len(x), w.shape[1]), np.float32)

    def run() -> Array:
        f.run_into(out, x)
        return out

    return run


def torch_product(x: Array, w: Array, threads: int) -> Callable[[], Array]:
    torch: Any = import_module("torch")
    torch.set_num_threads(threads)
    linear = torch.nn.Linear(w.shape[0], w.shape[1], bias=False)
    linear.weight.data = torch.from_numpy(np.ascontiguousarray(w.T))
    given = torch.from_numpy(x)

    def run() -> Array:
        with torch.inference_mode():
            return np.asarray(linear(given).numpy())

    return run


def seconds(run: Callable[[], Array], count: int) -> float:
    start = perf_counter()
    for _ in range(count):
        run()
    return (perf_counter() - start) / count


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--error", action="store_true")
    options.add_argument("--json", action="store_true")
    options.add_argument("--shapes", type=int, default=len(SHAPES), help="only the first N")
    given = options.parse_args()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        if os.environ.get(name) != str(given.threads):
            raise SystemExit(f"NumPy's library reads {name} when it is loaded: start with {name}={given.threads}")
    from rlxpy.backends.cpu.threads import set_threads

    set_threads(given.threads)
    rng, rows = np.random.default_rng(0), []
    for m, n, k in SHAPES[:given.shapes]:
        x, w = rng.normal(size=(m, k)).astype(np.float32), rng.normal(size=(k, n)).astype(np.float32)
        runs = {numerics: rlxpy_product(x, w, numerics) for numerics in ("highest", "high", "medium")}
        runs["numpy"] = lambda x=x, w=w: x @ w  # type: ignore[misc]
        if find_spec("torch"):
            runs["torch"] = torch_product(x, w, given.threads)
        counts = {name: max(1, int(ROUND_SECONDS / seconds(run, 2))) for name, run in runs.items()}
        taken: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(given.rounds):
            for name, run in runs.items():
                taken[name].append(seconds(run, counts[name]))
        row: dict[str, Any] = {"M,N,K": f"{m},{n},{k}", **{name: round(2e-9 * m * n * k / median(t), 1) for name, t in taken.items()}}
        if given.error:
            want = x.astype(np.float64) @ w
            row |= {f"{name} error": f"{np.sqrt(np.mean((run() - want) ** 2) / np.mean(want**2)):.1e}" for name, run in runs.items()}
        rows.append(row)
    report("GFLOP/s of f32 products", rows, threads=given.threads)


if __name__ == "__main__":
    main()

"""Attention on a GPU: each row that takes the call, on matrix units at each point of its tunables if one asks, in turns, by the device's own clock.

    python benchmarks/gpu_attention.py [--device cuda] [--rounds N] [--points] [--json]

Microseconds of the median round; TFLOP/s counts what a causal mask leaves; GB/s counts queries, keys, values and results once.  error: the greatest, from
the plain row's result in parts of its greatest."""
from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from itertools import product
from statistics import median
from typing import Any

import numpy as np
from machine import report

from rlxpy import Builder, CompileOptions, DType, compile
from rlxpy.backends.gpu import attention_units
from rlxpy.backends.gpu.units import UNITS
from rlxpy.compiler.devices import backend

# what; batch, heads, key heads, queries, keys, channels; mask
CASES = (("SmolLM2 prefill", (1, 9, 3, 512, 512, 64), "causal"), ("MiniLM", (32, 12, 12, 128, 128, 32), "none"), ("Llama 8B prefill", (1, 32, 8, 2048, 2048, 128), "causal"),
         ("Gemma prefill", (1, 8, 4, 1024, 1024, 256), "causal"), ("SmolLM2 token", (1, 9, 3, 1, 512, 64), "causal"), ("Llama 8B token", (1, 32, 8, 1, 8192, 128), "causal"))
KINDS = ((DType.BF16, "highest"), (DType.F16, "highest"), (DType.F32, "medium"))
Array = np.ndarray[Any, Any]
Sizes = tuple[int, int, int, int, int, int]


def attention(arrays: list[Array], d: DType, mask: str, device: str, options: CompileOptions) -> tuple[Callable[[], float], Array, str]:
    """Microseconds of a run, a result, and the row that made it."""
    b = Builder("attention")
    xs = tuple(b.input(name, a.shape, d) for name, a in zip("qkv", arrays, strict=True))
    f = compile(b.finish(xs[0].apply("attention", xs, {"scale": arrays[0].shape[3]**-0.5, "mask": mask})), device=device, options=options)

    def run() -> float:
        return 1e-3 * sum(s.end_ns - s.begin_ns for s in f.profile(*arrays))

    return run, f(*arrays), f.plan.steps[0].choice.name


def ways(device: str, d: DType, numerics: str, queries: int, every: bool) -> Iterator[tuple[str, CompileOptions]]:
    """A name for each way, and the options that choose it; the plain row first."""
    yield "plain", CompileOptions(numerics=numerics, force_row=("gpu/attention",))
    if queries == 1:
        yield "parts", CompileOptions(numerics=numerics)
        return
    for unit in UNITS:
        if backend(device).spec.facts["arch"] in unit.archs:
            row = f"gpu/attention.{unit.name}" + (f"_{d.text}" if d in unit.calls else "")
            for point in product(*(t.values if every else (t.default,) for t in attention_units.tunables(unit))):
                names = [f"{t.name}={value}" for t, value in zip(attention_units.tunables(unit), point, strict=True)]
                yield " ".join(names), CompileOptions(numerics=numerics, tune=tuple(f"{row}:{name}" for name in names))


def work(sizes: Sizes, mask: str, nbytes: int) -> tuple[float, int]:
    """Additions and multiplications, and bytes."""
    b, h, g, t, s, d = sizes
    seen = t*s - t*(t - 1)/2 if mask == "causal" else t*s
    return 4*b*h*seen*d, nbytes*b*d*(2*h*t + 2*g*s)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--device", default="cuda")
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--points", action="store_true", help="every point of the tunables, not only the default")
    options.add_argument("--json", action="store_true")
    given = options.parse_args()
    rows: list[dict[str, Any]] = []
    rng = np.random.default_rng(0)
    for what, sizes, mask in CASES:
        b, h, g, t, s, width = sizes
        for d, numerics in KINDS:
            arrays = [rng.normal(size=n).astype(np.float32).astype(d.numpy) for n in ((b, h, t, width), (b, g, s, width), (b, g, s, width))]
            named = list(ways(given.device, d, numerics, t, given.points))
            made = [attention(arrays, d, mask, given.device, how) for _, how in named]
            rounds = [[run() for run, _, _ in made] for _ in range(given.rounds + 2)][2:]  # the first are for caches and clocks
            plain = made[0][1].astype(np.float64)
            for k, (name, _) in enumerate(named):
                us, (flops, nbytes) = median(r[k] for r in rounds), work(sizes, mask, d.nbytes)
                error = np.abs(made[k][1].astype(np.float64) - plain).max() / np.abs(plain).max()
                rows.append({"what": what, "type": d.text, "numerics": numerics, "row": made[k][2], "way": name, "us": round(us, 1), "TFLOP/s": round(1e-6*flops/us, 1),
                             "GB/s": round(1e-3*nbytes/us), "error": f"{error:.1e}"})
    report("Attention by each way that takes it", rows, device=given.device)


if __name__ == "__main__":
    main()

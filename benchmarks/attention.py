"""Attention on the cpu backend beside PyTorch's scaled_dot_product_attention in f32, in turns: encoders, prefill, decoding, each cache.

    python benchmarks/attention.py [--torch PYTHON] [--threads N ...] [--rounds N]

PyTorch lives in an environment of its own (`pip install torch numpy` there); without --torch it is left out, with a sentence.  Every
worker is a process; all run the same case in turns, so that what else the machine does meets all alike.  Prints medians in
microseconds of one call, the range, and the ratio.  Narrow caches have no counterpart in PyTorch: they are compared with f32."""
from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

# name: batch, query heads, key heads, queries, keys, channels, causal
CASES = {
    "MiniLM 8x128": (8, 12, 12, 128, 128, 32, False),
    "MiniLM 1x16": (1, 12, 12, 16, 16, 32, False),
    "SmolLM2 prefill of 512": (1, 9, 3, 512, 512, 64, True),
    "SmolLM2 chunk of 64 after 448": (1, 9, 3, 64, 512, 64, True),
    "SmolLM2 decode at 128": (1, 9, 3, 1, 128, 64, False),
    "SmolLM2 decode at 2048": (1, 9, 3, 1, 2048, 64, False),
    "8B model, decode at 4096": (1, 32, 8, 1, 4096, 128, False),
}
STORED = ("f32", "bf16", "f16", "q8_0")
REPEATS = 10  # calls of one measurement
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
Call = Callable[[], Any]


def arrays(case: str) -> list[Any]:
    b, h, g, t, s, d, _ = CASES[case]
    rng = np.random.default_rng(0)
    return [rng.normal(size=n).astype(np.float32) for n in ((b, h, t, d), (b, g, s, d), (b, g, s, d))]


def rlxpy_call(case: str, stored: str) -> Call:
    from rlxpy import Builder, compile
    from rlxpy.ir.dtypes import dtype
    from rlxpy.ir.quantize import quantize

    q, *rest = arrays(case)
    b, causal = Builder("attention"), CASES[case][-1]
    given = [quantize(a, stored)[0] if stored == "q8_0" else a.astype(dtype(stored).numpy) for a in rest]
    kept = [b.input(n, a.shape, "u8" if stored == "q8_0" else stored) for n, a in zip("kv", given, strict=True)]
    k, v = (x.dequantize(encoding=stored, shape=a.shape) if stored == "q8_0" else x if stored == "f32" else x.cast(to="f32") for x, a in zip(kept, rest, strict=True))
    x = b.input("q", q.shape)
    f = compile(b.finish(x.apply("attention", (x, k, v), {"scale": q.shape[-1] ** -0.5, "mask": "causal" if causal else "none"})), device="cpu", wait=True)
    assert {row["tier"] for row in f.dispatch()} == {"kernel"}
    return lambda: f.run(*given, q)


def torch_call(case: str, stored: str) -> Call:
    torch: Any = import_module("torch")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    q, k, v = map(torch.from_numpy, arrays(case))
    mask = None
    if CASES[case][-1]:  # anchored bottom-right
        t, s = q.shape[2], k.shape[2]
        mask = torch.ones(t, s, dtype=torch.bool).tril(s - t)
    attend = torch.nn.functional.scaled_dot_product_attention
    causal = mask is not None and q.shape[2] == k.shape[2]

    def call() -> Any:
        with torch.inference_mode():
            return attend(q, k, v, attn_mask=None if causal else mask, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])

    return call


def work(kind: str) -> None:
    """Seconds of one call for each case that comes in; a case is prepared when it is first asked for."""
    if kind != "torch":
        from rlxpy.backends.cpu.threads import set_threads

        set_threads(int(os.environ["OMP_NUM_THREADS"]))
    made: dict[str, Call] = {}
    for line in sys.stdin:
        case = line.strip()
        if case not in made:
            made[case] = (torch_call if kind == "torch" else rlxpy_call)(case, kind)
            made[case]()
        start = perf_counter()
        for _ in range(REPEATS):
            made[case]()
        print(json.dumps((perf_counter() - start) / REPEATS), flush=True)


def ask(worker: subprocess.Popen[str], case: str) -> float:
    assert worker.stdin is not None
    assert worker.stdout is not None
    print(case, file=worker.stdin, flush=True)
    answer = worker.stdout.readline()
    if not answer:
        raise SystemExit(f"a worker ended at {case!r}: see above")
    return float(json.loads(answer))


def compare(kinds: dict[str, str], threads: int, rounds: int) -> None:
    environment = os.environ | dict.fromkeys(THREAD_VARIABLES, str(threads))
    workers = {kind: subprocess.Popen([python, __file__, "--worker", kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
               for kind, python in kinds.items()}
    for case in CASES:
        found: dict[str, list[float]] = {kind: [] for kind in workers}
        for round_ in range(rounds + 1):
            for kind, worker in workers.items():
                seconds = ask(worker, case)
                if round_:  # the first warms up
                    found[kind].append(seconds)
        first = median(found["f32"])
        for kind, seconds_each in found.items():
            low, mid, high = (f(seconds_each) * 1e6 for f in (min, median, max))
            print(f"{threads} threads  {case:<30} {kind:<6} {mid:9.1f} us  ({low:.1f} .. {high:.1f})  {mid / first * 1e-6:5.2f} of ours in f32", flush=True)
    for worker in workers.values():
        worker.communicate()


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", metavar="PYTHON", help="interpreter of an environment with torch")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args(argv)
    if not options.torch:
        print("PyTorch is left out: name its interpreter with --torch")
    print(f"{os.cpu_count()} cores, load {', '.join(f'{x:.1f}' for x in os.getloadavg())}")
    kinds = dict.fromkeys(STORED, sys.executable) | ({"torch": options.torch} if options.torch else {})
    for threads in options.threads:
        compare(kinds, threads, options.rounds)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(sys.argv[2])
    else:
        main(sys.argv[1:])

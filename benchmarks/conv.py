"""Convolution with bias and ReLU, pooling and resizing at the shapes of ResNet and MobileNet: rlxpy's cpu backend beside PyTorch, in turns.

    python benchmarks/conv.py [LAYER ...] [--torch PYTHON] [--threads N ...] [--rounds N]

PyTorch lives in an environment of its own; without --torch it is left out, with a sentence.  Both are processes on the same processors and
time the same layer in turns.  Prints the median time of a call and, for convolutions, the rate of their multiplications and additions."""
from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

SECONDS_A_TURN = 0.03
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
# name: (x, weights or window, stride, padding, groups)
CONVS = {
    "stem 7x7/2": ((1, 3, 224, 224), (64, 3, 7, 7), 2, 3, 1),
    "3x3 56": ((1, 64, 56, 56), (64, 64, 3, 3), 1, 1, 1),
    "3x3 28": ((1, 128, 28, 28), (128, 128, 3, 3), 1, 1, 1),
    "3x3 14": ((1, 256, 14, 14), (256, 256, 3, 3), 1, 1, 1),
    "3x3 7": ((1, 512, 7, 7), (512, 512, 3, 3), 1, 1, 1),
    "3x3/2 56": ((1, 128, 56, 56), (128, 128, 3, 3), 2, 1, 1),
    "1x1 56": ((1, 256, 56, 56), (64, 256, 1, 1), 1, 0, 1),
    "1x1 14": ((1, 512, 14, 14), (512, 512, 1, 1), 1, 0, 1),
    "depthwise 112": ((1, 32, 112, 112), (32, 1, 3, 3), 1, 1, 32),
    "depthwise 14": ((1, 512, 14, 14), (512, 1, 3, 3), 1, 1, 512),
    "depthwise/2 56": ((1, 128, 56, 56), (128, 1, 3, 3), 2, 1, 128),
    "grouped 28": ((1, 256, 28, 28), (256, 8, 3, 3), 1, 1, 32),
}
OTHERS = {"max_pool 3x3/2": (1, 64, 112, 112), "avg_pool 7x7": (1, 512, 7, 7), "resize linear x2": (1, 64, 56, 56), "conv_transpose 2x2/2": (1, 64, 28, 28)}


def ours(name: str, arrays: list[Any]) -> Callable[[], Any]:
    import rlxpy
    from rlxpy.ir import spatial_functions as S

    b = rlxpy.Builder("layer")
    x, weights = b.input("x", arrays[0].shape), [b.param(f"w{k}", a.shape) for k, a in enumerate(arrays[1:])]
    if name in CONVS:
        _, _, stride, padding, groups = CONVS[name]
        y = S.conv(x, *weights, strides=stride, padding=padding, groups=groups).relu()
    else:
        y = {"max_pool 3x3/2": lambda: S.max_pool(x, 3, strides=2, padding=1), "avg_pool 7x7": lambda: S.avg_pool(x, 7),
             "resize linear x2": lambda: S.resize(x, scale=2, method="linear"), "conv_transpose 2x2/2": lambda: S.conv_transpose(x, *weights, strides=2)}[name]()
    f = rlxpy.compile(b.finish(y), {f"w{k}": a for k, a in enumerate(arrays[1:])}, device="cpu")
    return lambda: f(arrays[0])


def torchs(name: str, arrays: list[Any]) -> Callable[[], Any]:
    torch: Any = import_module("torch")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    T, (x, *weights) = torch.nn.functional, map(torch.from_numpy, arrays)
    if name in CONVS:
        _, _, stride, padding, groups = CONVS[name]
        return torch.inference_mode()(lambda: T.relu_(T.conv2d(x, *weights, stride=stride, padding=padding, groups=groups)))  # type: ignore[no-any-return]
    return torch.inference_mode()({"max_pool 3x3/2": lambda: T.max_pool2d(x, 3, 2, 1), "avg_pool 7x7": lambda: T.avg_pool2d(x, 7),  # type: ignore[no-any-return]
                                   "resize linear x2": lambda: T.interpolate(x, scale_factor=2, mode="bilinear"),
                                   "conv_transpose 2x2/2": lambda: T.conv_transpose2d(x, *weights, stride=2)}[name])


def arrays_of(name: str) -> list[Any]:
    rng = np.random.default_rng(0)
    w: dict[str, list[tuple[int, ...]]] = {"conv_transpose 2x2/2": [(64, 32, 2, 2), (32,)]}
    shapes = [CONVS[name][0], CONVS[name][1], CONVS[name][1][:1]] if name in CONVS else [OTHERS[name], *w.get(name, [])]
    return [rng.standard_normal(s, np.float32) for s in shapes]


def flops(name: str) -> float:
    if name not in CONVS:
        return 0
    x, w, stride, padding, _ = CONVS[name]
    results = ((x[2] + 2 * padding - w[2]) // stride + 1) * ((x[3] + 2 * padding - w[3]) // stride + 1)
    return 2.0 * x[0] * results * float(np.prod(w))


def timed(call: Callable[[], Any], times: int) -> float:
    start = perf_counter()
    for _ in range(times):
        call()
    return (perf_counter() - start) / times


def work(kind: str) -> None:
    """For each line with a layer's name: seconds a call, over about SECONDS_A_TURN."""
    calls: dict[str, tuple[Callable[[], Any], int]] = {}
    for line in sys.stdin:
        name = line.strip()
        if name not in calls:
            call = (ours if kind == "rlxpy" else torchs)(name, arrays_of(name))
            calls[name] = call, max(1, int(SECONDS_A_TURN / min(timed(call, 1) for _ in range(5))))
        print(json.dumps(timed(*calls[name])), flush=True)


def ask(worker: subprocess.Popen[str], name: str) -> float:
    assert worker.stdin is not None
    assert worker.stdout is not None
    print(name, file=worker.stdin, flush=True)
    return float(json.loads(worker.stdout.readline()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layers", nargs="*", metavar="LAYER", help=f"{', '.join([*CONVS, *OTHERS])}; all of them when none is named")
    parser.add_argument("--torch", metavar="PYTHON", help="interpreter of an environment with torch")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    kinds = {"rlxpy": sys.executable} | ({"torch": options.torch} if options.torch else {})
    if not options.torch:
        print("PyTorch is left out: name its interpreter with --torch")
    print(f"{os.cpu_count()} cores, load {', '.join(f'{x:.1f}' for x in os.getloadavg())}")
    for threads in options.threads:
        environment = os.environ | dict.fromkeys(THREAD_VARIABLES, str(threads))
        workers = {kind: subprocess.Popen(["taskset", "-c", ",".join(map(str, range(threads))), python, __file__, "--worker", kind], stdin=subprocess.PIPE,
                                          stdout=subprocess.PIPE, text=True, env=environment) for kind, python in kinds.items()}
        for name in options.layers or [*CONVS, *OTHERS]:
            found: dict[str, list[float]] = {kind: [] for kind in workers}
            for turn in range(options.rounds + 1):
                for kind, worker in workers.items():
                    seconds = ask(worker, name)
                    found[kind] += [seconds] if turn else []
            cells = [f"{kind} {median(s) * 1e3:7.3f} ms" + (f" {flops(name) / median(s) / 1e9:6.1f} GF/s" if flops(name) else "") for kind, s in found.items()]
            ratio = f"  {median(found['torch']) / median(found['rlxpy']):.2f} times torch's speed" if "torch" in found else ""
            print(f"{threads} threads  {name:<22} {'  '.join(cells)}{ratio}", flush=True)
        for worker in workers.values():
            worker.communicate()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(sys.argv[2])
    else:
        main()

"""Blocks of models at the speed of memory: elements a second of rlxpy's cpu backend beside PyTorch (eager, compiled) and JAX, in turns.

    python benchmarks/building_blocks.py [BLOCK ...] [--peers PYTHON] [--threads N ...] [--rounds N]

The peers live in an environment of their own (`pip install torch jax` there); without --peers they are left out, with a sentence.
Every worker is a process with a share of the processors; all time the same block in turns, so that what else the machine does meets
all alike.  A block is called as a user calls it: arrays in, fresh arrays out.  Prints medians and the spread of the rounds."""
from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from statistics import median
from time import perf_counter, sleep
from typing import Any

import numpy as np
from processors import bind

SECONDS_A_TURN = 0.03
REST_SECONDS = 0.1  # before each turn: the threads of the contestant before wait for more work by looking again and again
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Block:
    """One formula over inputs of `shapes`, spelled for each library; the first shape counts the elements."""

    shapes: tuple[tuple[int, ...], ...]
    ours: Callable[..., Any]
    torch: Callable[..., Any]  # (torch, *tensors)
    jax: Callable[..., Any]    # (jax, *arrays)


def jax_norm(jax: Any, x: Any, scale: Any, bias: Any) -> Any:
    d = x - x.mean(-1, keepdims=True)
    return d * jax.lax.rsqrt((d * d).mean(-1, keepdims=True) + 1e-5) * scale + bias


def ten(x: Any, sigmoid: Callable[[Any], Any], tanh: Callable[[Any], Any], sqrt: Callable[[Any], Any]) -> Any:
    y = tanh(sigmoid(x * 0.5 + 1.0) * x - 0.25)
    return -sqrt(y * y + 0.001)


BLOCKS = {
    "softmax": Block(((8, 12, 128, 128),), lambda x: x.softmax(axis=-1), lambda t, x: t.softmax(x, -1), lambda j, x: j.nn.softmax(x)),
    "layer_norm": Block(((4096, 384), (384,), (384,)), lambda x, g, b: x.layer_norm(g, b, eps=1e-5),
                        lambda t, x, g, b: t.nn.functional.layer_norm(x, (384,), g, b, 1e-5), jax_norm),
    "rms_norm": Block(((512, 576), (576,)), lambda x, g: x.rms_norm(g, eps=1e-5), lambda t, x, g: t.nn.functional.rms_norm(x, (576,), g, 1e-5),
                      lambda j, x, g: x * j.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * g),
    "gelu": Block(((4096, 1536),), lambda x: x.gelu(), lambda t, x: t.nn.functional.gelu(x), lambda j, x: j.nn.gelu(x, approximate=False)),
    "silu_mul": Block(((512, 3072), (512, 3072)), lambda g, u: g.silu() * u, lambda t, g, u: t.nn.functional.silu(g) * u, lambda j, g, u: j.nn.silu(g) * u),
    "ten_ops": Block(((4096, 1536),), lambda x: ten(x, lambda v: v.sigmoid(), lambda v: v.tanh(), lambda v: v.sqrt()),
                     lambda t, x: ten(x, t.sigmoid, t.tanh, t.sqrt), lambda j, x: ten(x, j.nn.sigmoid, j.numpy.tanh, j.numpy.sqrt)),
    "add_layer_norm": Block(((4096, 384), (4096, 384), (384,), (384,)), lambda x, r, g, b: (x + r).layer_norm(g, b, eps=1e-5),
                            lambda t, x, r, g, b: t.nn.functional.layer_norm(x + r, (384,), g, b, 1e-5), lambda j, x, r, g, b: jax_norm(j, x + r, g, b)),
    "add_rms_norm_keep": Block(((512, 576), (512, 576), (576,)), lambda x, r, g: ((x + r), (x + r).rms_norm(g, eps=1e-5)),
                               lambda t, x, r, g: ((s := x + r), t.nn.functional.rms_norm(s, (576,), g, 1e-5)),
                               lambda j, x, r, g: ((s := x + r), s * j.lax.rsqrt((s * s).mean(-1, keepdims=True) + 1e-5) * g)),
}

Call = Callable[[], Any]


# ---- workers
def rlxpy_call(block: Block, arrays: list[Any]) -> Call:
    import rlxpy

    b = rlxpy.Builder("block")
    made = block.ours(*(b.input(f"x{k}", a.shape) for k, a in enumerate(arrays)))
    f = rlxpy.compile(b.finish(*(made if isinstance(made, tuple) else (made,))), device="cpu", wait=True)
    return lambda: f(*arrays)


def torch_call(block: Block, arrays: list[Any], compiled: bool) -> Call:
    torch: Any = import_module("torch")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    tensors = [torch.from_numpy(a) for a in arrays]

    def forward(*xs: Any) -> Any:
        return block.torch(torch, *xs)

    f = torch.inference_mode()(torch.compile(forward) if compiled else forward)
    return lambda: f(*tensors)


def jax_call(block: Block, arrays: list[Any]) -> Call:
    jax: Any = import_module("jax")
    given = [jax.numpy.asarray(a) for a in arrays]
    f = jax.jit(lambda *xs: block.jax(jax, *xs))
    return lambda: jax.block_until_ready(f(*given))


PEERS: dict[str, Callable[[Block, list[Any]], Call]] = {
    "torch": lambda block, arrays: torch_call(block, arrays, compiled=False),
    "torch.compile": lambda block, arrays: torch_call(block, arrays, compiled=True),
    "jax": jax_call,
}


def work(kind: str) -> None:
    """For each line with a block's name: seconds a call, over about SECONDS_A_TURN."""
    count = int(os.environ["OMP_NUM_THREADS"])
    bind(count)
    calls: dict[str, tuple[Call, int]] = {}
    print("ready", flush=True)
    for line in sys.stdin:
        name = line.strip()
        if name not in calls:
            rng = np.random.default_rng(0)
            arrays = [rng.standard_normal(s, np.float32) for s in BLOCKS[name].shapes]
            call = (rlxpy_call if kind == "rlxpy" else PEERS[kind])(BLOCKS[name], arrays)
            calls[name] = call, max(1, int(SECONDS_A_TURN / min(_timed(call, 1) for _ in range(5))))
        calls[name][0]()  # its data and its threads are there again
        print(json.dumps(_timed(*calls[name])), flush=True)


def _timed(call: Call, times: int) -> float:
    start = perf_counter()
    for _ in range(times):
        call()
    return (perf_counter() - start) / times


# ---- the driver
def start(python: str, kind: str, threads: int) -> subprocess.Popen[str]:
    environment = os.environ | dict.fromkeys(THREAD_VARIABLES, str(threads))
    worker = subprocess.Popen([python, __file__, "--worker", kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert worker.stdout is not None
    if worker.stdout.readline() != "ready\n":
        raise SystemExit(f"{kind} did not start: see above")
    return worker


def ask(worker: subprocess.Popen[str], name: str) -> float:
    assert worker.stdin is not None
    assert worker.stdout is not None
    print(name, file=worker.stdin, flush=True)
    return float(json.loads(worker.stdout.readline()))


def compare(kinds: dict[str, str], names: list[str], threads: int, rounds: int) -> None:
    workers = {kind: start(python, kind, threads) for kind, python in kinds.items()}
    for name in names:
        numel = int(np.prod(BLOCKS[name].shapes[0]))
        for worker in workers.values():
            ask(worker, name)
        found: dict[str, list[float]] = {kind: [] for kind in workers}
        for _ in range(rounds):
            for kind, worker in workers.items():
                sleep(REST_SECONDS)
                found[kind].append(numel / ask(worker, name) / 1e9)
        cells = [f"{kind} {median(rates):5.2f} ({min(rates):.2f} .. {max(rates):.2f})" for kind, rates in found.items()]
        best = max((median(rates) for kind, rates in found.items() if kind != "rlxpy"), default=None)
        against = "" if best is None else f"  {median(found['rlxpy']) / best:.2f} of the best peer"
        print(f"{threads} threads  {name:<18} {'  '.join(cells)}{against}", flush=True)
    for worker in workers.values():
        worker.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("blocks", nargs="*", metavar="BLOCK", help=f"{', '.join(BLOCKS)}; all of them when none is named")
    parser.add_argument("--peers", metavar="PYTHON", help="interpreter of an environment with torch and jax")
    parser.add_argument("--only", nargs="+", choices=PEERS, default=list(PEERS), help="which peers")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    kinds = {"rlxpy": sys.executable} | (dict.fromkeys(options.only, options.peers) if options.peers else {})
    if not options.peers:
        print("PyTorch and JAX are left out: name their interpreter with --peers")
    print(f"10^9 elements a second; {os.cpu_count()} cores, load {', '.join(f'{x:.1f}' for x in os.getloadavg())}")
    for threads in options.threads:
        compare(kinds, options.blocks or list(BLOCKS), threads, options.rounds)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(sys.argv[2])
    else:
        main()

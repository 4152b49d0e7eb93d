"""Blocks of models at the speed of memory: elements a second of rlxpy's cpu backend beside PyTorch (eager, compiled) and JAX, in turns.

    python benchmarks/building_blocks.py [BLOCK ...] [--peers PYTHON] [--only NAME,NAME] [--threads 1,2] [--rounds N]

The peers live in an environment of their own (`pip install torch jax` there); what is not there is left out, with a sentence.
Every contestant is a process bound to as many processors as it has threads; all time the same block in turns, so that what else the machine
does meets all alike, and one that computes something else is an error.  A block is called as a user calls it: arrays in, fresh arrays out.
Prints a row as soon as it is measured: medians, the spread of the rounds, and ours beside the best peer; then the geometric mean of those."""
from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from statistics import geometric_mean, median
from time import perf_counter, sleep
from typing import Any

import numpy as np
from processors import bind
from worker import REST_SECONDS, Worker, left_out, serve, started

SECONDS_A_TURN = 0.03
OURS = "rlxpy"


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


# ---- in contestants' processes
def rlxpy_call(block: Block, arrays: list[Any], threads: int) -> Call:
    import rlxpy
    from rlxpy.backends.cpu.threads import set_threads

    set_threads(threads)
    b = rlxpy.Builder("block")
    made = block.ours(*(b.input(f"x{k}", a.shape) for k, a in enumerate(arrays)))
    f = rlxpy.compile(b.finish(*(made if isinstance(made, tuple) else (made,))), device="cpu", wait=True)
    return lambda: f(*arrays)


def torch_call(block: Block, arrays: list[Any], threads: int, compiled: bool = False) -> Call:
    torch: Any = import_module("torch")
    torch.set_num_threads(threads)
    tensors = [torch.from_numpy(a) for a in arrays]

    def forward(*xs: Any) -> Any:
        return block.torch(torch, *xs)

    f = torch.inference_mode()(torch.compile(forward) if compiled else forward)
    return lambda: f(*tensors)


def jax_call(block: Block, arrays: list[Any], threads: int) -> Call:
    jax: Any = import_module("jax")
    given = [jax.numpy.asarray(a) for a in arrays]
    f = jax.jit(lambda *xs: block.jax(jax, *xs))
    _ = threads  # the process is bound to as many processors
    return lambda: jax.block_until_ready(f(*given))


CONTESTANTS: dict[str, Callable[[Block, list[Any], int], Call]] = {
    OURS: rlxpy_call, "torch": torch_call, "torch.compile": lambda block, arrays, threads: torch_call(block, arrays, threads, compiled=True), "jax": jax_call,
}


def work(kind: str, threads: int) -> None:
    """Answers a block's name with seconds a call, over about SECONDS_A_TURN; the first time with the mean magnitude of each result."""
    bind(threads)
    calls: dict[str, tuple[Call, int]] = {}

    def answer(name: str) -> float | list[float]:
        if name not in calls:
            rng = np.random.default_rng(0)
            call = CONTESTANTS[kind](BLOCKS[name], [rng.standard_normal(s, np.float32) for s in BLOCKS[name].shapes], threads)
            made = call()
            calls[name] = call, max(1, int(SECONDS_A_TURN / min(seconds(call, 1) for _ in range(5))))
            return [float(np.abs(np.asarray(x, np.float64)).mean()) for x in (made if isinstance(made, (tuple, list)) else (made,))]
        calls[name][0]()  # its data and its threads are there again
        return seconds(*calls[name])

    serve(lambda: answer)


def seconds(call: Call, times: int) -> float:
    start = perf_counter()
    for _ in range(times):
        call()
    return (perf_counter() - start) / times


# ---- the driver
def able(workers: dict[str, Worker], name: str, threads: int) -> dict[str, Worker]:
    """Those that run the block, all with the same results."""
    means: dict[str, Any] = {}
    for kind, worker in workers.items():
        try:
            means[kind] = worker.ask(name)
        except RuntimeError as e:
            if kind == OURS:
                raise
            left_out(f"{kind}, {name}", threads, str(e))
    for kind, mean in means.items():
        np.testing.assert_allclose(mean, means[OURS], rtol=1e-4, err_msg=f"{kind} computes another {name} than {OURS}")
    return {kind: workers[kind] for kind in means}


def measured(workers: dict[str, Worker], name: str, threads: int, rounds: int) -> dict[str, list[float]]:
    """10^9 elements a second, by rounds."""
    numel = int(np.prod(BLOCKS[name].shapes[0]))
    turns = able(workers, name, threads)
    rates: dict[str, list[float]] = {kind: [] for kind in turns}
    for _ in range(rounds):
        for kind, worker in turns.items():
            sleep(REST_SECONDS)
            rates[kind].append(numel / worker.ask(name) / 1e9)
    return rates


def compare(pythons: dict[str, str], names: list[str], threads: int, rounds: int, say: Callable[[str], None]) -> list[dict[str, Any]]:
    variables = {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    begun = {kind: started(kind, [python, __file__, "--worker", kind, str(threads)], threads, **variables) for kind, python in pythons.items()}
    workers = {kind: worker for kind, worker in begun.items() if worker}
    if OURS not in workers:
        raise SystemExit(1)
    rows, ratios = list[dict[str, Any]](), list[float]()
    for name in names:
        rates = measured(workers, name, threads, rounds)
        best = max((median(r) for kind, r in rates.items() if kind != OURS), default=None)
        ratios += [median(rates[OURS]) / best] if best else []
        rows.append({"block": name, "threads": threads, "rates": rates, "x best peer": ratios[-1] if best else None})
        cells = "".join(f"{median(rates[kind]):7.2f} ({min(rates[kind]):.2f}..{max(rates[kind]):.2f})".rjust(24) if kind in rates else "left out".rjust(24) for kind in pythons)
        say(f"{name:<18}{threads:>8}{cells}" + (f"{ratios[-1]:>8.2f}x" if best else ""))
    if ratios:
        say(f"{threads} threads: geometric mean {geometric_mean(ratios):.2f}x, least {min(ratios):.2f}x the best peer")
    for worker in workers.values():
        worker.end()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("blocks", nargs="*", metavar="BLOCK", help=f"{', '.join(BLOCKS)}; all of them when none is named")
    parser.add_argument("--peers", metavar="PYTHON", default="", help="interpreter of an environment with torch and jax")
    parser.add_argument("--only", default="", help=f"which peers, with commas between, of {', '.join(CONTESTANTS)}")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", nargs=2)
    args = parser.parse_args()
    if args.worker:
        work(args.worker[0], int(args.worker[1]))
        return
    from machine import facts

    unknown = [name for name in args.blocks if name not in BLOCKS] + [name for name in args.only.split(",") if name and name not in CONTESTANTS]
    if unknown:
        parser.error(f"no {', '.join(unknown)}: blocks are {', '.join(BLOCKS)}, peers {', '.join(n for n in CONTESTANTS if n != OURS)}")
    peers = [kind for kind in CONTESTANTS if kind != OURS and (not args.only or kind in args.only.split(","))]
    pythons = {OURS: sys.executable} | (dict.fromkeys(peers, args.peers) if args.peers else {})
    if not args.peers:
        print(f"left out: {', '.join(peers)}: --peers names an interpreter that has them", file=sys.stderr)

    def say(line: str) -> None:
        if not args.json:
            print(line, flush=True)

    say("10^9 elements a second, median (least..most)\n  " + ", ".join(f"{k} {v}" for k, v in facts().items()))
    say(f"{'':18}{'threads':>8}" + "".join(f"{kind:>24}" for kind in pythons))
    rows = [row for threads in map(int, args.threads.split(",")) for row in compare(pythons, args.blocks or list(BLOCKS), threads, args.rounds, say)]
    if args.json:
        print(json.dumps({"benchmark": "building blocks", "machine": facts(), "rows": rows}, indent=2))


if __name__ == "__main__":
    main()

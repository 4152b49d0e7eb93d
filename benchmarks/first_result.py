"""From a fresh process to the first result of a graph of ten ops, step by step.  Usage: first_result.py [ROUNDS] [--json]"""
from __future__ import annotations

import json
import subprocess
import sys
from statistics import median

from machine import fresh, report

CHILD = """
from time import perf_counter as now
marks = [("start", now())]
def done(step): marks.append((step, now()))
import numpy as np; done("import numpy")
import rlxpy; from rlxpy import Builder, compile, sym; done("import rlxpy")
b = Builder()
x = b.input("x", (sym("B", 1, 8), 16))
h = (x @ b.param("w", (16, 32)) + b.param("b", (32,))).gelu().layer_norm(eps=1e-5)
y = ((h @ b.param("v", (32, 4))).softmax(axis=-1) * 2.0 - 1.0).tanh().sum(axes=(-1,))
g = b.finish(y); done("build")
ws = {n.name: np.ones(n.type.shape, np.float32) for n in g.params}
run = compile(g, ws); done("compile")
ones = np.ones((3, 16), np.float32)
run(ones); done("first run")
run(ones); done("second run")
import json; print(json.dumps([(step, t - before) for (step, t), (_, before) in zip(marks[1:], marks)]))
"""


def steps() -> dict[str, float]:
    return dict(json.loads(subprocess.run([sys.executable, "-c", CHILD], env=fresh(), capture_output=True, text=True, check=True).stdout))


def main() -> None:
    rounds = next((int(a) for a in sys.argv[1:] if a.isdigit()), 11)
    steps()  # byte code is written, files are in memory
    taken = [steps() for _ in range(rounds)]
    each = {step: [t[step] for t in taken] for step in taken[0]}
    each["to the first result"] = [sum(t.values()) - t["second run"] for t in taken]
    report("first result of a graph of ten ops", [{"step": s, "median_ms": median(t) * 1e3, "least_ms": min(t) * 1e3, "most_ms": max(t) * 1e3} for s, t in each.items()], rounds=rounds)


if __name__ == "__main__":
    main()

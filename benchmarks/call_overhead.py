"""What a call costs beside its arithmetic: a graph of two ops on 4x4, and PyTorch's eager ops on the same.  Usage: call_overhead.py [--json]"""
from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from time import perf_counter, process_time
from typing import Any

import numpy as np
from machine import report

import rlxpy

CALLS, ROUNDS = 2000, 15


def microseconds(call: Callable[[], Any], clock: Callable[[], float]) -> float:
    """Of a call, in the least disturbed round."""
    def once() -> float:
        start = clock()
        for _ in range(CALLS):
            call()
        return (clock() - start) / CALLS

    return min(once() for _ in range(ROUNDS)) * 1e6


def main() -> None:
    b = rlxpy.Builder("tiny")
    x, y = b.input("x", (4, 4)), b.input("y", (4, 4))
    run = rlxpy.compile(b.finish((x * 2.0).tanh() + y), device="cpu", wait=True)
    ones, out = np.ones((4, 4), np.float32), np.empty((4, 4), np.float32)
    calls: dict[str, Callable[[], Any]] = {"run": lambda: run(ones, ones), "run_into": lambda: run.run_into(out, ones, ones),
                                           "numpy": lambda: np.tanh(ones * 2) + ones}
    try:
        torch: Any = import_module("torch")
        t = torch.ones(4, 4)
        calls["torch"] = lambda: (t * 2).tanh() + t
    except ImportError:
        print("PyTorch is not installed: it was not measured")
    report("overhead of a call", [{"call": name, "wall_us": microseconds(f, perf_counter), "cpu_us": microseconds(f, process_time)} for name, f in calls.items()], rounds=ROUNDS)


if __name__ == "__main__":
    main()

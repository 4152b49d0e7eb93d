"""What every benchmark prints: the machine's facts, a table for people, JSON for tools."""
from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

import rlxpy

LOOPS = 1_000_000


def facts() -> dict[str, Any]:
    """`python_add_ns` tells how fast this machine is just now: one turn of an empty counting loop, the best of five."""
    return {
        "cpu": _cpu(), "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(), "load": [round(x, 2) for x in os.getloadavg()],
        "system": platform.platform(), "python": platform.python_version(), "numpy": version("numpy"), "rlxpy": rlxpy.__version__,
        "python_add_ns": round(min(_loop() for _ in range(5)), 1),
    }


@cache
def _byte_code() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


def fresh(**variables: str) -> dict[str, str]:
    """The environment of a fresh process with the byte code that an installed package has, even where a checkout is told to keep none: its first run
    writes it."""
    own = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return own | ({"PYTHONPYCACHEPREFIX": _byte_code().name} if sys.dont_write_bytecode else {}) | variables


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor() or platform.machine())


def _loop() -> float:
    total, start = 0, perf_counter()
    for i in range(LOOPS):
        total += i
    return (perf_counter() - start) / LOOPS * 1e9


def report(title: str, rows: Sequence[dict[str, Any]], **more: Any) -> None:
    """`rows` have the same keys.  `--json` on the command line asks for JSON."""
    machine = facts()
    if "--json" in sys.argv[1:]:
        print(json.dumps({"benchmark": title, "machine": machine, "rows": rows, **more}, indent=2))
        return
    print(title)
    print("  " + ", ".join(f"{k} {v}" for k, v in machine.items()))
    cells = [list(rows[0]), *([_cell(v) for v in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        print("  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))).rstrip())
    for k, v in more.items():
        print(f"{k}: {_cell(v)}")


def _cell(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)

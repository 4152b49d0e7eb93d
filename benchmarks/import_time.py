"""How long imports take beside NumPy's, in fresh processes that take turns.  Usage: import_time.py [ROUNDS] [--json]"""
from __future__ import annotations

import subprocess
import sys
from statistics import median

from machine import fresh, report

TARGET = 1.3  # times `import numpy`, for `import rlxpy`
WHAT = {
    "nothing": "pass",
    "numpy": "import numpy",
    "rlxpy": "import rlxpy",
    "rlxpy and its compiler": "import rlxpy; rlxpy.compile, rlxpy.Builder",
    "rlxpy.extend, every name": "from rlxpy.extend import *",
}
CHILD = "from time import perf_counter as now; start = now()\n{code}\nprint(now() - start)"


def seconds(code: str) -> float:
    """Inside the child, so that starting Python is not counted."""
    return float(subprocess.run([sys.executable, "-c", CHILD.format(code=code)], env=fresh(), capture_output=True, text=True, check=True).stdout)


def main() -> None:
    rounds = next((int(a) for a in sys.argv[1:] if a.isdigit()), 21)
    for code in WHAT.values():
        seconds(code)  # byte code is written, files are in memory
    taken: dict[str, list[float]] = {name: [] for name in WHAT}
    for _ in range(rounds):
        for name, code in WHAT.items():
            taken[name].append(seconds(code))
    numpy = median(taken["numpy"])
    rows = [{"import": name, "median_ms": median(t) * 1e3, "least_ms": min(t) * 1e3, "most_ms": max(t) * 1e3, "times_numpy": median(t) / numpy} for name, t in taken.items()]
    report("import time", rows, rounds=rounds, target_times_numpy=TARGET)


if __name__ == "__main__":
    main()

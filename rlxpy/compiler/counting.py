"""Which rows ran, and how often: a row that ran nothing has no result, however fast the run was."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock

from rlxpy.errors import InputError
from rlxpy.extend.plan import Plan
from rlxpy.ir.dims import Sizes

WAITING = "reference"  # the tier of launches that ran before compiled code was there


class DispatchStats:
    """Launches by row and tier: "kernel", "native", "host", or "reference" where NumPy stood in for code that was still being compiled.

    What a loop or a branch launches inside is part of its own launch."""

    def __init__(self) -> None:
        self.launches: Counter[tuple[str, str]] = Counter()
        self.runs = 0
        self._lock = Lock()

    def add(self, plan: Plan, sizes: Sizes, *, waiting: bool) -> None:
        """One run of a plan at these sizes."""
        choices = [s.choice.at(sizes) for s in plan.steps]
        with self._lock:
            self.runs += 1
            self.launches.update((c.name, WAITING if waiting else c.tier) for c in choices)

    def hits(self, row: str) -> int:
        """Launches of that row itself, "cpu/matmul"."""
        return sum(n for (name, tier), n in self.launches.items() if name == row and tier != WAITING)

    def need(self, *rows: str) -> None:
        """Raises InputError for rows that ran nothing."""
        if idle := [r for r in rows if not self.hits(r)]:
            ran = ", ".join(dict.fromkeys(name for name, tier in self.launches if tier != WAITING))
            early = f"; {sum(n for (_, t), n in self.launches.items() if t == WAITING)} launches were before compiled code was there" if any(t == WAITING for _, t in self.launches) else ""
            raise InputError(f"{', '.join(idle)} ran nothing in {self.runs} runs", why=f"these did: {ran or 'none'}{early}", fix="compile with wait=True, and see `rlx why` or force_row")

    def __str__(self) -> str:
        lines = [f"{n:8} {name} [{tier}]" for (name, tier), n in sorted(self.launches.items(), key=lambda item: (-item[1], item[0]))]
        return "\n".join([f"{self.runs} runs, {self.launches.total()} launches", *lines])


COUNTING: ContextVar[DispatchStats | None] = ContextVar("rlxpy_dispatch_stats", default=None)


@contextmanager
def dispatch_stats() -> Iterator[DispatchStats]:
    """Count the launches of every run of a compiled graph inside the block; per thread and per task, the innermost block alone."""
    stats = DispatchStats()
    token = COUNTING.set(stats)
    try:
        yield stats
    finally:
        COUNTING.reset(token)

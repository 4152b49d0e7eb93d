"""What is known of an op after it was checked: each law, where it was tried, and what came of it."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rlxpy.frozen import dataclass
from rlxpy.tools.op_table import OpFacts

MOST_TOLD = 3


@dataclass(frozen=True)
class Check:
    """One law in one place.  calls: how many samples it looked at; skipped: why it did not run; how: which kernels ran."""

    law: str
    on: str
    calls: int = 0
    failures: tuple[str, ...] = ()
    skipped: str = ""
    how: str = ""
    simulated: bool = False

    @property
    def result(self) -> str:
        """"ok", "ok in simulation", "FAILED" or "not run"."""
        return "not run" if self.skipped else "FAILED" if self.failures else "ok in simulation" if self.simulated else "ok"


@dataclass(frozen=True)
class Dossier:
    """meaning: what results are held against.  reach: what the calls have of batches, odd sizes, zero sizes, several types."""

    op: OpFacts
    meaning: str
    calls: tuple[str, ...]
    dtypes: tuple[str, ...]
    reach: tuple[str, ...]
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing failed.  What did not run is in `of("not run")`."""
        return not self.of("FAILED")

    def of(self, result: str) -> tuple[Check, ...]:
        return tuple(c for c in self.checks if c.result == result)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield self.op.signature
        yield f"  meaning  {self.meaning}"
        yield f"  calls    {len(self.calls)} in {' '.join(self.dtypes)}: {', '.join(self.reach)}"
        yield ""
        widths = [max(len(getattr(c, part)) for c in self.checks) for part in ("law", "on", "result")]
        for c in self.checks:
            said = c.skipped or f"{c.calls} calls" + (f", by {c.how}" if c.how else "")
            yield "  ".join((c.law.ljust(widths[0]), c.on.ljust(widths[1]), c.result.ljust(widths[2]), said)).rstrip()
            yield from (f"    {line}" for line in c.failures[:MOST_TOLD])
            if len(c.failures) > MOST_TOLD:
                yield f"    and {len(c.failures) - MOST_TOLD} more"
        yield ""
        counts = {result: len(self.of(result)) for result in ("ok", "ok in simulation", "FAILED", "not run")}
        yield ", ".join(f"{n} {result}" for result, n in counts.items() if n)

    def to_json(self) -> dict[str, Any]:
        return {"op": self.op.name, "ok": self.ok, "meaning": self.meaning, "calls": list(self.calls), "dtypes": list(self.dtypes), "reach": list(self.reach),
                "checks": [{**asdict(c), "result": c.result} for c in self.checks]}

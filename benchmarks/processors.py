"""Which processors a contestant's process is bound to; imports nothing of ours, since peers' environments run it too."""
from __future__ import annotations

import os
from pathlib import Path


def bind(count: int) -> None:
    """Binds this process to `count` processors, of different cores while there are enough; the last ones, since the first answers interrupts."""
    if not hasattr(os, "sched_setaffinity"):
        return
    allowed = sorted(os.sched_getaffinity(0), reverse=True)
    cores: dict[str, int] = {}
    for processor in allowed:
        cores.setdefault(_core(processor), processor)
    first = list(cores.values())
    os.sched_setaffinity(0, [*first, *(p for p in allowed if p not in first)][:count])


def _core(processor: int) -> str:
    siblings = Path(f"/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list")
    return siblings.read_text().strip() if siblings.exists() else str(processor)

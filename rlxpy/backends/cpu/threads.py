"""The worker threads of this process: Python threads that have left the interpreter for good and wait in C for runs to join.

They never hold the interpreter's lock, so a busy interpreter does not hold them up; no thread library is needed; a fork starts anew."""
from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from rlxpy.backends.memory import aligned_bytes
from rlxpy.errors import InputError

WORKER_NBYTES = 64  # of the C struct rlx_worker
MOST_WORKERS = 1023


class _Crew:
    """Workers lie side by side, all zero until their thread starts; they are made on demand and never end."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.memory = aligned_bytes(MOST_WORKERS * WORKER_NBYTES, np.zeros)
        self.address = self.memory.ctypes.data
        self.made = 0

    def grow(self, count: int, work: Any) -> None:
        with self.lock, suppress(RuntimeError):  # the system grants no more threads: those that are there must do
            while self.made < count:
                at = self.address + self.made * WORKER_NBYTES
                threading.Thread(target=work, args=(at,), name="rlxpy-worker", daemon=True).start()
                self.made += 1


_crew = _Crew()
_limit: int | None = None
_lane = threading.local()  # .alone: this thread's calls ask nobody for help


def _begin_again() -> None:
    """A fork copies the memory, not the threads."""
    global _crew
    _crew = _Crew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_again)


def workers(work: Any) -> tuple[int, int]:
    """Address of the workers that a call of this thread may ask for help, and how many they are.  work: C's rlx_work."""
    count = 0 if getattr(_lane, "alone", False) else min(threads() - 1, MOST_WORKERS)
    crew = _crew
    if crew.made < count:
        crew.grow(count, work)
    return crew.address, min(count, crew.made)


def share(tasks: Sequence[Callable[[], None]]) -> None:
    """Does these, as many at once as a call may have threads, each by one of them; in their order, if there is one thread, or this one is a lane.

    Raises what the first of them raised that failed; those after it may be left undone."""
    turns, failed = iter(range(len(tasks))), dict[int, BaseException]()
    inside = getattr(_lane, "alone", False)

    def lane() -> None:
        _lane.alone = True
        try:
            for k in turns:  # a range gives each number to one thread
                try:
                    tasks[k]()
                except BaseException as e:
                    failed[k] = e
                if failed:
                    break
        finally:
            _lane.alone = inside

    others = list[threading.Thread]()
    with suppress(RuntimeError):  # the system grants no more threads: those that are there must do
        while not inside and len(others) < min(threads(), len(tasks)) - 1:
            other = threading.Thread(target=copy_context().run, args=(lane,), name="rlxpy-lane")
            other.start()
            others.append(other)
    lane()
    for other in others:
        other.join()
    if failed:
        raise failed[min(failed)]


def threads() -> int:
    """How many threads a call uses."""
    return available_cpus() if _limit is None else _limit


def limit() -> int | None:
    """What set_threads was last told."""
    return _limit


def set_threads(count: int | None) -> None:
    """For every later call of this process; None is one for each available processor.  Raises InputError below 1."""
    global _limit
    if count is not None and (not isinstance(count, (int, np.integer)) or count < 1):
        raise InputError(f"set_threads({count!r})", why="a call needs a whole number of threads, at least 1", fix="set_threads(None) is one for each available processor")
    _limit = None if count is None else int(count)


def available_cpus() -> int:
    """Processors that this thread may use now: its affinity, cut by the control group's quota as it was at first use."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_quota()
    return min(count, quota) if quota else count


@cache
def cgroup_quota(root: Path = Path("/")) -> int | None:
    """Whole processors, at least 1, that this process's control groups (version 2 or 1) and those above them grant; None without a limit."""
    found = [q for folder in _cgroup_folders(root) if (q := _quota_v2(folder) or _quota_v1(folder)) is not None]
    return max(1, int(min(found))) if found else None


def _cgroup_folders(root: Path) -> list[Path]:
    """This process's groups, as /proc/self/cgroup names them, with every group above; inside a container the mount point may be the group itself."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    folders = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / controllers
        group = top / path.lstrip("/")
        folders += [group, *(p for p in group.parents if p == top or top in p.parents)]
    return folders


def _quota_v2(folder: Path) -> float | None:
    try:
        most, period = (folder / "cpu.max").read_text().split()
        return None if most == "max" else int(most) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _quota_v1(folder: Path) -> float | None:
    try:
        most, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        return most / period if most > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None

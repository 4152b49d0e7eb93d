"""The worker threads of this process: a call borrows those that are idle, runs the same steps in each, and gives them back.

Workers are Python threads that leave the interpreter inside the generated code, so no thread library is needed and a fork starts anew."""
from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

from rlxpy.errors import InputError

Job = Callable[[], None]


class _Worker(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name="rlxpy-worker", daemon=True)
        self.jobs: SimpleQueue[Job] = SimpleQueue()
        self.done = threading.Semaphore(0)
        self.start()

    def run(self) -> None:
        while True:
            self.jobs.get()()
            self.done.release()


class _Pool:
    """Idle workers; made on demand, never more than the limit asks for."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.idle: list[_Worker] = []
        self.made = 0

    def borrow(self, count: int, limit: int) -> list[_Worker]:
        with self.lock:
            while len(self.idle) < count and self.made < limit:
                self.idle.append(_Worker())
                self.made += 1
            taken, self.idle = self.idle[:count], self.idle[count:]
        return taken

    def give_back(self, workers: list[_Worker]) -> None:
        with self.lock:
            self.idle += workers


_pool = _Pool()
_limit: int | None = None


def available_cpus() -> int:
    """Processors this process may use: its affinity, cut by a cgroup quota."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_quota()
    return max(1, min(count, quota)) if quota else count


def _cgroup_quota() -> int | None:
    """Whole processors that control groups (version 2) grant; None without a limit."""
    try:
        with open("/sys/fs/cgroup/cpu.max") as f:  # noqa: PTH123 (a kernel file, read at first use)
            most, period = f.read().split()
    except (OSError, ValueError):
        return None
    return None if most == "max" else max(1, int(most) // int(period))


def threads() -> int:
    """How many threads a call uses."""
    return available_cpus() if _limit is None else _limit


def set_threads(count: int | None) -> None:
    """For every later call of this process; None is one for each available processor.  Raises InputError below 1."""
    global _limit
    if count is not None and count < 1:
        raise InputError(f"set_threads({count})", why="a call needs at least 1 thread")
    _limit = count


def run(job: Callable[[int], None], wanted: int) -> None:
    """job(number of threads taking part) in as many threads as are idle, this one among them; returns when all are done."""
    global _pool
    if _pool.pid != os.getpid():  # a fork copies the memory, not the threads
        _pool = _Pool()
    workers = _pool.borrow(wanted - 1, wanted - 1) if wanted > 1 else []
    try:
        for w in workers:
            w.jobs.put(lambda: job(len(workers) + 1))
        job(len(workers) + 1)
        for w in workers:
            w.done.acquire()
    finally:
        _pool.give_back(workers)

"""When each launch of a run began and ended, by the device's clock."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic_ns
from typing import Any

from rlxpy.backends.gpu.api import GpuApi
from rlxpy.extend.backend import Span
from rlxpy.extend.plan import Step


class Stopwatch:
    """Marks are put into the queue while a run goes on, and read when it is over.  The device's clock starts with this machine's."""

    def __init__(self, api: GpuApi) -> None:
        api.sync()
        self._api, self._start, self._start_ns = api, api.mark(), monotonic_ns()
        self._launches: list[tuple[Step, str, Any, Any]] = []
        self._hosted: list[Span] = []

    @contextmanager
    def launch(self, step: Step | None, name: str) -> Iterator[None]:
        before = self._api.mark()
        yield
        if step is not None:
            self._launches.append((step, name, before, self._api.mark()))

    @contextmanager
    def host(self, step: Step, name: str) -> Iterator[None]:
        """What this machine does, or waits for."""
        before = monotonic_ns()
        yield
        self._hosted.append(Span(step, name, 0, before, monotonic_ns()))

    def spans(self) -> tuple[Span, ...]:
        self._api.sync()

        def at(mark: Any) -> int:
            return self._start_ns + self._api.elapsed_ns(self._start, mark)

        found = [Span(step, name, 0, at(before), at(after)) for step, name, before, after in self._launches]
        return tuple(sorted((*found, *self._hosted), key=lambda s: s.begin_ns))

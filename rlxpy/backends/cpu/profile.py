"""A compiled plan whose code looks at the clock: which thread was in which launch, and when."""
from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from time import monotonic_ns
from typing import Any

import numpy as np

from rlxpy.backends.cpu import threads
from rlxpy.backends.cpu.execute import CpuGraph, functions
from rlxpy.backends.state import State
from rlxpy.extend.backend import Span
from rlxpy.extend.plan import Step
from rlxpy.ir.dims import Sizes
from rlxpy.ir.dtypes import Array

FLAG = "-DRLX_PROFILE"
_one_at_a_time = threading.Lock()  # the notes of a unit are static memory of its library


class ProfiledGraph(CpuGraph):
    """A twin of a graph, with its weights and its memory."""

    def __init__(self, graph: CpuGraph) -> None:
        self.__dict__.update(graph.__dict__)
        self._run, self._undo, self._work, self._note = functions(graph.library.again(FLAG), ("rlx_profile",))
        self._note.argtypes, self._note.restype = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64), None
        self._on_host_spans: list[Span] = []

    def profile(self, inputs: Sequence[Array], sizes: Sizes, outputs: Sequence[Array], state: State | None) -> tuple[Span, ...]:
        launches = self.program.launches
        notes = np.zeros((threads.threads(), max(len(launches), 1), 2), np.int64)
        with _one_at_a_time:
            self._note(notes.ctypes.data, notes.shape[1], notes.shape[0])
            self.run(inputs, sizes, outputs, state)
        spans = [Span(launch.step, launch.function, thread, int(begin), int(end))
                 for thread, row in enumerate(notes) for launch, (begin, end) in zip(launches, row, strict=False) if end]
        return tuple(sorted([*spans, *self._on_host_spans], key=lambda s: (s.begin_ns, s.thread)))

    def _host(self, step: Step, ins: list[Array], outs: Sequence[Array], attrs: dict[str, Any]) -> None:
        begin = monotonic_ns()
        super()._host(step, ins, outs, attrs)
        self._on_host_spans.append(Span(step, step.choice.name, 0, begin, monotonic_ns()))

"""A graph that runs at once: on the NumPy reference while its C is compiled in the background, on the compiled code from then on."""
from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from time import perf_counter
from typing import Any, TypeVar
from weakref import WeakSet

from rlxpy.backends.cpu import compilers, threads
from rlxpy.backends.cpu.execute import CpuGraph, Library
from rlxpy.backends.cpu.program import Program
from rlxpy.backends.host import LIBRARY, as_stored, by_size, host_launch, launcher, run_chain
from rlxpy.backends.reference import HostGraph
from rlxpy.backends.state import State
from rlxpy.backends.templates import prepare
from rlxpy.extend.backend import Call, Span
from rlxpy.extend.kernels import HostLaunch
from rlxpy.extend.plan import Plan, Step
from rlxpy.ir.dims import Dim, Sizes, at, product
from rlxpy.ir.dtypes import Array
from rlxpy.ir.graph import Graph, Node
from rlxpy.ir.op import Op
from rlxpy.notes import note_once

T = TypeVar("T")
PATIENCE_SECONDS = 0.1        # a call that the reference is quicker with than this never waits for the compiler
HEAD_START_SECONDS = 0.1      # at most: the first call, which most often comes at once, has Python's interpreter to itself
LEAST_WAIT_SECONDS = 3.0      # others wait at least so long: a compile takes a second or two, and a slow call cannot be stopped half-way
# Seconds that the reference takes, roughly: for an element of a result, a multiplication in a product, an element of packed weights.
SECONDS_ELEMENT, SECONDS_PRODUCT, SECONDS_UNPACK = 2e-9, 5e-11, 1e-8
COMPILERS = 2                 # at most, at once: a program that makes a hundred graphs keeps its machine
EXIT_SECONDS = 2.0
Build = Callable[[], tuple[Program, Callable[[], Library]]]  # the library is waited for when it is asked for

_turns = threading.BoundedSemaphore(COMPILERS)
_importing = threading.Lock()  # a process forked while a thread imports a module can never import it
_unfinished: WeakSet[TieredGraph] = WeakSet()


class TieredGraph:
    """Both tiers read the same plan, so that states go from one to the other as they are; their last digits may differ.

    A call that would be slow on the reference first waits for the code, a few seconds or as long as the reference would have taken.  Where the code
    cannot be made, `error` says why, one note tells, and the reference stays."""

    def __init__(self, plan: Plan, params: Mapping[str, Array], debug: bool, build: Build) -> None:
        self.plan, self.debug = plan, debug
        self.error: Exception | None = None
        self._params, self._build, self._born = dict(params), build, perf_counter()
        self._running: HostGraph | CpuGraph = HostGraph(plan, params, debug, {s.node.id: by_size(s, lambda v: numpy_launch(plan.graph, v)) for s in plan.steps})
        self._seconds: dict[tuple[tuple[str, int], ...], float] = {}
        self._taken: float | None = None
        self.renew()

    def renew(self) -> None:
        """Nobody is at work: at first, and in a process that was forked while a thread of its parent was."""
        self._lock, self._done, self._ready = threading.Lock(), threading.Event(), threading.Event()  # ready: to compile
        self._thread: threading.Thread | None = None

    # ---- the change
    @property
    def tier(self) -> str:
        return "cpu" if isinstance(self._running, CpuGraph) else "reference"

    @property
    def tier_text(self) -> str:
        """Which tier runs, and since when or why."""
        if self._taken is not None:
            return f"cpu, {self._taken:.2f} s after it was loaded"
        return f"reference: {self.error}" if self.error else f"reference, compiling for {perf_counter() - self._born:.2f} s"

    def start(self) -> None:
        """Compile in the background, with the settings of this thread."""
        with self._lock:
            if self._thread is None and not self._done.is_set():
                thread = threading.Thread(target=copy_context().run, args=(self._work,), name="rlxpy-compiler", daemon=True)
                _unfinished.add(self)
                try:
                    thread.start()
                    self._thread = thread
                except RuntimeError:  # the system grants no thread now: the next call asks again
                    _unfinished.discard(self)

    def _work(self) -> None:
        self._ready.wait(HEAD_START_SECONDS)
        with _turns:
            self._compile()
        if self.error is not None and not compilers.exiting():
            note_once(f"this graph stays on the reference: {self.error}")

    def _compile(self) -> None:
        try:
            compilers.go_on()
            with _importing:
                prepare()
            program, library = self._build()
            with self._lock:
                given = dict(self._params)
            compiled = CpuGraph(self.plan, program, library, given, self.debug)
            with self._lock:
                if changed := {name: a for name, a in self._params.items() if a is not given[name]}:
                    compiled.set_params(changed)
                self._running = compiled
            self._taken = perf_counter() - self._born
        except Exception as e:
            self.error = e
        except BaseException:
            self._thread = None  # the next call begins again
            raise
        self._done.set()
        _unfinished.discard(self)

    def wait(self) -> None:
        """Until the compiled code runs.  Raises what kept it from being made, such as CompileError."""
        with self._lock:
            mine = self._thread is None and not self._done.is_set()
            if mine:
                self._thread = threading.current_thread()
        self._ready.set()
        if mine:
            self._compile()
        self._done.wait()
        if self.error is not None:
            raise self.error

    def join(self, seconds: float) -> None:
        self._ready.set()
        if (thread := self._thread) is not None:
            thread.join(seconds)

    # ---- what an executable does
    def set_params(self, arrays: Mapping[str, Array]) -> None:
        with self._lock:
            self._params.update(arrays)
            self._running.set_params(arrays)

    @property
    def packed_nbytes(self) -> int:
        return self._running.packed_nbytes if isinstance(self._running, CpuGraph) else 0

    def new_state(self) -> State:
        return State(self.plan)

    def run(self, inputs: Sequence[Array], sizes: Sizes, outputs: Sequence[Array], state: State | None) -> None:
        running = self._running
        if isinstance(running, HostGraph) and not self._done.is_set():
            self.start()
            seconds = self._reference_seconds(sizes)
            if seconds >= PATIENCE_SECONDS:
                self._ready.set()
                self._done.wait(max(seconds, LEAST_WAIT_SECONDS))
                running = self._running
        try:
            running.run(inputs, sizes, outputs, state)
        finally:
            self._ready.set()

    @property
    def lanes(self) -> int:
        return threads.threads()

    def run_each(self, calls: Sequence[Call]) -> None:
        """On the reference one after another: each looks whether the code is there by now."""
        for k, call in enumerate(calls):
            if isinstance(self._running, CpuGraph):
                self._running.run_each(calls[k:])
                break
            self.run(*call, None)

    def profile(self, inputs: Sequence[Array], sizes: Sizes, outputs: Sequence[Array], state: State | None) -> tuple[Span, ...]:
        """Of the tier that lasts."""
        self.wait()
        return self._running.profile(inputs, sizes, outputs, state)

    def _reference_seconds(self, sizes: Sizes) -> float:
        key = tuple(sizes.items())
        if key not in self._seconds:
            self._seconds[key] = sum(reference_seconds(self.plan.graph, s.node, sizes) for s in self.plan.steps)
        return self._seconds[key]


def meanwhile(make: Callable[[], T]) -> Callable[[], T]:
    """Begin to make something, with the settings of this thread; what is returned waits for it, and raises what kept it from being made."""
    made: list[T] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            made.append(make())
        except BaseException as e:
            failed.append(e)

    def result() -> T:
        thread.join()
        if failed:
            raise failed[0]
        return made[0]

    thread = threading.Thread(target=copy_context().run, args=(work,), name="rlxpy-making", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the system grants no thread now
        return make
    return result


def numpy_launch(graph: Graph, step: Step) -> HostLaunch:
    """The NumPy function that does what the step's kernel does."""
    row = step.choice.row
    if step.choice.tier == "host":
        return host_launch(graph, step)
    found = LIBRARY.by_op.get((step.node.op, step.node.kind), ())
    plain: Any = run_chain if step.node.op is Op.FUSED else found[0].launch if found else launcher(step.node.row)
    return as_stored(step, row, plain) if row is not None and row.weights else plain


def reference_seconds(graph: Graph, node: Node, sizes: Sizes) -> float:
    """A guess: right within a factor of a few."""
    made: Dim = product(node.type.shape)
    seconds = at(made, sizes) * SECONDS_ELEMENT
    ops = {node.op: node.attrs} | {n.op: n.attrs for _, body in node.attrs.graphs() for n in body}
    if Op.QMATMUL in ops:
        seconds += at(product(ops[Op.QMATMUL].shape), sizes) * SECONDS_UNPACK  # type: ignore[attr-defined]
    if {Op.MATMUL, Op.QMATMUL, Op.ATTENTION} & set(ops):
        inner = graph.type(node.inputs[1 if node.op is Op.ATTENTION else 0]).shape[-2 if node.op is Op.ATTENTION else -1]
        seconds += at(made, sizes) * at(inner, sizes) * SECONDS_PRODUCT
    return seconds


def _begin_again() -> None:
    """In a forked process: what its parent's threads compile, they compile for the parent."""
    global _turns
    _turns = threading.BoundedSemaphore(COMPILERS)
    _importing.release()
    for graph in list(_unfinished):
        graph.renew()


def _end() -> None:
    """Stop what is still being compiled, so that the process can end; what it would have left is swept."""
    compilers.stop()
    for graph in list(_unfinished):
        graph.join(EXIT_SECONDS)


atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_importing.acquire, after_in_parent=_importing.release, after_in_child=_begin_again)

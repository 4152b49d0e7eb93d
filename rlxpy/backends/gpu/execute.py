"""A plan on a GPU: one arena, weights uploaded once, launches packed once for each set of sizes, and replayed as one graph."""
from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import cycle
from typing import Any

import numpy as np

from rlxpy.backends.faults import index_fault
from rlxpy.backends.gpu.api import GpuApi, Held, same_process
from rlxpy.backends.gpu.bind import Bound, Branch, Call, Code, Host, Item, Long, Product, Repeat, Rooms, Segment, bound
from rlxpy.backends.gpu.kernel import FAULT_NBYTES, FAULT_PLACE_BITS
from rlxpy.backends.gpu.places import Placed, Scope
from rlxpy.backends.gpu.profile import Stopwatch
from rlxpy.backends.gpu.program import ALIGN_NBYTES, HostStep, Program
from rlxpy.backends.gpu.replay import Kept, Line
from rlxpy.backends.host import failure, host_launch
from rlxpy.errors import DeviceError, InputError, RlxError
from rlxpy.extend.backend import Span
from rlxpy.extend.plan import Plan, Space, Step
from rlxpy.frozen import dataclass
from rlxpy.ir.dims import Sizes
from rlxpy.ir.dtypes import Array
from rlxpy.ir.graph import Graph, Node, Ref
from rlxpy.ir.op import Op
from rlxpy.ir.text import show_node
from rlxpy.notes import note_once

KEPT_SIZES = 16
READ_BACK = "predicate, read back"
POISON = 0xFF  # NaN in every float type: a read of unwritten memory shows


class Memory:
    """Device memory, given back when nobody holds it any more."""

    def __init__(self, api: GpuApi, nbytes: int) -> None:
        self.address, self.nbytes = api.alloc(max(nbytes, ALIGN_NBYTES)), nbytes
        self._held = Held(self.address, api.free)


class DeviceState:
    """Persistent memory of one conversation, on the device."""

    def __init__(self, plan: Plan, api: GpuApi) -> None:
        self.plan, self.lock, self.memory = plan, threading.Lock(), Memory(api, plan.nbytes[Space.STATE])
        api.fill(self.memory.address, 0, self.memory.nbytes)


@dataclass(frozen=True)
class _Turn:
    """One run: its sizes, who looks at the clock, and the nodes that kernels know by number."""

    sizes: Sizes
    watch: Stopwatch | None
    nodes: Mapping[int, tuple[Graph, Node]]


@dataclass(frozen=True)
class Loaded:
    """Compiled code: the program's functions by name, and those of raw kernels by their source and symbol; and the modules that they live in."""

    modules: tuple[Held, ...]
    functions: Mapping[str, Any]
    raw: Mapping[tuple[str, str], Any]


class _Bindings:
    """Of one state, or of none: the plan at some sizes, what these share, and the launches that are replayed at all of them while one is there."""

    def __init__(self) -> None:
        self.at: dict[Any, Bound] = {}
        self.kept = Kept[Call]()
        self._lines: weakref.WeakValueDictionary[Any, Line] = weakref.WeakValueDictionary()

    def line(self, place: int, segment: Segment) -> Line | None:
        """Of the same kernels at the same place; None of those that the vendor's library is among, whose calls nobody can patch."""
        key = place, tuple(c.name for c in segment.launches)
        return self._lines.setdefault(key, Line()) if segment.launches else None


class GpuGraph:
    """One run at a time: a device has one queue in any case."""

    def __init__(self, plan: Plan, program: Program, api: GpuApi, loaded: Loaded, params: Mapping[str, Array], debug: bool) -> None:
        self.plan, self.program, self.debug, self._api, self._loaded = plan, program, debug, api, loaded
        self._lock = threading.Lock()
        self._spaces = {s: Memory(api, plan.nbytes[s]) for s in (Space.ARENA, Space.INPUT)}
        self._fixed: dict[int, Memory] = {}
        self._names = {n.name: plan.places[n.refs[0]].buffer for n in plan.graph.params}
        self._notes, self._undo, self._staging = (Memory(api, n) for n in (program.notes_nbytes, program.undo_nbytes, program.staging_nbytes))
        for n in plan.graph:
            if n.op is Op.CONST:
                self._upload(plan.places[n.refs[0]].buffer, n.attrs.value.array)  # type: ignore[attr-defined]
        self.set_params(params)
        self._literals = {key: self._uploaded(None, array) for key, array in _literals(plan)}
        hosted = {id(p): host_launch(plan.graph, p.step, debug=debug) for p in program.parts if isinstance(p, HostStep)}
        self._code = Code(loaded.functions, loaded.raw, hosted, api.prepare)
        self._bound: weakref.WeakKeyDictionary[GpuGraph | DeviceState, _Bindings] = weakref.WeakKeyDictionary()

    # ---- weights and state
    def set_params(self, arrays: Mapping[str, Array]) -> None:
        same_process(self._api)
        with self._lock:
            for name, a in arrays.items():
                self._upload(self._names[name], a)
            self._api.sync()

    def _upload(self, buffer: int, array: Array) -> None:
        self._fixed[buffer] = self._uploaded(self._fixed.get(buffer), array)

    def _uploaded(self, memory: Memory | None, array: Array) -> Memory:
        flat = np.ascontiguousarray(array)
        memory = memory or Memory(self._api, flat.nbytes)
        if flat.nbytes:
            self._api.write(memory.address, flat)
        return memory

    def new_state(self) -> DeviceState:
        same_process(self._api)
        return DeviceState(self.plan, self._api)

    # ---- running
    def run(self, inputs: Sequence[Array], sizes: Sizes, outputs: Sequence[Array], state: Any) -> None:
        self._locked(inputs, sizes, outputs, state, None)

    def profile(self, inputs: Sequence[Array], sizes: Sizes, outputs: Sequence[Array], state: Any) -> tuple[Span, ...]:
        """A run whose launches are made one by one, each between two marks of the device's clock; the host tier's by this machine's."""
        watch = Stopwatch(self._api)
        self._locked(inputs, sizes, outputs, state, watch)
        return watch.spans()

    def _locked(self, inputs: Sequence[Array], sizes: Sizes, outputs: Sequence[Array], state: Any, watch: Stopwatch | None) -> None:
        same_process(self._api)
        with self._lock:
            if state is None or not self.plan.nbytes[Space.STATE]:
                self._run(inputs, sizes, outputs, None, watch)
            else:
                with own(state, self.plan).lock:
                    self._run(inputs, sizes, outputs, state, watch)

    def _run(self, inputs: Sequence[Array], sizes: Sizes, outputs: Sequence[Array], state: DeviceState | None, watch: Stopwatch | None) -> None:
        api, bound = self._api, self._bind(sizes, state)
        turn = _Turn(sizes, watch, bound.nodes)
        if self.program.fallible:
            api.fill(self._notes.address, 0, self._notes.nbytes)
        if self.debug:
            api.fill(self._spaces[Space.ARENA].address, POISON, self._spaces[Space.ARENA].nbytes)
        for spot, given in zip(bound.inputs, inputs, strict=True):
            if given.size:
                api.write(spot.address, np.ascontiguousarray(given))
        try:
            self._all(bound.items, turn)
            results = [self._read(spot) for spot in bound.outputs]
            self._check(turn)
            for out, value in zip(outputs, results, strict=True):
                out[...] = value
        except BaseException:
            self._launch_all(bound.restores)
            api.sync()
            raise
        self._commit(bound.commits)

    def _all(self, items: Iterable[Item | Segment], turn: _Turn) -> None:
        for item in items:
            match item:
                case Segment():
                    self._step_by_step(item.calls, turn) if self.debug or turn.watch else self._play(item)
                case Call() | Product():
                    self._step_by_step((item,), turn) if self.debug or turn.watch else self._launch(item)
                case Host():
                    self._host(item, turn)
                case Branch():
                    self._all(item.ways[not self._holds(item.owner, item.flag, turn)], turn)
                case Repeat():
                    self._repeat(item, turn)
                case Long():
                    self._long(item, turn)

    def _long(self, loop: Long, turn: _Turn) -> None:
        """Nodes have the same numbers in every round: a bad index is met before the next one."""
        for r in loop.rounds():
            self._all(r, turn)
            if loop.fallible:
                self._check(turn)

    def _repeat(self, loop: Repeat, turn: _Turn) -> None:
        for r in cycle(loop.rounds):
            self._all(r.asks, turn)
            if not self._holds(loop.owner, r.flag, turn):
                self._all(r.ends, turn)
                break
            self._all(r.does, turn)

    def _holds(self, owner: Step, flag: int, turn: _Turn) -> bool:
        """A predicate, read back from the device.  Raises what a kernel noted: a bad index may have left anything."""
        byte = np.empty(1, np.uint8)
        with turn.watch.host(owner, READ_BACK) if turn.watch else nullcontext():
            self._api.read(flag, byte)
        self._check(turn)
        return bool(byte[0])

    def _commit(self, segment: Segment) -> None:
        """Once begun it is finished, even after an interrupt: states are all old or all new."""
        try:
            self._play(segment)
            self._api.sync()
        except BaseException:
            self._launch_all(segment.calls)
            self._api.sync()
            raise

    def _play(self, segment: Segment) -> None:
        """The second time, launches become a graph: one call replays them all."""
        if not segment.calls:
            return
        if segment.line:
            segment.line.play(self._api, segment.launches, self._loaded)
            return
        if segment.graph is not None:
            self._api.replay(segment.graph)
            return
        if segment.ran and len(segment.calls) > 1:
            segment.graph = self._api.capture(lambda: self._launch_all(segment.calls), self._loaded)
            self._api.replay(segment.graph)
            return
        self._launch_all(segment.calls)
        segment.ran = True

    def _launch_all(self, calls: Sequence[Call | Product]) -> None:
        for call in calls:
            self._launch(call)

    def _step_by_step(self, calls: Sequence[Call | Product], turn: _Turn) -> None:
        """Debug mode waits for each kernel, so that the one that breaks off is the one named, and looks for NaN where there was none."""
        for call, after in zip(calls, (*calls[1:], None), strict=True):
            with turn.watch.launch(call.owner, call.name) if turn.watch else nullcontext():
                self._launch(call)
            if self.debug:
                self._settle(call)
                self._check(turn)  # what a bad index left may well be NaN
                if call.step and call.scope and (after is None or after.step is not call.step or after.scope is not call.scope):
                    self._look_for_nan(call.step, call.scope)

    def _look_for_nan(self, step: Step, scope: Scope) -> None:
        def has_nan(ref: Ref) -> bool:
            if not scope.plan.graph.type(ref).dtype.is_float:
                return False
            value = self._read(scope.placed(ref))
            return bool((value != value).any())  # NaN alone

        if any(map(has_nan, step.node.refs)) and not any(map(has_nan, step.node.inputs)):
            note_once(f"{step.choice.name} made NaN of operands that have none: {show_node(step.node)}{f', {step.node.where}' if step.node.where else ''}")

    def _launch(self, call: Call | Product) -> None:
        if isinstance(call, Product):
            self._api.multiply(call.prepared)
        else:
            self._api.launch(call.function, call.grid, call.threads, call.shared_nbytes, call.arguments)

    def _settle(self, call: Call | Product) -> None:
        """Debug mode waits for each kernel, so that the one that breaks off is the one named."""
        try:
            self._api.sync()
        except DeviceError as e:
            raise failure(call.step, e) if call.step else e from None

    def _check(self, turn: _Turn) -> None:
        """Raises what a kernel noted."""
        if not self.program.fallible:
            return
        words = np.empty(FAULT_NBYTES // 8, np.int64)
        self._api.read(self._notes.address, words.view(np.uint8))
        if words[0]:
            raise index_fault(*turn.nodes[~int(words[0]) >> FAULT_PLACE_BITS], int(words[1]), int(words[2]), turn.sizes)

    def _host(self, part: Host, turn: _Turn) -> None:
        ins = [self._read(s) for s in part.ins]
        self._check(turn)  # it would work on what a bad index left
        for a in ins:
            a.flags.writeable = False
        outs = [np.empty(s.shape, s.dtype) for s in part.outs]
        try:
            with np.errstate(all="ignore"), turn.watch.host(part.step, part.step.choice.name) if turn.watch else nullcontext():
                part.launch(ins, outs, part.attrs)
        except Exception as e:
            raise failure(part.step, e) from (None if isinstance(e, RlxError) else e)
        for spot, out in zip(part.outs, outs, strict=True):
            self._write(spot, out)

    # ---- memory
    def _read(self, spot: Placed) -> Array:
        """A value, in whatever layout: the bytes from its first to its last element, seen with its strides."""
        if 0 in spot.shape:
            return np.empty(spot.shape, spot.dtype)
        low, high = spot.extent
        raw = np.empty(high - low, np.uint8)
        self._api.read(spot.address + low, raw)
        return np.ndarray(spot.shape, spot.dtype, raw, -low, spot.strides)

    def _write(self, spot: Placed, value: Array) -> None:
        if 0 in spot.shape:
            return
        low, high = spot.extent
        raw = np.empty(high - low, np.uint8)
        if high - low != value.nbytes:  # there are bytes of others between its elements
            self._api.read(spot.address + low, raw)
        np.ndarray(spot.shape, spot.dtype, raw, -low, spot.strides)[...] = value
        self._api.write(spot.address + low, raw)

    # ---- binding
    def _bind(self, sizes: Sizes, state: DeviceState | None) -> Bound:
        """What was bound to a state goes with it."""
        of = self._bound.setdefault(self if state is None else state, _Bindings())
        known, key = of.at, tuple(sorted(sizes.items()))
        if key not in known:
            rooms = Rooms(self._notes.address, self._undo.address, self._staging.address, {k: m.address for k, m in self._literals.items()})
            fresh = bound(self.program, self._code, rooms, self.plan, self._base(state), sizes, None if self.debug else of.kept)
            for place, segment in enumerate((fresh.commits, *fresh.items)):
                if isinstance(segment, Segment):
                    segment.line = of.line(place, segment)
            while len(known) >= KEPT_SIZES:
                del known[next(iter(known))]
            known[key] = fresh
        return known[key]

    def _base(self, state: DeviceState | None) -> dict[int, int]:
        """Where every buffer of the plan begins."""
        starts = {s: m.address for s, m in self._spaces.items()} | {Space.STATE: state.memory.address if state else 0}
        return {k: self._fixed[k].address if k in self._fixed else starts[b.space] + b.offset for k, b in enumerate(self.plan.buffers)}


def _literals(plan: Plan) -> Iterator[tuple[tuple[int, int], Array]]:
    """Constants of the graphs of loops, by their plan and buffer."""
    for body in (b for step in plan.every_step if step.frame for b in step.frame.bodies):
        yield from (((id(body), body.places[n.refs[0]].buffer), n.attrs.value.array) for n in body.graph if n.op is Op.CONST)  # type: ignore[attr-defined]


def own(state: Any, plan: Plan) -> DeviceState:
    """Raises InputError for a state of another graph."""
    if not isinstance(state, DeviceState) or state.plan is not plan:
        raise InputError(f"state {state!r} is not one of this graph", why="memory of another graph, or of another device, has another layout",
                         fix="make it with new_state() of the graph that runs")
    return state

"""A plan on a GPU: one arena, weights uploaded once, launches packed once for each set of sizes, and replayed as one graph."""
from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from math import prod
from typing import Any

import numpy as np

from rlxpy.backends.faults import index_fault
from rlxpy.backends.gpu.api import Arguments, GpuApi, Held, same_process
from rlxpy.backends.gpu.kernel import FAULT_NBYTES, FAULT_PLACE_BITS, Kernel, Room
from rlxpy.backends.gpu.launch import grid_refusal
from rlxpy.backends.gpu.profile import Stopwatch
from rlxpy.backends.gpu.program import ALIGN_NBYTES, Commit, HostStep, Launch, Program, RawLaunch
from rlxpy.backends.host import failure, host_launch
from rlxpy.backends.memory import Spot, locate
from rlxpy.errors import DeviceError, InputError, RlxError
from rlxpy.extend.backend import Span
from rlxpy.extend.kernels import HostLaunch
from rlxpy.extend.plan import Plan, Space, Step
from rlxpy.frozen import dataclass
from rlxpy.ir.dims import Sizes, at
from rlxpy.ir.dtypes import Array
from rlxpy.ir.graph import Ref
from rlxpy.ir.op import Op
from rlxpy.ir.text import show_node
from rlxpy.notes import note_once

KEPT_SIZES = 16
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
class _Call:
    """A launch with nothing left to decide."""

    name: str
    function: Any
    grid: tuple[int, int, int]
    threads: int
    shared_nbytes: int
    arguments: Arguments
    step: Step | None = None


@dataclass
class _Segment:
    """Launches that follow one another; `graph` is what replays them, once they ran a first time."""

    calls: tuple[_Call, ...]
    ran: bool = False
    graph: Held | None = None


@dataclass(frozen=True)
class _Host:
    """A step of the host tier: where its operands and results lie."""

    step: Step
    launch: HostLaunch
    ins: tuple[Spot, ...]
    outs: tuple[Spot, ...]
    attrs: dict[str, Any]


@dataclass(frozen=True)
class _Bound:
    """A plan at one set of sizes, with one state."""

    inputs: tuple[Spot, ...]
    outputs: tuple[Spot, ...]
    parts: tuple[_Segment | _Host, ...]
    commits: _Segment
    restores: tuple[_Call, ...]


@dataclass(frozen=True)
class Loaded:
    """Compiled code: the program's functions by name, and those of raw kernels by their source and symbol; and the modules that they live in."""

    modules: tuple[Held, ...]
    functions: Mapping[str, Any]
    raw: Mapping[tuple[str, str], Any]


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
        self._hosted = {(p.step.node.id, p.step.when): host_launch(plan.graph, p.step, debug=debug) for p in program.parts if isinstance(p, HostStep)}
        self._bound: weakref.WeakKeyDictionary[GpuGraph | DeviceState, dict[Any, _Bound]] = weakref.WeakKeyDictionary()

    # ---- weights and state
    def set_params(self, arrays: Mapping[str, Array]) -> None:
        same_process(self._api)
        with self._lock:
            for name, a in arrays.items():
                self._upload(self._names[name], a)
            self._api.sync()

    def _upload(self, buffer: int, array: Array) -> None:
        flat = np.ascontiguousarray(array)
        if buffer not in self._fixed:
            self._fixed[buffer] = Memory(self._api, flat.nbytes)
        if flat.nbytes:
            self._api.write(self._fixed[buffer].address, flat)

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
        if self.program.fallible:
            api.fill(self._notes.address, 0, self._notes.nbytes)
        if self.debug:
            api.fill(self._spaces[Space.ARENA].address, POISON, self._spaces[Space.ARENA].nbytes)
        for spot, given in zip(bound.inputs, inputs, strict=True):
            if given.size:
                api.write(self._address(spot, state), np.ascontiguousarray(given))
        try:
            for part in bound.parts:
                if isinstance(part, _Host):
                    self._host(part, sizes, state, watch)
                elif self.debug or watch:
                    self._step_by_step(part, sizes, state, watch)
                else:
                    self._play(part)
            results = [self._read(spot, state) for spot in bound.outputs]
            self._check(sizes)
            for out, value in zip(outputs, results, strict=True):
                out[...] = value
        except BaseException:
            self._launch_all(bound.restores)
            api.sync()
            raise
        self._commit(bound.commits)

    def _commit(self, segment: _Segment) -> None:
        """Once begun it is finished, even after an interrupt: states are all old or all new."""
        try:
            self._play(segment)
            self._api.sync()
        except BaseException:
            self._launch_all(segment.calls)
            self._api.sync()
            raise

    def _play(self, segment: _Segment) -> None:
        """The second time, launches become a graph: one call replays them all."""
        if not segment.calls:
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

    def _launch_all(self, calls: Sequence[_Call]) -> None:
        for call in calls:
            self._launch(call)

    def _step_by_step(self, segment: _Segment, sizes: Sizes, state: DeviceState | None, watch: Stopwatch | None) -> None:
        """Debug mode waits for each kernel, so that the one that breaks off is the one named, and looks for NaN where there was none."""
        for k, call in enumerate(segment.calls):
            with watch.launch(call.step, call.name) if watch else nullcontext():
                self._launch(call)
            if self.debug:
                self._settle(call)
                self._check(sizes)  # what a bad index left may well be NaN
                if call.step and all(c.step is not call.step for c in segment.calls[k + 1:k + 2]):
                    self._look_for_nan(call.step, sizes, state)

    def _look_for_nan(self, step: Step, sizes: Sizes, state: DeviceState | None) -> None:
        def has_nan(ref: Ref) -> bool:
            if not self.plan.graph.type(ref).dtype.is_float:
                return False
            value = self._read(locate(self.plan, ref, sizes), state)
            return bool((value != value).any())  # NaN alone

        if any(map(has_nan, step.node.refs)) and not any(map(has_nan, step.node.inputs)):
            note_once(f"{step.choice.name} made NaN of operands that have none: {show_node(step.node)}{f', {step.node.where}' if step.node.where else ''}")

    def _launch(self, call: _Call) -> None:
        self._api.launch(call.function, call.grid, call.threads, call.shared_nbytes, call.arguments)

    def _settle(self, call: _Call) -> None:
        """Debug mode waits for each kernel, so that the one that breaks off is the one named."""
        try:
            self._api.sync()
        except DeviceError as e:
            raise failure(call.step, e) if call.step else e from None

    def _check(self, sizes: Sizes) -> None:
        """Raises what a kernel noted."""
        if not self.program.fallible:
            return
        words = np.empty(FAULT_NBYTES // 8, np.int64)
        self._api.read(self._notes.address, words.view(np.uint8))
        if words[0]:
            raise index_fault(self.plan.graph, self.plan.graph[~int(words[0]) >> FAULT_PLACE_BITS], int(words[1]), int(words[2]), sizes)

    def _host(self, part: _Host, sizes: Sizes, state: DeviceState | None, watch: Stopwatch | None) -> None:
        ins = [self._read(s, state) for s in part.ins]
        self._check(sizes)  # it would work on what a bad index left
        for a in ins:
            a.flags.writeable = False
        outs = [np.empty(s.shape, s.dtype) for s in part.outs]
        try:
            with np.errstate(all="ignore"), watch.host(part.step) if watch else nullcontext():
                part.launch(ins, outs, part.attrs)
        except Exception as e:
            raise failure(part.step, e) from (None if isinstance(e, RlxError) else e)
        for spot, out in zip(part.outs, outs, strict=True):
            self._write(spot, out, state)

    # ---- memory
    def _base(self, space: Space, buffer: int, state: DeviceState | None) -> int:
        if buffer in self._fixed:
            return self._fixed[buffer].address
        if space is Space.STATE:
            return state.memory.address if state else 0
        return self._spaces[space].address

    def _address(self, spot: Spot, state: DeviceState | None) -> int:
        return self._base(spot.space, spot.buffer, state) + spot.start + spot.offset

    def _read(self, spot: Spot, state: DeviceState | None) -> Array:
        """A value, in whatever layout: the bytes from its first to its last element, seen with its strides."""
        if 0 in spot.shape:
            return np.empty(spot.shape, spot.dtype)
        low, high = extent(spot)
        raw = np.empty(high - low, np.uint8)
        self._api.read(self._address(spot, state) + low, raw)
        return np.ndarray(spot.shape, spot.dtype, raw, -low, spot.strides)

    def _write(self, spot: Spot, value: Array, state: DeviceState | None) -> None:
        if 0 in spot.shape:
            return
        low, high = extent(spot)
        raw = np.empty(high - low, np.uint8)
        if high - low != value.nbytes:  # there are bytes of others between its elements
            self._api.read(self._address(spot, state) + low, raw)
        np.ndarray(spot.shape, spot.dtype, raw, -low, spot.strides)[...] = value
        self._api.write(self._address(spot, state) + low, raw)

    # ---- binding
    def _bind(self, sizes: Sizes, state: DeviceState | None) -> _Bound:
        """What was bound to a state goes with it."""
        known, key = self._bound.setdefault(self if state is None else state, {}), tuple(sorted(sizes.items()))
        if key not in known:
            fresh = self._fresh(sizes, state)
            while len(known) >= KEPT_SIZES:
                del known[next(iter(known))]
            known[key] = fresh
        return known[key]

    def _fresh(self, sizes: Sizes, state: DeviceState | None) -> _Bound:
        def spots(refs: Sequence[Ref]) -> tuple[Spot, ...]:
            return tuple(locate(self.plan, r, sizes) for r in refs)

        def place(r: Ref) -> int:
            return self._address(locate(self.plan, r, sizes), state)

        parts: list[_Segment | _Host] = []
        calls: list[_Call] = []
        for p in self.program.parts:
            if not p.step.applies(sizes):
                continue
            if isinstance(p, HostStep):
                n = p.step.node
                parts += [_Segment(tuple(calls)), _Host(p.step, self._hosted[n.id, p.step.when], spots(n.inputs), spots(n.refs), n.attrs.bind(sizes).params())]
                calls = []
            elif isinstance(p, RawLaunch):
                calls += self._raw(p, sizes, place)
            else:
                calls += self._generated(p, sizes, place)
        calls += [c for k in self.program.commits for c in self._to_staging(k, sizes, place)]
        graph = self.plan.graph
        commits = [c for k in self.program.commits for c in self._from_staging(k, sizes, place)]
        restores = tuple(c for p in self.program.restores for c in self._generated(p, sizes, place))
        return _Bound(spots([n.refs[0] for n in graph.inputs]), spots(graph.outputs), (*parts, _Segment(tuple(calls))), _Segment(tuple(commits)), restores)

    def _call(self, function: str, k: Kernel, values: Sequence[int], sizes: Sizes, step: Step | None = None) -> list[_Call]:
        """Nothing to launch where the grid is empty."""
        grid = grid_of(function, tuple(at(d, sizes) for d in k.blocks), k.threads)
        words = Arguments.words((*values, *(sizes[s] for s in sorted(k.sizes))))
        return [_Call(function, self._loaded.functions[function], grid, k.threads, at(k.shared_nbytes, sizes), words, step)] if prod(grid) else []

    def _generated(self, p: Launch, sizes: Sizes, place: Callable[[Ref], int]) -> list[_Call]:
        notes, undo = self._notes.address, self._undo.address
        rooms = {Room.FAULT: notes, Room.NOTE: notes + max(p.note, 0), Room.UNDO: undo + max(p.undo, 0), Room.NODE: p.step.node.id, Room.SCRATCH: self._scratch(p.step)}
        return self._call(p.function, p.kernel, [rooms[a] if isinstance(a, Room) else place(a) for a in p.kernel.call], sizes, p.step)

    def _scratch(self, step: Step) -> int:
        return self._spaces[Space.ARENA].address + self.plan.buffers[step.scratch].offset if step.scratch >= 0 else 0

    def _to_staging(self, c: Commit, sizes: Sizes, place: Callable[[Ref], int]) -> list[_Call]:
        """All new values are aside before the first state changes: one may be what another was."""
        return self._call(c.function, c.kernel, (place(c.new), self._staging.address + c.offset), sizes)

    def _from_staging(self, c: Commit, sizes: Sizes, place: Callable[[Ref], int]) -> list[_Call]:
        return self._call(c.back, c.back_kernel, (self._staging.address + c.offset, place(c.old)), sizes)

    def _raw(self, p: RawLaunch, sizes: Sizes, place: Callable[[Ref], int]) -> list[_Call]:
        """Its arena begins at the operand that lies lowest: offsets from there are never negative."""
        staged = {s.ref: self._staging.address + s.offset for s in p.staged}
        calls = [c for s in p.staged for c in self._call(s.function, s.kernel, (place(s.ref), staged[s.ref]), sizes, p.step)]
        refs = (*p.step.node.inputs, *p.step.node.refs)
        where = {name: staged.get(r) or place(r) for (name, _), r in zip(p.launch.operands, refs, strict=True)}
        if p.step.scratch >= 0:
            where["scratch"] = self._scratch(p.step)
        arena = min(where.values())
        shape, data = p.launch(arena, {name: a - arena for name, a in where.items()}, sizes)
        if not prod(grid_of(p.launch.kernel.name, shape.grid, shape.block)):
            return []
        words = Arguments.of(data, [a.offset for a in p.launch.args])
        return [*calls, _Call(p.launch.kernel.name, self._loaded.raw[p.launch.code], shape.grid, shape.block, shape.shared_nbytes, words, p.step)]


def own(state: Any, plan: Plan) -> DeviceState:
    """Raises InputError for a state of another graph."""
    if not isinstance(state, DeviceState) or state.plan is not plan:
        raise InputError(f"state {state!r} is not one of this graph", why="memory of another graph, or of another device, has another layout",
                         fix="make it with new_state() of the graph that runs")
    return state


def extent(spot: Spot) -> tuple[int, int]:
    """Bytes from the first element to the least, and past the greatest, that a strided value touches."""
    steps = [(n - 1) * s for n, s in zip(spot.shape, spot.strides, strict=True)]
    return sum(s for s in steps if s < 0), sum(s for s in steps if s > 0) + spot.dtype.itemsize


def grid_of(name: str, blocks: tuple[int, ...], threads: int) -> tuple[int, int, int]:
    """Raises InputError for more blocks than a grid has."""
    x, y, z = (*blocks, 1, 1)[:3]
    if why := grid_refusal((x, y, z), threads):
        raise InputError(f"{name} cannot be launched", why=why, fix="run it in parts")
    return x, y, z

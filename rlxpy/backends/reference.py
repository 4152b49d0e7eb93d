"""The NumPy reference: every op's `ref` cell, run in a planned arena.  The oracle of every test, and the first tier."""
from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic_ns
from typing import Any, NamedTuple

import numpy as np

from rlxpy.backends.custom import extension_row
from rlxpy.backends.host import FUSED_KINDS, LIBRARY, LaunchAt, append_rows, by_size, failure, host_launch, launcher, runs_ref
from rlxpy.backends.memory import read_only, space_bytes, view as place
from rlxpy.backends.state import State, own
from rlxpy.errors import RlxError
from rlxpy.extend.backend import BackendSpec, Device, Span
from rlxpy.extend.kernels import HostLaunch, KernelSearchPath
from rlxpy.extend.plan import Plan, Space, Step
from rlxpy.frozen import dataclass
from rlxpy.ir import refs
from rlxpy.ir.dims import Sizes, SymDim, symbols
from rlxpy.ir.dtypes import Array
from rlxpy.ir.graph import Graph, Ref
from rlxpy.ir.op import Op


@dataclass(frozen=True)
class Reference:
    """Any dtype, any shape, no compiler."""

    spec: BackendSpec = BackendSpec(Device("reference"), KernelSearchPath((LIBRARY,)), runs_ref, fuses=frozenset(FUSED_KINDS), dense=True, bands=True)

    def missing(self) -> str | None:
        return None

    def load(self, plan: Plan, params: Mapping[str, Array], *, debug: bool = False) -> HostGraph:
        return HostGraph(plan, params, debug, {s.node.id: by_size(s, lambda v: _launch_of(plan.graph, v, debug)) for s in plan.steps})


class _Memory(NamedTuple):
    """One call's arena and staged inputs; calls at the same time have one each."""

    spaces: dict[Space, Array]
    programs: dict[tuple[tuple[str, int], ...], _Bound]


class _Bound(NamedTuple):
    """A plan bound to one arena, one state and one set of sizes: nothing is left to decide."""

    steps: tuple[_BoundStep, ...]
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    commits: tuple[tuple[Array, Array], ...]
    weights: Mapping[int, Array]
    unwritten: tuple[Array, ...]  # in debug mode, the arena's bytes that hold nothing yet


class _BoundStep(NamedTuple):
    sizes: tuple[int, ...]  # of the symbols it mentions: equal sizes make it reusable
    launch: HostLaunch
    ins: tuple[Array, ...]
    outs: tuple[Array, ...]
    attrs: dict[str, Any]
    in_state: bool  # whether it writes into persistent memory
    planned: Step


class HostGraph:
    """Binds the plan to memory once for each set of sizes, then only calls."""

    KEPT_PROGRAMS = 8

    def __init__(self, plan: Plan, params: Mapping[str, Array], debug: bool, launches: Mapping[int, LaunchAt]) -> None:
        """launches: of each step, by its node; found now, while the extensions that the graph was compiled with are registered."""
        self.plan, self.debug, self._launches = plan, debug, launches
        self._fixed: dict[int, Array] = {}  # by buffer; replaced as a whole, so a run sees one set of weights
        for n in plan.graph:
            if n.op is Op.CONST:
                self._fixed[plan.places[n.refs[0]].buffer] = n.attrs.value.array  # type: ignore[attr-defined]
            elif n.op is Op.PARAM:
                self._fixed[plan.places[n.refs[0]].buffer] = np.asarray(params[n.name], order="C")
        self._names = {n.name: plan.places[n.refs[0]].buffer for n in plan.graph.params}
        self._idle: deque[_Memory] = deque()
        self._symbols = {s.node.id: _symbols_of(plan, s) for s in plan.steps}

    @classmethod
    def of(cls, plan: Plan, params: Mapping[str, Array], debug: bool, native: Callable[[Step], HostLaunch]) -> HostGraph:
        """For a backend in host memory: `native` gives what launches a step that the backend's generator took; rows launch the others."""
        return cls(plan, params, debug, {s.node.id: by_size(s, lambda v: native(v) if v.choice.tier == "native" else _launch_of(plan.graph, v, debug)) for s in plan.steps})

    def set_params(self, arrays: Mapping[str, Array]) -> None:
        self._fixed = {**self._fixed, **{self._names[name]: np.asarray(a, order="C") for name, a in arrays.items()}}

    def new_state(self) -> State:
        return State(self.plan)

    def run(self, inputs: Sequence[Array], sizes: Sizes, outputs: Sequence[Array], state: State | None) -> None:
        with self._memory(state) as memory:
            program = self._bind(memory, sizes)
            for part in program.unwritten:
                part.fill(0xFF)  # NaN in every float type: a read of unwritten memory shows
            for staged, given in zip(program.inputs, inputs, strict=True):
                staged[...] = given
            self._launch(program)
            for out, value in zip(outputs, program.outputs, strict=True):
                out[...] = value
            moved = [value.copy() for value, _ in program.commits]  # all read before any is written: states may trade places
            for value, (_, kept) in zip(moved, program.commits, strict=True):
                kept[...] = value

    def profile(self, inputs: Sequence[Array], sizes: Sizes, outputs: Sequence[Array], state: State | None) -> tuple[Span, ...]:
        """A run like any other, with a look at the clock around every launch."""
        twin = _ProfiledGraph(self)
        twin.run(inputs, sizes, outputs, state)
        return tuple(twin.spans)

    def _launch(self, program: _Bound) -> None:
        """Every step in order; when one raises, the state is put back as it was."""
        undo: list[tuple[Array, Array]] = []
        try:
            with np.errstate(all="ignore"):
                for step in program.steps:
                    if step.in_state:
                        undo.append(_overwritten(step))
                    step.launch(step.ins, step.outs, step.attrs)
        except BaseException as e:
            for where, before in reversed(undo):
                where[...] = before
            raise failure(step.planned, e) from (e if isinstance(e, Exception) and not isinstance(e, RlxError) else None)

    @contextmanager
    def _memory(self, state: State | None) -> Iterator[_Memory]:
        """An idle arena, or a new one; a state keeps its own, so that what is bound to it stays bound."""
        if state is not None and self.plan.nbytes[Space.STATE]:
            with own(state, self.plan).lock:
                if state.bound is None:
                    state.bound = _Memory({**self._allocate(), Space.STATE: state.memory}, {})
                yield state.bound
            return
        try:
            memory = self._idle.pop()
        except IndexError:
            memory = _Memory(self._allocate(), {})
        try:
            yield memory
        finally:
            self._idle.append(memory)

    def _allocate(self) -> dict[Space, Array]:
        return {space: space_bytes(self.plan, space) for space in (Space.ARENA, Space.INPUT)}

    def _bind(self, memory: _Memory, sizes: Sizes) -> _Bound:
        weights, programs = self._fixed, memory.programs
        last = next(reversed(programs.values()), None)
        if last is not None and last.weights is not weights:
            programs.clear()
            last = None
        key = tuple(sorted(sizes.items()))
        if key not in programs:
            while len(programs) >= self.KEPT_PROGRAMS:
                del programs[next(iter(programs))]
            programs[key] = self._fresh(memory, sizes, weights, last)
        return programs[key]

    def _fresh(self, memory: _Memory, sizes: Sizes, weights: Mapping[int, Array], last: _Bound | None) -> _Bound:
        """Bind every step, taking over from the last program those whose own sizes did not change."""
        plan, views = self.plan, dict[Ref, Array]()

        def view(r: Ref) -> Array:
            if r not in views:
                views[r] = place(self.plan, r, sizes, memory.spaces, weights)
            return views[r]

        steps = []
        for k, s in enumerate(plan.steps):
            own = tuple(sizes[name] for name in self._symbols[s.node.id])
            if last is not None and last.steps[k].sizes == own:
                steps.append(last.steps[k])
                continue
            attrs = s.node.attrs.bind(sizes) if own else s.node.attrs
            in_state = any(plan.buffer(r).space is Space.STATE for r in s.node.refs)
            steps.append(_BoundStep(own, self._launches[s.node.id](sizes), tuple(read_only(view(r)) for r in s.node.inputs), tuple(map(view, s.node.refs)), attrs.params(), in_state, s))
        unwritten = self._unwritten(memory.spaces[Space.ARENA], steps) if self.debug else ()
        return _Bound(tuple(steps), tuple(view(n.refs[0]) for n in plan.graph.inputs), tuple(view(r) for r in plan.graph.outputs),
                      tuple((view(a), view(b)) for a, b in plan.commits), weights, tuple(unwritten))

    def _unwritten(self, arena: Array, steps: Sequence[_BoundStep]) -> Iterator[Array]:
        """The arena's bytes that hold nothing until a step fills them, at the sizes of this run: the whole may be far larger."""
        for step, bound in zip(self.plan.steps, steps, strict=True):
            for r, out in zip(step.node.refs, bound.outs, strict=True):
                b = self.plan.buffer(r)
                if b.space is Space.ARENA and b.first == step.node.id:
                    yield arena[b.offset:b.offset + out.nbytes]


def _overwritten(step: _BoundStep) -> tuple[Array, Array]:
    """What a step is about to change in the state: where, and a copy of what is there."""
    where = step.outs[0]
    if step.launch is append_rows:
        cache, new, pos = step.ins
        where = where[refs.kv_slot(cache, new, pos, step.attrs["axis"])]
    return where, where.copy()


class _ProfiledGraph(HostGraph):
    """A twin of a graph, with its weights and its memory."""

    def __init__(self, graph: HostGraph) -> None:
        self.__dict__.update(graph.__dict__)
        self.spans: list[Span] = []

    def _launch(self, program: _Bound) -> None:
        super()._launch(program._replace(steps=tuple(s._replace(launch=self._timed(s)) for s in program.steps)))

    def _timed(self, step: _BoundStep) -> HostLaunch:
        def launch(ins: Sequence[Array], outs: Sequence[Array], attrs: Mapping[str, Any]) -> None:
            begin = monotonic_ns()
            step.launch(ins, outs, attrs)
            self.spans.append(Span(step.planned, step.planned.choice.name, 0, begin, monotonic_ns()))

        return launch


def _launch_of(graph: Graph, step: Step, debug: bool) -> HostLaunch:
    row = step.choice.row or extension_row(graph, step.node)
    return host_launch(graph, step, row, debug=debug) if row is not None else launcher(step.node.row)


def _symbols_of(plan: Plan, step: Step) -> tuple[str, ...]:
    """Symbols that a step's operands, walks and attrs mention."""
    found: list[Any] = list(step.node.attrs.symbolic())
    for r in (*step.node.inputs, *step.node.refs):
        layout = plan.places[r].layout
        found += [d for d in (*plan.graph.type(r).shape, *layout.strides, layout.offset) if isinstance(d, SymDim)]
    names = set(symbols(found))
    for _, g in step.node.attrs.graphs():
        names |= set(g.symbols)
    return tuple(sorted(names))

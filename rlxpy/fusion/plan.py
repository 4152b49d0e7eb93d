"""Give every value a place: views share, in-place updates take over, the rest is packed into one arena.  Pure and near-linear."""
from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any, NamedTuple

from rlxpy.errors import LegaliseError
from rlxpy.extend.backend import BackendSpec, remembering
from rlxpy.extend.hooks import scratch_nbytes
from rlxpy.extend.kernels import Choice
from rlxpy.extend.plan import Buffer, Frame, Place, Plan, Space, Step
from rlxpy.frozen import dataclass
from rlxpy.ir.dims import Dim, upper
from rlxpy.ir.graph import Graph, Node, Ref
from rlxpy.ir.layout import Layout, ViewArgs, row_major
from rlxpy.ir.op import CONTROL, LEAVES, Op
from rlxpy.ir.types import TensorType

SPACE = {Op.INPUT: Space.INPUT, Op.PARAM: Space.PARAM, Op.STATE: Space.STATE, Op.CONST: Space.CONST}


def plan(graph: Graph, spec: BackendSpec, given: Sequence[Given] = ()) -> Plan:
    """Raises LegaliseError for a node that nothing serves: run the pipeline first.

    given: how each input lies in memory; without it, contiguous."""
    spec, last_use = remembering(spec), last_uses(graph)
    layout = _Layouter(graph, spec, last_use, frozenset(state for state, _ in graph.updates), dict(zip((n.id for n in graph.inputs), given, strict=bool(given))))
    steps = []
    for n in graph:
        if n.op in LEAVES:
            layout.leaf(n)
        elif not layout.view(n):
            choice = spec.verdict(graph, n)
            if not isinstance(choice, Choice):
                choice = spec.host_choice(graph, n) or _refused(spec, n, choice.reasons)
            layout.result(n)
            frame = framed(graph, n, layout, spec) if choice.tier == "native" and n.op in CONTROL else None
            steps.append(Step(n, choice, layout.scratch(n, choice, frame), frame))
    buffers, nbytes = pack(layout.buffers, spec.align_nbytes)
    return Plan(graph, tuple(steps), buffers, layout.places, _commits(graph, layout.places), nbytes)


class Given(NamedTuple):
    """How an input of a loop's or branch's graph lies in memory.  `ours`: what it holds is needed no more once the graph has read it.
    `steps`: as of its buffer."""

    layout: Layout
    nbytes: int
    ours: bool = False
    steps: tuple[Dim, ...] = ()


def framed(graph: Graph, n: Node, layout: _Layouter, spec: BackendSpec) -> Frame:
    """Plans of its graphs, and their places in its scratch."""
    carried, given = _passed(graph, n, layout)
    bodies = tuple(plan(body, spec, [g._replace(ours=k < carried and name == "body") for k, g in enumerate(given)]) for name, body in n.attrs.graphs())
    top = 0
    arenas, slots = list[int](), list[tuple[int, int]]()
    for body in bodies:
        arenas.append(top)
        top += up(body.arena_nbytes, spec.align_nbytes)
    for g in given[:carried]:
        size = up(g.nbytes, spec.align_nbytes)
        slots.append((top, top + size))
        top += 2 * size
    return Frame(bodies, tuple(arenas), tuple(slots), top)


def _passed(graph: Graph, n: Node, layout: _Layouter) -> tuple[int, list[Given]]:
    """How many inputs of the node's graphs lie in slots, and how all of them lie: the others where the node's own inputs do."""
    inputs = n.inputs[1:] if n.op is Op.COND else n.inputs
    a: Any = n.attrs
    carried, mapped = (a.carries, a.mapped) if n.op is Op.SCAN else (len(n.types) if n.op is Op.WHILE else 0, 0)
    given = []
    for k, r in enumerate(inputs):
        t, place = graph.type(r), layout.places[r]
        if k < carried:
            given.append(Given(row_major(t.shape), t.max_nbytes))
        elif k < carried + mapped:
            given.append(_slice_of(t, place.layout, layout.buffers[place.buffer].steps))
        else:
            whole = layout.buffers[place.buffer]
            given.append(Given(place.layout, whole.nbytes, steps=whole.steps))
    return carried, given


def _slice_of(t: TensorType, layout: Layout, steps: tuple[Dim, ...]) -> Given:
    """One slice along axis 0, from its lowest byte to its highest.  steps: of the buffer that has them all."""
    offset: Dim = 0
    last: Dim = 0
    for d, s in zip(t.shape[1:], layout.strides[1:], strict=True):
        if upper(s) < 0:
            offset = offset + (1 - d) * s
        else:
            last = last + (d - 1) * s
    return Given(Layout(layout.strides[1:], offset), max(0, upper(offset + last + 1)) * t.dtype.nbytes, steps=(*steps, layout.offset, layout.strides[0], offset))


def _refused(spec: BackendSpec, n: Node, reasons: tuple[str, ...]) -> Choice:
    raise LegaliseError(f"{spec.device} cannot run {n.label} : {n.type}", where=n.where, why="; ".join(reasons), fix="legalise the graph before planning it")


def last_uses(graph: Graph) -> dict[Ref, int]:
    """The last node that needs each value's bytes, through views too; len(graph) for what must outlive the run."""
    end = len(graph)
    last: dict[Ref, int] = dict.fromkeys(graph.results, end)
    for n in reversed(graph.nodes):
        reach = max((last.get(r, n.id) for r in n.refs), default=n.id) if n.row.view else n.id
        for r in n.inputs:
            last[r] = max(last.get(r, -1), reach)
    return last


@dataclass
class _Layouter:
    """Assigns buffers and layouts in execution order."""

    graph: Graph
    spec: BackendSpec
    last_use: Mapping[Ref, int]
    updated: frozenset[Ref]
    given: Mapping[int, Given] = field(default_factory=dict)
    places: dict[Ref, Place] = field(default_factory=dict)
    buffers: list[Buffer] = field(default_factory=list)
    ours: set[int] = field(default_factory=set)  # buffers that this run may overwrite: its arena, and states that it updates

    def leaf(self, n: Node) -> None:
        self._fresh(n.refs[0], SPACE[n.op], n.id)
        if (g := self.given.get(n.id)) is not None:
            self.places[n.refs[0]] = Place(len(self.buffers) - 1, g.layout)
            self.buffers[-1] = replace(self.buffers[-1], nbytes=g.nbytes, steps=g.steps)
        if n.refs[0] in self.updated or (g is not None and g.ours):
            self.ours.add(len(self.buffers) - 1)

    def view(self, n: Node) -> bool:
        """Place a movement op's result on its input's bytes, if there is a walk that says it."""
        if n.row.view is None or not self.spec.views:
            return False
        source = self.places[n.inputs[0]]
        layout = n.row.view(ViewArgs(source.layout, self.graph.type(n.inputs[0]), n.type, n.attrs.params()))
        if layout is None:
            return False
        self._share(n.refs[0], Place(source.buffer, layout))
        return True

    def result(self, n: Node) -> None:
        taken = n.inplace
        if taken is not None and self._may_take_over(n, n.inputs[taken]):
            self._share(n.refs[0], self.places[n.inputs[taken]])
            return
        for r in n.refs:
            self.ours.add(len(self.buffers))
            self._fresh(r, Space.ARENA, n.id)

    def scratch(self, n: Node, choice: Choice, frame: Frame | None) -> int:
        sizes = [scratch_nbytes(c.row, self.graph, n) for c in choice.every if c.row]
        nbytes = frame.nbytes if frame else max(sizes, default=0)
        if not nbytes:
            return -1
        self.buffers.append(Buffer(Space.ARENA, 0, nbytes, n.id, n.id))
        return len(self.buffers) - 1

    def _may_take_over(self, n: Node, r: Ref) -> bool:
        """Nothing reads the old value later or through another operand, it is ours to write, and it is the whole of its buffer."""
        place = self.places[r]
        alone = sum(self.places[i].buffer == place.buffer for i in n.inputs) == 1
        return alone and place.buffer in self.ours and self.buffers[place.buffer].last <= n.id and place.layout == row_major(n.types[0].shape)

    def _fresh(self, r: Ref, space: Space, first: int) -> None:
        t = self.graph.type(r)
        self.places[r] = Place(len(self.buffers), row_major(t.shape))
        self.buffers.append(Buffer(space, 0, t.max_nbytes, first, self.last_use.get(r, first)))

    def _share(self, r: Ref, place: Place) -> None:
        self.places[r] = place
        buffer = self.buffers[place.buffer]
        self.buffers[place.buffer] = replace(buffer, last=max(buffer.last, self.last_use.get(r, buffer.last)))


def _commits(graph: Graph, places: Mapping[Ref, Place]) -> tuple[tuple[Ref, Ref], ...]:
    return tuple((new, state) for state, new in graph.updates if places[new] != places[state])


# ---- packing -------------------------------------------------------------------------------------------------------
def pack(buffers: list[Buffer], align: int) -> tuple[tuple[Buffer, ...], dict[Space, int]]:
    """Offsets.  Arena buffers share by lifetime, inputs and states lie one after the other, params and consts stand alone."""
    out, nbytes = list(buffers), dict.fromkeys(Space, 0)
    arena, dying = _FreeList(), list[tuple[int, int]]()
    for i, b in enumerate(buffers):
        size = up(b.nbytes, align)
        if b.space is Space.ARENA:
            while dying and dying[0][0] < b.first:
                dead = out[heapq.heappop(dying)[1]]
                arena.free(dead.offset, up(dead.nbytes, align))
            out[i] = replace(b, offset=arena.take(size))
            heapq.heappush(dying, (b.last, i))
        elif b.space in (Space.INPUT, Space.STATE):
            out[i] = replace(b, offset=nbytes[b.space])
        nbytes[b.space] += size if b.space is not Space.ARENA else 0
    return tuple(out), {**nbytes, Space.ARENA: arena.top}


def up(n: int, align: int) -> int:
    return -(-n // align) * align


class _FreeList:
    """Best fit with coalescing; every operation is a bisect."""

    def __init__(self) -> None:
        self.top = 0
        self._sizes: list[tuple[int, int]] = []  # (size, offset), sorted
        self._starts: dict[int, int] = {}        # offset -> size
        self._ends: dict[int, int] = {}          # end -> offset

    def take(self, size: int) -> int:
        if size == 0:
            return 0
        at = bisect_left(self._sizes, (size, -1))
        if at < len(self._sizes):
            have, offset = self._sizes[at]
            self._drop(offset, have)
            if have > size:
                self._add(offset + size, have - size)
            return offset
        offset = self.top
        if self.top in self._ends:  # a free block touches the top: grow it
            offset = self._ends[self.top]
            self._drop(offset, self._starts[offset])
        self.top = offset + size
        return offset

    def free(self, offset: int, size: int) -> None:
        if size == 0:
            return
        if offset in self._ends:
            before = self._ends[offset]
            size += self._starts[before]
            self._drop(before, self._starts[before])
            offset = before
        if (after := self._starts.get(offset + size)) is not None:
            self._drop(offset + size, after)
            size += after
        self._add(offset, size)

    def _add(self, offset: int, size: int) -> None:
        insort(self._sizes, (size, offset))
        self._starts[offset], self._ends[offset + size] = size, offset

    def _drop(self, offset: int, size: int) -> None:
        del self._sizes[bisect_left(self._sizes, (size, offset))]
        del self._starts[offset], self._ends[offset + size]

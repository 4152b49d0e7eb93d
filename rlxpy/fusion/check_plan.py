"""An independent look at a plan: replay it over byte intervals and see that every read finds what was written for it.

It shares no code with the planner: who owns which bytes is derived from the graph and the places alone."""
from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

from rlxpy.errors import VerifyError
from rlxpy.extend.plan import Buffer, Frame, Plan, Space, Step
from rlxpy.ir.dims import at
from rlxpy.ir.graph import Node, Ref
from rlxpy.ir.op import LEAVES, Op
from rlxpy.ir.types import bind


def check_plan(plan: Plan, align: int = 1) -> Plan:
    """The plan itself.  Raises VerifyError naming the two values that collide, or the place that lies outside its space."""
    memory = {space: _Owners() for space in Space}
    for i, b in enumerate(plan.buffers):
        if b.offset % align or b.offset < 0 or (b.space not in ALONE and b.offset + b.nbytes > plan.nbytes[b.space]):
            raise VerifyError("plan: a buffer is outside its space or misaligned", why=f"buffer {i}: {b}, space of {plan.nbytes[b.space]} bytes, align {align}")
    value, stepped = _values(plan), _steps(plan)
    for n in plan.graph:
        for r in n.refs:
            _inside(plan, r, n)
        if n.op in LEAVES:
            _claim(memory, plan.buffer(n.refs[0]), value[n.refs[0]], plan.places[n.refs[0]].buffer)
        elif n.id in stepped:
            _launch(plan, memory, stepped[n.id], value)
            if (frame := stepped[n.id].frame) is not None:
                _framed(plan, stepped[n.id], frame, align)
    for r in plan.graph.results:
        _read(plan, memory, r, value, None)
    _persists(plan, memory, value)
    return plan


def _launch(plan: Plan, memory: Mapping[Space, _Owners], step: Step, value: Mapping[Ref, Ref]) -> None:
    """Operands are there before the step and, but for the one it updates in place, when it ends: a kernel reads while it writes."""
    n = step.node
    for r in n.inputs:
        _read(plan, memory, r, value, n)
    if step.scratch >= 0:
        _claim(memory, plan.buffers[step.scratch], SCRATCH, step.scratch)
    for r in n.refs:
        if not plan.places[r].layout.is_contiguous(plan.graph.type(r).shape):
            raise VerifyError(f"plan: {r} is not written in row-major order", where=n.where, why=str(plan.places[r].layout))
        _claim(memory, plan.buffer(r), value[r], plan.places[r].buffer)
    kept = [r for k, r in enumerate(n.inputs) if k != n.inplace or plan.places[r] != plan.places[n.refs[0]]]
    for r in (*kept, *n.refs):
        _read(plan, memory, r, value, n)
    if step.scratch >= 0 and _owners(memory, plan.buffers[step.scratch], step.scratch) != {SCRATCH}:
        raise VerifyError(f"plan: the scratch of %{n.id} {n.label} is overwritten by its results", where=n.where, why=str(plan.buffers[step.scratch]))


def _framed(plan: Plan, step: Step, frame: Frame, align: int) -> None:
    """The graphs of a loop are planned soundly, and what they use of its scratch lies apart."""
    for body in frame.bodies:
        check_plan(body, align)
    inputs = frame.bodies[-1].graph.inputs
    parts = [(start, start + body.arena_nbytes) for start, body in zip(frame.arenas, frame.bodies, strict=True)]
    parts += [(at, at + n.type.max_nbytes) for slots, n in zip(frame.slots, inputs, strict=False) for at in slots]
    parts = sorted(p for p in parts if p[0] < p[1])
    room = plan.buffers[step.scratch].nbytes if step.scratch >= 0 else 0
    ends = [0, *(end for _, end in parts)]
    if any(start % align for start, _ in parts) or any(start < end for (start, _), end in zip(parts, ends, strict=False)) or ends[-1] > room:
        raise VerifyError(f"plan: the graphs of %{step.node.id} {step.node.label} share memory", where=step.node.where, why=f"bytes {parts} of {room}, align {align}")


SCRATCH = "scratch"
ALONE = frozenset({Space.PARAM, Space.CONST})  # each buffer is memory of its own


def _steps(plan: Plan) -> Mapping[int, Step]:
    """Steps by node id.  Every node is a leaf, a view, or computed once, in the graph's order."""
    stepped = {s.node.id: s for s in plan.steps}
    if [s.node for s in plan.steps] != [plan.graph[i] for i in sorted(stepped)]:
        raise VerifyError("plan: the steps are not the graph's nodes in order", why=", ".join(f"%{s.node.id}" for s in plan.steps))
    for n in plan.graph:
        if n.op not in LEAVES and n.id not in stepped and n.row.view is None:
            raise VerifyError(f"plan: nothing computes %{n.id} {n.label}", where=n.where, why="it has no step and is no view")
    return stepped


def _values(plan: Plan) -> Mapping[Ref, Ref]:
    """For each ref the ref whose bytes it shows: itself, or through views the one at their root."""
    computed = {s.node.id for s in plan.steps}
    root: dict[Ref, Ref] = {}
    for n in plan.graph:
        for r in n.refs:
            root[r] = r if n.op in LEAVES or n.id in computed or not n.inputs else root[n.inputs[0]]
    return root


def _persists(plan: Plan, memory: Mapping[Space, _Owners], value: Mapping[Ref, Ref]) -> None:
    """What outlives the run holds what the next one expects: weights as they were, states their new values."""
    updates = dict(plan.graph.updates)
    for n in plan.graph:
        leaf = n.refs[0]
        if leaf not in updates and n.op in (Op.PARAM, Op.CONST, Op.STATE):
            _read(plan, memory, leaf, value, None)
    for state, new in updates.items():
        if plan.places[state] != plan.places[new] and (new, state) not in plan.commits:
            raise VerifyError(f"plan: state {plan.graph[state].name!r} never gets its new value {new}", where=plan.graph[state].where,
                              why=f"they lie at {plan.places[state]} and {plan.places[new]}, and no commit copies")
    if len(plan.commits) != len(set(plan.commits)) or not set(plan.commits) <= {(new, state) for state, new in plan.graph.updates}:
        raise VerifyError("plan: it copies into states what the graph does not say", why=", ".join(f"{new} to {state}" for new, state in plan.commits))


def _inside(plan: Plan, r: Ref, n: Node) -> None:
    """The walk of a value stays inside its buffer at both ends of every symbol's range."""
    t, place = plan.graph.type(r), plan.places[r]
    for sizes in ({s.name: s.lo for s in plan.graph.symbols.values()}, {s.name: s.hi for s in plan.graph.symbols.values()}):
        shape, strides, offset = bind(t.shape, sizes), bind(place.layout.strides, sizes), at(place.layout.offset, sizes)
        if 0 in shape:
            continue
        ends = [(d - 1) * s for d, s in zip(shape, strides, strict=True)]
        least, most = offset + sum(e for e in ends if e < 0), offset + sum(e for e in ends if e > 0)
        if least < 0 or (most + 1) * t.dtype.nbytes > plan.buffers[place.buffer].nbytes:
            raise VerifyError(f"plan: {r} : {t} walks out of its buffer", where=n.where, why=f"elements {least}..{most} of {plan.buffers[place.buffer].nbytes} bytes")


def _claim(memory: Mapping[Space, _Owners], b: Buffer, owner: object, index: int) -> None:
    lo = _address(b, index)
    memory[b.space].assign(lo, lo + b.nbytes, owner)


def _owners(memory: Mapping[Space, _Owners], b: Buffer, index: int) -> set[object]:
    lo = _address(b, index)
    return memory[b.space].owners(lo, lo + b.nbytes)


def _address(b: Buffer, index: int) -> int:
    return index << 48 if b.space in ALONE else b.offset


def _read(plan: Plan, memory: Mapping[Space, _Owners], r: Ref, value: Mapping[Ref, Ref], n: Node | None) -> None:
    """`n` None reads after the last step."""
    place = plan.places[r]
    b, now = plan.buffers[place.buffer], n.id if n else len(plan.graph)
    found = _owners(memory, b, place.buffer)
    if b.nbytes and found != {value[r]}:
        raise VerifyError(f"plan: {_reader(n)} reads {r} after it was overwritten", where=n.where if n else "",
                          why=f"{b.nbytes} bytes at {b.offset} of {b.space.value} hold {', '.join(map(str, found)) or 'nothing'}, wanted {value[r]}")
    if b.space is Space.ARENA and not b.first <= now <= b.last:
        raise VerifyError(f"plan: {_reader(n)} reads {r} outside its lifetime", where=n.where if n else "",
                          why=f"its buffer lives from {b.first} to {b.last}, it is read at {now}")


def _reader(n: Node | None) -> str:
    return f"%{n.id} {n.label}" if n else "what outlives the run"


class _Owners:
    """Disjoint byte intervals and who wrote each last."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._rows: list[tuple[int, object]] = []  # (end, owner), beside _starts

    def assign(self, lo: int, hi: int, owner: object) -> None:
        if lo == hi:
            return
        i = self._first(lo)
        j, starts, rows = i, [lo], [(hi, owner)]
        while j < len(self._starts) and self._starts[j] < hi:
            end, old = self._rows[j]
            if self._starts[j] < lo:
                starts.insert(0, self._starts[j])
                rows.insert(0, (lo, old))
            if end > hi:
                starts.append(hi)
                rows.append((end, old))
            j += 1
        self._starts[i:j], self._rows[i:j] = starts, rows

    def owners(self, lo: int, hi: int) -> set[object]:
        """Owners of every byte of lo..hi; None stands for bytes nobody wrote."""
        found, at = set[object](), lo
        i = self._first(lo)
        while i < len(self._starts) and self._starts[i] < hi:
            if self._starts[i] > at:
                found.add(None)
            found.add(self._rows[i][1])
            at = self._rows[i][0]
            i += 1
        return found | ({None} if at < hi else set())

    def _first(self, lo: int) -> int:
        """Index of the first interval that ends after lo."""
        i = max(bisect_right(self._starts, lo) - 1, 0)
        while i < len(self._rows) and self._rows[i][0] <= lo:
            i += 1
        return i

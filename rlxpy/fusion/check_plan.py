"""An independent look at a plan: replay it over byte intervals and see that every read finds what was written for it.

It shares no code with the planner: who owns which bytes is derived from the graph and the places alone."""
from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

from rlxpy.errors import VerifyError
from rlxpy.extend.plan import Buffer, Plan, Space
from rlxpy.ir.dims import lower, upper
from rlxpy.ir.graph import Node, Ref
from rlxpy.ir.op import LEAVES


def check_plan(plan: Plan, align: int = 1) -> Plan:
    """The plan itself.  Raises VerifyError naming the two values that collide, or the place that lies outside its space."""
    memory = {space: _Owners() for space in Space}
    value = _values(plan)
    for i, b in enumerate(plan.buffers):
        if b.offset % align or b.offset < 0 or (b.space not in (Space.PARAM, Space.CONST) and b.offset + b.nbytes > plan.nbytes[b.space]):
            raise VerifyError("plan: a buffer is outside its space or misaligned", why=f"buffer {i}: {b}, space of {plan.nbytes[b.space]} bytes, align {align}")
    stepped = {s.node.id: s for s in plan.steps}
    for n in plan.graph:
        if n.op in LEAVES:
            _write(plan, memory, n.refs[0], value, n)
        elif n.id in stepped:
            for r in n.inputs:
                _read(plan, memory, r, value, n)
            if (scratch := stepped[n.id].scratch) >= 0:
                _claim(memory, plan.buffers[scratch], -1, scratch)
            for r in n.refs:
                _inside(plan, r, n)
                _write(plan, memory, r, value, n)
        else:
            for r in n.refs:
                _inside(plan, r, n)
    for r in plan.graph.results:
        _read(plan, memory, r, value, None)
    return plan


def _values(plan: Plan) -> Mapping[Ref, Ref]:
    """For each ref the ref whose bytes it shows: itself, or through views the one at their root."""
    computed = {s.node.id for s in plan.steps}
    root: dict[Ref, Ref] = {}
    for n in plan.graph:
        for r in n.refs:
            root[r] = r if n.op in LEAVES or n.id in computed else root[n.inputs[0]]
    return root


def _inside(plan: Plan, r: Ref, n: Node) -> None:
    """The walk of a value stays inside its buffer at both ends of every symbol's range."""
    t, place = plan.graph.type(r), plan.places[r]
    for bound in (lower, upper):
        sizes = {s.name: bound_of for s in plan.graph.symbols.values() for bound_of in ((s.lo if bound is lower else s.hi),)}
        shape = [d if isinstance(d, int) else d.at(sizes) for d in t.shape]
        if 0 in shape:
            continue
        strides = [d if isinstance(d, int) else d.at(sizes) for d in place.layout.strides]
        offset = place.layout.offset if isinstance(place.layout.offset, int) else place.layout.offset.at(sizes)
        ends = [(d - 1) * s for d, s in zip(shape, strides, strict=True)]
        least, most = offset + sum(e for e in ends if e < 0), offset + sum(e for e in ends if e > 0)
        if least < 0 or (most + 1) * t.dtype.nbytes > plan.buffers[place.buffer].nbytes:
            raise VerifyError(f"plan: {r} : {t} walks out of its buffer", where=n.where, why=f"elements {least}..{most} of {plan.buffers[place.buffer].nbytes} bytes")


def _write(plan: Plan, memory: Mapping[Space, _Owners], r: Ref, value: Mapping[Ref, Ref], n: Node) -> None:
    _claim(memory, plan.buffer(r), value[r], plan.places[r].buffer)


def _claim(memory: Mapping[Space, _Owners], b: Buffer, owner: object, index: int) -> None:
    lo = b.offset if b.space not in (Space.PARAM, Space.CONST) else index << 48  # stand-alone buffers get addresses of their own
    memory[b.space].assign(lo, lo + b.nbytes, owner)


def _read(plan: Plan, memory: Mapping[Space, _Owners], r: Ref, value: Mapping[Ref, Ref], n: Node | None) -> None:
    b, index = plan.buffer(r), plan.places[r].buffer
    lo = b.offset if b.space not in (Space.PARAM, Space.CONST) else index << 48
    found = memory[b.space].owners(lo, lo + b.nbytes)
    if b.nbytes and found != {value[r]}:
        reader = f"%{n.id} {n.label}" if n else "the results"
        raise VerifyError(f"plan: {reader} reads {r} after it was overwritten", where=n.where if n else "",
                          why=f"bytes {lo}..{lo + b.nbytes} of {b.space.value} hold {', '.join(map(str, found)) or 'nothing'}, wanted {value[r]}")


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

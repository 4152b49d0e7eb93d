"""Loops and branches in C: the steps of their graphs, written where the loop stands, and the copies that hand values on."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

from rlxpy.backends.cpu import ctext
from rlxpy.backends.cpu.elementwise import indent
from rlxpy.backends.cpu.kernel import Addresses, Operand, operand
from rlxpy.backends.cpu.movement import copy
from rlxpy.backends.cpu.unit import Call, Unit, function_name
from rlxpy.extend.backend import BackendSpec
from rlxpy.extend.kernels import Choice, Refusal
from rlxpy.extend.plan import Frame, Plan, Step
from rlxpy.frozen import dataclass
from rlxpy.ir.dims import Dim, upper
from rlxpy.ir.graph import Graph, Node, Ref
from rlxpy.ir.layout import Layout, row_major
from rlxpy.ir.op import CONTROL, LEAVES, Op
from rlxpy.ir.text import show_node

TOGETHER_NBYTES = 1 << 15  # copies of less than this are one task


def refusal(spec: BackendSpec, graph: Graph, node: Node) -> str | None:
    """Why a node is no loop or branch that can be written in C; None when it is one."""
    if node.op not in CONTROL:
        return "it writes loops and branches only"
    for name, body in node.attrs.graphs():
        for n in body:
            if n.op not in LEAVES and n.row.view is None and (why := _staged(spec.verdict(body, n))):
                return f"{n.label} in its graph {name!r}: {why}"
    return None


def _staged(choice: Choice | Refusal) -> str:
    """Why a node is not written in C."""
    if isinstance(choice, Refusal):
        return "; ".join(choice.reasons)
    return next((f"{c.name} runs on the host" for c in choice.every if c.tier == "host"), "")


@dataclass
class _Writer:
    """Text of one step of the program; `alone` are the conditions under which every kernel in it is one task."""

    unit: Unit
    lines: list[str] = field(default_factory=list)
    alone: dict[str, None] = field(default_factory=dict)
    depth: int = 0
    loops: int = 0

    def line(self, *texts: str) -> None:
        self.lines += indent(list(texts), self.depth)

    def again(self, made: Call) -> None:
        if not made.tasks.isdecimal() or int(made.tasks) > 1:
            self.alone[f"({made.tasks}) <= 1"] = None
        self.line(f"RLX_AGAIN({made.tasks}, {made.text})")

    def steps(self, plan: Plan, at: Addresses) -> None:
        for step in (variant for s in plan.steps for variant in s.variants):
            self.line(f"/* {ctext.comment(show_node(step.node))} */")
            if step.frame is not None:
                self.control(plan, step, at)
            else:
                for made in self.unit.calls(plan, step, at):
                    self.again(made)

    def copies(self, step: Step, pairs: Sequence[tuple[Operand, Operand]]) -> None:
        """Values to where they are wanted, each in row-major order; none lies in another's way."""
        made = [self.unit.call(copy(a, b), step) for a, b in pairs]
        small = [m for m, (a, _) in zip(made, pairs, strict=True) if _nbytes(a) < TOGETHER_NBYTES]
        if small:
            self.line("RLX_AGAIN(1, " + "; ".join(f"{{ const i64 t0 = 0, t1 = {m.tasks}; {m.text}; }}" for m in small) + ")")
        for m in made:
            if m not in small:
                self.again(m)

    def control(self, plan: Plan, step: Step, at: Addresses) -> None:
        assert step.frame is not None, "the plan made room for it"
        write = {Op.SCAN: self._scan, Op.WHILE: self._while, Op.COND: self._cond}[step.node.op]
        self.loops += 1
        write(_Loop(plan, step, step.frame, at, self.loops))

    def _scan(self, loop: _Loop) -> None:
        a: Any = loop.step.node.attrs
        (body,), n = loop.frame.bodies, loop.number
        places = self._passed(loop, 0, a.mapped)
        self._begin(loop, a.carries)
        self.line(f"for (i64 s{n} = 0; s{n} < {ctext.dim(a.length)}; s{n}++) {{")
        self.depth += 1
        self.line(f"const i64 i{n} = {f'{ctext.dim(a.length)} - 1 - s{n}' if a.reverse else f's{n}'}; (void)i{n};")
        self.steps(body, places)
        slices = [(operand(body, r, places), _slice(out, f"i{n}")) for r, out in zip(body.graph.outputs[a.carries:], loop.outs[a.carries:], strict=True)]
        self._hand_on(loop, body, places, a.carries, slices)
        self.depth -= 1
        self.line("}")
        self.copies(loop.step, [(loop.slot(k, "now"), loop.outs[k]) for k in range(a.carries)])

    def _while(self, loop: _Loop) -> None:
        (asks, does), count = loop.frame.bodies, len(loop.outs)
        asking, doing = self._passed(loop, 0), self._passed(loop, 1)
        self._begin(loop, count)
        self.line("for (;;) {")
        self.depth += 1
        self.steps(asks, asking)
        self._decide(loop, operand(asks, asks.graph.outputs[0], asking))
        self.line(f"if (!go{loop.number}) break;")
        self.steps(does, doing)
        self._hand_on(loop, does, doing, count, [])
        self.depth -= 1
        self.line("}")
        self.copies(loop.step, [(loop.slot(k, "now"), loop.outs[k]) for k in range(count)])

    def _cond(self, loop: _Loop) -> None:
        self._decide(loop, loop.operand(0))
        for k, (head, body) in enumerate(zip((f"if (go{loop.number}) {{", "} else {"), loop.frame.bodies, strict=True)):
            self.line(head)
            self.depth += 1
            places = self._passed(loop, k)
            self.steps(body, places)
            self.copies(loop.step, [(operand(body, r, places), out) for r, out in zip(body.graph.outputs, loop.outs, strict=True)])
            self.depth -= 1
        self.line("}")

    def _decide(self, loop: _Loop, flag: Operand) -> None:
        self.line(f"RLX_DECIDE(go{loop.number}, {flag.pointer})")

    def _begin(self, loop: _Loop, carries: int) -> None:
        """Two slots a carry: one is read while the other is filled."""
        n = loop.number
        for k in range(carries):
            now, after = (f"arena + {loop.scratch + s}" for s in loop.frame.slots[k])
            self.line(f"char *now{n}_{k} = {now}, *next{n}_{k} = {after}; (void)next{n}_{k};")
        self.copies(loop.step, [(loop.operand(k), loop.slot(k, "now")) for k in range(carries)])

    def _hand_on(self, loop: _Loop, body: Plan, places: Addresses, carries: int, more: list[tuple[Operand, Operand]]) -> None:
        """Carries that the body changed where they lie stay there; the others go to the slot that nobody reads."""
        own = [n.refs[0] for n in body.graph.inputs[:carries]]
        moved = [k for k, r in enumerate(body.graph.outputs[:carries]) if body.places[r] != body.places[own[k]]]
        self.copies(loop.step, [*((operand(body, body.graph.outputs[k], places), loop.slot(k, "next")) for k in moved), *more])
        n = loop.number
        for k in moved:
            self.line(f"{{ char *const last = now{n}_{k}; now{n}_{k} = next{n}_{k}; next{n}_{k} = last; }}")

    def _passed(self, loop: _Loop, which: int, mapped: int = 0) -> Addresses:
        """Where the buffers of one of the loop's graphs begin.  Only threads that have a task look at addresses: one that is behind may come
        when the memory they are kept in is gone."""
        body, carries = loop.frame.bodies[which], len(loop.frame.slots)
        given, params = dict[int, str](), dict[int, int]()
        for k, leaf in enumerate(body.graph.inputs):
            place = body.places[leaf.refs[0]]
            given[place.buffer] = (f"now{loop.number}_{k}" if k < carries else loop.part(k, place.layout.offset) if k < carries + mapped else loop.base(loop.first + k))
            if k >= carries + mapped and (param := loop.operand(loop.first + k).param) is not None:
                params[place.buffer] = param
        for n in body.graph:
            if n.op is Op.CONST:
                given[body.places[n.refs[0]].buffer] = self.unit.literal(n.attrs.value)  # type: ignore[attr-defined]
        return Addresses(given, loop.scratch + loop.frame.arenas[which], params)


@dataclass(frozen=True)
class _Loop:
    """One loop or branch: `number` keeps its names in C apart from those of others."""

    plan: Plan
    step: Step
    frame: Frame
    at: Addresses
    number: int

    @property
    def first(self) -> int:
        """Inputs of the node that its graphs do not see."""
        return int(self.step.node.op is Op.COND)

    @property
    def scratch(self) -> int:
        """Where its memory begins in the whole arena."""
        return self.at.arena + self.plan.buffers[self.step.scratch].offset if self.step.scratch >= 0 else 0

    @property
    def outs(self) -> tuple[Operand, ...]:
        return tuple(operand(self.plan, r, self.at) for r in self.step.node.refs)

    def operand(self, k: int) -> Operand:
        return operand(self.plan, self.step.node.inputs[k], self.at)

    def base(self, k: int) -> str:
        return self.at.of(self.plan, self.plan.places[self.step.node.inputs[k]].buffer)

    def part(self, k: int, inside: Dim) -> str:
        """The lowest byte of a mapped input's slice, whose first element is `inside` elements further."""
        x = self.operand(k)
        return f"(char *)({x.pointer}) + (i{self.number}*{ctext.dim(x.layout.strides[0])} - {ctext.dim(inside)})*{x.dtype.nbytes}"

    def slot(self, k: int, name: str) -> Operand:
        """A carry in one of its slots."""
        r: Ref = self.step.node.refs[k]
        t = self.plan.graph.type(r)
        return Operand(r, t.shape, t.dtype, row_major(t.shape), f"({ctext.storage(t.dtype)} *)({name}{self.number}_{k})")


def _slice(whole: Operand, index: str) -> Operand:
    """Slice `index` of a result along axis 0."""
    return Operand(whole.ref, whole.shape[1:], whole.dtype, Layout(whole.layout.strides[1:]), f"{whole.pointer} + {index}*{ctext.dim(whole.layout.strides[0])}")


def _nbytes(o: Operand) -> int:
    total = o.dtype.nbytes
    for d in o.shape:
        total *= upper(d)
    return total


def write(unit: Unit, step: Step) -> tuple[str, str]:
    """A name and the C of a step of the program that is a loop or a branch.  When all its kernels are single tasks, one thread runs it."""
    w = _Writer(unit, depth=1)
    w.control(unit.plan, step, unit.at)
    alone = " && ".join(w.alone) or "1"
    return function_name(step.node), "\n".join(["{", f"  RLX_LOOP_BEGIN({alone})", *w.lines, "  RLX_LOOP_END", "}"])

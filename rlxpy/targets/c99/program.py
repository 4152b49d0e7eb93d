"""A plan as C99: each distinct kernel once, and the calls that a run makes, loops and branches around theirs."""
from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, cast

from rlxpy.backends.cpu import ctext
from rlxpy.backends.cpu.kernel import Operand, Site
from rlxpy.backends.cpu.unit import function_name, unused
from rlxpy.extend.plan import Frame, Plan, Space, Step
from rlxpy.frozen import dataclass
from rlxpy.ir.dims import Dim
from rlxpy.ir.graph import Node, Ref
from rlxpy.ir.layout import Layout, row_major
from rlxpy.ir.op import Op
from rlxpy.ir.text import show_node
from rlxpy.targets.c99.move import copied
from rlxpy.targets.c99.text import Emitter, Function, indented

EXTREMES = frozenset({Op.MAX, Op.MIN, Op.ARGMAX, Op.ARGMIN})


@dataclass(frozen=True)
class Places:
    """Where buffers begin: those of `given` at a typed pointer, the arena's `arena` bytes into the model's memory."""

    given: Mapping[int, str]
    arena: int = 0

    def base(self, plan: Plan, index: int, c: str) -> str:
        """C for a buffer's first element."""
        if index in self.given:
            return self.given[index]
        b = plan.buffers[index]
        return f"({c} *)(arena + {self.arena + b.offset})" if b.space is Space.ARENA else f"({c} *)(state + {b.offset})"

    def operand(self, plan: Plan, ref: Ref) -> Operand:
        place, t = plan.places[ref], plan.graph.type(ref)
        pointer = self.base(plan, place.buffer, ctext.storage(t.dtype))
        if place.layout.offset != 0:
            pointer = f"{pointer} + {ctext.dim(place.layout.offset)}"
        return Operand(ref, t.shape, t.dtype, place.layout, pointer)

    def site(self, plan: Plan, step: Step) -> Site:
        ins, outs = (tuple(self.operand(plan, r) for r in refs) for refs in (step.node.inputs, step.node.refs))
        return Site(step.node, ins, outs, "" if step.scratch < 0 else self.base(plan, step.scratch, "u8"))


@dataclass
class Writer:
    """`functions` and `failures` (what each of the codes that a run returns means) grow while steps are written; `literal` names a constant."""

    literal: Callable[[Node], str]
    functions: dict[str, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    _names: dict[tuple[Any, ...], str] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)
    _loops: int = 0

    def steps(self, plan: Plan, places: Places) -> list[str]:
        lines: list[str] = []
        for step in plan.steps:
            lines.append(f"/* {ctext.comment(show_node(step.node))}{f'  {ctext.comment(step.node.where)}' if step.node.where else ''} */")
            if step.frame is not None:
                self._loops += 1
                lines += _Loop(self, plan, step, step.frame, places, self._loops).lines()
            else:
                assert step.choice.row is not None, "every other step has a row"
                for made in cast(Emitter, step.choice.row.launch)(places.site(plan, step)):
                    lines.append(self.call(made, step.node))
        return lines

    def call(self, f: Function, node: Node) -> str:
        key = (f.params, f.body)
        sizes = sorted(set(re.findall(r"\bdim_\w+", "\n".join(f.body))))
        if key not in self._names:
            name = self._names[key] = unused(function_name(node), self._taken)
            params = ", ".join((*(f"i64 {s}" for s in sizes), *f.params)) or "void"
            body = "\n".join(indented(f.body))
            if f.needs:
                self.functions[f.needs] = f.needs
            self.functions[name] = f"/* {ctext.comment(show_node(node))} */\nstatic {'int' if f.fails else 'void'} {name}({params}) {{\n{body}\n}}\n"
        call = f"{self._names[key]}({', '.join((*sizes, *f.args))})"
        return f"if ({call}) return {self.failure(node)};" if f.fails else f"{call};"

    def failure(self, node: Node) -> int:
        what = "nothing has no greatest or least" if "arg" in node.label or node.label[0] == "m" else "an index or a position is outside its axis"
        self.failures.append(f"{node.label}: {what}" + (f", at {node.where}" if node.where else ""))
        return len(self.failures)

    def copy(self, a: Operand, b: Operand, node: Node) -> str:
        return self.call(copied(a, b, node), node)


@dataclass(frozen=True)
class _Loop:
    """One scan, while or cond; `number` keeps its names apart from those of others."""

    writer: Writer
    plan: Plan
    step: Step
    frame: Frame
    places: Places
    number: int

    def lines(self) -> list[str]:
        return {Op.SCAN: self._scan, Op.WHILE: self._while, Op.COND: self._cond}[self.step.node.op]()

    def _scan(self) -> list[str]:
        a: Any = self.step.node.attrs
        (body,), n, length = self.frame.bodies, self.number, ctext.dim(a.length)
        places = self._passed(0, a.mapped)
        slices = [(places.operand(body, r), _slice(out, f"i{n}")) for r, out in zip(body.graph.outputs[a.carries:], self._outs[a.carries:], strict=True)]
        inside = [*self.writer.steps(body, places), *self._hand_on(body, places, a.carries, slices)]
        index = [f"const i64 i{n} = {f'{length} - 1 - s{n}' if a.reverse else f's{n}'};"] if re.search(rf"\bi{n}\b", "\n".join(inside)) else []
        return self._braced(a.carries, inside, [f"for (i64 s{n} = 0; s{n} < {length}; s{n}++) {{", *indented([*index, *inside]), "}"])

    def _while(self) -> list[str]:
        (asks, does), count = self.frame.bodies, len(self._outs)
        asking, doing = self._passed(0), self._passed(1)
        inside = [*self.writer.steps(asks, asking), f"if (!{self._flag(asking.operand(asks, asks.graph.outputs[0]))}) break;",
                  *self.writer.steps(does, doing), *self._hand_on(does, doing, count, [])]
        return self._braced(count, inside, ["for (;;) {", *indented(inside), "}"])

    def _cond(self) -> list[str]:
        lines: list[str] = []
        for k, (head, body) in enumerate(zip((f"if ({self._flag(self._operand(0))}) {{", "} else {"), self.frame.bodies, strict=True)):
            places = self._passed(k)
            ends = [self.writer.copy(places.operand(body, r), out, self.step.node) for r, out in zip(body.graph.outputs, self._outs, strict=True)]
            lines += [head, *indented([*self.writer.steps(body, places), *ends])]
        return [*lines, "}"]

    @staticmethod
    def _flag(o: Operand) -> str:
        return f"*({o.pointer})"

    def _braced(self, carries: int, inside: list[str], loop: list[str]) -> list[str]:
        """Two slots a carry: one is read while the other is filled."""
        n, text = self.number, "\n".join(inside)
        slots = [f"unsigned char *now{n}_{k} = arena + {self._scratch + self.frame.slots[k][0]};" for k in range(carries)]
        slots += [f"unsigned char *next{n}_{k} = arena + {self._scratch + self.frame.slots[k][1]};" for k in range(carries) if f"next{n}_{k}" in text]
        begin = [self.writer.copy(self._operand(k), self._slot(k, "now"), self.step.node) for k in range(carries)]
        end = [self.writer.copy(self._slot(k, "now"), self._outs[k], self.step.node) for k in range(carries)]
        return ["{", *indented([*slots, *begin, *loop, *end]), "}"]

    def _hand_on(self, body: Plan, places: Places, carries: int, more: Sequence[tuple[Operand, Operand]]) -> list[str]:
        """Carries that the body changed where they lie stay there; the others go to the slot that nobody reads."""
        own, n = [x.refs[0] for x in body.graph.inputs[:carries]], self.number
        moved = [k for k, r in enumerate(body.graph.outputs[:carries]) if body.places[r] != body.places[own[k]]]
        copies = [*((places.operand(body, body.graph.outputs[k]), self._slot(k, "next")) for k in moved), *more]
        return [*(self.writer.copy(a, b, self.step.node) for a, b in copies),
                *(f"{{ unsigned char *const last = now{n}_{k}; now{n}_{k} = next{n}_{k}; next{n}_{k} = last; }}" for k in moved)]

    def _passed(self, which: int, mapped: int = 0) -> Places:
        """Where the buffers of one of the graphs begin."""
        body, carries, first = self.frame.bodies[which], len(self.frame.slots), int(self.step.node.op is Op.COND)
        given: dict[int, str] = {}
        for k, leaf in enumerate(body.graph.inputs):
            place, x = body.places[leaf.refs[0]], self._operand(first + k)
            if k < carries:
                given[place.buffer] = f"({x.c} *)now{self.number}_{k}"
            elif k < carries + mapped:
                given[place.buffer] = f"{x.pointer} + (i{self.number}*{ctext.dim(x.layout.strides[0])} - {ctext.dim(place.layout.offset)})"
            else:
                given[place.buffer] = self.places.base(self.plan, self.plan.places[x.ref].buffer, x.c)
        given |= {body.places[n.refs[0]].buffer: self.writer.literal(n) for n in body.graph if n.op is Op.CONST}
        return Places(given, self._scratch + self.frame.arenas[which])

    @property
    def _scratch(self) -> int:
        return self.places.arena + self.plan.buffers[self.step.scratch].offset if self.step.scratch >= 0 else 0

    @property
    def _outs(self) -> tuple[Operand, ...]:
        return tuple(self.places.operand(self.plan, r) for r in self.step.node.refs)

    def _operand(self, k: int) -> Operand:
        return self.places.operand(self.plan, self.step.node.inputs[k])

    def _slot(self, k: int, which: str) -> Operand:
        out = self._outs[k]
        return Operand(out.ref, out.shape, out.dtype, row_major(out.shape), f"({out.c} *){which}{self.number}_{k}")


def _slice(o: Operand, index: str) -> Operand:
    """One slice along axis 0."""
    inside: Dim = o.layout.offset
    return Operand(o.ref, o.shape[1:], o.dtype, Layout(o.layout.strides[1:], inside), f"{o.pointer} + {index}*{ctext.dim(o.layout.strides[0])}")

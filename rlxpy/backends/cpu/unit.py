"""What one C translation unit gathers while its steps are written: each distinct kernel once, weights to lay out anew, literals."""
from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import field, replace
from itertools import chain, count
from typing import Any

from rlxpy.backends.cpu import ctext
from rlxpy.backends.cpu.kernel import Abreast, Addresses, Emitter, Kernel, site_of
from rlxpy.backends.cpu.packing import Packed
from rlxpy.extend.hooks import ask
from rlxpy.extend.plan import Plan, Step
from rlxpy.frozen import dataclass
from rlxpy.ir.constant import Constant
from rlxpy.ir.graph import Graph, Node
from rlxpy.ir.op import LEAVES, Op
from rlxpy.ir.text import show_node

LONGEST_NAME = 60


@dataclass(frozen=True)
class Call:
    """One call of a C function for its tasks t0..t1, as text, and C for how many tasks there are."""

    function: str
    text: str
    tasks: str


@dataclass
class Unit:
    """`at` is where the plan's buffers begin; `names` is the order of sizes; `emitter` gives a step's emitter, None for the host tier."""

    plan: Plan
    at: Addresses
    names: tuple[str, ...]
    emitter: Callable[[Step], Emitter | None]
    functions: dict[str, str] = field(default_factory=dict)
    literals: dict[Constant, str] = field(default_factory=dict)
    shared: dict[str, None] = field(default_factory=dict)  # C functions that kernels call
    packs: dict[Packed, int] = field(default_factory=dict)  # each with its number
    inner: list[tuple[Graph, Node]] = field(default_factory=list)  # nodes of loops, numbered after the plan's own: what an error names
    _kernels: dict[tuple[Any, ...], str] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)

    def calls(self, plan: Plan, step: Step, at: Addresses) -> list[Call]:
        """Of a step with an emitter: one for each stage."""
        emit = self.emitter(step)
        assert emit is not None, "the host tier is no part of the unit"
        site = site_of(plan, step, at)
        if plan is not self.plan:
            self.inner.append((plan.graph, step.node))
            site = replace(site, node=replace(step.node, id=len(self.plan.graph) + len(self.inner) - 1))
        made = ask(step.choice.name, "emitter", emit, site)
        guard = ctext.condition(step.when, step.unless)
        calls = [self.call(self.abreast(k, step) if isinstance(k, Abreast) else k, step) for k in (made if isinstance(made, tuple) else (made,))]
        return [replace(c, tasks=f"{guard} ? ({c.tasks}) : 0") for c in calls] if guard else calls

    def call(self, k: Kernel, step: Step) -> Call:
        name = self.named(k, step.node, step)
        return Call(name, f"{name}(size, {', '.join(map(self._argument, k.call))}, t0, t1)", k.tasks)

    def named(self, k: Kernel, node: Node, step: Step) -> str:
        """The C function of a kernel that computes a node, or a part of one."""
        self.shared |= dict.fromkeys(k.needs)
        key = (k.params, k.body, k.sizes)
        if key not in self._kernels:
            name = self._kernels[key] = unused(function_name(node), self._taken)
            self.functions[name] = self._function(name, k, f"{step.choice.name}: {show_node(node)}")
        return self._kernels[key]

    def abreast(self, several: Abreast, step: Step) -> Kernel:
        """One kernel that has the tasks of all: those of one after those of the other."""
        params, lines = dict[tuple[str, str | Packed], str](), ["i64 done = 0;"]
        for k, node in zip(several.kernels, several.nodes, strict=True):
            types = [p.rpartition(" ")[0] for p in k.params]
            given = [params.setdefault((t, a), f"p{len(params)}") for t, a in zip(types, k.call, strict=True)]
            lines.append(f"RLX_PART({k.tasks}, {self.named(k, node, step)}(size, {', '.join(given)}, t0, t1))")
        sizes = frozenset(s for k in several.kernels for s in k.sizes)
        return Kernel(tuple(f"{t} {name}" for (t, _), name in params.items()), "\n".join(lines), tuple(a for _, a in params), " + ".join(f"({k.tasks})" for k in several.kernels), sizes)

    def literal(self, value: Constant) -> str:
        """C name of a constant's bytes."""
        return self.literals.setdefault(value, f"rlx_literal{len(self.literals)}")

    def _function(self, name: str, k: Kernel, title: str) -> str:
        sizes = "".join(f"  const i64 {ctext.size_name(n)} = size[{self.names.index(n)}];\n" for n in sorted(k.sizes))
        body = "\n".join("  " + line for line in k.body.splitlines())
        return (f"/* {ctext.comment(title)} */\nstatic RLX_NOINLINE void {name}(const i64 *size, {', '.join(k.params)}, i64 t0, i64 t1) {{\n"
                f"  (void)size;\n{sizes}{body}\n}}\n")

    def _argument(self, a: str | Packed) -> str:
        if isinstance(a, str):
            return a
        number = self.packs.setdefault(a, len(self.packs))
        return f"(const {a.form.c} *)fixed[{len(self.plan.buffers) + number}]"

    @property
    def constants(self) -> list[str]:
        """Definitions of the literals."""
        return [f"/* {ctext.comment(str(value))} */\nstatic const u8 RLX_ALIGNED {name}[] = {{{', '.join(map(str, value.array.tobytes())) or '0'}}};\n"
                for value, name in self.literals.items()]


def function_name(node: Node) -> str:
    """What a kernel computes and how much of it, as a C identifier: matmul_add_gelu_Bx128x1536."""
    inside = [n for _, body in node.attrs.graphs() for n in body if n.op not in LEAVES]
    words = "_".join(n.op.text for n in inside) if node.op is Op.FUSED else node.label
    shape = "x".join(map(str, node.type.shape)) or "scalar"
    return f"{word(words)[:LONGEST_NAME].rstrip('_')}_{word(shape)}"


def unused(name: str, taken: set[str]) -> str:
    """The name, numbered if it is taken; from now on it is."""
    free = next(n for n in chain([name], (f"{name}_{k}" for k in count(2))) if n not in taken)
    taken.add(free)
    return free


def word(text: str) -> str:
    return re.sub(r"\W+", "_", text, flags=re.ASCII)

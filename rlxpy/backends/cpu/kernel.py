"""What a kernel emitter is given, and what it gives: the text of one C function and how to call it."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from rlxpy.backends.cpu import ctext
from rlxpy.backends.cpu.packing import Packed
from rlxpy.extend.plan import Plan, Space, Step
from rlxpy.frozen import dataclass
from rlxpy.ir.dims import Dim, Shape, product
from rlxpy.ir.dtypes import DType
from rlxpy.ir.graph import Node, Ref
from rlxpy.ir.layout import Layout, row_major
from rlxpy.ir.op import Op


@dataclass(frozen=True)
class Operand:
    """One value as a kernel sees it.  `pointer` is C for its first element at the call; strides and shape may be symbolic.

    param: the plan's buffer that holds it, when nothing but set_param changes it.
    size: the one number that it is, when sizes alone say so.  steps: elements between the places where its buffer may begin."""

    ref: Ref
    shape: Shape
    dtype: DType
    layout: Layout
    pointer: str
    param: int | None = None
    size: Dim | None = None
    steps: tuple[Dim, ...] = ()

    @property
    def c(self) -> str:
        return ctext.storage(self.dtype)


@dataclass(frozen=True)
class Site:
    """One node of a plan, ready to be written as C."""

    node: Node
    ins: tuple[Operand, ...]
    outs: tuple[Operand, ...]
    scratch: str = ""  # C for the memory that the row's scratch_nbytes asked for, shared by all tasks and stages of the step
    scratch_nbytes: int = 0
    params: Mapping[str, Any] = field(default_factory=dict)  # what selection found: derived parameters, a point of the tunables

    @property
    def out(self) -> Operand:
        return self.outs[0]


@dataclass(frozen=True)
class Kernel:
    """`body` is the inside of a function whose parameters are `params`; equal bodies and parameters are one function.

    tasks: C expression of how many tasks a call has; the body handles t0 <= t < t1.  sizes: symbols it mentions."""

    params: tuple[str, ...]
    body: str
    call: tuple[str | Packed, ...]
    tasks: str
    sizes: frozenset[str] = frozenset()
    needs: tuple[str, ...] = ()  # C functions that it calls; a unit has each text once, in the order of first need


@dataclass(frozen=True)
class Abreast:
    """Kernels that need nothing of one another, as one stage; `nodes` are what they compute."""

    kernels: tuple[Kernel, ...]
    nodes: tuple[Node, ...]


NODE = "i64 node"  # the parameter that says which node to name when an index is out of range

Emitter = Callable[[Site], Kernel | tuple[Kernel | Abreast, ...]]  # several: stages, each begun when the one before is done


def symbols_used(site: Site, *more: Dim) -> frozenset[str]:
    """Symbols that the operands' shapes and walks, or other sizes, mention."""
    dims: list[Dim] = list(more)
    for o in (*site.ins, *site.outs):
        dims += [*o.shape, *o.layout.strides]
    return frozenset(ctext.names(*dims))


def results(plan: Plan) -> tuple[int, ...]:
    """Of each output, the buffer that the caller's array may stand for: one that the output fills, in order; -1 where there is none."""
    owner: dict[int, Shape] = {}
    for r, place in plan.places.items():
        owner.setdefault(place.buffer, plan.graph.type(r).shape)
    outputs = [(plan.places[r], plan.graph.type(r).shape) for r in plan.graph.outputs]
    return tuple(p.buffer if plan.buffers[p.buffer].space is Space.ARENA and p.layout == row_major(shape) and product(owner[p.buffer]) == product(shape) else -1
                 for p, shape in outputs)


def lent(plan: Plan) -> tuple[int, ...]:
    """Buffers that may lie in the caller's own arrays: inputs in their order, then results."""
    return tuple(dict.fromkeys([*(plan.places[n.refs[0]].buffer for n in plan.graph.inputs), *(b for b in results(plan) if b >= 0)]))


@dataclass(frozen=True)
class Addresses:
    """Where the buffers of a plan begin: arena buffers `arena` bytes into the run's memory, those of `given` where their C text says.

    params: of a loop's graph, the buffers that are weights, and which of the whole plan's buffers they are; None where all are the plan's own."""

    given: Mapping[int, str]
    arena: int = 0
    params: Mapping[int, int] | None = None

    def of(self, plan: Plan, index: int) -> str:
        """C for the first byte of a buffer."""
        if index in self.given:
            return self.given[index]
        b = plan.buffers[index]
        return {Space.ARENA: f"arena + {self.arena + b.offset}", Space.STATE: f"state + {b.offset}", Space.PARAM: f"fixed[{index}]", Space.CONST: f"fixed[{index}]"}[b.space]

    def param(self, plan: Plan, index: int) -> int | None:
        """The buffer of the whole plan, when nothing but set_param changes it."""
        if self.params is not None:
            return self.params.get(index)
        return index if plan.buffers[index].space in (Space.PARAM, Space.CONST) else None


def operand(plan: Plan, ref: Ref, at: Addresses) -> Operand:
    place, t = plan.places[ref], plan.graph.type(ref)
    pointer = f"({ctext.storage(t.dtype)} *)({at.of(plan, place.buffer)})"
    if place.layout.offset != 0:
        pointer = f"{pointer} + {ctext.dim(place.layout.offset)}"
    made = plan.graph[ref]
    size = made.attrs.dim if made.op is Op.SIZE else None  # type: ignore[attr-defined]
    return Operand(ref, t.shape, t.dtype, place.layout, pointer, at.param(plan, place.buffer), size)


def site_of(plan: Plan, step: Step, at: Addresses) -> Site:
    ins, outs = (tuple(operand(plan, r, at) for r in refs) for refs in (step.node.inputs, step.node.refs))
    params = dict(step.choice.params)
    if step.scratch < 0:
        return Site(step.node, ins, outs, params=params)
    return Site(step.node, ins, outs, at.of(plan, step.scratch), plan.buffers[step.scratch].nbytes, params)

"""What a kernel emitter is given, and what it gives: the text of one C function and how to call it."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rlxpy.backends.cpu import ctext
from rlxpy.extend.plan import Plan, Space, Step
from rlxpy.ir.dims import Dim, Shape
from rlxpy.ir.dtypes import DType
from rlxpy.ir.graph import Node, Ref
from rlxpy.ir.layout import Layout


@dataclass(frozen=True)
class Operand:
    """One value as a kernel sees it.  `pointer` is C for its first element at the call; strides and shape may be symbolic."""

    ref: Ref
    shape: Shape
    dtype: DType
    layout: Layout
    pointer: str

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

    @property
    def out(self) -> Operand:
        return self.outs[0]


@dataclass(frozen=True)
class Packed:
    """A weight [depth, columns] (a view of the param buffer `buffer`) laid out anew at load: [columns / width][depth][width], zeros at the end."""

    buffer: int
    depth: int
    columns: int
    strides: tuple[int, int]
    offset: int
    width: int


@dataclass(frozen=True)
class Kernel:
    """`body` is the inside of a function whose parameters are `params`; equal bodies and parameters are one function.

    tasks: C expression of how many tasks a call has; the body handles t0 <= t < t1.  sizes: symbols it mentions."""

    params: tuple[str, ...]
    body: str
    call: tuple[str | Packed, ...]
    tasks: str
    sizes: frozenset[str] = frozenset()
    needs: frozenset[str] = frozenset()  # encodings whose decoder it calls


Emitter = Callable[[Site], Kernel | tuple[Kernel, ...]]  # several: stages, each begun when the one before is done


def symbols_used(site: Site, *more: Dim) -> frozenset[str]:
    """Symbols that the operands' shapes and walks, or other sizes, mention."""
    dims: list[Dim] = list(more)
    for o in (*site.ins, *site.outs):
        dims += [*o.shape, *o.layout.strides]
    return frozenset(ctext.names(*dims))


def operand(plan: Plan, ref: Ref) -> Operand:
    place, t = plan.places[ref], plan.graph.type(ref)
    buffer = plan.buffers[place.buffer]
    base = {Space.ARENA: f"arena + {buffer.offset}", Space.INPUT: f"input + {buffer.offset}", Space.STATE: f"state + {buffer.offset}",
            Space.PARAM: f"fixed[{place.buffer}]", Space.CONST: f"fixed[{place.buffer}]"}[buffer.space]
    pointer = f"({ctext.storage(t.dtype)} *)({base})"
    if place.layout.offset != 0:
        pointer = f"{pointer} + {ctext.dim(place.layout.offset)}"
    return Operand(ref, t.shape, t.dtype, place.layout, pointer)


def site_of(plan: Plan, step: Step) -> Site:
    scratch = f"arena + {plan.buffers[step.scratch].offset}" if step.scratch >= 0 else ""
    return Site(step.node, tuple(operand(plan, r) for r in step.node.inputs), tuple(operand(plan, r) for r in step.node.refs), scratch)

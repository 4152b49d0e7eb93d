"""Loop nests: which axes of an elementwise walk can be one, and how each operand steps through them."""
from __future__ import annotations

from rlxpy.backends.cpu import ctext
from rlxpy.frozen import dataclass
from rlxpy.ir.dims import Dim, Shape, product, upper
from rlxpy.ir.layout import Layout

TASK_NUMEL = 1 << 13  # elements a task handles: enough to hide its cost, small enough to share among threads


def offset(strides: Shape, name: str = "i") -> str:
    """C expression of the place that indices i0, i1, .. lead to."""
    return " + ".join(index(s, f"{name}{k}") for k, s in enumerate(strides) if s != 0) or "0"


def index(stride: Dim, name: str = "j") -> str:
    """C expression of the place that one index leads to."""
    return "0" if stride == 0 else name if stride == 1 else f"{name}*{ctext.dim(stride)}"


@dataclass(frozen=True)
class Nest:
    """sizes of the loops, outermost first, and for every operand its strides along them; broadcast axes have stride 0."""

    sizes: Shape
    strides: tuple[Shape, ...]

    @property
    def inner(self) -> Dim:
        return self.sizes[-1]

    @property
    def outer(self) -> Shape:
        return self.sizes[:-1]

    def offset(self, operand: int) -> str:
        """C expression of an operand's offset at outer indices i0, i1, .."""
        return offset(self.strides[operand][:-1])

    def step(self, operand: int) -> str:
        """Index of an operand in the inner loop over j."""
        return index(self.strides[operand][-1])


def aligned(shape: Shape, layout: Layout, to: Shape) -> Shape:
    """Strides of a value seen at a larger shape: axes it stretches over have stride 0."""
    lead = len(to) - len(shape)
    return (*(0,) * lead, *(0 if d == 1 and t != 1 else s for d, s, t in zip(shape, layout.strides, to[lead:], strict=True)))


def nest(shape: Shape, operands: tuple[Shape, ...]) -> Nest:
    """Axes of size 1 dropped, neighbours merged wherever every operand walks them as one."""
    sizes: list[Dim] = []
    strides: list[list[Dim]] = [[] for _ in operands]
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        here = [o[axis] for o in operands]
        if sizes and all(s[-1] == h * size for s, h in zip(strides, here, strict=True)):
            sizes[-1] = sizes[-1] * size
            for s, h in zip(strides, here, strict=True):
                s[-1] = h
        else:
            sizes.append(size)
            for s, h in zip(strides, here, strict=True):
                s.append(h)
    if not sizes:
        return Nest((1,), tuple((0,) for _ in operands))
    return Nest(tuple(sizes), tuple(map(tuple, strides)))


@dataclass(frozen=True)
class Tasks:
    """How a nest's rows are dealt out: `rows` rows a task, or blocks of a row that is itself long."""

    count: str      # C expression
    rows: int       # outer rows of one task
    block: int      # inner elements of one task when a row is split, 0 otherwise


def tasks(n: Nest) -> Tasks:
    outer = product(n.outer)
    longest = max(upper(n.inner), 1)
    if longest >= 2 * TASK_NUMEL and outer == 1:
        return Tasks(f"rlx_ceil_quotient({ctext.dim(n.inner)}, {TASK_NUMEL})", 1, TASK_NUMEL)
    rows = max(1, TASK_NUMEL // longest)
    return Tasks(f"rlx_ceil_quotient({ctext.dim(outer)}, {rows})", rows, 0)

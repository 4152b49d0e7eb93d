"""The lines of a value along one axis: how a kernel walks from line to line, and how lines are dealt out to tasks."""
from __future__ import annotations

from rlxpy.backends.cpu import ctext
from rlxpy.backends.cpu.elementwise import indent, unravel
from rlxpy.backends.cpu.kernel import Operand
from rlxpy.backends.cpu.loops import TASK_NUMEL, Nest, nest
from rlxpy.frozen import dataclass
from rlxpy.ir.dims import Dim, Shape, product, upper


@dataclass(frozen=True)
class Lines:
    """`length` elements a line of the first operand; `steps`: from element to element of each operand's line; `walks`: over the other
    axes, whose innermost one goes from a line to its neighbour."""

    length: Dim
    steps: Shape
    walks: Nest

    @property
    def lanes(self) -> Shape:
        """Each operand's stride from a line to its neighbour."""
        return tuple(s[-1] for s in self.walks.strides)

    def span(self, lanes: int) -> int:
        """Neighbouring lines that one task handles: a multiple of `lanes`."""
        return -(-max(1, TASK_NUMEL // max(1, upper(self.length))) // lanes) * lanes

    def count(self, lanes: int) -> str:
        """C expression of how many tasks there are."""
        return f"{ctext.dim(product(self.walks.outer))}*rlx_ceil_quotient({ctext.dim(self.walks.inner)}, {self.span(lanes)})"

    def head(self, operands: tuple[Operand, ...], names: tuple[str, ...], lanes: int) -> list[str]:
        """The opening of a loop over tasks: a task's lines are first <= j < last, and line0, line1, .. the operands' places of line 0."""
        span, inner = self.span(lanes), ctext.dim(self.walks.inner)
        outputs = [f"{'const ' if name.startswith('x') else ''}{o.c} *line{k} = {name} + {self.walks.offset(k)};"
                   for k, (o, name) in enumerate(zip(operands, names, strict=True))]
        return [f"const i64 lines = {inner}, blocks = rlx_ceil_quotient(lines, {span});", "for (i64 t = t0; t < t1; t++) {",
                f"  const i64 r = t / blocks, first = t % blocks*{span}, last = rlx_least(first + {span}, lines);", "  (void)r;",
                *indent(unravel(self.walks.outer)), *indent(outputs)]


def lines_of(axis: int, *operands: Operand) -> Lines:
    """Along `axis` of the first operand; the others have the same axes, or lack this one."""
    first = operands[0]
    a, rank = axis % len(first.shape), len(first.shape)
    steps = tuple(o.layout.strides[a] if len(o.shape) == rank else 0 for o in operands)
    return Lines(first.shape[a], steps, nest(without(first.shape, a), tuple(without(o.layout.strides, a) if len(o.shape) == rank else o.layout.strides for o in operands)))


def without(dims: Shape, axis: int) -> Shape:
    return (*dims[:axis], *dims[axis + 1:])

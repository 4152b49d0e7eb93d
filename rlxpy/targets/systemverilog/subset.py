"""What can become hardware: the ops, what each is in SystemVerilog, and every reason why a graph cannot."""
from __future__ import annotations

from collections.abc import Iterator, Mapping

from rlxpy.errors import LegaliseError
from rlxpy.ir.dims import SymDim
from rlxpy.ir.dtypes import DType
from rlxpy.ir.graph import Graph, Node
from rlxpy.ir.layout import row_major
from rlxpy.ir.op import Op
from rlxpy.ir.row import BITS
from rlxpy.ir.types import TensorType

MOST_ELEMENTS = 1 << 31  # addresses have 32 bits, and places beside a padded axis are negative
GREATER, LESS = "({0} > {1}) ? {0} : {1}", "({0} < {1}) ? {0} : {1}"

# Operands and result are variables of their ops' types.  Expressions keep to those widths and signs, so every one wraps as NumPy does.
EXPRESSIONS: Mapping[Op, str] = {
    Op.NEG: "-{0}", Op.ABS: "({0} < {zero}) ? -{0} : {0}", Op.SIGN: "({0} > {zero}) ? {one} : ({0} < {zero}) ? -{one} : {zero}", Op.SQUARE: "{0} * {0}",
    Op.RELU: "({0} > {zero}) ? {0} : {zero}", Op.LOGICAL_NOT: "!{0}", Op.BIT_NOT: "~{0}", Op.CAST: "{cast}",
    Op.ADD: "{0} + {1}", Op.SUB: "{0} - {1}", Op.MUL: "{0} * {1}", Op.MAXIMUM: GREATER, Op.MINIMUM: LESS,
    Op.EQ: "{0} == {1}", Op.NE: "{0} != {1}", Op.LT: "{0} < {1}", Op.LE: "{0} <= {1}", Op.GT: "{0} > {1}", Op.GE: "{0} >= {1}",
    Op.LOGICAL_AND: "{0} && {1}", Op.LOGICAL_OR: "{0} || {1}", Op.LOGICAL_XOR: "{0} != {1}", Op.BIT_AND: "{0} & {1}", Op.BIT_OR: "{0} | {1}", Op.BIT_XOR: "{0} ^ {1}",
    Op.SHIFT_LEFT: "{0} << {1}", Op.SHIFT_RIGHT: "{0} >>> {1}", Op.WHERE: "{0} ? {1} : {2}", Op.FMA: "{0} * {1} + {2}",
    Op.CLAMP: "({2} < {1}) ? {2} : ({0} < {1}) ? {1} : ({0} > {2}) ? {2} : {0}",
}
# How a nest's terms become one value, from what it had before and the next term.
FOLDS: Mapping[Op, str] = {
    Op.MATMUL: "{0} + {1}", Op.CONV: "{0} + {1}", Op.SUM: "{0} + {1}", Op.MAX: GREATER, Op.MIN: LESS, Op.MAX_POOL: GREATER, Op.PAD: "{1}",
}
VIEWS = frozenset({Op.RESHAPE, Op.EXPAND, Op.TRANSPOSE, Op.SLICE, Op.REVERSE, Op.WINDOWS})  # another walk over the same memory: no hardware but addresses
LEAVES = frozenset({Op.INPUT, Op.PARAM, Op.CONST})
SUBSET = frozenset(EXPRESSIONS) | frozenset(FOLDS) | VIEWS | LEAVES

INSTEAD: Mapping[Op, str] = {
    Op.FLOOR_DIV: "a divider is none of it; shift_right divides by a power of two, rounding down",
    Op.MOD: "a divider is none of it; bit_and gives the rest by a power of two",
    Op.STATE: "nothing lives from run to run; pass it as an input and return it",
}


def neutral(node: Node) -> int:
    """What a fold of nothing is, and what a place outside of its operand counts as."""
    low, high = node.type.dtype.range
    return {Op.MAX: low, Op.MAX_POOL: low, Op.MIN: high, Op.PAD: int(getattr(node.attrs, "value", 0))}.get(node.op, 0)


def widens(source: DType, to: DType) -> bool:
    """Whether every value of `source` is one of `to`, so that a cast is done by whoever reads."""
    return source.range[0] >= to.range[0] and source.range[1] <= to.range[1]


def literal(value: int, dtype: DType) -> str:
    """A number with the width and sign of its type."""
    if dtype.kind != "i":
        return f"{width(dtype)}'d{value}"
    return f"{dtype.bits}'sh{1 << (dtype.bits - 1):x}" if value == dtype.range[0] else f"{'-' * (value < 0)}{dtype.bits}'sd{abs(value)}"


def converted(text: str, source: DType, to: DType) -> str:
    """An integer to another width: extended by its own sign, or cut."""
    return text if width(source) == width(to) else f"{width(to)}'({text})"


def width(dtype: DType) -> int:
    """Bits of one element in a memory."""
    return 1 if dtype is DType.BOOL else dtype.bits


def check(graph: Graph) -> None:
    """Raises LegaliseError with every reason at once."""
    lines = [f"{n.label}{f' {n.name!r}' * bool(n.name)} : {n.type}{f' at {n.where}' * bool(n.where)}: {why}" for n in graph for why in reasons(n)]
    if lines:
        where = next(n.where for n in graph if any(reasons(n)))
        raise LegaliseError(f"{len(lines)} reason{'s' * (len(lines) > 1)} why {graph.name!r} cannot become SystemVerilog", where=where, why="\n    ".join(lines),
                            fix="cast to integers before, or split the graph; the subset is " + ", ".join(sorted(op.text for op in SUBSET)))


def reasons(node: Node) -> Iterator[str]:
    """What keeps one node out of the subset."""
    if node.op not in SUBSET:
        yield INSTEAD.get(node.op, "no part of the integer subset")
    for t in node.types:
        yield from _type_reasons(t)
    if node.op is Op.PAD and not any(_type_reasons(node.type)) and not _holds(node.type.dtype, getattr(node.attrs, "value", 0)):
        yield f"pads with {getattr(node.attrs, 'value', 0)}, which is no {node.type.dtype}"


def _type_reasons(t: TensorType) -> Iterator[str]:
    if t.dtype not in BITS:
        yield f"{t.dtype} is neither bool nor an integer of 8 bits or more"
    if any(isinstance(d, SymDim) for d in t.shape):
        yield "hardware has one size, this one is symbolic"
    elif not 0 < elements(t) < MOST_ELEMENTS:
        yield f"it has {elements(t)} elements; a memory holds 1 to {MOST_ELEMENTS - 1}"


def _holds(dtype: DType, value: float) -> bool:
    return float(value).is_integer() and dtype.range[0] <= value <= dtype.range[1]


def elements(t: TensorType) -> int:
    """Of a type without symbols."""
    return int(t.numel)


def lies_whole(strides: tuple[int, ...], offset: int, t: TensorType, depth: int) -> bool:
    """Whether a walk is the whole memory in order."""
    return offset == 0 and depth == elements(t) and all(s == w or d == 1 for d, s, w in zip(t.shape, strides, row_major(t.shape).strides, strict=True))

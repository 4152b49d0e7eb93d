"""Pieces of C99: typed expressions, literals, loops, and the function that a kernel becomes."""
from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlxpy.backends.cpu import ctext, scalar
from rlxpy.backends.cpu.kernel import Operand, Site
from rlxpy.backends.cpu.loops import offset
from rlxpy.frozen import dataclass
from rlxpy.ir.dims import Shape
from rlxpy.ir.dtypes import DType
from rlxpy.ir.graph import Graph, Node, Ref
from rlxpy.ir.op import Op

# functions of <math.h> by the name that the scalar column has for them; f32 has those with an f behind
LIBRARY = {"abs": "fabs", **{name: name for name in (
    "exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "erf", "floor", "ceil", "trunc",
    "rint", "pow")}}
WRAPS = frozenset({Op.ADD, Op.SUB, Op.MUL, Op.NEG, Op.SQUARE, Op.FMA})  # of signed integers beyond their range, where C says nothing


@dataclass(frozen=True)
class Function:
    """One C function: `body` with `params`, called with `args`.  fails: it returns nonzero when an index is outside its axis.

    needs: C text that stands before it, once."""

    params: tuple[str, ...]
    args: tuple[str, ...]
    body: tuple[str, ...]
    fails: bool = False
    needs: str = ""


Emitter = Callable[[Site], tuple[Function, ...]]


def function(site: Site, body: Sequence[str], *, fails: bool = False, work: str = "", needs: str = "") -> Function:
    """Operands are x0, x1, .. and y, or y0, y1, ..; `work` is the C type of the scratch memory.  Only what the body mentions is passed."""
    text = "\n".join(body)
    outs = ("y",) if len(site.outs) == 1 else tuple(f"y{k}" for k in range(len(site.outs)))
    every = [(f"const {o.c} *", f"x{k}", o.pointer) for k, o in enumerate(site.ins)] + [(f"{o.c} *", name, o.pointer) for o, name in zip(site.outs, outs, strict=True)]
    if work:
        every.append((f"{work} *", "work", f"({work} *)({site.scratch})"))
    used = [p for p in every if re.search(rf"\b{p[1]}\b", text)]
    return Function(tuple(c + name for c, name, _ in used), tuple(at for _, _, at in used), (*body, "return 0;") if fails else tuple(body), fails, needs)


def loops(sizes: Shape, inside: Sequence[str], index: str = "i") -> list[str]:
    """`inside` once for each of i0, i1, ..; axes of size 1 need no loop."""
    lines, depth = list[str](), 0
    for k, d in enumerate(sizes):
        if d != 1:
            lines.append(f"{'  ' * depth}for (i64 {index}{k} = 0; {index}{k} < {ctext.dim(d)}; {index}{k}++) {{")
            depth += 1
    return [*lines, *indented(inside, depth), *("  " * k + "}" for k in reversed(range(depth)))]


def indented(lines: Sequence[str], depth: int = 1) -> list[str]:
    return ["  " * depth + line for line in lines]


def at(strides: Shape, index: str = "i") -> str:
    """Offset that i0, i1, .. lead to."""
    return offset(strides, index)


def read(o: Operand, name: str, place: str) -> str:
    """An element as a value to compute with."""
    return scalar.load(o.dtype, f"{name}[{place}]")


def write(d: DType, place: str, value: str) -> str:
    return f"{place} = {scalar.store(d, value)};"


def literal(v: Any, d: DType) -> str:
    """One constant, exactly: the shortest decimal number that reads back as the same."""
    if not d.is_float:
        return str(int(v)) if d is DType.BOOL else ctext.literal(v, d)
    wide = d is DType.F64
    x = float(v)
    if np.isfinite(x):
        text = repr(x) if wide else f"{np.float32(x)!s}f"
    else:
        text = "(f64)" * wide + ("NAN" if np.isnan(x) else "INFINITY")
        text = f"-{text}" if x < 0 else text
    return f"({text})" if text.startswith("-") else text


def typed(template: str, d: DType) -> str:
    """The scalar column's text with its functions named for a type, C99 having none that choose."""
    c = ctext.value(d)
    of_library = LIBRARY if d.is_float else {}

    def named(m: re.Match[str]) -> str:
        if m[1] in of_library:
            return f"{of_library[m[1]]}{'f' if c == 'f32' else ''}("
        return f"rlx_{m[1]}_{'bool' if d is DType.BOOL else c}("

    return re.sub(r"rlx_(\w+)\(", named, template)


def wrapped(d: DType, template: str, *args: str) -> str:
    """Integer arithmetic that wraps: C99 defines that of unsigned numbers, which narrow ones must first be."""
    if not d.is_integer:
        return template.format(*args)
    unsigned = "u64" if d.bits == 64 else "u32"
    return f"({d.text}){template.format(*(f'({unsigned}){a}' for a in args))}"


def expression(n: Node, graph: Graph, args: list[str]) -> str:
    source = graph.type(n.inputs[0]).dtype
    if n.op is Op.CAST:
        return cast(args[0], source, n.type.dtype)
    assert n.row.scalar is not None, "only elementwise ops are in a chain"
    text = typed(n.row.scalar, source)
    return wrapped(n.type.dtype, text, *args) if n.op in WRAPS else scalar.rounded(n.type.dtype, text.format(*args))


def cast(x: str, source: DType, to: DType) -> str:
    if to is DType.BOOL:
        return f"({x} != 0)"
    if source.is_float and to.is_integer:
        return f"rlx_{to.text}_of_{ctext.value(source)}({x})"
    if source is DType.F64 and to is DType.F16:
        return f"rlx_load_f16(rlx_store_f16(rlx_sticky_f32({x})))"
    return scalar.rounded(to, f"({ctext.value(to)}){x}")


def chain(body: Graph, given: dict[Ref, str]) -> scalar.Chain:
    return scalar.chain(body, given, write=expression, literal=literal)

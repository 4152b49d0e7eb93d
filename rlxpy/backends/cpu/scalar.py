"""A chain of elementwise ops as C statements over one element: the op table's `scalar` column, filled in."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rlxpy.backends.cpu import ctext
from rlxpy.frozen import dataclass
from rlxpy.ir.dtypes import DType
from rlxpy.ir.graph import Graph, Node, Ref
from rlxpy.ir.op import Op


@dataclass(frozen=True)
class Chain:
    """`lines` compute, each the value of one of `nodes`; `result` is the C expression of the chain's value; `reads` are the given values that it needs."""

    lines: tuple[str, ...]
    nodes: tuple[Node, ...]
    result: str
    dtype: DType
    reads: frozenset[Ref]


def load(d: DType, text: str) -> str:
    """An element in memory as a value to compute with."""
    return f"rlx_load_{d.text}({text})" if d in ctext.VALUE and d is not DType.BOOL else text


def store(d: DType, text: str) -> str:
    """A value as it is kept in memory."""
    return f"rlx_store_{d.text}({text})" if d in ctext.VALUE and d is not DType.BOOL else text


def rounded(d: DType, text: str) -> str:
    """A narrow float is rounded after every op, so that a fused chain gives what the ops one by one give."""
    return load(d, store(d, text)) if d in ctext.VALUE and d is not DType.BOOL else text


COMPLEX = {Op.MUL: "rlx_mul_{d}({0},{1})", Op.SQUARE: "rlx_mul_{d}({0},{0})", Op.DIV: "rlx_div_{d}({0},{1})",
           Op.FMA: "(rlx_mul_{d}({0},{1})+{2})"}  # where the table's text would follow C's rules for infinities


def times(d: DType, a: str, b: str) -> str:
    """A product, by any type's rules."""
    return COMPLEX[Op.MUL].format(a, b, d=d.text) if d.is_complex else f"{a} * {b}"


def expression(n: Node, graph: Graph, args: list[str]) -> str:
    d = n.type.dtype
    if n.op is Op.CAST:
        real = graph.type(n.inputs[0]).dtype.is_complex and not d.is_complex and d is not DType.BOOL
        return f"rlx_to_{d.text}({f'RLX_RE({args[0]})' if real else args[0]})"
    if d.is_complex and n.op in COMPLEX:
        return COMPLEX[n.op].format(*args, d=d.text)
    assert n.row.scalar is not None, "only elementwise ops are in a chain"
    return rounded(d, n.row.scalar.format(*args))


def chain(body: Graph, given: Mapping[Ref, str], result: Ref | None = None, *, write: Callable[[Node, Graph, list[str]], str] = expression,
          literal: Callable[[Any, DType], str] = ctext.literal) -> Chain:
    """What computes `result` (the body's output) from values whose C text is `given`: the body's inputs, products made before."""
    out = body.outputs[0] if result is None else result
    text, needed, reads = dict(given), set[int](), set[Ref]()
    todo = [out]
    while todo:
        r = todo.pop()
        if r in given:
            reads.add(r)
        elif r.node not in needed:
            needed.add(r.node)
            todo += body[r].inputs
    lines, nodes = list[str](), list[Node]()
    for i in sorted(needed):
        n, r = body[i], Ref(i)
        if n.op is Op.CONST:
            text[r] = literal(n.attrs.value.array[()], n.type.dtype)  # type: ignore[attr-defined]
            continue
        lines.append(f"const {ctext.value(n.type.dtype)} v{n.id} = {write(n, body, [text[i] for i in n.inputs])};")
        nodes.append(n)
        text[r] = f"v{n.id}"
    return Chain(tuple(lines), tuple(nodes), text[out], body.type(out).dtype, frozenset(reads))

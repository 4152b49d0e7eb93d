"""What a node costs at given sizes: floating-point operations, and bytes that must move at least."""
from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from rlxpy.frozen import dataclass
from rlxpy.ir.dims import Sizes
from rlxpy.ir.dtypes import Array
from rlxpy.ir.graph import Graph, Node, Ref, root
from rlxpy.ir.layout import Layout
from rlxpy.ir.op import ELEMENTWISE, LEAVES, Op
from rlxpy.ir.types import TensorType, bind

Shapes = list[tuple[int, ...]]


@dataclass(frozen=True)
class Cost:
    """flops: additions and multiplications, an elementary function counting as one.  nbytes: operands read once, results written once."""

    flops: int
    nbytes: int


def _product(n: Node, ins: Shapes, out: tuple[int, ...]) -> int:
    return 2 * prod(out) * ins[0][-1]


def _each_input(n: Node, ins: Shapes, out: tuple[int, ...]) -> int:
    return prod(ins[0])


def _rows(factor: int) -> Callable[[Node, Shapes, tuple[int, ...]], int]:
    return lambda n, ins, out: factor * prod(ins[0])


def _attention(n: Node, ins: Shapes, out: tuple[int, ...], spans: Array | None = None) -> int:
    """Both products over every pair of query and key that causal masks, windows and spans leave, and four operations a score for the softmax."""
    b, h, queries, depth = ins[0]
    keys, values, kind = ins[1][-2], out[-1], n.attrs.params()
    past = np.arange(queries) + keys - queries + 1  # keys up to the query's own
    last = np.clip(past, 0, keys) if kind["mask"] != "none" else np.full(queries, keys)
    first = np.maximum(past - kind["window"], 0) if kind["mask"] == "window" else np.zeros(queries, np.int64)
    if spans is not None:
        first, last = np.maximum(first, spans[..., 0]), np.minimum(last, spans[..., 1])
    pairs = int(np.broadcast_to(np.maximum(last - first, 0), (b, h, queries)).sum())
    return pairs * (2 * depth + 2 * values + 4)


def _convolution(n: Node, ins: Shapes, out: tuple[int, ...]) -> int:
    return 2 * prod(out) * prod(ins[1][1:])


# one line an op that computes, but for attention; elementwise ops count one for each result, what is not here only moves
FLOPS: dict[str, Callable[[Node, Shapes, tuple[int, ...]], int]] = {
    "matmul": _product, "qmatmul": _product, "conv": _convolution,
    **dict.fromkeys(("sum", "prod", "mean", "max", "min", "any", "all", "argmax", "argmin", "cumsum", "top_k", "sort", "scatter_add", "max_pool", "avg_pool"), _each_input),
    "softmax": _rows(5), "log_softmax": _rows(5), "layer_norm": _rows(8), "rms_norm": _rows(5), "rope": _rows(3),
    "dequantize": lambda n, ins, out: 2 * prod(out),
}
# of these, only the rows that the result holds are read; the operand at the position named
PICKS = {"gather": 0, "take_along": 0}


def cost(graph: Graph, node: Node, sizes: Sizes, layouts: dict[Ref, Layout] | None = None, spans: Array | None = None) -> Cost:
    """layouts: where operands are views, how they walk: a broadcast operand is read once for all its repeats.  spans: the numbers of an attention's integer mask;
    without them every key counts that it may let be seen."""
    ins = [bind(graph.type(r).shape, sizes) for r in node.inputs]
    outs = [bind(t.shape, sizes) for t in node.types]
    read = [_read(node, k, graph.type(r), shape, outs[0], (layouts or {}).get(r)) for k, (r, shape) in enumerate(zip(node.inputs, ins, strict=True))]
    written = [_nbytes(t, shape) for t, shape in zip(node.types, outs, strict=True)]
    inside, last = root(graph, node)
    if last.op is Op.KV_APPEND:
        rows = inside.type(last.inputs[1])
        written = [_nbytes(rows, bind(rows.shape, sizes))]
    return Cost(_flops(graph, node, sizes, spans), sum(read) + sum(written))


def _flops(graph: Graph, node: Node, sizes: Sizes, spans: Array | None) -> int:
    bodies = [body for _, body in node.attrs.graphs()]
    if bodies:
        return sum(_flops(body, n, sizes, spans) for body in bodies for n in body if n.op not in LEAVES)
    outs = [bind(t.shape, sizes) for t in node.types]
    if node.op in ELEMENTWISE:
        return prod(outs[0])
    ins = [bind(graph.type(r).shape, sizes) for r in node.inputs]
    if node.op is Op.ATTENTION:
        return _attention(node, ins, outs[0], spans)
    rule = FLOPS.get(node.op.text)
    return rule(node, ins, outs[0]) if rule else 0


def _nbytes(t: TensorType, shape: tuple[int, ...]) -> int:
    return -(-prod(shape) * t.dtype.bits // 8)


def _read(node: Node, position: int, t: TensorType, shape: tuple[int, ...], out: tuple[int, ...], layout: Any) -> int:
    if node.inplace == position:
        return 0
    if PICKS.get(node.op.text) == position:
        return _nbytes(t, out)
    if layout is not None:
        shape = tuple(d for d, s in zip(shape, layout.strides, strict=True) if s != 0)
    return _nbytes(t, shape)

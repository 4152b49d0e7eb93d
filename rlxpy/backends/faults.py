"""What an index out of range, met by compiled code, is called: the error that every backend raises for it."""
from __future__ import annotations

from rlxpy.errors import RlxError
from rlxpy.ir import refs
from rlxpy.ir.dims import Sizes, at
from rlxpy.ir.dtypes import DType
from rlxpy.ir.graph import Graph, Node, root
from rlxpy.ir.op import Op


def index_fault(graph: Graph, node: Node, index: int, bound: int, sizes: Sizes) -> RlxError:
    """index: what was met; bound: how many there are."""
    inside, last = root(graph, node)
    axis, reads = last.attrs.axis, inside.type(last.inputs[1])  # type: ignore[attr-defined]
    if last.op is Op.KV_APPEND:
        return refs.append_error(axis, index, at(reads.shape[axis], sizes), bound).at(node.where)
    return refs.index_error(node.label, axis, index % 2**64 if reads.dtype is DType.U64 else index, bound).at(node.where)

"""Kernels of products of packed weights on AMX: a task lays its columns into tiles of planes once, for all rows that it has."""
from __future__ import annotations

from dataclasses import replace
from functools import cache

from rlxpy.backends.cpu import amx
from rlxpy.backends.cpu.amx import Scheme, multiply, pieces, split_left, text
from rlxpy.backends.cpu.isa import Isa
from rlxpy.backends.cpu.kernel import Emitter, Kernel, Operand, Site
from rlxpy.backends.cpu.products import products, walk
from rlxpy.backends.cpu.quant import readers, row_step
from rlxpy.backends.templates import render
from rlxpy.ir.attrs import Fused
from rlxpy.ir.dtypes import DType
from rlxpy.ir.encoding import encoding
from rlxpy.ir.graph import Graph, Node
from rlxpy.ir.layout import row_major
from rlxpy.ir.op import Op

ROW_BLOCK = 512  # rows that a task takes through its tiles: laying them costs as much as multiplying some hundred rows
# steps of k are whole blocks of every encoding; laying more planes pays from more rows on
X3, X6 = replace(amx.X3, depth=24, least_rows=64), replace(amx.X6, depth=24, least_rows=128)
MANY = replace(amx.BF16, least_rows=64)


def emitter(isa: Isa, scheme: Scheme) -> Emitter:
    return lambda site: _emit(site, isa, scheme)


def scratch_nbytes(scheme: Scheme, graph: Graph, node: Node) -> int:
    """Memory for the tiles of the left operand."""
    left = node.inputs[0]
    if isinstance(node.attrs, Fused):
        outer = dict(zip((n.refs[0] for n in node.attrs.body.inputs), node.inputs, strict=True))
        left = outer[next(n for n in node.attrs.body if n.op is Op.QMATMUL).inputs[0]]
    return sum(pieces(scheme, node.type, graph.type(left), []))


def _emit(site: Site, isa: Isa, scheme: Scheme) -> tuple[Kernel, Kernel]:
    p = products(site, Op.QMATMUL)
    w = walk(p, p.left)
    left = Operand(p.left.ref, p.left.shape, DType.BF16, row_major(p.left.shape), f"(u16 *)({site.scratch})")
    encodings = [encoding(n.attrs.encoding) for n in p.nodes]  # type: ignore[attr-defined]
    decode = [{"name": e.name, "block": e.block, "nbytes": e.block_nbytes, "step": row_step(r)} for e, r in zip(encodings, p.rights, strict=True)]
    needs = (*readers(encodings, isa), *text(scheme), render("cpu/amx_blocks.h.j2", P=scheme.planes), *(_tiles(name, scheme) for name in sorted({e.name for e in encodings})))
    return split_left(site, scheme, p, w, left), multiply(site, scheme, p, w, left, tuple(r.pointer for r in p.rights), ROW_BLOCK, decode, needs)


@cache
def _tiles(name: str, scheme: Scheme) -> str:
    """The C function that lays one encoding into tiles."""
    e = encoding(name)
    assert e.block % 32 == 0, "blocks are whole tiles of k"
    assert scheme.depth % (e.block // 32) == 0, "steps of k are whole blocks"
    return render("cpu/amx_decode.h.j2", P=scheme.planes, name=name, block=e.block, nbytes=e.block_nbytes)

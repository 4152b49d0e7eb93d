"""Kernels of products of packed weights on AMX in whole numbers: left rows rounded to int8, codes as they are stored, both in tiles."""
from __future__ import annotations

from rlxpy.backends.cpu import ctext, int8
from rlxpy.backends.cpu.blocks import BLOCKS
from rlxpy.backends.cpu.elementwise import arguments, params
from rlxpy.backends.cpu.isa import Isa
from rlxpy.backends.cpu.kernel import Emitter, Kernel, Site, symbols_used
from rlxpy.backends.cpu.products import Products, epilogue, products
from rlxpy.backends.cpu.quant import needs, row_step
from rlxpy.backends.templates import read, render
from rlxpy.ir.attrs import Fused
from rlxpy.ir.dims import product, upper
from rlxpy.ir.encoding import Encoding, encoding
from rlxpy.ir.graph import Graph, Node
from rlxpy.ir.op import Op

ROW_BLOCK = 256    # rows that a task takes through its tiles
BLOCK_DEPTH = 64   # blocks of 32 of depth of the tiles that stay in the second cache: whole blocks of every encoding
COLUMNS = 32       # of a task
ENCODINGS = tuple(name for name in BLOCKS if int8.fits_tiles(encoding(name)))


def emitter(isa: Isa) -> Emitter:
    return lambda site: _emit(site, isa)


def scratch_nbytes(graph: Graph, node: Node) -> int:
    """Memory for the tiles of the left operand."""
    nodes = node.attrs.body if isinstance(node.attrs, Fused) else (node,)
    depth: int = next(n.attrs.shape[1] for n in nodes if n.op is Op.QMATMUL)  # type: ignore[attr-defined]
    return -(-upper(product(node.type.shape[:-1])) // int8.TILE)*(depth // int8.UNIT)*int8.LEFT_RECORD


def _emit(site: Site, isa: Isa) -> tuple[Kernel, Kernel]:
    p = products(site, Op.QMATMUL)
    encodings = [encoding(n.attrs.encoding) for n in p.nodes]  # type: ignore[attr-defined]
    depth = p.nodes[0].attrs.shape[1]  # type: ignore[attr-defined]
    return int8.tile_rows(site, p.left, depth), _multiply(site, p, encodings, depth, isa)


def _multiply(site: Site, p: Products, encodings: list[Encoding], depth: int, isa: Isa) -> Kernel:
    rows, columns = ctext.dim(product(p.left.shape[:-1])), ctext.dim(p.columns)
    parts = epilogue(site, p.body, p.nodes, lambda k: f"c{k}[i*32 + jj]")
    decode = [{"name": e.name, "block": e.block, "nbytes": e.block_nbytes, "step": row_step(r), "record": int8.tile_record(e), "kind": _kind(e)}
              for e, r in zip(encodings, p.rights, strict=True)]
    body = render("cpu/amx_int8.c.j2", M=rows, N=columns, K=depth, MC=ROW_BLOCK, KC=BLOCK_DEPTH, left=int8.LEFT_RECORD, decode=decode, row=parts.row, inner=parts.inner)
    weights = tuple(f"const u8 *restrict w{k}" for k in range(len(decode)))
    kinds = [render("cpu/amx_int8.h.j2", offsets=bool(e.mins), record=int8.tile_record(e), left=int8.LEFT_RECORD) for e in encodings]
    return Kernel((*weights, "const u8 *restrict x0", *params(parts.operands, site.out, first=1)), body,
                  (*(r.pointer for r in p.rights), f"(const u8 *)({site.scratch})", *arguments(parts.operands, site.out)),
                  f"rlx_ceil_quotient({rows}, {ROW_BLOCK})*rlx_ceil_quotient({columns}, {COLUMNS})", symbols_used(site),
                  needs=(*needs(encodings, lambda name: int8.tile_reader(name, isa)), read("cpu/amx.h"), render("cpu/turn16.h.j2"), *kinds))


def _kind(e: Encoding) -> str:
    return "offsets" if e.mins else "scales"

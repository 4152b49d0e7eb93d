"""Kernels of packed weights: products that decode in registers or by panels, embeddings' rows, and whole matrices."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, partial

from rlxpy.backends.cpu import ctext, int8, lanes
from rlxpy.backends.cpu.blocks import groups, levels, tables, wide
from rlxpy.backends.cpu.elementwise import arguments, body_of, params, unravel
from rlxpy.backends.cpu.isa import Isa
from rlxpy.backends.cpu.kernel import Emitter, Kernel, Operand, Site, symbols_used
from rlxpy.backends.cpu.matmul import Tile, tile_columns, tile_rows
from rlxpy.backends.cpu.packing import Packed
from rlxpy.backends.cpu.products import epilogue, left_rows
from rlxpy.backends.templates import read, render
from rlxpy.errors import LegaliseError
from rlxpy.frozen import dataclass
from rlxpy.ir.attrs import Fused
from rlxpy.ir.dims import product, upper
from rlxpy.ir.dtypes import DType
from rlxpy.ir.encoding import Encoding, encoding
from rlxpy.ir.graph import Graph, Node
from rlxpy.ir.op import Op

FEW_ROWS = 24        # rows of the left operand below which decoding anew for every four costs less than a panel
FEW_LANE_ROWS = 9    # where rows lie in lanes, a panel is sooner made
FEW_INT8_ROWS = 5
ROW_BLOCK = 192      # rows of the left operand that a task takes through a panel
PANEL_DEPTH = 2048   # of a panel of floats: 128 KiB with AVX2, 256 KiB with AVX-512
COLUMNS_PER_TASK = 32


@dataclass(frozen=True)
class Way:
    """How a product reads its operands: the left rows' C type, how many are few, weight rows that those meet at once, height of a tile, width of a panel,
    and the functions of every encoding.  deep: weight rows whose blocks lie one after the other before their next blocks come."""

    T: str
    few: int
    few_NR: int
    MR: int
    NR: int
    panel: str
    dots: str
    tile: str
    deep: int = 1


def emitter(isa: Isa) -> Emitter:
    """Floats times decoded weights."""
    return lambda site: _floats(site, isa)


def int8_emitter(isa: Isa) -> Emitter:
    """Left rows rounded to int8, then whole numbers times the codes as they are stored."""
    return lambda site: _int8(site, isa)


@cache
def reader(name: str, isa: Isa) -> str:
    """C functions that read one encoding as floats."""
    e = encoding(name)
    parts = [{"scale": g.scale, "least": g.least, "chunks": [(k, wide(e, k, isa.vector)) for k in range(g.first, g.first + g.size, isa.vector)]} for g in groups(e)]
    return render("cpu/blocks.h.j2", name=name, block=e.block, nbytes=e.block_nbytes, levels=levels(e), groups=parts, VL=isa.vector, NR=tile_columns(isa), ahead=int8.AHEAD_NBYTES)


def needs(encodings: Iterable[Encoding], functions: Callable[[str], str]) -> tuple[str, ...]:
    """C that a kernel of these encodings calls."""
    names = sorted({e.name for e in encodings})
    return () if not names else (read("cpu/packed.h"), *(t for n in names if (t := "\n".join(tables(encoding(n))))), *map(functions, names))


def readers(encodings: Iterable[Encoding], isa: Isa) -> tuple[str, ...]:
    return needs(encodings, lambda name: reader(name, isa))


def _floats(site: Site, isa: Isa) -> Kernel:
    left, encodings, depth = _operands(site)
    split, step = depth > PANEL_DEPTH, left_rows(left)
    way = Way("f32", FEW_ROWS, 4, tile_rows(isa), tile_columns(isa), "rlx_panel_{}", "rlx_dots_{}", "rlx_tile_f32(height, 1, depth, 0, x, {lda}, 1, panel{p}, c{p})")
    weights, functions = lanes.laid(isa, _weights(site)[1], encodings), partial(reader, isa=isa)
    if weights is not None:
        way = replace(way, few=FEW_LANE_ROWS, few_NR=int8.lanes(isa), panel="rlx_lane_panel_{}", dots="rlx_lane_dots_{}", deep=int8.lanes(isa))
        functions = partial(lanes.float_reader, isa=isa, columns=way.NR)
    panel = [min(depth, PANEL_DEPTH)*way.NR]*len(encodings)
    return _product(site, way, left, left.pointer, ctext.dim(step if step is not None else depth), panel, (Tile(isa, DType.F32, DType.F32).text, *needs(encodings, functions)),
                    split=split, gather=_gathered(left, depth) if step is None else [], laid=weights)


def _int8(site: Site, isa: Isa) -> tuple[Kernel, Kernel]:
    left, encodings, depth = _operands(site)
    span = int8.span(encodings)
    nodes, weights = _weights(site)
    tiles = tuple(int8.tile(name, isa, span) for name in sorted({e.name for e in encodings}))
    if (side_by_side := lanes.laid(isa, weights, encodings)) is not None:
        functions = (*needs(encodings, lambda name: lanes.reader(name, isa, span)), *tiles)
        return int8.round_rows(site, left, depth, span), lanes.product_of(site, isa, nodes, side_by_side, f"(const u8 *)({site.scratch})", span, functions)
    way = Way("u8", FEW_INT8_ROWS, 4, int8.TILE_ROWS, int8.TILE_PANELS*int8.lanes(isa), f"rlx_panel8_{{}}_{span}", f"rlx_dots8_{{}}_{span}",
              f"rlx_tile8_{{name}}_{span}(height, depth, x, {{lda}}, panel{{p}}, c{{p}})")
    panel = [int8.panels_nbytes(e, isa, depth) for e in encodings]
    needed = (*needs(encodings, lambda name: int8.reader(name, isa, span, int8.AHEAD_NBYTES)), *tiles)
    product_ = _product(site, way, left, f"(const u8 *)({site.scratch})", str(int8.row_nbytes(depth, span)), panel, needed)
    return int8.round_rows(site, left, depth, span), product_


def scratch_nbytes(graph: Graph, node: Node) -> int:
    """Memory for the rounded left rows, at the largest sizes."""
    nodes = node.attrs.body if isinstance(node.attrs, Fused) else (node,)
    depth = next(n.attrs.shape[1] for n in nodes if n.op is Op.QMATMUL)  # type: ignore[attr-defined]
    return upper(product(node.type.shape[:-1]))*int8.row_nbytes(depth, 16)


def _operands(site: Site) -> tuple[Operand, list[Encoding], int]:
    """The left operand, the encodings of the weights, and the depth."""
    body = body_of(site)
    products = [n for n in body if n.op is Op.QMATMUL]
    inputs = {n.refs[0]: o for n, o in zip(body.inputs, site.ins, strict=True)}
    return inputs[products[0].inputs[0]], [encoding(p.attrs.encoding) for p in products], products[0].attrs.shape[1]  # type: ignore[attr-defined]


def _weights(site: Site) -> tuple[tuple[Node, ...], list[Operand]]:
    """The products of a node, and the right operand of each."""
    body = body_of(site)
    inputs = {n.refs[0]: o for n, o in zip(body.inputs, site.ins, strict=True)}
    nodes = tuple(n for n in body if n.op is Op.QMATMUL)
    return nodes, [inputs[p.inputs[1]] for p in nodes]


def _product(site: Site, way: Way, left: Operand, x: str, lda: str, panel_numel: list[int], needed: tuple[str, ...], *, split: bool = False, gather: Sequence[str] = (),
             laid: Sequence[Packed] | None = None) -> Kernel:
    body = body_of(site)
    products, weights = _weights(site)
    encodings = [encoding(p.attrs.encoding) for p in products]  # type: ignore[attr-defined]
    n, depth = products[0].attrs.shape  # type: ignore[attr-defined]
    rows, groups_ = product(left.shape[:-1]), -(-n // COLUMNS_PER_TASK)
    parts = epilogue(site, body, products, lambda p: f"{'sum' if split else 'c'}{p}[i*NR + jj]")
    text = render("cpu/qmatmul.c.j2", M=ctext.dim(rows), N=n, K=depth, KC=PANEL_DEPTH, MC=ROW_BLOCK, MR=way.MR, NR=way.NR, T=way.T, split=split, few=way.few, few_NR=way.few_NR,
                  groups=groups_, per_group=COLUMNS_PER_TASK, lda=lda, gather=gather, products=len(products), row=parts.row, inner=parts.inner, panel_numel=panel_numel,
                  panel=[way.panel.format(e.name) for e in encodings], dots=[way.dots.format(e.name) for e in encodings],
                  tile=[way.tile.format(name=e.name, lda=lda, p=k) for k, e in enumerate(encodings)],
                  block=[e.block for e in encodings], block_nbytes=[e.block_nbytes*way.deep for e in encodings],
                  row_step=[e.row_nbytes(depth) for e in encodings] if laid else [row_step(w) for w in weights])
    names = tuple(f"const u8 *restrict w{k}" for k in range(len(products)))
    return Kernel((*names, f"const {way.T} *restrict x0", *params(parts.operands, site.out, first=1)), text,
                  (*(laid if laid else [w.pointer for w in weights]), x, *arguments(parts.operands, site.out)),
                  f"rlx_ceil_quotient({ctext.dim(rows)}, {ROW_BLOCK})*{groups_}", symbols_used(site), needed)


def _gathered(left: Operand, depth: int) -> list[str]:
    """C that lays row r of the left operand into row i of `left`."""
    *lead, last = left.layout.strides
    at = " + ".join(f"i{k}*{ctext.dim(s)}" for k, s in enumerate(lead) if s != 0) or "0"
    return [*unravel(left.shape[:-1]), f"for (i64 k = 0; k < {depth}; k++) left[i*{depth} + k] = x0[{at} + k*{ctext.dim(last)}];"]


def row_step(packed: Operand) -> str:
    """Bytes from one packed row to the next.  Raises LegaliseError when the bytes of a row do not lie side by side."""
    if packed.layout.strides[-1] != 1:
        raise LegaliseError("packed weights whose bytes do not lie side by side", why=f"one byte is {packed.layout.strides[-1]} from the next", fix="use device='reference'")
    return ctext.dim(packed.layout.strides[-2]) if len(packed.shape) > 1 else "0"


def dequantizer(isa: Isa) -> Emitter:
    return lambda site: _dequantize(site, isa)


def _dequantize(site: Site, isa: Isa) -> Kernel:
    (packed,), out = site.ins, site.out
    e = encoding(site.node.attrs.encoding)  # type: ignore[attr-defined]
    rows, columns = product(out.shape[:-1]), out.shape[-1]
    assert isinstance(columns, int)
    row_step(packed)
    at = " + ".join(f"i{k}*{ctext.dim(s)}" for k, s in enumerate(packed.layout.strides[:-1]) if s != 0) or "0"
    lines = [f"const i64 r1 = rlx_least(t1*8, {ctext.dim(rows)});", "for (i64 r = t0*8; r < r1; r++) {", *(f"  {u}" for u in unravel(packed.shape[:-1])),
             f"  const u8 *row = x0 + {at};", f"  for (i64 k = 0; k < {columns // e.block}; k++)",
             f"    rlx_decode_{e.name}(row + k*{e.block_nbytes}, y + r*{columns} + k*{e.block});", "}"]
    return Kernel(params((packed,), out), "\n".join(lines), arguments((packed,), out), f"rlx_ceil_quotient({ctext.dim(rows)}, 8)", symbols_used(site), readers((e,), isa))

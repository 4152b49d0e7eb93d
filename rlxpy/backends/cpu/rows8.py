"""Kernels of products of int8 weights with one scale a row: left rows rounded with one scale each, whole numbers over the entire depth."""
from __future__ import annotations

from functools import cache

import numpy as np

from rlxpy.backends.cpu import ctext, int8
from rlxpy.backends.cpu.elementwise import arguments, params, unravel
from rlxpy.backends.cpu.isa import Isa
from rlxpy.backends.cpu.kernel import Emitter, Kernel, Operand, Site, symbols_used
from rlxpy.backends.cpu.matmul import is_weight, packed
from rlxpy.backends.cpu.packing import Packed, Take
from rlxpy.backends.cpu.products import epilogue, products
from rlxpy.backends.memory import ALIGN_NBYTES
from rlxpy.backends.templates import read, render
from rlxpy.frozen import dataclass
from rlxpy.ir.attrs import Fused
from rlxpy.ir.dims import Dim, Shape, product, upper
from rlxpy.ir.dtypes import Array
from rlxpy.ir.graph import Graph, Node, Ref
from rlxpy.ir.op import Op

ENCODING = "int8_rows"
DEEPEST = 2**16     # 255 * 127 * DEEPEST is below 2^31: no sum of unsigned codes and signed ones leaves 32 bits
TILE = 16           # rows, or columns, of a tile of matrix units
TILE_DEPTH = 64     # codes of one row of it
COLUMNS = 32        # of a task
ROWS = 4            # left rows that vectors take past the same weights
ROWS_PER_TASK = 8   # that one task rounds
TILED_ROW_BLOCK, ROW_BLOCK = 128, 192  # left rows that a task takes past its weights, by tiles and by vectors


@dataclass(frozen=True)
class Fours:
    """[batch][rows / 16][depth / 4][16 rows][4]: what matrix units read as tiles, 64 deep, and vectors of any width as rows side by side.
    Depths are filled up to 64, rows to 16, with zeros."""

    @property
    def c(self) -> str:
        return "i8"

    def pack(self, weights: Array, take: Take) -> Array:
        batch, rows, depth = weights.shape
        across, deep = -(-rows // TILE), filled(depth)
        whole = np.zeros((batch, across * TILE, deep), np.int8)
        whole[:, :rows, :depth] = weights
        out = take(whole.nbytes).view(np.uint32).reshape(batch, across, deep // 4, TILE)
        out[...] = whole.view(np.uint32).reshape(batch, across, TILE, deep // 4).swapaxes(2, 3)
        return out


def filled(depth: int) -> int:
    """Codes of a row as it is laid out."""
    return max(1, -(-depth // TILE_DEPTH)) * TILE_DEPTH


def row_nbytes(depth: int) -> int:
    """Of a rounded left row: codes, scale and total.  An odd number of cache lines: neighbours never meet in one set of the cache."""
    lines = filled(depth) // ALIGN_NBYTES + 1
    return (lines + 1 - lines % 2) * ALIGN_NBYTES


def left_nbytes(lead: Shape, depth: Dim) -> int:
    """Of all left rows, in whole tiles."""
    return -(-upper(product(lead)) // TILE) * TILE * row_nbytes(upper(depth))


def codes_nbytes(shape: Shape) -> int:
    """Of weights laid out."""
    rows, depth = map(upper, shape)
    return -(-rows // TILE) * TILE * filled(depth)


@dataclass(frozen=True)
class Dots:
    """How vectors multiply codes.  lanes: weight rows of a pass, of two vectors.  wide: vectors are of 64 bytes.

    raised: unsigned bytes meet signed ones, so that 128 is added to weights and 128 times a left row's total is taken off; else signed ones meet, and `apart`
    where what packed.h adds up of two products fills 16 bits."""

    lanes: int
    wide: bool = False
    raised: bool = False
    apart: bool = False


def dots(isa: Isa) -> Dots:
    if isa.vector >= 8 and "vnni" in isa.features:
        wide = "-mavx512vnni" in isa.flags
        return Dots(32 if wide else 2*int8.lanes(isa), wide=wide, raised=True)
    return Dots(2*int8.lanes(isa), apart=isa.vector >= 8)


def emitter(isa: Isa) -> Emitter:
    return lambda site: _emit(site, isa)


def scratch_nbytes(graph: Graph, node: Node) -> int:
    """Memory for rounded left rows, and for codes that are no weights."""
    outer = dict(zip((n.refs[0] for n in node.attrs.body.inputs), node.inputs, strict=True)) if isinstance(node.attrs, Fused) else {r: r for r in node.inputs}
    nodes = [n for n in (node.attrs.body if isinstance(node.attrs, Fused) else (node,)) if n.op is Op.QMATMUL]
    fresh: set[Ref] = {outer[n.inputs[1]] for n in nodes if not is_weight(graph, outer[n.inputs[1]])}
    return left_nbytes(node.type.shape[:-1], graph.type(outer[nodes[0].inputs[0]]).shape[-1]) + sum(codes_nbytes(graph.type(r).shape) for r in fresh)


def _emit(site: Site, isa: Isa) -> tuple[Kernel, ...]:
    p = products(site, Op.QMATMUL)
    how, depth, tiles, rows = dots(isa), upper(p.depth), "amx_int8" in isa.features, ctext.dim(product(p.left.shape[:-1]))
    inputs = {n.refs[0]: o for n, o in zip(p.body.inputs, site.ins, strict=True)}
    scales = [inputs[n.inputs[2]] for n in p.nodes]
    sources = [packed(r, Fours()) or r for r in p.rights]
    places, at = dict[Operand, str](), left_nbytes(p.left.shape[:-1], depth)
    for s in sources:
        if isinstance(s, Operand) and s not in places:
            places[s], at = f"(i8 *)({site.scratch} + {at})", at + codes_nbytes(s.shape)
    sums = "before{k}" if tiles else "c{k}"
    parts = epilogue(site, p.body, p.nodes, lambda k: f"(f32){sums.format(k=k)}[i*{COLUMNS} + jj]*s{k}[j*{ctext.dim(scales[k].layout.strides[0])}]*by")
    body = render("cpu/rows8.c.j2", M=rows, N=ctext.dim(p.columns), K=filled(depth), MC=TILED_ROW_BLOCK if tiles else ROW_BLOCK, MR=ROWS, lda=row_nbytes(depth), width=COLUMNS,
                  lanes=how.lanes, tiles=tiles, products=len(p.nodes), row=parts.row, inner=parts.inner)
    names = [text for k in range(len(p.nodes)) for text in (f"const i8 *restrict w{k}", f"const f32 *restrict s{k}")]
    given = [c for s, scale in zip(sources, scales, strict=True) for c in (s if isinstance(s, Packed) else places[s], scale.pointer)]
    multiply = Kernel((*names, "const u8 *restrict x0", *params(parts.operands, site.out, first=1)), body,
                      (*given, f"(const u8 *)({site.scratch})", *arguments(parts.operands, site.out)),
                      f"rlx_ceil_quotient({rows}, {TILED_ROW_BLOCK if tiles else ROW_BLOCK})*rlx_ceil_quotient({ctext.dim(p.columns)}, {COLUMNS})", symbols_used(site),
                      needs=(read("cpu/packed.h"), _functions(how), *([read("cpu/amx.h")] if tiles else [])))
    return (_round_rows(site, p.left, depth, how), *(_lay_out(site, o, place) for o, place in places.items()), multiply)


def _round_rows(site: Site, left: Operand, depth: int, how: Dots) -> Kernel:
    """Every left row into the step's scratch: codes, scale and, where vectors need it, total."""
    *lead, last = left.layout.strides
    at = " + ".join(f"i{k}*{ctext.dim(s)}" for k, s in enumerate(lead) if s != 0) or "0"
    rows = ctext.dim(product(left.shape[:-1]))
    text = render("cpu/rows8_left.c.j2", M=rows, K=depth, filled=filled(depth), at=at, k="k" if last == 1 else f"k*{ctext.dim(last)}", unravel=unravel(left.shape[:-1]),
                  step=row_nbytes(depth), per_task=ROWS_PER_TASK, total=how.raised)
    return Kernel((*params((left,)), "u8 *restrict y"), text, (left.pointer, f"(u8 *)({site.scratch})"), f"rlx_ceil_quotient({rows}, {ROWS_PER_TASK})", symbols_used(site))


def _lay_out(site: Site, codes: Operand, place: str) -> Kernel:
    """As `Fours` does, of codes that a run computes."""
    (rows, depth), (row, column) = map(upper, codes.shape), map(ctext.dim, codes.layout.strides)
    lines = [f"for (i64 t = t0; t < t1; t++) for (i64 q = 0; q < {filled(depth)//4}; q++) for (i64 l = 0; l < {TILE}; l++) for (i64 e = 0; e < 4; e++) {{",
             f"  const i64 j = t*{TILE} + l, k = q*4 + e;", f"  y[(t*{filled(depth)//4} + q)*{4*TILE} + l*4 + e] = j < {rows} && k < {depth} ? x0[j*{row} + k*{column}] : 0;", "}"]
    return Kernel((*params((codes,)), "i8 *restrict y"), "\n".join(lines), (codes.pointer, place), str(-(-rows // TILE)), symbols_used(site))


@cache
def _functions(how: Dots) -> str:
    return render("cpu/rows8.h.j2", how=how, rows=ROWS, ahead=int8.AHEAD_NBYTES)

"""Packed weights with a row in each lane of a vector, and their products: no sum goes across lanes, no code is moved."""
from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from rlxpy.backends.cpu import ctext, int8
from rlxpy.backends.cpu.blocks import Bytes, bit_words, code_words, has_heads, raised, word
from rlxpy.backends.cpu.elementwise import arguments, body_of, params
from rlxpy.backends.cpu.isa import Isa
from rlxpy.backends.cpu.kernel import Kernel, Operand, Site, symbols_used
from rlxpy.backends.cpu.packing import Packed, Take
from rlxpy.backends.cpu.products import epilogue
from rlxpy.backends.templates import render
from rlxpy.frozen import dataclass
from rlxpy.ir.dims import product
from rlxpy.ir.dtypes import Array, DType
from rlxpy.ir.encoding import Encoding, encoding
from rlxpy.ir.graph import Node

ROWS = 4             # left rows that share codes once they are in registers
FEW = 12             # left rows below which codes are multiplied as they are read: a panel pays from 8 rows on where codes have 4 bits, from 24 where they have 8
ROW_BLOCK = 192      # left rows that a task takes past its weights
COLUMNS_PER_TASK = 32


@dataclass(frozen=True)
class Lanes:
    """[batch][rows / lanes][blocks]: of each block of `lanes` rows first what comes before the codes, two bytes of every row at a time, then the codes,
    four at a time, those with one bit of each code turned (blocks.bit_words).  Rows after the last are zeros."""

    encoding: str
    lanes: int

    @property
    def c(self) -> str:
        return "u8"

    def pack(self, weights: Array, take: Take) -> Array:
        batch, rows, nbytes = weights.shape
        whole, block = rows // self.lanes, encoding(self.encoding).block_nbytes
        groups, blocks = -(-rows // self.lanes), nbytes // block
        out = take(batch * groups * self.lanes * nbytes).reshape(batch, groups, blocks, self.lanes * block)
        self._lay(weights[:, :whole * self.lanes].reshape(batch, whole, self.lanes, blocks, block), out[:, :whole])
        if whole < groups:
            rest = weights[:, whole * self.lanes:]
            last = np.zeros((batch, self.lanes, nbytes), np.uint8)
            last[:, :rest.shape[1]] = rest
            self._lay(last.reshape(batch, 1, self.lanes, blocks, block), out[:, whole:])
        return out

    def _lay(self, rows: Array, out: Array) -> None:
        """rows [batch, groups, lanes, blocks, bytes of a block]"""
        head = codes_at(encoding(self.encoding))
        for unit, first, last in ((np.uint16, 0, head), (np.uint32, head, rows.shape[-1])):
            given = rows[..., first:last].view(unit).transpose(0, 1, 3, 4, 2)
            laid = out[..., first * self.lanes:last * self.lanes].view(unit).reshape(given.shape)
            laid[...] = given
            for k in bit_words(encoding(self.encoding), head) if first == head else ():
                laid[..., k, :] = turned(laid[..., k, :])


def turned(words: Array) -> Array:
    """u32 of one bit a code, bit 4k + i as bit k of byte i."""
    halves = np.arange(256, dtype=np.uint32)[:, None] >> np.arange(8, dtype=np.uint32) & 1  # byte b has codes 8b to 8b + 7
    spread = (halves << np.array([0, 8, 16, 24, 1, 9, 17, 25], np.uint32)).sum(1, dtype=np.uint32)
    first, second, third, fourth = (spread[words >> np.uint32(8 * b) & 255] << np.uint32(2 * b) for b in range(4))
    made: Array = first | second | third | fourth
    return made


def codes_at(e: Encoding) -> int:
    """The first byte of a block's codes."""
    return 2 * len((*e.scales, *e.mins))


def laid(isa: Isa, weights: Sequence[Operand], encodings: Sequence[Encoding]) -> list[Packed] | None:
    """The weights of a product with a row in each lane; None where an encoding has no words of four codes, or a weight is no matrix that load can lay out."""
    if not all(has_heads(e) and code_words(e, codes_at(e)) for e in encodings):
        return None
    found = []
    for w, e in zip(weights, encodings, strict=True):
        *lead, rows, nbytes = w.shape
        sizes = (rows, nbytes, *w.layout.strides[-2:], w.layout.offset)
        if w.param is None or lead or w.layout.strides[-1] != 1 or not all(isinstance(d, int) for d in sizes):
            return None
        found.append(Packed(w.param, (1, int(rows), int(nbytes)), (0, int(w.layout.strides[0]), 1), int(w.layout.offset), Lanes(e.name, int8.lanes(isa))))
    return found


def product_of(site: Site, isa: Isa, nodes: tuple[Node, ...], weights: Sequence[Packed], rows: str, span: int, needs: tuple[str, ...]) -> Kernel:
    """rows: C for the rounded left rows, as int8.round_rows lays them; needs: C functions of the encodings, `reader`'s among them."""
    body, left = body_of(site), site.out.shape[:-1]
    n, depth = nodes[0].attrs.shape  # type: ignore[attr-defined]
    encodings = [encoding(p.attrs.encoding) for p in nodes]  # type: ignore[attr-defined]
    parts = epilogue(site, body, nodes, lambda p: f"c{p}[i*NR + jj]")
    count, groups = ctext.dim(product(left)), -(-n // COLUMNS_PER_TASK)
    dots, panel, tile = ([f"rlx_{kind}_{e.name}_{span}" for e in encodings] for kind in ("lanes8", "lane_panel8", "tile8"))
    text = render("cpu/lanes.c.j2", M=count, N=n, K=depth, MC=ROW_BLOCK, MR=int8.TILE_ROWS, NR=int8.TILE_PANELS*int8.lanes(isa), few=FEW, width=COLUMNS_PER_TASK, lanes=int8.lanes(isa),
                  groups=groups, lda=int8.row_nbytes(depth, span), dots=dots, panel=panel, tile=tile, panel_nbytes=[int8.panels_nbytes(e, isa, depth) for e in encodings],
                  step=[e.row_nbytes(depth) for e in encodings], row=parts.row, inner=parts.inner)
    names = tuple(f"const u8 *restrict w{k}" for k in range(len(nodes)))
    return Kernel((*names, "const u8 *restrict x0", *params(parts.operands, site.out, first=1)), text, (*weights, rows, *arguments(parts.operands, site.out)),
                  f"rlx_ceil_quotient({count}, {ROW_BLOCK})*{groups}", symbols_used(site), needs)


def _codes(e: Encoding, form: Bytes) -> dict[str, Any]:
    """Which words a block's codes are in, and C for every four of them."""
    quads = code_words(e, codes_at(e))
    return {"words": sorted({p.byte for places in quads for p in places}), "codes": [word(e, places, form, "word{}".format) for places in quads]}


@cache
def reader(name: str, isa: Isa, span: int) -> str:
    """C functions that multiply one encoding with rounded rows, and lay it into panels."""
    e = encoding(name)
    form, calls = int8.form(e, isa), int8.calls(e, isa)
    start = codes_at(e)
    terms = [f"{form.bias}*s" if form.bias else "", f"{ctext.literal(e.mins[0].factor, DType.F32)}*rlx_half_lanes(w + {2*int8.lanes(isa)})" if e.mins else ""]
    return render("cpu/lanes.h.j2", name=f"{name}_{span}", lanes=int8.lanes(isa), nbytes=e.block_nbytes, start=start, signed=form.signed, calls=calls, rows=int8.TILE_ROWS, ahead=int8.AHEAD_NBYTES,
                  panels=int8.TILE_PANELS, record=int8.panel_nbytes(e, isa), **_codes(e, form),
                  offset=" + ".join(t for t in terms if t), total=int8.total(0, int8.UNIT, span), totals=int8.UNIT // span)


@cache
def float_reader(name: str, isa: Isa, columns: int) -> str:
    """C functions that read one encoding as floats, in panels of so many rows."""
    e = encoding(name)
    start, lanes, form = codes_at(e), int8.lanes(isa), raised(e)
    terms = [f"{ctext.literal(-form.bias, DType.F32)}*s" if form.bias else "", f"{ctext.literal(-e.mins[0].factor, DType.F32)}*rlx_half_lanes(w + {2*lanes})" if e.mins else ""]
    return render("cpu/lane_floats.h.j2", name=name, lanes=lanes, nbytes=e.block_nbytes, start=start, NR=columns, most=ROWS, ahead=int8.AHEAD_NBYTES,
                  **_codes(e, form), offset=" + ".join(t for t in terms if t))

"""Left rows rounded to int8, and what multiplies them with packed codes as whole numbers."""
from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from rlxpy.backends.cpu import ctext
from rlxpy.backends.cpu.blocks import Bytes, Group, groups, has_heads, levels, narrow, plain, raised
from rlxpy.backends.cpu.elementwise import params, unravel
from rlxpy.backends.cpu.isa import Isa
from rlxpy.backends.cpu.kernel import Kernel, Operand, Site, symbols_used
from rlxpy.backends.templates import render
from rlxpy.ir.dims import product
from rlxpy.ir.encoding import Encoding, encoding

AHEAD_NBYTES = 4096  # of weights, prefetched before they are read
UNIT = 32            # values of a left row that share a scale
ROWS_PER_TASK = 8
TILE = 16            # rows of a tile of matrix units
LEFT_RECORD = TILE*(UNIT + 8)  # bytes of 32 of depth of a tile of left rows: codes, scales and totals
BLOCKS_PER_TASK = 3  # blocks of 32 values of a tile that one task rounds: few rows are work for several threads
TILE_ROWS, TILE_PANELS = 4, 2  # of a register tile: eight parts, two vectors of codes, one of a left row
PAIR_LIMIT = 2**15 - 1  # of the 16-bit sums that AVX2 alone makes of two products


def lanes(isa: Isa) -> int:
    """Weight rows of a panel: sums in a vector of bytes."""
    return _width(isa) // 4


def span(encodings: Sequence[Encoding]) -> int:
    """Values that share a total: as many as share a scale in the finest of the encodings, 16 or 32."""
    return min(_size(e) for e in encodings)


def row_nbytes(depth: int, span: int) -> int:
    """Of a rounded row: codes, scales and totals, to a cache line."""
    return -(-(depth + depth // UNIT*4 + depth // span*4) // 64)*64


def panel_nbytes(e: Encoding, isa: Isa) -> int:
    """For 32 of depth: codes, scales and offsets of `lanes` rows."""
    return _width(isa)*(8 + UNIT // _size(e)*(2 if _offset(groups(e)[0], form(e, isa)) else 1))


def panels_nbytes(e: Encoding, isa: Isa, depth: int) -> int:
    """Of what a tile reads at once."""
    return TILE_PANELS*(depth // UNIT)*panel_nbytes(e, isa)


@cache
def reader(name: str, isa: Isa, span: int, ahead: int) -> str:
    """C functions that multiply one encoding with rounded rows."""
    e, width = encoding(name), _width(isa)
    form_, size, abreast = form(e, isa), _size(e), width // 16
    of = {k: g for g in groups(e) for k in range(g.first, g.first + g.size, size)}
    shared = [{"index": i, "unit": k // UNIT, "scale": g.scale, "offset": _offset(g, form_), "total": total(k, size, span),
               "codes": [(c, narrow(e, c, 16, form_, abreast)) for c in range(k, k + size, 16)]} for i, (k, g) in enumerate(of.items())]
    offsets = bool(shared[0]["offset"])
    vectors = [{"first": k, "code": narrow(e, k, width, form_)} for k in range(0, e.block, width)]
    panel = [{"first": k, "shift": 0, "text": g.scale} for k, g in of.items()] + [{"first": k, "shift": UNIT // size, "text": _offset(g, form_)} for k, g in of.items() if offsets]
    heads = f"{{{', '.join([str(form_.bias), str(e.mins[0].factor if e.mins else 0)]*4)}}}" if width == 32 and has_heads(e) else ""
    return render("cpu/int8_blocks.h.j2", name=f"{name}_{span}", block=e.block, nbytes=e.block_nbytes, bytes=width, abreast=abreast, signed=form_.signed, size=size, span=span,
                  levels=levels(e), shared=shared, vectors=vectors, offsets=offsets, panel_levels=panel, totals=[total(k, size, span) for k in range(0, UNIT, size)],
                  calls=calls(e, isa), heads=heads, has_mins=bool(e.mins), ahead=ahead, tile_panels=TILE_PANELS)


@cache
def tile(name: str, isa: Isa, span: int) -> str:
    """The C function that multiplies panels of one encoding with rounded rows."""
    e, size = encoding(name), _size(encoding(name))
    form_ = form(e, isa)
    return render("cpu/int8_tile.h.j2", name=f"{name}_{span}", lanes=lanes(isa), panels=TILE_PANELS, most=TILE_ROWS, record=panel_nbytes(e, isa), groups=UNIT // size, signed=form_.signed,
                  calls=calls(e, isa), offsets=bool(_offset(groups(e)[0], form_)), span=span, totals=[total(k, size, span) for k in range(0, UNIT, size)])


@cache
def tile_reader(name: str, isa: Isa) -> str:
    """The C function that lays one encoding into tiles of matrix units."""
    e, width = encoding(name), _width(isa)
    vectors = [{"first": k, "code": narrow(e, k, width, plain(e))} for k in range(0, e.block, width)]
    of = {k: g for g in groups(e) for k in range(g.first, g.first + g.size, UNIT)}
    numbers = [{"first": k, "shift": i, "text": text} for k, g in of.items() for i, text in enumerate((g.scale, g.least)) if text]
    return render("cpu/amx_codes.h.j2", name=name, block=e.block, nbytes=e.block_nbytes, record=tile_record(e), levels=levels(e), vectors=vectors, offsets=bool(e.mins),
                  panel_levels=numbers)


def tile_record(e: Encoding) -> int:
    """Bytes of 32 of depth of 16 rows: codes, scales and, where there are minimums, offsets."""
    return TILE*(UNIT + (8 if e.mins else 4))


def fits_tiles(e: Encoding) -> bool:
    """Whether the 32 codes of a row of a tile, which are multiplied in whole numbers, share a scale."""
    return _size(e) == UNIT


def total(first: int, size: int, span: int) -> str:
    """C, with the left row's number to fill in, for the total of codes first..first+size."""
    return " + ".join(f"total%d[{i}]" for i in range(first // span, (first + size) // span)).replace("%d", "%(i)d")


def round_rows(site: Site, left: Operand, depth: int, span: int) -> Kernel:
    """The first stage: every left row into the step's scratch."""
    *lead, last = left.layout.strides
    at = " + ".join(f"i{k}*{ctext.dim(s)}" for k, s in enumerate(lead) if s != 0) or "0"
    rows = ctext.dim(product(left.shape[:-1]))
    k = "b*32 + k" if last == 1 else f"(b*32 + k)*{ctext.dim(last)}"
    text = render("cpu/int8_rows.c.j2", M=rows, K=depth, at=at, k=k, unravel=unravel(left.shape[:-1]), span=span, step=row_nbytes(depth, span), per_task=ROWS_PER_TASK)
    return Kernel((*params((left,)), "u8 *restrict y"), text, (left.pointer, f"(u8 *)({site.scratch})"), f"rlx_ceil_quotient({rows}, {ROWS_PER_TASK})", symbols_used(site))


def tile_rows(site: Site, left: Operand, depth: int) -> Kernel:
    """The same in tiles for matrix units."""
    *lead, last = left.layout.strides
    at = " + ".join(f"i{k}*{ctext.dim(s)}" for k, s in enumerate(lead) if s != 0) or "0"
    rows = ctext.dim(product(left.shape[:-1]))
    k = "b*32 + k" if last == 1 else f"(b*32 + k)*{ctext.dim(last)}"
    text = render("cpu/int8_tiles.c.j2", M=rows, K=depth, at=at, k=k, unravel=unravel(left.shape[:-1]), record=LEFT_RECORD, per_task=BLOCKS_PER_TASK)
    tasks = f"rlx_ceil_quotient({rows}, {TILE})*rlx_ceil_quotient({depth // UNIT}, {BLOCKS_PER_TASK})"
    return Kernel((*params((left,)), "u8 *restrict y"), text, (left.pointer, f"(u8 *)({site.scratch})"), tasks, symbols_used(site))


def _width(isa: Isa) -> int:
    """RLX_BYTES of packed.h."""
    return 32 if isa.vector >= 8 else 16


def _size(e: Encoding) -> int:
    return min(groups(e)[0].size, UNIT)


def form(e: Encoding, isa: Isa) -> Bytes:
    """What this instruction set multiplies: unsigned with signed bytes, for AVX2 alone only while two products fit into 16 bits, or signed ones."""
    if isa.vector >= 8 and ("vnni" in isa.features or raised(e).greatest*254 <= PAIR_LIMIT):
        return raised(e)
    return plain(e)


def calls(e: Encoding, isa: Isa) -> int:
    """Products that a part holds, of 8 at most."""
    return max(1, min(8, PAIR_LIMIT // (254*form(e, isa).greatest))) if _width(isa) == 32 and "vnni" not in isa.features else 8


def _offset(g: Group, form: Bytes) -> str:
    terms = [g.least] if g.least else []
    return " + ".join([*terms, f"{form.bias}*{g.scale}"] if form.bias else terms)

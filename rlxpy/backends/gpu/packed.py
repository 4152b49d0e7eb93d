"""Packed weights on GPUs: any code of a block as a number by itself, written from the encoding's description, and whole matrices of them."""
from __future__ import annotations

from functools import cache

from rlxpy.backends.cpu.blocks import Place, groups, pieces_of, places_of, tables, worth
from rlxpy.backends.cpu.elementwise import indent, unravel
from rlxpy.backends.cpu.loops import offset
from rlxpy.backends.cpu.quant import row_step as row_step
from rlxpy.backends.gpu.elementwise import each
from rlxpy.backends.gpu.kernel import Kernel, Site
from rlxpy.ir.dims import product
from rlxpy.ir.encoding import Encoding, Field, Piece, encoding

CHUNK = 16  # codes: they share one scale and one minimum, and their bits lie in one pattern
HALF = "RLX_INLINE f32 rlx_half(u16 bits) { return rlx_load_f16(bits); }"


@cache
def needs(name: str) -> tuple[str, ...]:
    """C++ that `value` calls: the tables of an encoding, and f32 rlx_value_NAME(block, chunk, l)."""
    e = encoding(name)
    cases = []
    for g in groups(e, lambda label, f, i: worth(label, f, name, _bits(f, i))):
        for first in range(g.first, g.first + g.size, CHUNK):
            least = f" - {g.least}" if g.least else ""
            cases.append(f"case {first // CHUNK}: return (f32)({_code(e, first)})*({g.scale}){least};")
    text = [f"// Code {CHUNK}*chunk + l of the block of {name} at r.", f"RLX_INLINE f32 rlx_value_{name}(const u8 *r, int chunk, int l) {{", "  switch (chunk) {",
            *indent(cases, 2), "  }", "  return 0;", "}"]
    return (HALF, *tables(e), "\n".join(text))


def value(name: str, block: str, chunk: str, lane: str) -> str:
    """C for code `lane` of a chunk."""
    return f"rlx_value_{name}({block}, {chunk}, {lane})"


def element(name: str, row: str, k: str) -> str:
    """C for element k of the packed row that begins at `row`."""
    e = encoding(name)
    return value(name, f"{row} + {k}/{e.block}*{e.block_nbytes}", f"(int)({k}%{e.block}/{CHUNK})", f"(int)({k}%{CHUNK})")


def _code(e: Encoding, first: int) -> str:
    """C for code first + l, what it is worth before scales."""
    f = e.code
    parts = []
    for group in pieces_of(f):
        byte, shift = _steps(places_of(group, first, CHUNK))
        parts.append(_part(group[0], f"r[{byte}]", shift))
    text = " | ".join(parts)
    if f.table:
        return f"(i8)rlx_codes_{e.name}[{text}]"
    if f.dtype is not None:
        return f"({f.dtype.text})({text})"
    return f"(i32)({text}) - {int(f.zero)}" if f.zero else text


def _steps(at: list[Place]) -> tuple[str, str]:
    """C for the byte and the shift of place l: both grow evenly within each half and from one half to the next."""
    texts = []
    for numbers in ([p.byte for p in at], [p.shift for p in at]):
        inner, outer = numbers[1] - numbers[0], numbers[8] - numbers[0]
        assert numbers == [numbers[0] + inner*(i % 8) + outer*(i // 8) for i in range(CHUNK)], "codes lie in runs of 8 or of 16"
        steps = ["l" if inner == 1 else f"l*{inner}"] if outer == 8*inner else [f"l%8*{inner}"*(inner != 0), f"l/8*{outer}"*(outer != 0)]
        texts.append(" + ".join(filter(None, [str(numbers[0]), *steps])) if inner or outer else str(numbers[0]))
    return texts[0], texts[1]


def _bits(f: Field, i: int) -> str:
    """C for the bits of element i of a field of scales or minimums."""
    parts = []
    for p in f.pieces:
        k, rest = divmod(i - p.element, p.element_step)
        if rest == 0 and 0 <= k < p.count:
            parts.append(_part(p, f"r[{p.byte + k*p.byte_step}]", str(p.shift)))
    return f"(u{8*f.word.itemsize})({' | '.join(parts)})"


def _part(p: Piece, byte: str, shift: str) -> str:
    text = byte if shift == "0" else f"({byte} >> ({shift}))"
    text = f"({text} & {2**p.width - 1})" if p.width < 8 else text
    return f"({text} << {p.left})" if p.left else text


def emit_dequantize(site: Site) -> Kernel:
    """A thread for each value."""
    (packed,), out = site.ins, site.out
    name = site.node.attrs.encoding  # type: ignore[attr-defined]
    row_step(packed)
    made = element(name, f"x0 + {offset(packed.layout.strides[:-1])}", f"i{len(out.shape) - 1}")
    return each(site, product(out.shape), [*unravel(out.shape, "t"), f"y[t] = {made};"], needs=needs(name))

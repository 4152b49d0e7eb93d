"""Blocks of packed weights in C: where every code, scale and minimum lies, written from the encoding's own description."""
from __future__ import annotations

import re
from collections.abc import Callable

from rlxpy.backends.cpu import ctext
from rlxpy.frozen import dataclass
from rlxpy.ir.dtypes import DType
from rlxpy.ir.encoding import ENCODINGS, Encoding, Field, Piece

ROW = r"\br(?= \+|\[)"  # the block a text reads
SHORTEST_SIMD = 8  # steps of a loop from which vectors pay; unasked, gcc unrolls these loops whole and picks bytes one by one
# one plane of whole blocks, one whole number a code: what the C here reads
BLOCKS = tuple(e.name for e in ENCODINGS.values()
               if e.is_packed and len(e.stored) == 1 and e.block >= 32 and not (e.sign or e.zero or e.transform) and all(f.span == 1 for f in e.fields))


@dataclass(frozen=True)
class Group:
    """Codes first..first+size of a block, and C for the one scale and minimum ("" for none) that they share."""

    first: int
    size: int
    scale: str
    least: str


def declared(label: str, f: Field, i: int) -> str:
    """C for element i of a field that `levels` declares."""
    return f"{label}_v[{i}]"


def groups(e: Encoding, at: Callable[[str, Field, int], str] = declared) -> tuple[Group, ...]:
    """`at` gives C for an element of a field of scales or minimums, by the field's label."""
    count = max(f.count for f in (*e.scales, *e.mins))

    def product(label: str, fields: tuple[Field, ...], g: int) -> str:
        return "*".join(at(f"{label}{k}", f, g // (count // f.count)) for k, f in enumerate(fields))

    return tuple(Group(g*e.block // count, e.block // count, product("scale", e.scales, g), product("min", e.mins, g)) for g in range(count))


def has_heads(e: Encoding) -> bool:
    """Whether a block of 32 begins with its scale and minimum, or its scale, as f16."""
    return e.block == 32 and len(e.scales) == 1 and all(f.dtype is DType.F16 and f.count == 1 and f.pieces[0].byte == 2*k for k, f in enumerate((*e.scales, *e.mins)))


def levels(e: Encoding) -> list[str]:
    """C that reads every scale and minimum of the block at `r` into scale0_v[], .., min0_v[], .."""
    fields = {**{f"scale{k}": f for k, f in enumerate(e.scales)}, **{f"min{k}": f for k, f in enumerate(e.mins)}}
    lines: list[str] = []
    for label, f in fields.items():
        lines += [*_bits(label, f), f"f32 {label}_v[{f.count}];", f"for (int i = 0; i < {f.count}; i++) {label}_v[i] = {worth(label, f, e.name, f'{label}[i]')};"]
    return lines


def tables(e: Encoding) -> list[str]:
    """C tables that the other texts of this encoding look values up in."""
    named = {**{f"scale{k}": f for k, f in enumerate(e.scales)}, **{f"min{k}": f for k, f in enumerate(e.mins)}}
    floats = [f"RLX_TABLE f32 rlx_{label}_{e.name}[{len(f.table)}] = {{{', '.join(ctext.literal(v, DType.F32) for v in f.table)}}};"
              for label, f in named.items() if f.table]
    if not e.code.table:
        return floats
    low = int(_range(e.code)[0])
    bytes_ = {"codes": [int(v) % 256 for v in entries(e.code)], "raised": [int(v) - low for v in entries(e.code)]}
    return [*floats, *(f"RLX_TABLE u8 rlx_{k}_{e.name}[16] = {{{', '.join(map(str, v))}}};" for k, v in bytes_.items())]


def wide(e: Encoding, first: int, lanes: int) -> str:
    """C for codes first..first+lanes as a vector of i32, each what it is worth before scales."""
    f = e.code
    signed = f.dtype is DType.I8
    parts = [_wide_part(places_of(p, first, lanes), p, signed) for p in pieces_of(f)]
    text = " | ".join(parts)
    if f.table:
        return f"rlx_look_up_wide(rlx_codes_{e.name}, {text})"
    return f"({text}) - {int(f.zero)}" if f.zero else text


@dataclass(frozen=True)
class Bytes:
    """How codes are handed to integer dot products: each byte is a code plus `bias`; unsigned bytes of at most `greatest`, or signed ones."""

    signed: bool
    bias: int
    greatest: int


def raised(e: Encoding) -> Bytes:
    """Unsigned: the least code is 0."""
    low, high = _range(e.code)
    return Bytes(False, -low, high - low)


def plain(e: Encoding) -> Bytes:
    low, high = _range(e.code)
    return Bytes(True, 0, max(-low, high))


def narrow(e: Encoding, first: int, count: int, form: Bytes, abreast: int = 1) -> str:
    """C for codes first..first+count, 16 or 32, as a vector of bytes in a form; abreast 2: of 16 codes of the block at `r`, then of that at `q`."""
    return _formed(e, form, " | ".join(_abreast(p, first) if abreast == 2 else _narrow_part(p, first, count) for p in pieces_of(e.code)))


def code_words(e: Encoding, start: int) -> list[tuple[Place, ...]]:
    """For every four codes of a block, of each group of pieces: the word, four bytes each from byte `start` on, that has those four bytes side by side, and their
    shift.  Words of `bit_words` are meant turned.  None where bits of a code lie in another order."""
    found = []
    for group in pieces_of(e.code):
        places = places_of(group, 0, e.block)
        if any((p.byte - start) % 4 for p in places[::32]):
            return []
        if _in_order(e, group):
            found.append([Place((places[0].byte - start) // 4, k) for k in range(8)])
        elif all(_is_run(places[k:k + 4]) and (places[k].byte - start) % 4 == 0 for k in range(0, e.block, 4)):
            found.append([Place((p.byte - start) // 4, p.shift) for p in places[::4]])
        else:
            return []
    return list(zip(*found, strict=True))


def bit_words(e: Encoding, start: int) -> list[int]:
    """The words that have one bit of each code, the first lowest.  Turned, bit k of byte i is of code 4k + i, where bit 4k + i was."""
    return [(group[0].byte - start) // 4 for group in pieces_of(e.code) if _in_order(e, group)]


def _in_order(e: Encoding, group: tuple[Piece, ...]) -> bool:
    places = places_of(group, 0, e.block)
    return e.block == 32 and group[0].width == 1 and places == [Place(places[0].byte + k // 8, k % 8) for k in range(32)]


def word(e: Encoding, places: tuple[Place, ...], form: Bytes, text: Callable[[int], str]) -> str:
    """C for codes in a form; `text` gives C for a vector of their words."""
    return _formed(e, form, " | ".join(_moved(group[0], place, text(place.byte)) for group, place in zip(pieces_of(e.code), places, strict=True)))


def _moved(piece: Piece, place: Place, text: str) -> str:
    """The bits of a piece where they belong in each byte; what a shift brings from the byte beside is masked."""
    by = piece.left - place.shift
    text = f"(rlx_bytes)((rlx_sums){text} {'<<' if by > 0 else '>>'} {abs(by)})" if by else text
    return f"({text} & {(2**piece.width - 1) << piece.left})" if piece.width < 8 else text


def _formed(e: Encoding, form: Bytes, text: str) -> str:
    f = e.code
    if f.table:
        return f"rlx_look_up(rlx_{'codes' if form.signed else 'raised'}_{e.name}, {text})"
    if f.dtype is DType.I8:
        return text if form.signed else f"({text}) ^ 128"
    return f"({text}) - {int(f.zero)}" if form.signed and f.zero else text


# ---- where bits lie
@dataclass(frozen=True)
class Place:
    byte: int
    shift: int


def pieces_of(f: Field) -> tuple[tuple[Piece, ...], ...]:
    """Pieces grouped by what they give (width and left): each group gives all elements their share."""
    kinds: dict[tuple[int, int], list[Piece]] = {}
    for p in f.pieces:
        kinds.setdefault((p.width, p.left), []).append(p)
    return tuple(tuple(g) for g in kinds.values())


def places_of(group: tuple[Piece, ...], first: int, count: int) -> list[Place]:
    found: dict[int, Place] = {}
    for p in group:
        for i, element in enumerate(range(p.elements.start, p.elements.stop, p.element_step)):
            found[element] = Place(p.byte + i*p.byte_step, p.shift)
    return [found[i] for i in range(first, first + count)]


def _is_run(places: list[Place]) -> bool:
    """Neighbouring bytes, all shifted alike."""
    return all(q == Place(places[0].byte + i, places[0].shift) for i, q in enumerate(places))


def _wide_part(places: list[Place], group: tuple[Piece, ...], signed: bool) -> str:
    width, left, shift, byte = group[0].width, group[0].left, places[0].shift, places[0].byte
    if signed:
        assert _is_run(places)
        assert width == 8
        return f"rlx_wide_signed(r + {byte})"
    mask = 2**width - 1
    if _is_run(places):
        text = f"rlx_wide(r + {byte})"
        text = f"({text} >> {shift})" if shift else text
        text = f"({text} & {mask})" if shift + width < 8 else text
    else:
        last = max(q.byte for q in places)
        if last - byte < 4:
            word = " | ".join(f"r[{b}]{f' << {8*(b - byte)}' if b > byte else ''}" for b in range(byte, last + 1))
            shifts = ", ".join(str(8*(q.byte - byte) + q.shift) for q in places)
            text = f"((((rlx_vi){{0}} + (i32)({word})) >> (rlx_vi){{{shifts}}}) & {mask})"
        else:
            lanes = ", ".join(f"r[{q.byte}] >> {q.shift} & {mask}" for q in places)
            text = f"(rlx_vi){{{lanes}}}"
    return f"({text} << {left})" if left else text


def _narrow_part(group: tuple[Piece, ...], first: int, count: int) -> str:
    places = places_of(group, first, count)
    if _is_run(places):
        return _picked(group[0], places[0], f"rlx_load{count}(r + {places[0].byte})", 0x0101010101010101 if count == 8 else 1)
    if count > 8:
        half = count // 2
        return f"rlx_join{count}({_narrow_part(group, first, half)}, {_narrow_part(group, first + half, half)})"
    assert group[0].width == 1, "single bits, or runs of bytes"
    assert places == [Place(places[0].byte, i) for i in range(8)], "single bits in their order"
    return f"(rlx_bits8(r[{places[0].byte}]) << {group[0].left})"


def _abreast(group: tuple[Piece, ...], first: int) -> str:
    places = places_of(group, first, 16)
    if _is_run(places):
        return _picked(group[0], places[0], f"rlx_join32(rlx_load16(r + {places[0].byte}), rlx_load16(q + {places[0].byte}))", 1)
    of_r = _narrow_part(group, first, 16)
    return f"rlx_join32({of_r}, {re.sub(ROW, 'q', of_r)})"


def _picked(piece: Piece, place: Place, text: str, ones: int) -> str:
    """The bits of a piece from a vector of bytes, or from bytes in a word whose lowest bits `ones` has."""
    text = f"({text} >> {place.shift})" if place.shift else text
    if piece.width < 8 and (place.shift + piece.width < 8 or ones > 1):
        text = f"({text} & {(2**piece.width - 1) * ones:#x}{'ULL' if ones > 1 else ''})"
    return f"({text} << {piece.left})" if piece.left else text


# ---- what numbers are worth
def entries(f: Field) -> tuple[float, ...]:
    return tuple(v for v in f.table if isinstance(v, float))


def _range(f: Field) -> tuple[int, int]:
    """Least and greatest code."""
    if f.table:
        return int(min(entries(f))), int(max(entries(f)))
    if f.dtype is DType.I8:
        return -128, 127
    return -int(f.zero), 2**f.bits - 1 - int(f.zero)


def _bits(label: str, f: Field) -> list[str]:
    word = f"u{8 * f.word.itemsize}"
    lines = [f"{word} {label}[{f.count}];"]
    seen: set[int] = set()
    for p in f.pieces:
        elements = range(p.elements.start, p.elements.stop, p.element_step)
        fresh = not seen & set(elements)
        seen |= set(elements)
        part = f"r[{p.byte} + i*{p.byte_step}]"
        part = f"({part} >> {p.shift})" if p.shift else part
        part = f"({part} & {2**p.width - 1})" if p.shift + p.width < 8 else part
        part = f"(({word}){part} << {p.left})" if p.left else part
        loop = f"for (int i = 0; i < {p.count}; i++) {label}[{p.element} + i*{p.element_step}] {'=' if fresh else '|='} ({word}){part};"
        lines += ["RLX_SIMD", loop] if p.count >= SHORTEST_SIMD else [loop]
    return lines


def worth(label: str, f: Field, name: str, bits: str) -> str:
    """C for a scale or minimum as f32, of its bits as they are stored."""
    if f.table:
        return f"rlx_{label}_{name}[{bits}]"
    text = f"rlx_half({bits})" if f.dtype is DType.F16 else f"(f32){bits}" if f.dtype is None else f"(f32)({f.dtype.text}){bits}" if f.dtype.is_integer else f"rlx_load_{f.dtype.text}({bits})"
    text = f"({text} - {ctext.literal(f.zero, DType.F32)})" if f.zero else text
    return f"({text}*{ctext.literal(f.factor, DType.F32)})" if f.factor != 1 else text

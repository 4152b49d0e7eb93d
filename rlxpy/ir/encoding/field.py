"""Where the bits of a stored number lie in a record, and how they are read and written."""
from __future__ import annotations

from math import lcm

import numpy as np

from rlxpy.frozen import dataclass
from rlxpy.ir.dtypes import Array, DType


@dataclass(frozen=True)
class Piece:
    """Bits that `count` values share out evenly: value `element + i * element_step` takes
    `((record[byte + i * byte_step] >> shift) & (2**width - 1)) << left`.  The pieces of one value are OR-ed."""

    byte: int
    count: int
    width: int = 8
    shift: int = 0
    left: int = 0
    element: int = 0
    byte_step: int = 1
    element_step: int = 1

    @property
    def bytes(self) -> slice:
        return slice(self.byte, self.byte + (self.count - 1) * self.byte_step + 1, self.byte_step)

    @property
    def elements(self) -> slice:
        return slice(self.element, self.element + (self.count - 1) * self.element_step + 1, self.element_step)


@dataclass(frozen=True)
class Field:
    """`count` numbers of a record; each belongs to an equal, consecutive share of the record's elements.

    dtype reads the assembled bits; None means an unsigned integer.  A table is indexed by the bits; rows of k numbers in it give k elements
    per code.  A number is worth its table entry, or else (number - zero) * factor."""

    count: int
    pieces: tuple[Piece, ...]
    dtype: DType | None = None
    table: tuple[float, ...] | tuple[tuple[float, ...], ...] = ()
    zero: float = 0.0
    factor: float = 1.0
    plane: int = 0

    @property
    def bits(self) -> int:
        return max(p.left + p.width for p in self.pieces)

    @property
    def word(self) -> np.dtype[np.unsignedinteger]:
        """The narrowest unsigned NumPy type that holds the assembled bits."""
        return np.dtype(f"u{next(n for n in (1, 2, 4, 8) if 8 * n >= self.bits)}")

    @property
    def span(self) -> int:
        """Elements per number that the table unfolds; 1 unless its rows are vectors."""
        return len(self.table[0]) if self.table and isinstance(self.table[0], tuple) else 1


def stream(byte: int, bits: int, count: int, left: int = 0) -> tuple[Piece, ...]:
    """`count` numbers of `bits` bits in a row, low bits first; whole bytes give little-endian numbers."""
    period = lcm(8, bits)
    pieces = []
    for element in range(min(count, period // bits)):
        done = 0
        while done < bits:
            position = element * bits + done
            width = min(8 - position % 8, bits - done)
            repeats = -(-(count - element) // (period // bits))
            pieces.append(Piece(byte + position // 8, repeats, width, position % 8, left + done, element, period // 8, period // bits))
            done += width
    return tuple(pieces)


def shelves(byte: int, count: int, width: int, left: int = 0, element: int = 0) -> tuple[Piece, ...]:
    """`count` bytes hold 8/width runs of `count` numbers: the first run in the lowest bits of each byte, the next one above it."""
    return tuple(Piece(byte, count, width, width * i, left, element + count * i) for i in range(8 // width))


def number(byte: int, dtype: DType, count: int = 1) -> Field:
    """`count` little-endian numbers of a type."""
    return Field(count, stream(byte, dtype.bits, count), dtype)


def read(field: Field, records: Array) -> Array:
    """What a field's numbers are worth.  records: uint8 [n, nbytes]; returns f32 [n, count * span]."""
    bits = np.zeros((len(records), field.count), field.word)
    for p in field.pieces:
        part = records[:, p.bytes]
        if p.shift:
            part = part >> p.shift
        if p.shift + p.width < 8:
            part = part & (2**p.width - 1)
        bits[:, p.elements] |= part.astype(field.word, copy=False) << p.left if p.left else part
    if field.table:
        return np.asarray(field.table, np.float32)[bits].reshape(len(records), field.count * field.span)
    values: Array = (bits if field.dtype is None else bits.view(field.dtype.numpy)).astype(np.float32)
    if field.zero:
        values -= np.float32(field.zero)
    if field.factor != 1:
        values *= np.float32(field.factor)
    return values


def write(field: Field, bits: Array, records: Array) -> None:
    """Put assembled bits in place.  bits: field.word [n, count]; records: uint8 [n, nbytes] whose bits here are still zero."""
    for p in field.pieces:
        part = (bits[:, p.elements] >> p.left) & (2**p.width - 1)
        records[:, p.bytes] |= part.astype(np.uint8) << p.shift

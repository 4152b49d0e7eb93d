"""An encoding of numbers as data: its planes, fields, scales and transform, and the one decoder that reads them all."""
from __future__ import annotations

from functools import reduce
from math import lcm, prod
from typing import Any

import numpy as np

from rlxpy.errors import BuildError
from rlxpy.frozen import dataclass
from rlxpy.ir.dtypes import Array, DType
from rlxpy.ir.encoding.field import Field, read
from rlxpy.ir.encoding.transform import Hadamard, Permutation


@dataclass(frozen=True)
class Plane:
    """One stored array: an entry of `bits` bits per `columns` columns (0: per row), shared by `rows` rows (0: by all of a matrix).

    Entries of a row form a bit stream, low bits first; every row starts on a byte.  dtype: the array's elements, U8 for packed bits."""

    name: str
    dtype: DType
    columns: int
    bits: int
    rows: int = 1

    @property
    def record_nbytes(self) -> int:
        """A record is the fewest entries that end on a byte."""
        return lcm(self.bits, 8) // 8

    @property
    def record_columns(self) -> int:
        """Columns of one record; 0 for an entry per row."""
        return self.columns * (lcm(self.bits, 8) // self.bits)

    def row_nbytes(self, columns: int) -> int:
        entries = -(-columns // self.columns) if self.columns else 1
        return -(-entries * self.bits // 8)

    def lead(self, lead: tuple[int, ...]) -> tuple[int, ...]:
        """Leading dims of this plane for a tensor with these."""
        if self.rows == 1 or not lead:
            return lead
        return (*lead[:-1], -(-lead[-1] // self.rows) if self.rows else min(lead[-1], 1))


@dataclass(frozen=True)
class Encoding:
    """How rows of f32 numbers are stored: code * sign - zero, then * scale * scale.1 ..., then - min * min.1 ..., in f32, left to right.

    block: the columns of a row are a multiple of it.  stored: the planes; a field names its plane by index."""

    name: str
    block: int
    stored: tuple[Plane, ...]
    code: Field
    sign: Field | None = None
    zero: Field | None = None
    scales: tuple[Field, ...] = ()
    mins: tuple[Field, ...] = ()
    transform: Hadamard | Permutation | None = None
    source: str = ""

    def __post_init__(self) -> None:
        for field in self.fields:
            if not 0 <= field.plane < len(self.stored):
                raise BuildError(f"encoding {self.name}: a field in plane {field.plane}", why=f"it has {len(self.stored)} planes")
            nbytes = self.stored[field.plane].record_nbytes
            if any(p.bytes.stop > nbytes or p.elements.stop > field.count or p.shift + p.width > 8 for p in field.pieces):
                raise BuildError(f"encoding {self.name}: a field leaves its record", why=f"records of its plane have {nbytes} bytes")
            if missing := set(range(field.count)) - {k for p in field.pieces for k in range(field.count)[p.elements]}:
                raise BuildError(f"encoding {self.name}: no bits for number {min(missing)} of a field", why=f"it has {field.count} numbers, its pieces fill {field.count - len(missing)}")
            if field.table and len(field.table) < 2**field.bits:
                raise BuildError(f"encoding {self.name}: a table of {len(field.table)} for {2**field.bits} codes", why=f"a code has {field.bits} bits", fix="name a value for every code")

    @property
    def fields(self) -> tuple[Field, ...]:
        return (self.code, *(f for f in (self.sign, self.zero) if f is not None), *self.scales, *self.mins)

    def share(self, field: Field) -> int:
        """Columns that one number of the field serves; 0 for the whole row."""
        return self.stored[field.plane].record_columns // (field.count * field.span)

    @property
    def is_packed(self) -> bool:
        """False when the stored array is the tensor in a plain dtype."""
        return self.code.dtype is None or bool(self.scales or self.mins)

    @property
    def is_scaled_rows(self) -> bool:
        """Whether a number is its code, as an array holds it, times one number of its row."""
        c = self.code
        plain = c.dtype is not None and c.count == 1 and not c.table and (c.zero, c.factor) == (0, 1) and not (self.sign or self.zero or self.mins or self.transform)
        return plain and len(self.scales) == 1 and self.scales[0].dtype is DType.F32 and self.scales[0].factor == 1 and self.stored[self.scales[0].plane] == Plane("scale", DType.F32, 0, 32)

    @property
    def block_nbytes(self) -> int:
        return self.row_nbytes(self.block)

    def row_nbytes(self, columns: int) -> int:
        """Bytes of one row over all planes.  Raises BuildError unless columns is a multiple of `block`."""
        if columns % self.block:
            raise BuildError(
                f"{self.name} cannot hold rows of {columns}", why=f"{columns} is no multiple of its block of {self.block}",
                fix=f"pad the rows to {columns + -columns % self.block}",
            )
        return sum(p.row_nbytes(columns) for p in self.stored)

    def planes(self, shape: tuple[int, ...]) -> tuple[tuple[str, tuple[int, ...], DType], ...]:
        """Name, shape and dtype of every array that stores a tensor of this shape [..., columns]; raises as `row_nbytes` does."""
        *lead, columns = shape
        self.row_nbytes(columns)
        tiles = tuple((p.name, (*p.lead(tuple(lead)), p.row_nbytes(columns) // p.dtype.nbytes), p.dtype) for p in self.stored)
        return (*tiles, ("perm", (columns,), DType.I32)) if isinstance(self.transform, Permutation) else tiles

    def decode(self, planes: tuple[Array, ...], columns: int) -> Array:
        """f32 [..., columns] from the arrays that `planes` describes, in any strides; plain bytes serve for any dtype.

        Raises BuildError when an array is missing or its size is wrong.  Temporaries take 5 to 16 bytes an element: pass slices of rows."""
        lead = np.shape(planes[self.code.plane])[:-1] if len(planes) > self.code.plane else ()
        raw = self._raw(planes, (*lead, columns))
        if 0 in (*lead, columns):
            return np.zeros((*lead, columns), np.float32)
        unit = lcm(*(p.record_columns or 1 for p in self.stored))
        records = [_records(p, a, lead, columns + -columns % unit) for p, a in zip(self.stored, raw, strict=True)]
        rows = prod(lead)

        def value(field: Field) -> Array:
            return read(field, records[field.plane]).reshape(rows, -1)

        with np.errstate(over="ignore", invalid="ignore"):  # a damaged scale may be infinite; the product says so
            out = value(self.code)
            if self.sign:
                _combine(np.multiply, out, value(self.sign))
            if self.zero:
                _combine(np.subtract, out, value(self.zero))
            for scale in self.scales:
                _combine(np.multiply, out, value(scale))
            if self.mins:
                _combine(np.subtract, out, reduce(_product, map(value, self.mins)))
        out = out[:, :columns]
        if isinstance(self.transform, Permutation):
            out = self.transform.undo(out, planes[-1])
        elif self.transform:
            out = self.transform.undo(out)
        return np.ascontiguousarray(out).reshape(*lead, columns)

    def _raw(self, planes: tuple[Array, ...], shape: tuple[int, ...]) -> list[Array]:
        wanted = self.planes(shape)
        if len(planes) != len(wanted):
            raise BuildError(f"{self.name} is stored in {len(wanted)} arrays, got {len(planes)}", fix=", ".join(w[0] for w in wanted))
        raw = [np.ascontiguousarray(a).view(np.uint8) for a in planes[: len(self.stored)]]
        for (name, want, dtype), array, given in zip(wanted, raw, planes, strict=False):
            if array.shape != (*want[:-1], want[-1] * dtype.nbytes):
                raise BuildError(f"{self.name}: {name} of {given.dtype} {given.shape}", why=f"{shape} needs {dtype} {want}")
        return raw


def _records(plane: Plane, raw: Array, lead: tuple[int, ...], columns: int) -> Array:
    """uint8 [rows * records, record_nbytes]: rows that share an entry each get it; a last, partial record is filled with zeros."""
    if plane.lead(lead) != lead:
        raw = np.repeat(raw, plane.rows or lead[-1], axis=-2)[..., : lead[-1], :]
    count = columns // plane.record_columns if plane.record_columns else 1
    missing = count * plane.record_nbytes - raw.shape[-1]
    if missing:
        raw = np.concatenate([raw, np.zeros((*lead, missing), np.uint8)], axis=-1)
    return raw.reshape(prod(lead) * count, plane.record_nbytes)


def _combine(op: np.ufunc, values: Array, by: Array) -> None:
    """values [rows, n] op= by [rows, m], where each entry of `by` serves n/m neighbours."""
    groups: Any = values.reshape(*by.shape, -1)
    op(groups, by[..., None], out=groups)


def _product(a: Array, b: Array) -> Array:
    fine, coarse = (a, b) if a.shape[-1] >= b.shape[-1] else (b, a)
    out = fine.copy()
    _combine(np.multiply, out, coarse)
    return out

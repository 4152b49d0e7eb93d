"""Encodings that keep codes, scales and zeros in separate arrays."""
from __future__ import annotations

from dataclasses import replace
from math import lcm

from rlxpy.errors import BuildError
from rlxpy.frozen import dataclass
from rlxpy.ir.dtypes import DType
from rlxpy.ir.encoding.describe import Encoding, Plane
from rlxpy.ir.encoding.field import Field, stream
from rlxpy.ir.encoding.transform import Hadamard, Permutation


@dataclass(frozen=True)
class Level:
    """One array of numbers: each serves `columns` columns (0: the row) of `rows` rows (0: the matrix).

    number: a dtype, or a count of bits for unsigned codes, which are stored as a bit stream.  table, zero, factor: as in Field."""

    number: DType | int
    columns: int = 1
    rows: int = 1
    table: tuple[float, ...] | tuple[tuple[float, ...], ...] = ()
    zero: float = 0.0
    factor: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.number, DType) and not (isinstance(self.number, int) and self.number > 0):
            raise BuildError(f"Level({self.number!r})", why="its numbers are of a dtype, or of a count of bits above 0", fix="Level(4), or Level(DType.F16, 32)")
        if not all(isinstance(n, int) and n >= 0 for n in (self.columns, self.rows)):
            raise BuildError(f"Level({self.number!r}, {self.columns!r}, {self.rows!r})", why="columns and rows are counts, 0 for all", fix="Level(DType.F16, 32)")

    @property
    def bits(self) -> int:
        return self.number if isinstance(self.number, int) else self.number.bits

    @property
    def dtype(self) -> DType | None:
        return None if isinstance(self.number, int) else self.number

    def plane(self, name: str) -> Plane:
        stored = DType.U8 if self.dtype is None or self.dtype.bits < 8 else self.dtype
        return Plane(name, stored, self.columns, self.bits, self.rows)

    def field(self, plane: Plane, index: int) -> Field:
        count = plane.record_nbytes * 8 // self.bits if self.columns else 1
        return Field(count, stream(0, self.bits, count), self.dtype, self.table, self.zero, self.factor, index)


def planar(
    name: str,
    code: Level,
    *,
    sign: Level | None = None,
    zero: Level | None = None,
    scales: tuple[Level, ...] = (),
    mins: tuple[Level, ...] = (),
    transform: Hadamard | Permutation | None = None,
    source: str = "",
) -> Encoding:
    """An encoding with one array per level, in the order code, sign, zero, scale, scale.1, ..., min, min.1, ...

    Rows of any length are allowed: the last group of a row may be short."""
    levels = (code, *filter(None, (sign, zero)), *(scales if isinstance(scales, tuple) else (None,)), *(mins if isinstance(mins, tuple) else (None,)))
    if not all(isinstance(level, Level) for level in levels):
        raise BuildError(f"encoding {name}: code, scales or mins are of another kind", why="code is a Level, and scales and mins are tuples of Levels",
                         fix="planar('acme.q4', Level(4), scales=(Level(DType.F16, 32),))")
    named = {
        "code": code,
        **({"sign": sign} if sign else {}),
        **({"zero": zero} if zero else {}),
        **{f"scale.{i}" if i else "scale": level for i, level in enumerate(scales)},
        **{f"min.{i}" if i else "min": level for i, level in enumerate(mins)},
    }
    planes = {key: level.plane(key) for key, level in named.items()}
    fields = {key: level.field(planes[key], i) for i, (key, level) in enumerate(named.items())}
    return Encoding(
        name, 1, tuple(planes.values()), fields["code"], fields.get("sign"), fields.get("zero"),
        tuple(f for key, f in fields.items() if key.startswith("scale")),
        tuple(f for key, f in fields.items() if key.startswith("min")),
        transform, source,
    )


def int8_rows() -> Encoding:
    """Signed bytes with one f32 scale per row."""
    return planar("int8_rows", Level(DType.I8), scales=(Level(DType.F32, 0),))


def int4_groups(group: int = 128) -> Encoding:
    """Unsigned 4-bit codes around 8 with one f16 scale per `group` columns."""
    return planar(f"int4_{group}", Level(4, zero=8.0), scales=(Level(DType.F16, group),))


# Quantiles of the normal distribution, scaled to [-1, 1].  Dettmers et al. 2023, QLoRA, arXiv:2305.14314, appendix E.
NF4_CODES = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)


def nf4(group: int = 64) -> Encoding:
    """4-bit NormalFloat codes with one f32 scale per `group` columns, low nibble first."""
    return planar(f"nf4_{group}", Level(4, table=NF4_CODES), scales=(Level(DType.F32, group),), source="arXiv:2305.14314")


def rotated(encoding: Encoding, size: int) -> Encoding:
    """The same encoding of rows that were rotated by a Hadamard matrix in groups of `size`; rows become multiples of it."""
    return replace(encoding, name=f"{encoding.name}_fwht{size}", block=lcm(encoding.block, size), transform=Hadamard(size))

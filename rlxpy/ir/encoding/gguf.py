"""The block encodings of GGUF files: where ggml keeps each field of a block.

Layouts: ggml/src/ggml-common.h (block_q*), element values: the dequantize_row_* functions of ggml-quants.c."""
from __future__ import annotations

from rlxpy.ir.dtypes import DType
from rlxpy.ir.encoding.describe import Encoding, Plane
from rlxpy.ir.encoding.field import Field, Piece, number, shelves, stream

F16, I8 = DType.F16, DType.I8
# e2m1 doubled, as integers with one zero; the scales are halved in turn
FP4_CODES = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0)
E8M0_HALVED = tuple(2.0 ** (e - 128) for e in range(256))
UE4M3_HALVED = tuple(
    0.0 if e == 127 else (e & 7) * 2.0**-10 if e & 120 == 0 else (8 + (e & 7)) * 2.0 ** ((e >> 3 & 15) - 11) for e in range(256)
)
IQ4_CODES = (-127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0)


def _plain(dtype: DType) -> Encoding:
    return Encoding(dtype.text, 1, (Plane("data", dtype, 1, dtype.bits),), number(0, dtype))


def _block(
    name: str, block: int, nbytes: int, code: Field, scales: tuple[Field, ...], mins: tuple[Field, ...] = ()
) -> Encoding:
    return Encoding(name, block, (Plane("data", DType.U8, block, 8 * nbytes),), code, scales=scales, mins=mins, source="ggml-common.h")


def _half(byte: int, factor: float = 1.0) -> Field:
    return Field(1, stream(byte, 16, 1), F16, factor=factor)


def _nibbles(byte: int, table: tuple[float, ...] = (), zero: float = 0.0) -> Field:
    return Field(32, shelves(byte, 16, 4), table=table, zero=zero)


def _fives(low: int, high: int, zero: float = 0.0) -> Field:
    """32 numbers: low nibbles as in 4-bit blocks, fifth bits as a stream."""
    return Field(32, shelves(low, 16, 4) + stream(high, 1, 32, left=4), zero=zero)


def _sixes(byte: int, shift: int) -> Field:
    """The 6-bit scales (shift 0) or minimums (shift 4) of q4_k and q5_k, 8 of each in 12 bytes."""
    own = byte + shift
    return Field(8, (Piece(own, 4, 6), Piece(byte + 8, 4, 4, shift, 0, 4), Piece(own, 4, 2, 6, 4, 4)))


def _join(*parts: tuple[Piece, ...]) -> tuple[Piece, ...]:
    return tuple(p for part in parts for p in part)


def _groups(byte: int, count: int, width: int, total: int, left: int = 0) -> tuple[Piece, ...]:
    """Consecutive groups of `count` bytes, each shelved on its own, up to `total` numbers."""
    per_group = count * 8 // width
    return _join(*(shelves(byte + count * g, count, width, left, per_group * g) for g in range(total // per_group)))


Q4_K_SCALES, Q4_K_MINS = (_half(0), _sixes(4, 0)), (_half(2), _sixes(4, 4))

ROWS = (
    _plain(DType.F32),
    _plain(DType.F16),
    _plain(DType.BF16),
    _block("q8_0", 32, 34, number(2, I8, 32), (_half(0),)),
    _block("q4_0", 32, 18, _nibbles(2, zero=8), (_half(0),)),
    _block("q4_1", 32, 20, _nibbles(4), (_half(0),), (_half(2, factor=-1),)),
    _block("q5_0", 32, 22, _fives(6, 2, zero=16), (_half(0),)),
    _block("q5_1", 32, 24, _fives(8, 4), (_half(0),), (_half(2, factor=-1),)),
    _block("q2_k", 256, 84, Field(256, _groups(16, 32, 2, 256)),
           (_half(80), Field(16, (Piece(0, 16, 4),))), (_half(82), Field(16, (Piece(0, 16, 4, 4),)))),
    _block("q3_k", 256, 110, Field(256, _groups(32, 32, 2, 256) + shelves(0, 32, 1, left=2), zero=4),
           (_half(108), Field(16, shelves(96, 8, 4) + shelves(104, 4, 2, left=4), zero=32))),
    _block("q4_k", 256, 144, Field(256, _groups(16, 32, 4, 256)), Q4_K_SCALES, Q4_K_MINS),
    _block("q5_k", 256, 176, Field(256, _groups(48, 32, 4, 256) + shelves(16, 32, 1, left=4)), Q4_K_SCALES, Q4_K_MINS),
    _block("q6_k", 256, 210, Field(256, _groups(0, 64, 4, 256) + _groups(128, 32, 2, 256, left=4), zero=32),
           (_half(208), number(192, I8, 16))),
    _block("iq4_nl", 32, 18, _nibbles(2, IQ4_CODES), (_half(0),)),
    _block("iq4_xs", 256, 136, Field(256, _groups(8, 16, 4, 256), table=IQ4_CODES),
           (_half(0), Field(8, stream(4, 4, 8) + stream(2, 2, 8, left=4), zero=32))),
    _block("tq2_0", 256, 66, Field(256, _groups(0, 32, 2, 256), zero=1), (_half(64),)),
    _block("mxfp4", 32, 17, _nibbles(1, FP4_CODES), (Field(1, stream(0, 8, 1), table=E8M0_HALVED),)),
    _block("nvfp4_ggml", 64, 36, Field(64, _groups(4, 8, 4, 64), table=FP4_CODES), (Field(4, stream(0, 8, 4), table=UE4M3_HALVED),)),
)

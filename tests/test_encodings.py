"""Encodings: every row against hand-valued blocks and ggml's own Python, one decoder for any layout, and the rounding quantiser."""
from __future__ import annotations

from dataclasses import replace

import gguf
import ml_dtypes
import numpy as np
import pytest
from gguf.quants import IQ2_XXS, dequantize, quantize as ggml_quantize
from hypothesis import given, strategies as st

from rlxpy.errors import BuildError, InputError
from rlxpy.ir.dtypes import Array, DType
from rlxpy.ir.encoding import (
    ENCODINGS,
    Encoding,
    Field,
    Hadamard,
    Level,
    Permutation,
    Piece,
    Plane,
    encoding,
    int4_groups,
    int8_rows,
    nf4,
    number,
    planar,
    rotated,
    stream,
)
from rlxpy.ir.encoding.field import read, write
from rlxpy.ir.quantize import quantize

GGML = {n: gguf.GGMLQuantizationType[n.removesuffix("_ggml").upper()] for n in ENCODINGS if len(encoding(n).stored) == 1}
packed_rows = pytest.mark.parametrize("name", [n for n in GGML if encoding(n).is_packed])


def random_rows(name: str, rows: int, blocks: int, seed: int) -> Array:
    return np.random.default_rng(seed).integers(0, 256, (rows, blocks * encoding(name).block_nbytes), dtype=np.uint8)


def same_bits(a: Array, b: Array) -> bool:
    return a.shape == b.shape and bool(((a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))).all())


# Block bytes by offset (all others zero), and what some of its elements are worth, computed by hand from ggml-common.h
Q4_1_BLOCK = "003800bcf0e1d2c3b4a5968778695a4b3c2d1e0f"  # d = 0.5, m = -1
K_SCALES = "43020000 85010000 72000000"  # scale 0 = 3, 1 = 2, 4 = 18; minimum 0 = 5, 1 = 1, 4 = 39
GOLDEN: dict[str, tuple[dict[int, str], dict[int, float]]] = {
    "f32": ({0: "0000c0bf"}, {0: -1.5}),
    "f16": ({0: "00be"}, {0: -1.5}),
    "bf16": ({0: "c0bf"}, {0: -1.5}),
    "q8_0": ({0: "0038 01ff807f", 33: "fe"}, {0: 0.5, 1: -0.5, 2: -64, 3: 63.5, 4: 0, 31: -1}),
    "q4_0": ({0: "00c0 f1", 17: "90"}, {0: 14, 1: 16, 15: 16, 16: -14, 17: 16, 31: -2}),
    "q4_1": ({0: Q4_1_BLOCK}, {i: (i if i < 16 else 31 - i) * 0.5 - 1 for i in range(32)}),
    "q5_0": ({0: "0038 01000280 2f30", 21: "a4"}, {0: 7.5, 1: -8, 2: -8, 15: -6, 16: -7, 17: 1.5, 31: 5}),
    "q5_1": ({0: "003800bc 01000280 2f30", 23: "a4"}, {0: 14.5, 1: -1, 2: -1, 15: 1, 16: 0, 17: 8.5, 31: 12}),
    "q2_k": (
        {0: "23", 2: "15", 6: "31", 8: "04", 16: "c9", 48: "02", 80: "0038003c"},
        {0: -0.5, 1: -2, 32: 4, 64: 0, 96: -1.5, 128: 4, 129: 0},
    ),
    "q3_k": (
        {0: "11", 32: "c9", 64: "02", 96: "45", 98: "09", 102: "01", 104: "32", 106: "09", 108: "0038"},
        {0: 2.5, 32: 7, 96: -0.5, 128: 20, 129: -40},
    ),
    "q4_k": (
        {0: "003c0038" + K_SCALES, 16: "a9", 80: "0c"},
        {0: 24.5, 1: -2.5, 32: 19.5, 33: -0.5, 64: 0, 128: 196.5, 129: -19.5},
    ),
    "q5_k": (
        {0: "003c0038" + K_SCALES, 16: "11", 48: "a9", 112: "0c"},
        {0: 72.5, 1: -2.5, 32: 19.5, 33: -0.5, 64: 0, 128: 484.5, 129: -19.5},
    ),
    "q6_k": (
        {0: "b7", 32: "5c", 64: "1e", 128: "d2", 160: "01", 192: "0400fd000200 0a00 01000000 02", 208: "0034"},
        {0: 7, 32: 15, 64: -2.5, 96: 52.5, 128: -0.5, 192: -15.5},
    ),
    "iq4_nl": ({0: "0038 0f", 17: "81"}, {0: 56.5, 1: -63.5, 15: -52, 16: -63.5, 31: 0.5}),
    "iq4_xs": ({0: "0038 02c0 06000030 f8", 120: "09"}, {0: 3, 16: 339, 32: 2032, 224: 123.5}),
    "tq2_0": ({0: "91", 32: "02", 64: "0040"}, {0: 0, 1: -2, 32: -2, 64: 0, 96: 2, 128: 2}),
    "mxfp4": ({0: "80 f7", 16: "19"}, {0: 12, 1: 0, 15: -1, 16: -12, 31: 1}),
    "nvfp4_ggml": ({0: "38400144 a3", 12: "07", 20: "02", 28: "0c"}, {0: 1.5, 8: -1, 16: 12, 32: 2.0**-9, 48: -6, 49: 0}),
}


def test_every_row_has_a_golden_block_with_its_type() -> None:
    assert set(GOLDEN) == set(GGML)


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_block(name: str) -> None:
    parts, worth = GOLDEN[name]
    enc = encoding(name)
    raw = np.zeros(enc.block_nbytes, np.uint8)
    for offset, text in parts.items():
        piece = np.frombuffer(bytes.fromhex(text), np.uint8)
        raw[offset : offset + len(piece)] = piece
    values = enc.decode((raw,), enc.block)
    assert {i: float(values[i]) for i in worth} == worth


@pytest.mark.parametrize("name", GGML)
def test_sizes_are_ggmls(name: str) -> None:
    assert (encoding(name).block, encoding(name).block_nbytes) == gguf.GGML_QUANT_SIZES[GGML[name]]


@packed_rows
@pytest.mark.parametrize("seed", range(3))
def test_random_bytes_decode_bit_for_bit_as_ggml(name: str, seed: int) -> None:
    raw = random_rows(name, 5, 3, seed)
    with np.errstate(all="ignore"):
        want = dequantize(raw, GGML[name])
    assert same_bits(encoding(name).decode((raw,), 3 * encoding(name).block), want)


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16, DType.F32])
def test_plain_rows_are_their_dtype(dtype: DType) -> None:
    values, enc = np.random.default_rng(1).standard_normal((3, 7)).astype(dtype.numpy), encoding(dtype.text)
    assert not enc.is_packed
    assert enc.planes((3, 7)) == (("data", (3, 7), dtype),)
    assert np.array_equal(enc.decode((values,), 7), values.astype(np.float32))


def test_a_vector_grid_with_a_sign_table_is_data_too() -> None:
    """iq2_xxs from the same parts: 8-vectors by index, 7 sign bits for 8 elements, 4-bit scales.  The grid is ggml's own."""
    IQ2_XXS.init_grid()  # type: ignore[no-untyped-call]
    assert IQ2_XXS.grid is not None
    grid = tuple(map(tuple, IQ2_XXS.grid.reshape(256, 8).tolist()))
    signs = tuple(tuple(-1.0 if byte >> bit & 1 else 1.0 for bit in range(8)) for byte in IQ2_XXS.ksigns)
    enc = Encoding(
        "iq2_xxs", 256, (Plane("data", DType.U8, 256, 66 * 8),),
        Field(32, tuple(Piece(2 + 8 * g, 4, element=4 * g) for g in range(8)), table=grid),
        sign=Field(32, tuple(replace(p, element=p.element + 4 * g) for g in range(8) for p in stream(6 + 8 * g, 7, 4)), table=signs),
        scales=(number(0, DType.F16), Field(8, tuple(Piece(9 + 8 * g, 1, 4, 4, element=g) for g in range(8)),
                                            table=tuple((0.5 + i) * 0.25 for i in range(16)))),
    )
    raw = np.random.default_rng(2).integers(0, 256, (3, 2 * 66), dtype=np.uint8)
    with np.errstate(all="ignore"):
        want = dequantize(raw, gguf.GGMLQuantizationType.IQ2_XXS)
    assert same_bits(enc.decode((raw,), 512), want)


@packed_rows
def test_leading_dims_strides_and_order_do_not_matter(name: str) -> None:
    enc = encoding(name)
    raw, columns = random_rows(name, 30, 3, 7), 3 * enc.block
    want = enc.decode((raw,), columns)
    apart = np.zeros((30, 2 * raw.shape[1]), np.uint8)[:, ::2]
    apart[...] = raw
    raw.flags.writeable = False
    assert same_bits(enc.decode((raw.reshape(2, 3, 5, -1),), columns), want.reshape(2, 3, 5, columns))
    assert same_bits(enc.decode((apart,), columns), want)
    assert same_bits(enc.decode((np.asfortranarray(raw),), columns), want)
    assert same_bits(enc.decode((raw[::-2],), columns), want[::-2])
    assert same_bits(enc.decode((raw[4],), columns), want[4])
    assert same_bits(enc.decode((raw,), columns), want)  # the second run, after the first wrote its temporaries


@packed_rows
def test_no_rows_and_no_columns(name: str) -> None:
    enc = encoding(name)
    none = enc.decode((np.zeros((0, enc.block_nbytes), np.uint8),), enc.block)
    assert (none.shape, none.dtype) == ((0, enc.block), np.float32)
    assert enc.decode((np.zeros((3, 0), np.uint8),), 0).shape == (3, 0)


def test_sizes_that_do_not_fit_are_named() -> None:
    with pytest.raises(BuildError, match=r"q4_1 cannot hold rows of 33(.|\n)*33 is no multiple of its block of 32"):
        encoding("q4_1").row_nbytes(33)
    with pytest.raises(BuildError, match=r"data of uint8 \(2, 36\)(.|\n)*needs u8 \(2, 40\)"):
        encoding("q4_1").decode((np.zeros((2, 36), np.uint8),), 64)
    with pytest.raises(BuildError, match="stored in 2 arrays, got 1"):
        int8_rows().decode((np.zeros((2, 8), np.int8),), 8)
    with pytest.raises(BuildError, match="stored in 1 arrays, got 0"):
        encoding("q8_0").decode((), 32)


def test_unknown_names_list_the_nearest_first() -> None:
    with pytest.raises(BuildError, match=r"no encoding 'q4k'(.|\n)*nearest: q4_k(.|\n)*one of: f32, f16"):
        encoding("q4k")


def test_a_field_outside_its_record_is_refused() -> None:
    with pytest.raises(BuildError, match="a field leaves its record"):
        Encoding("bad", 32, (Plane("data", DType.U8, 32, 8 * 18),), number(3, DType.I8, 32))
    with pytest.raises(BuildError, match=r"a field in plane 1(.|\n)*it has 1 planes"):
        Encoding("bad", 1, (Plane("data", DType.U8, 1, 8),), replace(number(0, DType.I8), plane=1))


def test_a_field_that_could_not_be_read_whole_is_refused() -> None:
    plane = Plane("data", DType.U8, 8, 32)
    with pytest.raises(BuildError, match=r"no bits for number 7 of a field(.|\n)*it has 8 numbers, its pieces fill 7"):
        Encoding("bad", 8, (plane,), Field(8, stream(0, 4, 7)))
    with pytest.raises(BuildError, match=r"a table of 15 for 16 codes(.|\n)*a code has 4 bits"):
        Encoding("bad", 8, (plane,), Field(8, stream(0, 4, 8), table=(0.5,) * 15))


@pytest.mark.parametrize("enc", [*ENCODINGS.values(), rotated(int8_rows(), 8)], ids=lambda e: e.name)
def test_encodings_are_values(enc: Encoding) -> None:
    assert hash(enc) == hash(replace(enc))
    assert enc == replace(enc)


@given(bits=st.integers(1, 16), numbers=st.lists(st.integers(0, 2**16 - 1), min_size=1, max_size=40))
def test_streams_are_one_long_little_endian_number(bits: int, numbers: list[int]) -> None:
    values = [n % 2**bits for n in numbers]
    whole = sum(v << (i * bits) for i, v in enumerate(values))
    nbytes = -(-len(values) * bits // 8)
    record = np.frombuffer(whole.to_bytes(nbytes, "little"), np.uint8)[None]
    field = Field(len(values), stream(0, bits, len(values)))
    assert read(field, record)[0].tolist() == values
    written = np.zeros_like(record)
    write(field, np.array([values], field.word), written)
    assert np.array_equal(written, record)


RNG = np.random.default_rng(11)
BOTH_SIGNS = Level(1, table=(1.0, -1.0))


def halves(shape: tuple[int, ...]) -> Array:
    return RNG.standard_normal(shape).astype(np.float16)


def test_int8_rows() -> None:
    codes, scale = RNG.integers(-128, 128, (2, 3, 13)).astype(np.int8), RNG.standard_normal((2, 3, 1)).astype(np.float32)
    enc = encoding("int8_rows")
    assert enc.planes((2, 3, 13)) == (("code", (2, 3, 13), DType.I8), ("scale", (2, 3, 1), DType.F32))
    assert enc.row_nbytes(13) == 17
    assert np.array_equal(enc.decode((codes, scale), 13), codes.astype(np.float32) * scale)


def test_nf4_low_nibble_first_and_a_short_last_group() -> None:
    table = np.array(encoding("nf4_64").code.table, np.float32)
    codes, scale = RNG.integers(0, 16, (3, 13)), RNG.standard_normal((3, 4)).astype(np.float32)
    nibbles = np.concatenate([codes, np.zeros((3, 1), int)], 1).astype(np.uint8)
    stored = nibbles[:, ::2] | nibbles[:, 1::2] << 4
    assert nf4(4).planes((3, 13)) == (("code", (3, 7), DType.U8), ("scale", (3, 4), DType.F32))
    assert np.array_equal(nf4(4).decode((stored, scale), 13), table[codes] * np.repeat(scale, 4, 1)[:, :13])
    middle, top = sorted(table)[7:9]
    assert (table[0], table[15], middle) == (-1, 1, 0)
    assert top > 0


def test_nvfp4_multiplies_left_to_right() -> None:
    enc = planar("nvfp4", Level(DType.F4E2M1), scales=(Level(DType.F8E4M3FN, 16), Level(DType.F32, 0, rows=0)))
    codes = RNG.integers(0, 16, (5, 32)).astype(np.uint8)
    scale = RNG.integers(1, 0x70, (5, 2)).astype(np.uint8).view(ml_dtypes.float8_e4m3fn)
    globally = np.array([[0.0371]], np.float32)
    assert enc.planes((5, 32)) == (("code", (5, 16), DType.U8), ("scale", (5, 2), DType.F8E4M3FN), ("scale.1", (1, 1), DType.F32))
    want = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32) * np.repeat(scale.astype(np.float32), 16, 1) * globally
    other = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32) * (np.repeat(scale.astype(np.float32), 16, 1) * globally)
    got = enc.decode((codes[:, ::2] | codes[:, 1::2] << 4, scale, globally), 32)
    assert np.array_equal(got, want)
    assert not np.array_equal(want, other)  # the order is part of the meaning


def test_scales_for_tiles_of_rows() -> None:
    """fp8 with one scale per 3 x 5 tile, at sizes that leave short tiles on both edges; each matrix of a batch has its own."""
    enc = planar("fp8_tiles", Level(DType.F8E4M3FN), scales=(Level(DType.F32, 5, rows=3),))
    codes = RNG.integers(0, 0x70, (2, 7, 11)).astype(np.uint8).view(ml_dtypes.float8_e4m3fn)
    scale = RNG.standard_normal((2, 3, 3)).astype(np.float32)
    assert enc.planes((2, 7, 11))[1] == ("scale", (2, 3, 3), DType.F32)
    spread = scale.repeat(3, 1)[:, :7].repeat(5, 2)[:, :, :11]
    assert np.array_equal(enc.decode((codes, scale), 11), codes.astype(np.float32) * spread)


def test_sign_zero_scale_and_minimum_in_that_order() -> None:
    """3-bit codes, a sign bit each, 4-bit zeros and f16 scales per 4 columns, a minimum in two levels; 10 columns, so all end early."""
    enc = planar(
        "everything", Level(3), sign=BOTH_SIGNS, zero=Level(4, 4), scales=(Level(DType.F16, 4),), mins=(Level(DType.F16, 0), Level(6, 2)),
    )
    code, sign, zero, least = (RNG.integers(0, 2**b, (3, n)) for b, n in ((3, 10), (1, 10), (4, 3), (6, 5)))
    scale, low = halves((3, 3)), halves((3, 1))

    def bits(values: Array, width: int) -> Array:
        flat = (values[..., None] >> np.arange(width) & 1).reshape(len(values), -1)
        return np.packbits(flat.astype(bool), axis=-1, bitorder="little")

    def wide(a: Array, columns: int) -> Array:
        return a.astype(np.float32).repeat(columns, 1)[:, :10]

    got = enc.decode((bits(code, 3), bits(sign, 1), bits(zero, 4), scale, low, bits(least, 6)), 10)
    want = (code.astype(np.float32) * (1 - 2 * sign) - wide(zero, 4)).astype(np.float32) * wide(scale, 4) - wide(low, 10) * wide(least, 2)
    assert np.array_equal(got, want)
    assert enc.row_nbytes(10) == 4 + 2 + 2 + 6 + 2 + 4


def test_permuted_columns_return_to_their_places() -> None:
    enc = planar("acted", Level(DType.I8), scales=(Level(DType.F32, 4),), transform=Permutation())
    codes, scale = RNG.integers(-128, 128, (3, 8)).astype(np.int8), RNG.standard_normal((3, 2)).astype(np.float32)
    perm = np.array([3, 0, 7, 1, 6, 2, 5, 4], np.int32)
    assert enc.planes((3, 8))[-1] == ("perm", (8,), DType.I32)
    got = enc.decode((codes, scale, perm), 8)
    for stored, column in enumerate(perm):
        assert np.array_equal(got[:, column], codes[:, stored].astype(np.float32) * scale[:, stored // 4])
    with pytest.raises(BuildError, match="no permutation of 8 columns"):
        enc.decode((codes, scale, perm - 1), 8)
    with pytest.raises(BuildError, match="no permutation of 8 columns"):
        enc.decode((codes, scale, perm.astype(np.float32)), 8)


def test_rotated_rows_are_rotated_back() -> None:
    sylvester = np.array([[1.0]])
    for _ in range(3):
        sylvester = np.kron(np.array([[1, 1], [1, -1]]), sylvester)
    enc = rotated(int8_rows(), 8)
    codes, scale = RNG.integers(-128, 128, (3, 16)).astype(np.int8), np.array([[0.5], [-2], [0.125]], np.float32)
    want = ((codes * scale).reshape(3, 2, 8) @ sylvester).reshape(3, 16)  # small integers times powers of two: exact in any order
    assert np.array_equal(enc.decode((codes, scale), 16), want)
    with pytest.raises(BuildError, match="cannot hold rows of 12"):
        enc.row_nbytes(12)
    with pytest.raises(BuildError, match="a Hadamard matrix of 6"):
        replace(int8_rows(), transform=Hadamard(6)).decode((codes[:, :12], scale), 12)


rounded = pytest.mark.parametrize("name", ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1"])


@rounded
def test_quantised_bytes_are_ggmls(name: str) -> None:
    values = (RNG.standard_normal((96, 64)) * np.exp(RNG.standard_normal((96, 1))) + 0.03).astype(np.float32)
    assert np.array_equal(quantize(values, name)[0], ggml_quantize(values, GGML[name]))
    assert np.array_equal(quantize(values.T, name)[0], ggml_quantize(np.ascontiguousarray(values.T), GGML[name]))
    batch = quantize(values.reshape(2, 48, 64), name)[0]
    assert np.array_equal(batch.reshape(96, -1), ggml_quantize(values, GGML[name]))


everywhere = pytest.mark.parametrize("enc", [*map(encoding, ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1")), int8_rows(), int4_groups(8)], ids=lambda e: e.name)


@everywhere
def test_zeros_stay_zeros_and_leave_other_rows_alone(enc: Encoding) -> None:
    values = RNG.standard_normal((4, 64)).astype(np.float32)
    holed = values.copy()
    holed[2] = 0
    planes, others = quantize(holed, enc), quantize(values, enc)
    decoded = enc.decode(planes, 64)
    assert np.array_equal(decoded[2], np.zeros(64))
    assert not np.signbit(decoded[2]).any()
    for plane, other in zip(planes, others, strict=True):
        assert np.array_equal(np.delete(plane, 2, 0), np.delete(other, 2, 0))


@everywhere
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("size", [1e-45, 1e-38, 6e-8, 1e4, 3e6, 3e38])
def test_any_finite_size_gives_finite_values_of_the_right_sign(enc: Encoding, size: float) -> None:
    decoded = enc.decode(quantize(np.linspace(-size, size, 64)[None], enc), 64)
    assert np.isfinite(decoded).all()
    assert (decoded[0, :32] <= 0).all()
    assert (decoded[0, 40:] >= 0).all() or enc.mins  # a minimum below f16's least step leaves a whole block below zero


@everywhere
def test_no_value_is_further_than_half_a_step(enc: Encoding) -> None:
    """And a little for the step's own rounding to f16, times the code; codes around a zero point lack the topmost step on one side."""
    values = RNG.standard_normal((16, 64)).astype(np.float32)
    planes = quantize(values, enc)
    step = np.abs(planes[1] if len(planes) > 1 else planes[0].reshape(32, -1)[:, :2].copy().view(np.float16)).astype(np.float32)
    error = np.abs(enc.decode(planes, 64) - values).reshape(step.size, -1) / step.reshape(-1, 1)
    assert 0.4 < error.max() <= (1 if enc.code.zero else 0.5) + 2.0 ** (enc.code.bits - 11)
    assert np.quantile(error, 0.9) <= 0.5


@everywhere
def test_quantising_nothing_and_nonsense(enc: Encoding) -> None:
    assert enc.decode(quantize(np.zeros((0, 64)), enc), 64).shape == (0, 64)
    for wrong in (np.nan, np.inf):
        with pytest.raises(InputError, match="NaN or infinity"):
            quantize(np.full((2, 64), wrong), enc)


def test_short_groups_are_rounded_from_their_own_values() -> None:
    """The last group of a row of 13 has 5 columns: its scale is that of these alone."""
    enc = planar("fours", Level(4), scales=(Level(DType.F32, 8),), mins=(Level(DType.F32, 8, factor=-1.0),))
    values = RNG.standard_normal((3, 13)).astype(np.float32) + 5
    planes = quantize(values, enc)
    assert [(a.shape, a.dtype.name) for a in planes] == [((3, 7), "uint8"), ((3, 2), "float32"), ((3, 2), "float32")]
    assert np.array_equal(planes[1][:, 1], np.ptp(values[:, 8:], -1) / np.float32(15))
    assert np.array_equal(planes[2][:, 1], values[:, 8:].min(-1))


@pytest.mark.parametrize("name", ["q4_k", "nf4_64", "mxfp4", "f32"])
def test_encodings_that_rounding_cannot_write_say_so(name: str) -> None:
    with pytest.raises(BuildError, match=f"round-to-nearest cannot write {name}"):
        quantize(np.zeros((1, 256)), name)


def test_rows_that_do_not_fit_the_block_are_refused() -> None:
    with pytest.raises(BuildError, match="q8_0 cannot hold rows of 33"):
        quantize(np.zeros((2, 33)), "q8_0")

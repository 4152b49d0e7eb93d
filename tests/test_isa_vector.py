"""Single vector instructions as machine code against NumPy: random values and corners, every family of types."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from isa_device import WAVE64, module, run
from isa_oracles import COUNT, LAYOUT, each, fma_f16, fma_f32, fma_f64, number_wins, same, to_int, values
from sim_device import needs_clang

from rlxpy.backends.gpu.sim.isa import Module
from rlxpy.ir.dtypes import Array

pytestmark = [needs_clang, pytest.mark.filterwarnings("ignore::RuntimeWarning")]
C_TYPES = {"f": "float", "d": "double", "h": "_Float16", "u": "unsigned", "i": "int", "U": "unsigned long long", "I": "long long", "s": "unsigned short", "t": "short",
           "p": "unsigned", "q": "unsigned long long"}
NAMES = {"9": ("gfx90a", "gfx950"), "10": ("gfx1030",), "11": ("gfx1100",), "12": ("gfx1201",), "940": ("gfx942", "gfx950"), "950": ("gfx950",)}
ALL = "9 10 11 12"


@dataclass(frozen=True)
class Case:
    """text: an instruction, %0 its result and %1 on its sources.  signature: type letters, result=sources, as in rlxpy's tables; p and q: two f16, two f32.  on: generations."""

    text: str
    signature: str
    oracle: Callable[..., Any]
    on: str = ALL

    @property
    def types(self) -> tuple[str, str]:
        result, sources = self.signature.split("=")
        return result, sources


def wide(f: Callable[..., Any], kind: str) -> Callable[..., Any]:
    """Integers without bounds, cut to a type."""
    bits = 8 * np.dtype(kind).itemsize
    return lambda *arrays: np.array([int(v) & (1 << bits) - 1 for v in each(f, *arrays)], f"u{bits // 8}").view(kind)


def in_f64(f: Callable[..., Any], kind: str) -> Callable[..., Any]:
    return lambda *arrays: np.asarray(f(*(a.astype("f8") for a in arrays))).astype(kind)


def bits(x: int, low: int, count: int) -> int:
    return x >> low & (1 << count) - 1


def signed(x: int, count: int) -> int:
    x = bits(x, 0, count)
    return x - (1 << count) if count and x >> (count - 1) else x


def byte_of(select: int, pair: int) -> int:
    return bits(pair, 8 * select, 8) if select < 8 else 255 * bits(pair, 16 * (select - 8) + 15, 1) if select < 12 else 0 if select == 12 else 255


U, S = wide, signed
CASES = (
    Case("v_add_f32 %0, %1, %2", "f=ff", lambda a, b: a + b),
    Case("v_sub_f32_e64 %0, -%1, |%2|", "f=ff", lambda a, b: -a - abs(b)),
    Case("v_subrev_f32 %0, %1, %2", "f=ff", lambda a, b: b - a),
    Case("v_mul_f32_e64 %0, %1, %2 clamp", "f=ff", lambda a, b: np.nan_to_num(np.clip(a * b, 0, 1), nan=0) + 0),
    Case("v_mul_f32_e64 %0, %1, %2 mul:2", "f=ff", lambda a, b: a * b * np.float32(2)),
    Case("v_add_f32_e64 %0, %1, 0.5 div:2", "f=f", lambda a: (a + np.float32(0.5)) / np.float32(2)),
    Case("v_add_f32 %0, 0x40490fdb, %1", "f=f", lambda a: a + np.float32(np.pi)),
    Case("v_mul_f32 %0, 0.15915494, %1", "f=f", lambda a: a * np.float32(0.15915494)),
    Case("v_fma_f32 %0, %1, %2, -%3", "f=fff", lambda a, b, c: fma_f32(a, b, -c)),
    Case("v_max_f32 %0, %1, %2", "f=ff", number_wins(max), "9 10 11"),
    Case("v_max_num_f32 %0, %1, %2", "f=ff", number_wins(max), "12"),
    Case("v_min_f32 %0, %1, %2", "f=ff", number_wins(min), "9 10 11"),
    Case("v_min_num_f32 %0, %1, %2", "f=ff", number_wins(min), "12"),
    Case("v_maximum_f32 %0, %1, %2", "f=ff", np.maximum, "12"),
    Case("v_med3_f32 %0, %1, %2, 1.0", "f=ff", lambda a, b: _med3(a, b), "9 10 11"),
    Case("v_rcp_f32 %0, %1", "f=f", lambda a: (1 / a.astype("f8")).astype("f4")),
    Case("v_rsq_f32 %0, %1", "f=f", lambda a: (1 / np.sqrt(a.astype("f8"))).astype("f4")),
    Case("v_sqrt_f32 %0, %1", "f=f", np.sqrt),
    Case("v_rndne_f32 %0, %1", "f=f", np.rint),
    Case("v_floor_f32 %0, %1", "f=f", np.floor),
    Case("v_ceil_f32 %0, %1", "f=f", np.ceil),
    Case("v_trunc_f32 %0, %1", "f=f", np.trunc),
    Case("v_fract_f32 %0, %1", "f=f", lambda a: np.where(np.isinf(a), np.nan, np.minimum(a - np.floor(a), np.float32(1 - 2.0**-24))).astype("f4")),
    Case("v_ldexp_f32 %0, %1, %2", "f=fi", lambda a, b: np.ldexp(a.astype("f8"), np.clip(b, -400, 400)).astype("f4")),
    Case("v_frexp_mant_f32 %0, %1", "f=f", lambda a: np.where(np.isfinite(a), np.frexp(a)[0], a)),
    Case("v_frexp_exp_i32_f32 %0, %1", "i=f", lambda a: np.where(np.isfinite(a), np.frexp(a)[1], 0).astype("i4")),
    Case("v_cvt_f32_i32 %0, %1", "f=i", lambda a: a.astype("f4")),
    Case("v_cvt_f32_u32 %0, %1", "f=u", lambda a: a.astype("f4")),
    Case("v_cvt_i32_f32 %0, %1", "i=f", to_int(-1 << 31, (1 << 31) - 1, "i4")),
    Case("v_cvt_u32_f32 %0, %1", "u=f", to_int(0, (1 << 32) - 1, "u4")),
    Case("v_cvt_f16_f32 %0, %1", "h=f", lambda a: a.astype("f2")),
    Case("v_cvt_f32_f16 %0, %1", "f=h", lambda a: a.astype("f4")),
    Case("v_cvt_f32_ubyte2 %0, %1", "f=u", lambda a: (a >> 16 & 255).astype("f4")),
    Case("v_cvt_pkrtz_f16_f32 %0, %1, %2", "p=ff", lambda a, b: _toward_zero(a) | _toward_zero(b) << 16, "9"),
    Case("v_cvt_pk_rtz_f16_f32 %0, %1, %2", "p=ff", lambda a, b: _toward_zero(a) | _toward_zero(b) << 16, "11 12"),
    Case("v_cvt_pk_i16_i32 %0, %1, %2", "u=ii", lambda a, b: np.clip(a, -32768, 32767).astype("i2").view("u2") | np.clip(b, -32768, 32767).astype("i2").view("u2").astype("u4") << 16),

    Case("v_add_f64 %0, %1, %2", "d=dd", lambda a, b: a + b, "9 10 11"),
    Case("v_mul_f64 %0, -%1, %2", "d=dd", lambda a, b: -a * b, "9 10 11"),
    Case("v_mul_f64 %0, %1, 0.5", "d=d", lambda a: a / 2, "9 10 11"),
    Case("v_add_f64 %0, %1, %2", "d=dd", lambda a, b: a + b, "12"),
    Case("v_fma_f64 %0, %1, %2, %3", "d=ddd", fma_f64),
    Case("v_max_f64 %0, %1, %2", "d=dd", number_wins(max), "9 10 11"),
    Case("v_rndne_f64 %0, %1", "d=d", np.rint),
    Case("v_cvt_i32_f64 %0, %1", "i=d", to_int(-1 << 31, (1 << 31) - 1, "i4")),
    Case("v_cvt_f32_f64 %0, %1", "f=d", lambda a: a.astype("f4")),
    Case("v_cvt_f64_f32 %0, %1", "d=f", lambda a: a.astype("f8")),
    Case("v_cvt_f64_u32 %0, %1", "d=u", lambda a: a.astype("f8")),
    Case("v_ldexp_f64 %0, %1, %2", "d=di", lambda a, b: np.ldexp(a, np.clip(b, -4096, 4096))),

    Case("v_add_f16 %0, %1, %2", "h=hh", in_f64(np.add, "f2")),
    Case("v_mul_f16 %0, %1, %2", "h=hh", in_f64(np.multiply, "f2")),
    Case("v_fma_f16 %0, %1, %2, %3", "h=hhh", fma_f16),
    Case("v_sqrt_f16 %0, %1", "h=h", in_f64(np.sqrt, "f2")),
    Case("v_rcp_f16 %0, %1", "h=h", in_f64(lambda a: 1 / a, "f2")),
    Case("v_cvt_i16_f16 %0, %1", "t=h", to_int(-32768, 32767, "i2")),
    Case("v_cvt_f16_u16 %0, %1", "h=s", lambda a: a.astype("f4").astype("f2")),
    Case("v_rndne_f16 %0, %1", "h=h", np.rint),
    Case("v_max_f16 %0, %1, %2", "h=hh", number_wins(max), "9 10 11"),

    Case("v_add_u32 %0, %1, %2", "u=uu", lambda a, b: a + b, "9"),
    Case("v_add_nc_u32 %0, %1, %2", "u=uu", lambda a, b: a + b, "10 11 12"),
    Case("v_add_u32_e64 %0, %1, %2 clamp", "u=uu", U(lambda a, b: min(a + b, 0xffffffff), "u4"), "9"),
    Case("v_sub_nc_i32 %0, %1, %2 clamp", "i=ii", U(lambda a, b: max(-1 << 31, min(a - b, (1 << 31) - 1)), "i4"), "10 11 12"),
    Case("v_mul_lo_u32 %0, %1, %2", "u=uu", lambda a, b: a * b),
    Case("v_mul_hi_u32 %0, %1, %2", "u=uu", U(lambda a, b: a * b >> 32, "u4")),
    Case("v_mul_hi_i32 %0, %1, %2", "i=ii", U(lambda a, b: a * b >> 32, "i4")),
    Case("v_mul_i32_i24 %0, %1, %2", "i=ii", U(lambda a, b: S(a, 24) * S(b, 24), "i4")),
    Case("v_mad_u32_u24 %0, %1, %2, %3", "u=uuu", U(lambda a, b, c: bits(a, 0, 24) * bits(b, 0, 24) + c, "u4")),
    Case("v_mad_u32_u16 %0, %1, %2, %3", "u=ssu", U(lambda a, b, c: a * b + c, "u4")),
    Case("v_lshlrev_b32 %0, %1, %2", "u=uu", lambda a, b: b << (a & 31)),
    Case("v_ashrrev_i32 %0, %1, %2", "i=ui", lambda a, b: b >> (a & 31).astype("i4")),
    Case("v_lshlrev_b64 %0, %1, %2", "U=uU", lambda a, b: b << (a & 63).astype("u8"), "9 10 11"),
    Case("v_ashrrev_i64 %0, %1, %2", "I=uI", lambda a, b: b >> (a & 63).astype("i8")),
    Case("v_lshl_add_u32 %0, %1, %2, %3", "u=uuu", lambda a, b, c: (a << (b & 31)) + c),
    Case("v_and_or_b32 %0, %1, %2, %3", "u=uuu", lambda a, b, c: a & b | c),
    Case("v_bfi_b32 %0, %1, %2, %3", "u=uuu", lambda a, b, c: a & b | ~a & c),
    Case("v_bfe_u32 %0, %1, %2, %3", "u=uuu", U(lambda a, b, c: bits(a, b & 31, c & 31), "u4")),
    Case("v_bfe_i32 %0, %1, %2, %3", "i=iuu", U(lambda a, b, c: S(a >> (b & 31), c & 31), "i4")),
    Case("v_bfm_b32 %0, %1, %2", "u=uu", U(lambda a, b: ((1 << (a & 31)) - 1) << (b & 31), "u4")),
    Case("v_alignbit_b32 %0, %1, %2, %3", "u=uuu", U(lambda a, b, c: (a << 32 | b) >> (c & 31), "u4")),
    Case("v_alignbyte_b32 %0, %1, %2, %3", "u=uuu", U(lambda a, b, c: (a << 32 | b) >> 8 * (c & 3), "u4")),
    Case("v_perm_b32 %0, %1, %2, %3", "u=uuu", U(lambda a, b, c: sum(byte_of(bits(c, 8 * k, 8), a << 32 | b) << 8 * k for k in range(4)), "u4")),
    Case("v_sad_u8 %0, %1, %2, %3", "u=uuu", U(lambda a, b, c: sum(abs(bits(a, k, 8) - bits(b, k, 8)) for k in range(0, 32, 8)) + c, "u4")),
    Case("v_med3_i32 %0, %1, %2, %3", "i=iii", U(lambda a, b, c: sorted((a, b, c))[1], "i4")),
    Case("v_max3_u32 %0, %1, %2, %3", "u=uuu", U(max, "u4")),
    Case("v_min_i32 %0, %1, %2", "i=ii", np.minimum),
    Case("v_bcnt_u32_b32 %0, %1, %2", "u=uu", U(lambda a, b: a.bit_count() + b, "u4")),
    Case("v_bfrev_b32 %0, %1", "u=u", U(lambda a: int(f"{a:032b}"[::-1], 2), "u4")),
    Case("v_ffbh_u32 %0, %1", "u=u", U(lambda a: 32 - a.bit_length() if a else -1, "u4"), "9 10"),
    Case("v_ffbh_i32 %0, %1", "u=i", U(lambda a: -1 if a in (0, -1) else 32 - (a if a > 0 else ~a).bit_length(), "u4"), "9 10"),
    Case("v_ffbl_b32 %0, %1", "u=u", U(lambda a: (a & -a).bit_length() - 1 if a else -1, "u4"), "9 10"),
    Case("v_clz_i32_u32 %0, %1", "u=u", U(lambda a: 32 - a.bit_length() if a else -1, "u4"), "11 12"),
    Case("v_xad_u32 %0, %1, %2, %3", "u=uuu", lambda a, b, c: (a ^ b) + c),
    Case("v_lshl_add_u64 %0, %1, 3, %2", "U=UU", lambda a, b: (a << np.uint64(3)) + b, "940"),
    Case("v_bitop3_b32 %0, %1, %2, %3 bitop3:0x96", "u=uuu", lambda a, b, c: a ^ b ^ c, "950"),
    Case("v_bitop3_b32 %0, %1, %2, %3 bitop3:0xca", "u=uuu", lambda a, b, c: a & b | ~a & c, "950"),

    Case("v_lerp_u8 %0, %1, %2, %3", "u=uuu", U(lambda a, b, c: sum((bits(a, k, 8) + bits(b, k, 8) + bits(c, k, 1) >> 1) << k for k in range(0, 32, 8)), "u4")),
    Case("v_msad_u8 %0, %1, %2, %3", "u=uuu", U(lambda a, b, c: sum(abs(bits(a, k, 8) - bits(b, k, 8)) for k in range(0, 32, 8) if bits(b, k, 8)) + c, "u4")),
    Case("v_sad_u16 %0, %1, %2, %3", "u=uuu", U(lambda a, b, c: sum(abs(bits(a, k, 16) - bits(b, k, 16)) for k in (0, 16)) + c, "u4")),
    Case("v_sat_pk_u8_i16 %0, %1", "s=u", U(lambda a: sum(max(0, min(255, S(a >> 16 * k, 16))) << 8 * k for k in (0, 1)), "u2")),
    Case("v_cvt_pk_f16_f32 %0, %1, %2", "p=ff", lambda a, b: a.astype("f2").view("u2").astype("u4") | b.astype("f2").view("u2").astype("u4") << 16, "950"),
    Case("v_ashr_pk_i8_i32 %0, %1, %2, %3", "s=iiu", U(lambda a, b, c: sum((max(-128, min(127, x >> (c & 31))) & 255) << 8 * k for k, x in enumerate((a, b))), "u2"), "950"),
    Case("v_fma_legacy_f32 %0, %1, %2, %3", "f=fff", lambda a, b, c: np.where((a == 0) | (b == 0), c, fma_f32(a, b, c)), "10"),
    Case("v_dot4_f32_fp8_bf8 %0, %1, %2, %3", "f=uuf", lambda a, b, c: _dot4(a, b, c), "12"),
    Case("v_cvt_pk_fp8_f32 %0, %1, %2", "s=ff", lambda a, b: _fp8(a, b), "12"),

    Case("v_mul_lo_u16 %0, %1, %2", "s=ss", lambda a, b: a * b),
    Case("v_max_i16 %0, %1, %2", "t=tt", np.maximum),
    Case("v_lshrrev_b16 %0, %1, %2", "s=ss", lambda a, b: b >> (a & 15)),
    Case("v_mad_u16 %0, %1, %2, %3", "s=sss", lambda a, b, c: a * b + c),
    Case("v_ashrrev_i16 %0, %1, %2", "t=st", lambda a, b: b >> (a & 15).astype("i2")),
    Case("v_dot4_i32_i8 %0, %1, %2, %3", "i=uui", U(lambda a, b, c: sum(S(a >> k, 8) * S(b >> k, 8) for k in range(0, 32, 8)) + c, "i4"), "9 10"),
    Case("v_dot4_i32_iu8 %0, %1, %2, %3 neg_lo:[1,0,0]", "i=uui", U(lambda a, b, c: sum(S(a >> k, 8) * bits(b, k, 8) for k in range(0, 32, 8)) + c, "i4"), "11 12"),
    Case("v_dot4_u32_u8 %0, %1, %2, %3 clamp", "u=uuu", U(lambda a, b, c: min(sum(bits(a, k, 8) * bits(b, k, 8) for k in range(0, 32, 8)) + c, 0xffffffff), "u4"), "9 10"),
    Case("v_dot8_i32_i4 %0, %1, %2, %3", "i=uui", U(lambda a, b, c: sum(S(a >> k, 4) * S(b >> k, 4) for k in range(0, 32, 4)) + c, "i4"), "9 10"),
    Case("v_dot2_f32_f16 %0, %1, %2, %3", "f=uuf", lambda a, b, c: _dot2(a, b, c)),
    Case("v_cvt_pk_bf16_f32 %0, %1, %2", "u=ff", lambda a, b: _bf16(a) | _bf16(b) << 16, "950"),

    Case("v_pk_add_f16 %0, %1, %2", "p=uu", lambda a, b: _pairs(lambda x, y: x + y, "f2", a, b)),
    Case("v_pk_mul_f16 %0, %1, %2 op_sel:[1,0] op_sel_hi:[0,1]", "p=uu", lambda a, b: _pairs(lambda x, y: x * y, "f2", a << 16 | a >> 16, b)),
    Case("v_pk_fma_f16 %0, %1, %2, %3 neg_lo:[0,0,1] neg_hi:[1,0,0]", "p=uuu", lambda a, b, c: _pair_fma(a, b, c)),
    Case("v_pk_add_u16 %0, %1, 1 op_sel_hi:[1,0]", "u=u", lambda a: _pairs(lambda x, y: x + y, "u2", a, np.full(COUNT, 0x10001, "u4"))),
    Case("v_pk_mul_lo_u16 %0, %1, %2", "u=uu", lambda a, b: _pairs(lambda x, y: x * y, "u2", a, b)),
    Case("v_pk_max_i16 %0, %1, %2", "u=uu", lambda a, b: _pairs(np.maximum, "i2", a, b)),
    Case("v_pk_add_i16 %0, %1, %2 clamp", "u=uu", lambda a, b: _pairs(lambda x, y: np.clip(x.astype("i4") + y, -32768, 32767).astype("i2"), "i2", a, b)),
    Case("v_pk_lshlrev_b16 %0, %1, %2", "u=uu", lambda a, b: _pairs(lambda x, y: y << (x & 15), "u2", a, b)),
    Case("v_pk_fma_f32 %0, %1, %2, %3", "q=UUU", lambda a, b, c: fma_f32(a.view("f4"), b.view("f4"), c.view("f4")).view("u8"), "9"),
    Case("v_pk_mul_f32 %0, %1, %2 op_sel:[1,0] op_sel_hi:[0,1]", "q=UU",
         lambda a, b: (a.view("f4").reshape(-1, 2)[:, ::-1] * b.view("f4").reshape(-1, 2)).astype("f4").view("u8").ravel(), "9"),
    Case("v_pk_mov_b32 %0, %1, %2 op_sel:[1,0]", "U=UU", lambda a, b: a >> np.uint64(32) | b << np.uint64(32), "9"),
    Case("v_fma_mix_f32 %0, %1, %2, %3 op_sel:[1,0,0] op_sel_hi:[1,1,0]", "f=uuf",
         lambda a, b, c: fma_f32((a >> 16).astype("u2").view("f2").astype("f4"), b.astype("u2").view("f2").astype("f4"), c), "9 10 11 12"),

    Case("v_add_u16_sdwa %0, %1, %2 dst_sel:DWORD src0_sel:BYTE_1 src1_sel:WORD_1", "u=uu", lambda a, b: (a >> 8 & 255) + (b >> 16) & 0xffff, "9"),
    Case("v_add_f32_sdwa %0, -%1, |%2| dst_sel:DWORD src0_sel:DWORD src1_sel:DWORD", "f=ff", lambda a, b: -a + abs(b), "9 10"),
    Case("v_mov_b32_sdwa %0, sext(%1) dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_2", "i=u", lambda a: (a << 8).view("i4") >> 24, "9 10"),
    Case("v_mov_b32_sdwa %0, %1 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:WORD_0", "u=u", lambda a: a << 16, "9 10"),
    Case("v_mov_b32_sdwa %0, %1 dst_sel:BYTE_1 dst_unused:UNUSED_SEXT src0_sel:BYTE_0", "i=u", lambda a: ((a & 255).astype("u1").view("i1").astype("i4") << 8), "9 10"),
)


def _halves(a: Array, kind: str) -> Array:
    return np.ascontiguousarray(a).view(kind).reshape(-1, 2)


def _pairs(f: Callable[..., Any], kind: str, *arrays: Array) -> Array:
    return np.ascontiguousarray(f(*(_halves(a, kind) for a in arrays)).astype(kind)).view("u4").ravel()


def _pair_fma(a: Array, b: Array, c: Array) -> Array:
    x, y, z = (_halves(v, "f2").copy() for v in (a, b, c))
    z[:, 0], x[:, 1] = -z[:, 0], -x[:, 1]
    return fma_f16(x.ravel(), y.ravel(), z.ravel()).view("u4")


def _toward_zero(a: Array) -> Array:
    """f16 bits: rounding to the nearest, then one step back where that went out."""
    near = a.astype("f2")
    out = abs(near.astype("f8")) > abs(a.astype("f8"))
    return np.asarray((near.view("u2") - out.astype("u2")).astype("u4"))


def _bf16(a: Array) -> Array:
    import ml_dtypes

    return np.asarray(a.astype(ml_dtypes.bfloat16).view("u2").astype("u4"))


def _dot4(a: Array, b: Array, c: Array) -> Array:
    import ml_dtypes

    x, y = (np.ascontiguousarray(v).view(kind).reshape(-1, 4).astype("f4") for v, kind in ((a, ml_dtypes.float8_e4m3fn), (b, ml_dtypes.float8_e5m2)))
    for k in (3, 2, 1, 0):
        c = fma_f32(x[:, k], y[:, k], c)
    return c


def _fp8(a: Array, b: Array) -> Array:
    import ml_dtypes

    x, y = (v.astype(ml_dtypes.float8_e4m3fn).view("u1").astype("u2") for v in (a, b))
    return np.asarray(x | y << 8)


def _dot2(a: Array, b: Array, c: Array) -> Array:
    x, y = _halves(a, "f2").astype("f4"), _halves(b, "f2").astype("f4")
    return fma_f32(x[:, 0], y[:, 0], fma_f32(x[:, 1], y[:, 1], c))


def _med3(a: Array, b: Array) -> Array:
    """Of a, b and one; with a nan among them the least of the others."""
    return np.array([float(np.nanmin([x, y, 1.0])) if np.isnan(x) or np.isnan(y) else sorted((x, y, 1.0))[1] for x, y in zip(a, b, strict=True)], "f4")


RELATIONS = {"lt": np.less, "eq": np.equal, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}
COMPARISONS = tuple(
    Case(f"v_cmp_{name}_{kind} %0, %1, %2", f"k={letter * 2}", function)
    for kind, letter in (("f16", "h"), ("f32", "f"), ("f64", "d"), ("i16", "t"), ("u16", "s"), ("i32", "i"), ("u32", "u"), ("i64", "I"), ("u64", "U"))
    for name, function in (*RELATIONS.items(), *((("neq", np.not_equal), ("nlt", lambda a, b: ~(a < b)), ("o", lambda a, b: (a == a) & (b == b)), ("u", lambda a, b: (a != a) | (b != b)),
                                                  ("lg", lambda a, b: (a < b) | (a > b))) if kind[0] == "f" else (("ne", np.not_equal),))))
CLASSES = (Case("v_cmp_class_f32 %0, %1, %2", "k=fu", lambda a, b: b >> _classes(a) & 1),)


def _classes(a: Array) -> Array:
    quiet = (a.view("u4") >> 22 & 1).astype("u4")
    kinds = np.where(np.isnan(a), quiet, np.where(np.isinf(a), 9, np.where(a == 0, 6, np.where(abs(a) < np.float32(2.0**-126), 7, 8))))
    return np.where(np.signbit(a) & ~np.isnan(a), 11 - kinds, kinds).astype("u4")


def kernel(k: int, case: Case) -> str:
    result, sources = case.types
    inputs = ", ".join(f"const {C_TYPES[s]}* {name}" for s, name in zip(sources, "abc", strict=False))
    given = ", ".join(f'"v"({name}[i])' for _, name in zip(sources, "abc", strict=False))
    head = f'extern "C" __global__ void k{k}({inputs}, {"unsigned" if result == "k" else C_TYPES[result]}* out) {{ int i = blockIdx.x * blockDim.x + threadIdx.x; '
    if result == "k":
        return head + f'MASK r; asm volatile("{case.text}" : "=s"(r) : {given}); out[i] = (unsigned)(r >> __lane_id()) & 1u; }}'
    return head + f'{C_TYPES[result]} r; asm volatile("{case.text}" : "=v"(r) : {given}); out[i] = r; }}'


@cache
def built(cases: tuple[Case, ...], chip: str, *options: str) -> Module:
    mask = "typedef unsigned long long MASK;\n" if chip.startswith("gfx9") or WAVE64[0] in options else "typedef unsigned MASK;\n"
    return module(mask + "\n".join(kernel(k, case) for k, case in enumerate(cases)), chip, *options)


def failures(cases: tuple[Case, ...], chip: str, *options: str) -> list[str]:
    m, found = built(cases, chip, *options), []
    assert not m.unknown
    for k, case in enumerate(cases):
        result, sources = case.types
        inputs = [values(s, 100 * k + n) for n, s in enumerate(sources)]
        out = np.full(COUNT, 77, LAYOUT["u" if result == "k" else result])
        run(m, f"k{k}", COUNT // 64, 64, *inputs, out)
        wanted = np.asarray(case.oracle(*inputs)).astype(out.dtype)
        kind = {"p": "f2", "q": "f4"}.get(result, out.dtype.str)
        if not same(out.view(kind), wanted.view(kind)):
            at = next(n for n in range(COUNT) if not same(out[n:n + 1].view(kind), wanted[n:n + 1].view(kind)))
            found.append(f"{case.text}: of {[x[at] for x in inputs]} it makes {out[at]}, not {wanted[at]}")
    return found


def chosen(generation: str, chip: str, cases: tuple[Case, ...]) -> tuple[Case, ...]:
    return tuple(c for c in cases if any(g == generation or (len(g) > 2 and chip in NAMES[g]) for g in c.on.split()))


@pytest.mark.parametrize(("chip", "options"), [("gfx90a", ()), ("gfx950", ()), ("gfx1030", ()), ("gfx1100", ()), ("gfx1201", ()), ("gfx1100", WAVE64)])
def test_each_instruction_computes_what_numpy_does(chip: str, options: tuple[str, ...]) -> None:
    generation = chip[3:-2]
    assert not failures(chosen(generation, chip, CASES), chip, *options)


@pytest.mark.parametrize(("chip", "options"), [("gfx90a", ()), ("gfx1030", ()), ("gfx1201", ()), ("gfx1100", WAVE64)])
def test_each_comparison_says_what_numpy_does(chip: str, options: tuple[str, ...]) -> None:
    assert not failures((*COMPARISONS, *CLASSES), chip, *options)

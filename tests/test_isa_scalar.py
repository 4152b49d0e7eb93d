"""Single scalar instructions as machine code against NumPy and Python's integers."""
from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from isa_device import module, run
from isa_oracles import COUNT, LAYOUT, each, same, values
from sim_device import needs_clang

from rlxpy.ir.dtypes import Array

pytestmark = [needs_clang, pytest.mark.filterwarnings("ignore::RuntimeWarning")]
C_TYPES = {"u": "unsigned", "i": "int", "U": "unsigned long long", "I": "long long", "f": "float"}
BITS = {"u": 32, "i": 32, "U": 64, "I": 64}
Row = tuple[str, str, Callable[..., Any]]
FLAG = "\\n s_cselect_b32 %0, 1, 0"  # SCC as the result


def low(x: int, count: int) -> int:
    return x & (1 << count) - 1


def signed(x: int, count: int) -> int:
    x = low(x, count)
    return x - (1 << count) if count and x >> (count - 1) else x


RELATIONS: dict[str, Callable[[Any, Any], Any]] = {"eq": operator.eq, "lg": operator.ne, "gt": operator.gt, "ge": operator.ge, "lt": operator.lt, "le": operator.le}
LOGIC: dict[str, Callable[[int, int], int]] = {
    "and": operator.and_, "or": operator.or_, "xor": operator.xor, "nand": lambda a, b: ~(a & b), "nor": lambda a, b: ~(a | b), "xnor": lambda a, b: ~(a ^ b)}
EVERYWHERE: tuple[Row, ...] = (
    *((f"s_cmp_{name}_{kind} %1, %2{FLAG}", f"u={letter * 2}", f) for name, f in RELATIONS.items() for kind, letter in (("i32", "i"), ("u32", "u"))),
    ("s_cmp_eq_u64 %1, %2" + FLAG, "u=UU", RELATIONS["eq"]),
    ("s_cmp_lg_u64 %1, %2" + FLAG, "u=UU", RELATIONS["lg"]),
    *((f"s_{name}_b{bits} %0, %1, %2", f"{letter}={letter * 2}", f) for name, f in LOGIC.items() for bits, letter in ((32, "u"), (64, "U"))),
    ("s_and_b32 %0, %1, %2" + FLAG, "u=uu", lambda a, b: a & b != 0),
    ("s_lshl_b64 %0, %1, %2", "U=Uu", lambda a, b: a << (b & 63)),
    ("s_lshr_b64 %0, %1, %2", "U=Uu", lambda a, b: a >> (b & 63)),
    ("s_ashr_i64 %0, %1, %2", "I=Iu", lambda a, b: a >> (b & 63)),
    ("s_ashr_i32 %0, %1, %2", "i=iu", lambda a, b: a >> (b & 31)),
    ("s_lshl_b32 %0, %1, %2" + FLAG, "u=uu", lambda a, b: low(a << (b & 31), 32) != 0),
    ("s_mul_i32 %0, %1, %2", "u=uu", lambda a, b: a * b),
    ("s_mul_hi_u32 %0, %1, %2", "u=uu", lambda a, b: a * b >> 32),
    ("s_mul_hi_i32 %0, %1, %2", "i=ii", lambda a, b: a * b >> 32),
    ("s_min_i32 %0, %1, %2", "i=ii", min),
    ("s_max_u32 %0, %1, %2", "u=uu", max),
    ("s_max_i32 %0, %1, %2" + FLAG, "u=ii", lambda a, b: a > b),
    ("s_abs_i32 %0, %1", "u=i", abs),
    ("s_bfe_u32 %0, %1, %2", "u=uu", lambda a, b: low(a >> (b & 31), min(b >> 16 & 127, 32))),
    ("s_bfe_i32 %0, %1, 0x50003", "i=u", lambda a: signed(a >> 3, 5)),
    ("s_bfe_u64 %0, %1, 0x250007", "U=U", lambda a: low(a >> 7, 37)),
    ("s_bfe_i64 %0, %1, 0x250007", "I=U", lambda a: signed(a >> 7, 37)),
    ("s_bfm_b32 %0, %1, %2", "u=uu", lambda a, b: ((1 << (a & 31)) - 1) << (b & 31)),
    ("s_bfm_b64 %0, %1, %2", "U=uu", lambda a, b: ((1 << (a & 63)) - 1) << (b & 63)),
    ("s_not_b64 %0, %1", "U=U", lambda a: ~a),
    ("s_brev_b32 %0, %1", "u=u", lambda a: int(f"{a:032b}"[::-1], 2)),
    ("s_brev_b64 %0, %1", "U=U", lambda a: int(f"{a:064b}"[::-1], 2)),
    ("s_bcnt1_i32_b64 %0, %1", "u=U", lambda a: a.bit_count()),
    ("s_bcnt0_i32_b32 %0, %1", "u=u", lambda a: 32 - a.bit_count()),
    ("s_sext_i32_i8 %0, %1", "i=u", lambda a: signed(a, 8)),
    ("s_sext_i32_i16 %0, %1", "i=u", lambda a: signed(a, 16)),
    ("s_bitcmp1_b32 %1, %2" + FLAG, "u=uu", lambda a, b: a >> (b & 31) & 1),
    ("s_bitcmp0_b64 %1, %2" + FLAG, "u=Uu", lambda a, b: 1 - (a >> (b & 63) & 1)),
    ("s_mov_b32 %0, %1\\n s_bitset1_b32 %0, %2", "u=uu", lambda a, b: a | 1 << (b & 31)),
    ("s_mov_b64 %0, %1\\n s_bitset0_b64 %0, %2", "U=Uu", lambda a, b: a & ~(1 << (b & 63))),
    ("s_pack_ll_b32_b16 %0, %1, %2", "u=uu", lambda a, b: low(a, 16) | b << 16),
    ("s_pack_hh_b32_b16 %0, %1, %2", "u=uu", lambda a, b: a >> 16 | b >> 16 << 16),
    ("s_pack_lh_b32_b16 %0, %1, %2", "u=uu", lambda a, b: low(a, 16) | b >> 16 << 16),
    ("s_lshl3_add_u32 %0, %1, %2", "u=uu", lambda a, b: 8 * a + b),
    ("s_lshl1_add_u32 %0, %1, %2" + FLAG, "u=uu", lambda a, b: 2 * a + b >> 32 != 0),
    ("s_absdiff_i32 %0, %1, %2", "u=ii", lambda a, b: abs(signed(a - b, 32))),
    ("s_bitreplicate_b64_b32 %0, %1", "U=u", lambda a: sum(3 * (a >> k & 1) << 2 * k for k in range(32))),
    ("s_quadmask_b32 %0, %1", "u=u", lambda a: sum((a >> 4 * k & 15 != 0) << k for k in range(8))),
    ("s_mov_b32 %0, %1\\n s_addk_i32 %0, 0x8001", "u=u", lambda a: a - 0x7fff),
    ("s_mov_b32 %0, %1\\n s_mulk_i32 %0, 0xfffd", "u=u", lambda a: -3 * a),
    ("s_movk_i32 %0, 0xfff0", "i=u", lambda a: -16),
)
OLD: tuple[Row, ...] = (  # until gfx11 or gfx12, by the names they had
    ("s_add_u32 %0, %1, %2" + FLAG, "u=uu", lambda a, b: a + b >> 32),
    ("s_sub_u32 %0, %1, %2" + FLAG, "u=uu", lambda a, b: a < b),
    ("s_add_i32 %0, %1, %2" + FLAG, "u=ii", lambda a, b: not -1 << 31 <= a + b < 1 << 31),
    ("s_sub_i32 %0, %1, %2" + FLAG, "u=ii", lambda a, b: not -1 << 31 <= a - b < 1 << 31),
    ("s_add_u32 s20, %1, %1\\n s_addc_u32 %0, %2, %2", "u=uu", lambda a, b: 2 * b + (a >> 31)),
    ("s_sub_u32 s20, %1, %2\\n s_subb_u32 %0, %1, %2", "u=uu", lambda a, b: a - b - (a < b)),
    ("s_andn2_b64 %0, %1, %2", "U=UU", lambda a, b: a & ~b),
    ("s_orn2_b32 %0, %1, %2", "u=uu", lambda a, b: a | ~b),
    ("s_ff1_i32_b64 %0, %1", "u=U", lambda a: (a & -a).bit_length() - 1 if a else -1),
    ("s_flbit_i32_b32 %0, %1", "u=u", lambda a: 32 - a.bit_length() if a else -1),
    ("s_flbit_i32 %0, %1", "u=i", lambda a: -1 if a in (0, -1) else 32 - (a if a > 0 else ~a).bit_length()),
    ("s_cmpk_gt_i32 %1, 0xfffb" + FLAG, "u=i", lambda a: a > -5),
    ("s_cmpk_lt_u32 %1, 0xfffb" + FLAG, "u=u", lambda a: a < 0xfffb),
)
FLOATS: tuple[Row, ...] = (  # from gfx11.5 on
    ("s_add_f32 %0, %1, %2", "f=ff", lambda a, b: a + b),
    ("s_mul_f32 %0, %1, %2", "f=ff", lambda a, b: a * b),
    ("s_floor_f32 %0, %1", "f=f", np.floor),
    ("s_rndne_f32 %0, %1", "f=f", np.rint),
    ("s_cvt_f32_i32 %0, %1", "f=i", np.float32),
    ("s_cmp_lt_f32 %1, %2" + FLAG, "u=ff", lambda a, b: a < b),
    ("s_cmp_nge_f32 %1, %2" + FLAG, "u=ff", lambda a, b: not a >= b),
    ("s_cmp_u_f32 %1, %2" + FLAG, "u=ff", lambda a, b: a != a or b != b),
)


def kernel(k: int, text: str, signature: str) -> str:
    result, sources = signature.split("=")
    names = list(zip("ab", sources, strict=False))
    head = ", ".join(f"const {C_TYPES[s]}* {n}" for n, s in names)
    given = ", ".join(f'"s"({n}[blockIdx.x])' for n, _ in names)
    return f'extern "C" __global__ void k{k}({head}, {C_TYPES[result]}* out) {{ {C_TYPES[result]} r; asm volatile("{text}" : "=&s"(r) : {given} : "s20", "scc"); out[blockIdx.x] = r; }}\n'


def wanted(oracle: Callable[..., Any], result: str, inputs: list[Array]) -> Array:
    if result == "f":
        return np.array([oracle(*(x[n] for x in inputs)) for n in range(COUNT)], "f4")
    found = each(oracle, *inputs)
    return np.array([low(int(v), BITS[result]) for v in found], LAYOUT[result].replace("i", "u")).view(LAYOUT[result])


def failures(rows: tuple[Row, ...], chip: str) -> list[str]:
    m, found = module("".join(kernel(k, text, signature) for k, (text, signature, _) in enumerate(rows)), chip), []
    assert not m.unknown
    for k, (text, signature, oracle) in enumerate(rows):
        result, sources = signature.split("=")
        inputs, out = [values(s, 50 * k + n) for n, s in enumerate(sources)], np.full(COUNT, 77, LAYOUT[result])
        run(m, f"k{k}", COUNT, 1, *inputs, out)
        right = wanted(oracle, result, inputs)
        if not same(out, right):
            at = next(n for n in range(COUNT) if not same(out[n:n + 1], right[n:n + 1]))
            found.append(f"{text}: of {[x[at] for x in inputs]} it makes {out[at]}, not {right[at]}")
    return found


@pytest.mark.parametrize("chip", ["gfx906", "gfx90a", "gfx1030", "gfx1100", "gfx1201"])
def test_each_scalar_instruction_computes_what_python_does(chip: str) -> None:
    old = OLD if chip in ("gfx906", "gfx90a", "gfx1030") else ()
    assert not failures((*EVERYWHERE, *old), chip)


@pytest.mark.parametrize("chip", ["gfx1151", "gfx1201"])
def test_each_scalar_instruction_of_floats_computes_what_numpy_does(chip: str) -> None:
    assert not failures(FLOATS, chip)

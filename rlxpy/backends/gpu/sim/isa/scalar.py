"""Scalar instructions and atomics as data: what each computes, in C.  Types are those of vector.py."""
from __future__ import annotations

from rlxpy.backends.gpu.sim.isa.table import Row, rows

# `scc` may be read and set, and so may `exec`; r is there to name a result before scc tells of it.
_ROWS = """
mov_b32      u=u    a
mov_b64      U=U    a
movk_i32     i=t    a
cmov_b32     u=u    scc ? a : d
cmov_b64     U=U    scc ? a : d
cmovk_i32    i=t    scc ? a : d
cselect_b32  u=uu   scc ? a : b
cselect_b64  U=UU   scc ? a : b
not_b32      u=u    (r = ~a, scc = r != 0, r)
not_b64      U=U    (r = ~a, scc = r != 0, r)
brev_b32     u=u    reversed(a)
brev_b64     U=U    (u64)reversed((u32)a) << 32 | reversed((u32)(a >> 32))
ff0_i32_b32  u=u    first_set((u32)~a)
ff0_i32_b64  u=U    first_set(~a)
bitreplicate_b64_b32 U=u ({ u64 x = 0; for (int q = 0; q < 32; q++) x |= (u64)(3 * (a >> q & 1)) << 2 * q; x; })
quadmask_b32 u=u    ({ u32 x = 0; for (int q = 0; q < 8; q++) x |= (u32)((a >> 4 * q & 15) != 0) << q; scc = x != 0; x; })
quadmask_b64 U=U    ({ u64 x = 0; for (int q = 0; q < 16; q++) x |= (u64)((a >> 4 * q & 15) != 0) << q; scc = x != 0; x; })
bcnt0_i32_b32 u=u   (r = 32 - popcount(a), scc = r != 0, r)
bcnt1_i32_b32 u=u   (r = popcount(a), scc = r != 0, r)
bcnt0_i32_b64 u=U   (r = 64 - popcount(a), scc = r != 0, r)
bcnt1_i32_b64 u=U   (r = popcount(a), scc = r != 0, r)
ctz_i32_b32  u=u    first_set(a)
ctz_i32_b64  u=U    first_set(a)
clz_i32_u32  u=u    leading_zeros(a)
cls_i32_i64  u=U    ({ u64 x = (i64)a < 0 ? ~a : a; x ? leading_zeros64(x) : ~0u; })
clz_i32_u64  u=U    leading_zeros64(a)
cls_i32      u=u    sign_bits(a)
sext_i32_i8  i=u    (i8)a
sext_i32_i16 i=u    (i16)a
bitset0_b32  u=u    d & ~(1u << (a & 31))
bitset1_b32  u=u    d | 1u << (a & 31)
bitset0_b64  U=u    d & ~(1ull << (a & 63))
bitset1_b64  U=u    d | 1ull << (a & 63)
abs_i32      u=i    (r = a < 0 ? 0u - (u32)a : (u32)a, scc = r != 0, r)
absdiff_i32  u=uu   (r = a - b, r = (i32)r < 0 ? 0u - r : r, scc = r != 0, r)
add_u32      u=uu   (scc = ((u64)a + b) >> 32 != 0, a + b)
addc_u32     u=uu   (r = a + b + scc, scc = ((u64)a + b + scc) >> 32 != 0, r)
sub_u32      u=uu   (scc = a < b, a - b)
subb_u32     u=uu   (r = a - b - scc, scc = (u64)a < (u64)b + scc, r)
add_i32      i=ii   (scc = __builtin_sadd_overflow(a, b, &r), r)
sub_i32      i=ii   (scc = __builtin_ssub_overflow(a, b, &r), r)
addk_i32     i=t    (scc = __builtin_sadd_overflow(d, a, &r), r)
mulk_i32     u=t    d * (u32)a
mul_i32      u=uu   a * b
mul_hi_u32   u=uu   (u32)((u64)a * b >> 32)
mul_hi_i32   i=ii   (i32)((i64)a * b >> 32)
add_nc_u64   U=UU   a + b
sub_nc_u64   U=UU   a - b
mul_u64      U=UU   a * b
lshl1_add_u32 u=uu  (scc = (((u64)a << 1) + b) >> 32 != 0, (a << 1) + b)
lshl2_add_u32 u=uu  (scc = (((u64)a << 2) + b) >> 32 != 0, (a << 2) + b)
lshl3_add_u32 u=uu  (scc = (((u64)a << 3) + b) >> 32 != 0, (a << 3) + b)
lshl4_add_u32 u=uu  (scc = (((u64)a << 4) + b) >> 32 != 0, (a << 4) + b)
max_u32      u=uu   (scc = a > b, scc ? a : b)
min_u32      u=uu   (scc = a < b, scc ? a : b)
max_i32      i=ii   (scc = a > b, scc ? a : b)
min_i32      i=ii   (scc = a < b, scc ? a : b)
lshl_b32     u=uu   (r = a << (b & 31), scc = r != 0, r)
lshr_b32     u=uu   (r = a >> (b & 31), scc = r != 0, r)
ashr_i32     i=iu   (r = a >> (b & 31), scc = r != 0, r)
lshl_b64     U=Uu   (r = a << (b & 63), scc = r != 0, r)
lshr_b64     U=Uu   (r = a >> (b & 63), scc = r != 0, r)
ashr_i64     I=Iu   (r = a >> (b & 63), scc = r != 0, r)
bfm_b32      u=uu   ((1u << (a & 31)) - 1) << (b & 31)
bfm_b64      U=uu   ((1ull << (a & 63)) - 1) << (b & 63)
bfe_u32      u=uu   (r = (u32)field(a, b & 31, b >> 16 & 127), scc = r != 0, r)
bfe_i32      i=iu   (r = (i32)signed_field(a, b & 31, (b >> 16 & 127) > 32 ? 32 : b >> 16 & 127), scc = r != 0, r)
bfe_u64      U=Uu   (r = field(a, b & 63, b >> 16 & 127), scc = r != 0, r)
bfe_i64      I=Iu   (r = signed_field(a, b & 63, b >> 16 & 127), scc = r != 0, r)
pack_ll_b32_b16 u=uu (a & 0xffff) | b << 16
pack_lh_b32_b16 u=uu (a & 0xffff) | (b & 0xffff0000)
pack_hh_b32_b16 u=uu a >> 16 | (b & 0xffff0000)
pack_hl_b32_b16 u=uu a >> 16 | b << 16

add_f32      f=ff   a + b
sub_f32      f=ff   a - b
mul_f32      f=ff   a * b
min_f32      f=ff   min_num(a, b)
max_f32      f=ff   max_num(a, b)
minimum_f32  f=ff   minimum(a, b)
maximum_f32  f=ff   maximum(a, b)
fmac_f32     f=ff   fma_f32(a, b, d)
fmaak_f32    f=fff  fma_f32(a, b, c)
fmamk_f32    f=fff  fma_f32(a, b, c)
exp_f32      f=f    exp2_f32(a)
log_f32      f=f    log2_f32(a)
rcp_f32      f=f    rcp_f32(a)
rsq_f32      f=f    rsq_f32(a)
sqrt_f32     f=f    __builtin_sqrtf(a)
ceil_f32     f=f    __builtin_ceilf(a)
floor_f32    f=f    __builtin_floorf(a)
trunc_f32    f=f    __builtin_truncf(a)
rndne_f32    f=f    __builtin_rintf(a)
cvt_f32_i32  f=i    (f32)a
cvt_f32_u32  f=u    (f32)a
cvt_i32_f32  u=f    to_i32(a)
cvt_u32_f32  u=f    to_u32(a)
cvt_f16_f32  u=f    f16_bits(a)
cvt_f32_f16  f=h    (f32)a
cvt_hi_f32_f16 f=u  (f32)f16_of(a >> 16)
cvt_pk_rtz_f16_f32 u=ff f16_toward_zero(a) | f16_toward_zero(b) << 16
add_f16      u=hh   f16_bits(a + b)
sub_f16      u=hh   f16_bits(a - b)
mul_f16      u=hh   f16_bits(a * b)
min_f16      u=hh   f16_bits(min_num(a, b))
max_f16      u=hh   f16_bits(max_num(a, b))
minimum_f16  u=hh   f16_bits(minimum(a, b))
maximum_f16  u=hh   f16_bits(maximum(a, b))
ceil_f16     u=h    f16_bits(__builtin_ceil(a))
floor_f16    u=h    f16_bits(__builtin_floor(a))
trunc_f16    u=h    f16_bits(__builtin_trunc(a))
rndne_f16    u=h    f16_bits(__builtin_rint(a))
exp_f16      u=h    f16_bits(__builtin_exp2(a))
log_f16      u=h    f16_bits(__builtin_log2(a))
rcp_f16      u=h    f16_bits(1.0 / a)
rsq_f16      u=h    f16_bits(1.0 / __builtin_sqrt(a))
sqrt_f16     u=h    f16_bits(__builtin_sqrt(a))
fmac_f16     h=hh   fma_odd(a, b, d)

bitcmp0_b32  k=uu   (scc = !(a >> (b & 31) & 1), 0)
bitcmp1_b32  k=uu   (scc = a >> (b & 31) & 1, 0)
bitcmp0_b64  k=Uu   (scc = !(a >> (b & 63) & 1), 0)
bitcmp1_b64  k=Uu   (scc = (u32)(a >> (b & 63) & 1), 0)
"""
_LOGIC = {"and": "a & b", "or": "a | b", "xor": "a ^ b", "and_not1": "a & ~b", "or_not1": "a | ~b", "nand": "~(a & b)", "nor": "~(a | b)", "xnor": "~(a ^ b)"}
# a: the operand, exec: as it was.  What is 1 here is on the operand's side where the name says not0, and on exec's where it says not1.
_SAVE = {"and": "a & exec", "or": "a | exec", "xor": "a ^ exec", "nand": "~(a & exec)", "nor": "~(a | exec)", "xnor": "~(a ^ exec)",
         "and_not0": "~a & exec", "and_not1": "a & ~exec", "or_not0": "~a | exec", "or_not1": "a | ~exec"}
_RELATIONS = {"eq": "==", "lg": "!=", "gt": ">", "ge": ">=", "lt": "<", "le": "<="}
_UNORDERED = {"nge": ">=", "ngt": ">", "nle": "<=", "nlt": "<", "neq": "=="}


def _generated() -> list[Row]:
    found = []
    for bits, letter, ones in (("b32", "u", "0xffffffffull"), ("b64", "U", "~0ull")):
        found += [Row(f"{name}_{bits}", letter, letter * 2, f"(r = {text}, scc = r != 0, r)") for name, text in _LOGIC.items()]
        for name, text in _SAVE.items():
            found.append(Row(f"{name}_saveexec_{bits}", letter, letter, f"(r = exec, exec = ({text}) & {ones}, scc = exec != 0, r)"))
            if name.startswith("and_not"):
                found.append(Row(f"{name}_wrexec_{bits}", letter, letter, f"(exec = ({text}) & {ones}, scc = exec != 0, exec)"))
    for name, sign in _RELATIONS.items():
        found += [Row(f"cmp_{name}_{kind}", "k", letter * 2, f"(scc = a {sign} b, 0)") for kind, letter in (("i32", "i"), ("u32", "u"), ("u64", "U"))]
        found += [Row(f"cmpk_{name}_i32", "k", "it", f"(scc = a {sign} b, 0)"), Row(f"cmpk_{name}_u32", "k", "us", f"(scc = a {sign} b, 0)")]
    for kind, letter in (("f32", "f"), ("f16", "h")):
        found += [Row(f"cmp_{name}_{kind}", "k", letter * 2, f"(scc = {'a < b || a > b' if name == 'lg' else f'a {sign} b'}, 0)") for name, sign in _RELATIONS.items()]
        found += [Row(f"cmp_{name}_{kind}", "k", letter * 2, f"(scc = !(a {sign} b), 0)") for name, sign in _UNORDERED.items()]
        found += [Row(f"cmp_o_{kind}", "k", letter * 2, "(scc = a == a && b == b, 0)"), Row(f"cmp_u_{kind}", "k", letter * 2, "(scc = a != a || b != b, 0)"),
                  Row(f"cmp_nlg_{kind}", "k", letter * 2, "(scc = !(a < b || a > b), 0)")]
    return found


SCALARS = (*rows(_ROWS), *_generated())
SCALAR_ALIASES = (
    (r"^andn([12])_", r"and_not\1_"), (r"^orn([12])_", r"or_not\1_"), (r"^(and|or)_not2_", r"\1_not1_"), (r"^ff1_i32_", "ctz_i32_"), (r"^flbit_i32_b", "clz_i32_u"),
    (r"^flbit_i32$", "cls_i32"), (r"^flbit_i32_i64$", "cls_i32_i64"), (r"^(add|sub)_co_([ui]32)$", r"\1_\2"), (r"^add_co_ci_u32$", "addc_u32"), (r"^sub_co_ci_u32$", "subb_u32"),
    (r"^addk_co_i32$", "addk_i32"), (r"^(min|max)_num_(f\d+)$", r"\1_\2"), (r"^(add|sub)_u64$", r"\1_nc_u64"),
)

# a: what memory holds, b: the lane's value, c: its second one.
_ATOMICS = """
add_u32      u=uu   a + b
sub_u32      u=uu   a - b
rsub_u32     u=uu   b - a
inc_u32      u=uu   a >= b ? 0 : a + 1
dec_u32      u=uu   a == 0 || a > b ? b : a - 1
min_i32      i=ii   a < b ? a : b
max_i32      i=ii   a > b ? a : b
min_u32      u=uu   a < b ? a : b
max_u32      u=uu   a > b ? a : b
and_b32      u=uu   a & b
or_b32       u=uu   a | b
xor_b32      u=uu   a ^ b
swap_b32     u=uu   b
cmpswap_b32  u=uuu  a == c ? b : a
add_u64      U=UU   a + b
sub_u64      U=UU   a - b
rsub_u64     U=UU   b - a
inc_u64      U=UU   a >= b ? 0 : a + 1
dec_u64      U=UU   a == 0 || a > b ? b : a - 1
min_i64      I=II   a < b ? a : b
max_i64      I=II   a > b ? a : b
min_u64      U=UU   a < b ? a : b
max_u64      U=UU   a > b ? a : b
and_b64      U=UU   a & b
or_b64       U=UU   a | b
xor_b64      U=UU   a ^ b
swap_b64     U=UU   b
cmpswap_b64  U=UUU  a == c ? b : a
add_f32      f=ff   a + b
min_f32      f=ff   min_num(a, b)
max_f32      f=ff   max_num(a, b)
add_f64      d=dd   a + b
min_f64      d=dd   min_num(a, b)
max_f64      d=dd   max_num(a, b)
pk_add_f16   u=uu   f16_bits(f16_of(a & 0xffff) + f16_of(b & 0xffff)) | f16_bits(f16_of(a >> 16) + f16_of(b >> 16)) << 16
pk_add_bf16  u=uu   bf16_bits(bf16_of(a & 0xffff) + bf16_of(b & 0xffff)) | bf16_bits(bf16_of(a >> 16) + bf16_of(b >> 16)) << 16
"""
ATOMICS = rows(_ATOMICS)

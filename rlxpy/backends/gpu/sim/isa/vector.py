"""Vector instructions as data: what each computes in one lane, in C.

A row is `name  result=sources  expression`.  Sources are called a, b, c; d is the old destination; l is the lane.  Types, one letter each:
u i f  32 bits (unsigned, signed, float); n: 32 bits moved, with the sign modifiers of floats; U I d: 64 bits; s t h: 16 bits; m: 16 bits moved;
b: bfloat16; p: a pair of halves.  h and b are doubles in an expression and rounded once.  k is a lane mask: as a source the lane's bit k, as a
result `o`, which the expression sets.  `name+clamp` is what an integer instruction does when it is told to saturate.  `pk_` forms of a row need
no row of their own.  Names are those of gfx11; ALIASES says how others call them."""
from __future__ import annotations

from itertools import product

from rlxpy.backends.gpu.sim.isa.table import Row, rows

_ROWS = """
mov_b32            u=u    a
mov_b64            U=U    a
mov_b16            m=m    a
pk_mov_b32         U=uu   a | (u64)b << 32
not_b32            u=u    ~a
not_b16            s=s    ~a
bfrev_b32          u=u    reversed(a)
clz_i32_u32        u=u    leading_zeros(a)
ctz_i32_b32        u=u    first_set(a)
cls_i32            u=u    sign_bits(a)
cndmask_b32        n=nnk  k ? b : a
cndmask_b16        m=mmk  k ? b : a
accvgpr_read_b32   u=u    a
accvgpr_write_b32  u=u    a
accvgpr_mov_b32    u=u    a

add_f32      f=ff   a + b
sub_f32      f=ff   a - b
subrev_f32   f=ff   b - a
mul_f32      f=ff   a * b
mul_legacy_f32     f=ff   a == 0 || b == 0 ? 0 : a * b
mul_dx9_zero_f32   f=ff   a == 0 || b == 0 ? 0 : a * b
max_f32      f=ff   max_num(a, b)
min_f32      f=ff   min_num(a, b)
maximum_f32  f=ff   maximum(a, b)
minimum_f32  f=ff   minimum(a, b)
max3_f32     f=fff  max_num(max_num(a, b), c)
min3_f32     f=fff  min_num(min_num(a, b), c)
maximum3_f32 f=fff  maximum(maximum(a, b), c)
minimum3_f32 f=fff  minimum(minimum(a, b), c)
maxmin_f32   f=fff  min_num(max_num(a, b), c)
minmax_f32   f=fff  max_num(min_num(a, b), c)
maximumminimum_f16 h=hhh  minimum(maximum(a, b), c)
minimummaximum_f16 h=hhh  maximum(minimum(a, b), c)
maximumminimum_f32 f=fff  minimum(maximum(a, b), c)
minimummaximum_f32 f=fff  maximum(minimum(a, b), c)
med3_f32     f=fff  med3(a, b, c)
fma_f32      f=fff  fma_f32(a, b, c)
fma_legacy_f32     f=fff  a == 0 || b == 0 ? c : fma_f32(a, b, c)
fma_dx9_zero_f32   f=fff  a == 0 || b == 0 ? c : fma_f32(a, b, c)
fmac_legacy_f32    f=ff   a == 0 || b == 0 ? d : fma_f32(a, b, d)
fmac_dx9_zero_f32  f=ff   a == 0 || b == 0 ? d : fma_f32(a, b, d)
fmaak_f32    f=fff  fma_f32(a, b, c)
fmamk_f32    f=fff  fma_f32(a, b, c)
fmac_f32     f=ff   fma_f32(a, b, d)
mad_f32      f=fff  (f32)(a * b) + c
madak_f32    f=fff  (f32)(a * b) + c
madmk_f32    f=fff  (f32)(a * b) + c
mac_f32      f=ff   (f32)(a * b) + d
rcp_f32      f=f    rcp_f32(a)
rcp_iflag_f32 f=f   rcp_f32(a)
rsq_f32      f=f    rsq_f32(a)
sqrt_f32     f=f    __builtin_sqrtf(a)
exp_f32      f=f    exp2_f32(a)
log_f32      f=f    log2_f32(a)
sin_f32      f=f    sin_turns(a)
cos_f32      f=f    cos_turns(a)
rndne_f32    f=f    __builtin_rintf(a)
floor_f32    f=f    __builtin_floorf(a)
trunc_f32    f=f    __builtin_truncf(a)
ceil_f32     f=f    __builtin_ceilf(a)
fract_f32    f=f    fract(a, 0x1.fffffep-1)
ldexp_f32    f=fi   ldexp_f32(a, b)
frexp_exp_i32_f32 i=f  frexp_exp(a)
frexp_mant_f32 f=f  frexp_mant(a)
div_scale_f32 fk=fff div_scale_f32(a, b, c, &o)
div_fmas_f32 f=fffk div_fmas_f32(a, b, c, k)
div_fixup_f32 f=fff div_fixup_f32(a, b, c)

add_f64      d=dd   a + b
mul_f64      d=dd   a * b
max_f64      d=dd   max_num(a, b)
min_f64      d=dd   min_num(a, b)
maximum_f64  d=dd   maximum(a, b)
minimum_f64  d=dd   minimum(a, b)
fma_f64      d=ddd  fma_f64(a, b, c)
fmac_f64     d=dd   fma_f64(a, b, d)
rcp_f64      d=d    1.0 / a
rsq_f64      d=d    1.0 / __builtin_sqrt(a)
sqrt_f64     d=d    __builtin_sqrt(a)
rndne_f64    d=d    __builtin_rint(a)
floor_f64    d=d    __builtin_floor(a)
trunc_f64    d=d    __builtin_trunc(a)
ceil_f64     d=d    __builtin_ceil(a)
fract_f64    d=d    fract(a, 0x1.fffffffffffffp-1)
ldexp_f64    d=di   ldexp_f64(a, b)
frexp_exp_i32_f64 i=d frexp_exp(a)
frexp_mant_f64 d=d  frexp_mant(a)
div_scale_f64 dk=ddd div_scale_f64(a, b, c, &o)
div_fmas_f64 d=dddk div_fmas_f64(a, b, c, k)
div_fixup_f64 d=ddd div_fixup_f64(a, b, c)

add_f16      h=hh   a + b
sub_f16      h=hh   a - b
subrev_f16   h=hh   b - a
mul_f16      h=hh   a * b
max_f16      h=hh   max_num(a, b)
min_f16      h=hh   min_num(a, b)
maximum_f16  h=hh   maximum(a, b)
minimum_f16  h=hh   minimum(a, b)
max3_f16     h=hhh  max_num(max_num(a, b), c)
min3_f16     h=hhh  min_num(min_num(a, b), c)
maximum3_f16 h=hhh  maximum(maximum(a, b), c)
minimum3_f16 h=hhh  minimum(minimum(a, b), c)
maxmin_f16   h=hhh  min_num(max_num(a, b), c)
minmax_f16   h=hhh  max_num(min_num(a, b), c)
med3_f16     h=hhh  med3(a, b, c)
fma_f16      h=hhh  fma_odd(a, b, c)
fmaak_f16    h=hhh  fma_odd(a, b, c)
fmamk_f16    h=hhh  fma_odd(a, b, c)
fmac_f16     h=hh   fma_odd(a, b, d)
mad_f16      h=hhh  f16_of(f16_bits(a * b)) + c
madak_f16    h=hhh  f16_of(f16_bits(a * b)) + c
madmk_f16    h=hhh  f16_of(f16_bits(a * b)) + c
mac_f16      h=hh   f16_of(f16_bits(a * b)) + d
rcp_f16      h=h    1.0 / a
rsq_f16      h=h    1.0 / __builtin_sqrt(a)
sqrt_f16     h=h    __builtin_sqrt(a)
exp_f16      h=h    __builtin_exp2(a)
log_f16      h=h    __builtin_log2(a)
sin_f16      h=h    sin_turns(a)
cos_f16      h=h    cos_turns(a)
rndne_f16    h=h    __builtin_rint(a)
floor_f16    h=h    __builtin_floor(a)
trunc_f16    h=h    __builtin_trunc(a)
ceil_f16     h=h    __builtin_ceil(a)
fract_f16    h=h    fract(a, 0x1.ffcp-1)
ldexp_f16    h=ht   ldexp_f64(a, b)
frexp_exp_i16_f16 t=h frexp_exp(a)
frexp_mant_f16 h=h  frexp_mant(a)
div_fixup_f16 h=hhh div_fixup_f16(a, b, c)
fma_mix_f32  f=fff  fma_f32(a, b, c)
mad_mix_f32  f=fff  (f32)(a * b) + c
fma_mixlo_f16 h=fff fma_odd(a, b, c)
fma_mixhi_f16 h=fff fma_odd(a, b, c)

cvt_f32_i32  f=i    (f32)a
cvt_f32_u32  f=u    (f32)a
cvt_i32_f32  u=f    to_i32(a)
cvt_u32_f32  u=f    to_u32(a)
cvt_rpi_i32_f32 u=f to_i32(__builtin_floor((f64)a + 0.5))
cvt_nearest_i32_f32 u=f to_i32(__builtin_floor((f64)a + 0.5))
cvt_flr_i32_f32 u=f to_i32(__builtin_floor(a))
cvt_floor_i32_f32 u=f to_i32(__builtin_floor(a))
cvt_f32_ubyte0 f=u  (f32)(a & 255)
cvt_f32_ubyte1 f=u  (f32)(a >> 8 & 255)
cvt_f32_ubyte2 f=u  (f32)(a >> 16 & 255)
cvt_f32_ubyte3 f=u  (f32)(a >> 24)
cvt_f64_i32  d=i    (f64)a
cvt_f64_u32  d=u    (f64)a
cvt_i32_f64  u=d    to_i32(a)
cvt_u32_f64  u=d    to_u32(a)
cvt_f64_f32  d=f    (f64)a
cvt_f32_f64  f=d    (f32)a
cvt_f16_f32  h=f    a
cvt_f32_f16  f=h    (f32)a
cvt_f16_i16  h=t    a
cvt_f16_u16  h=s    a
cvt_i16_f16  s=h    to_i16(a)
cvt_u16_f16  s=h    to_u16(a)
cvt_i32_i16  i=t    a
cvt_u32_u16  u=s    a
cvt_f32_bf16 f=b    (f32)a
cvt_pk_bf16_f32 u=ff bf16_bits(a) | bf16_bits(b) << 16
cvt_pkrtz_f16_f32 u=ff f16_toward_zero(a) | f16_toward_zero(b) << 16
cvt_pk_i16_f32 u=ff to_i16(a) | to_i16(b) << 16
cvt_pk_u16_f32 u=ff to_u16(a) | to_u16(b) << 16
cvt_pk_i16_i32 u=ii ((u32)saturated(a, -32768, 32767) & 0xffff) | (u32)saturated(b, -32768, 32767) << 16
cvt_pk_u16_u32 u=uu (a > 0xffff ? 0xffff : a) | (b > 0xffff ? 0xffff : b) << 16
cvt_pk_u8_f32 u=fuu (c & ~(255u << 8 * (b & 3))) | to_u8(a) << 8 * (b & 3)
cvt_pknorm_i16_f32 u=ff to_i16(__builtin_rint((f64)med3(a, -1, 1) * 32767)) | to_i16(__builtin_rint((f64)med3(b, -1, 1) * 32767)) << 16
cvt_pknorm_u16_f32 u=ff to_u16(__builtin_rint((f64)med3(a, 0, 1) * 65535)) | to_u16(__builtin_rint((f64)med3(b, 0, 1) * 65535)) << 16
cvt_pk_f16_f32 u=ff f16_bits(a) | f16_bits(b) << 16
cvt_norm_i16_f16 s=h to_i16(__builtin_rint(med3(a, -1, 1) * 32767))
cvt_norm_u16_f16 s=h to_u16(__builtin_rint(med3(a, 0, 1) * 65535))
cvt_pknorm_i16_f16 u=hh to_i16(__builtin_rint(med3(a, -1, 1) * 32767)) | to_i16(__builtin_rint(med3(b, -1, 1) * 32767)) << 16
cvt_pknorm_u16_f16 u=hh to_u16(__builtin_rint(med3(a, 0, 1) * 65535)) | to_u16(__builtin_rint(med3(b, 0, 1) * 65535)) << 16
cvt_off_f32_i4 f=u  (f32)signed_field((i64)(a & 15), 0, 4) / 16
sat_pk_u8_i16 s=u   (u32)saturated((i16)a, 0, 255) | (u32)saturated((i16)(a >> 16), 0, 255) << 8
ashr_pk_i8_i32 s=iiu ((u32)saturated(a >> (c & 31), -128, 127) & 255) | ((u32)saturated(b >> (c & 31), -128, 127) & 255) << 8
ashr_pk_u8_i32 s=iiu (u32)saturated(a >> (c & 31), 0, 255) | (u32)saturated(b >> (c & 31), 0, 255) << 8
pack_b32_f16 u=mm   a | b << 16

add_nc_u32   u=uu   a + b
sub_nc_u32   u=uu   a - b
subrev_nc_u32 u=uu  b - a
add_nc_i32   u=uu   a + b
sub_nc_i32   u=uu   a - b
add_nc_u32+clamp u=uu saturated((i64)a + b, 0, 0xffffffff)
sub_nc_u32+clamp u=uu saturated((i64)a - b, 0, 0xffffffff)
subrev_nc_u32+clamp u=uu saturated((i64)b - a, 0, 0xffffffff)
add_nc_i32+clamp i=ii saturated((i64)a + b, -2147483648ll, 2147483647)
sub_nc_i32+clamp i=ii saturated((i64)a - b, -2147483648ll, 2147483647)
add_co_u32   uk=uu  (o = ((u64)a + b) >> 32 != 0, a + b)
sub_co_u32   uk=uu  (o = a < b, a - b)
subrev_co_u32 uk=uu (o = b < a, b - a)
add_co_u32+clamp uk=uu (o = ((u64)a + b) >> 32 != 0, o ? ~0u : a + b)
sub_co_u32+clamp uk=uu (o = a < b, o ? 0 : a - b)
add_co_ci_u32 uk=uuk (o = ((u64)a + b + (u64)k) >> 32 != 0, a + b + (u32)k)
sub_co_ci_u32 uk=uuk (o = (u64)a < (u64)b + (u64)k, a - b - (u32)k)
subrev_co_ci_u32 uk=uuk (o = (u64)b < (u64)a + (u64)k, b - a - (u32)k)
mul_lo_u32   u=uu   a * b
mul_hi_u32   u=uu   (u32)((u64)a * b >> 32)
mul_hi_i32   i=ii   (i32)((i64)a * b >> 32)
mul_u32_u24  u=uu   (a & 0xffffff) * (b & 0xffffff)
mul_i32_i24  i=ii   (i32)signed_field(a, 0, 24) * (i32)signed_field(b, 0, 24)
mul_hi_u32_u24 u=uu (u32)((u64)(a & 0xffffff) * (b & 0xffffff) >> 32)
mul_hi_i32_i24 i=ii (i32)(signed_field(a, 0, 24) * signed_field(b, 0, 24) >> 32)
mad_u32_u24  u=uuu  (a & 0xffffff) * (b & 0xffffff) + c
mad_i32_i24  u=iiu  (u32)((i32)signed_field(a, 0, 24) * (i32)signed_field(b, 0, 24)) + c
mad_u64_u32  Uk=uuU (o = __builtin_add_overflow((u64)a * b, c, &(u64){0}), (u64)a * b + c)
mad_i64_i32  Ik=iiI (o = __builtin_add_overflow((i64)a * b, c, &(i64){0}), (u64)((i64)a * b) + (u64)c)
mad_u32      u=uuu  a * b + c
mad_u32_u16  u=ssu  a * b + c
mad_i32_i16  u=ttu  (u32)(a * b) + c
lshl_add_u64 U=UuU  (a << (b & 7)) + c
add_nc_u64   U=UU   a + b
sub_nc_u64   U=UU   a - b
mul_u64      U=UU   a * b
lshlrev_b32  u=uu   b << (a & 31)
lshrrev_b32  u=uu   b >> (a & 31)
ashrrev_i32  i=ui   b >> (a & 31)
lshlrev_b64  U=uU   b << (a & 63)
lshrrev_b64  U=uU   b >> (a & 63)
ashrrev_i64  I=uI   b >> (a & 63)
and_b32      u=uu   a & b
or_b32       u=uu   a | b
xor_b32      u=uu   a ^ b
xnor_b32     u=uu   ~(a ^ b)
lshl_add_u32 u=uuu  (a << (b & 31)) + c
add_lshl_u32 u=uuu  (a + b) << (c & 31)
lshl_or_b32  u=uuu  (a << (b & 31)) | c
and_or_b32   u=uuu  (a & b) | c
or3_b32      u=uuu  a | b | c
xor3_b32     u=uuu  a ^ b ^ c
add3_u32     u=uuu  a + b + c
xad_u32      u=uuu  (a ^ b) + c
bfi_b32      u=uuu  (a & b) | (~a & c)
bfm_b32      u=uu   ((1u << (a & 31)) - 1) << (b & 31)
bfe_u32      u=uuu  (u32)field(a, b & 31, c & 31)
bfe_i32      i=iuu  (i32)signed_field(a, b & 31, c & 31)
bitop3_b32   u=uuu  bitop3(a, b, c, args[0])
bitop3_b16   s=sss  bitop3(a, b, c, args[0])
alignbit_b32 u=uuu  (u32)(((u64)a << 32 | b) >> (c & 31))
alignbyte_b32 u=uuu (u32)(((u64)a << 32 | b) >> 8 * (c & 3))
perm_b32     u=uuu  permuted(a, b, c)
sad_u8       u=uuu  sad_u8(a, b) + c
msad_u8      u=uuu  ({ u32 r = c; for (int q = 0; q < 32; q += 8) if (b >> q & 255) r += sad_u8(a >> q & 255, b >> q & 255); r; })
sad_hi_u8    u=uuu  (sad_u8(a, b) << 16) + c
lerp_u8      u=uuu  ({ u32 r = 0; for (int q = 0; q < 32; q += 8) r |= ((((a >> q & 255) + (b >> q & 255) + (c >> q & 1)) >> 1) & 255) << q; r; })
sad_u16      u=uuu  ({ i32 x = (i32)(a & 0xffff) - (i32)(b & 0xffff), y = (i32)(a >> 16) - (i32)(b >> 16); (u32)((x < 0 ? -x : x) + (y < 0 ? -y : y)) + c; })
sad_u32      u=uuu  (a > b ? a - b : b - a) + c
max_u32      u=uu   a > b ? a : b
min_u32      u=uu   a < b ? a : b
max_i32      i=ii   a > b ? a : b
min_i32      i=ii   a < b ? a : b
max3_u32     u=uuu  ({ u32 x = a > b ? a : b; x > c ? x : c; })
min3_u32     u=uuu  ({ u32 x = a < b ? a : b; x < c ? x : c; })
max3_i32     i=iii  ({ i32 x = a > b ? a : b; x > c ? x : c; })
min3_i32     i=iii  ({ i32 x = a < b ? a : b; x < c ? x : c; })
med3_u32     u=uuu  ({ u32 x = a > b ? a : b, y = a > b ? b : a; x < c ? x : y > c ? y : c; })
med3_i32     i=iii  ({ i32 x = a > b ? a : b, y = a > b ? b : a; x < c ? x : y > c ? y : c; })
maxmin_u32   u=uuu  ({ u32 x = a > b ? a : b; x < c ? x : c; })
minmax_u32   u=uuu  ({ u32 x = a < b ? a : b; x > c ? x : c; })
maxmin_i32   i=iii  ({ i32 x = a > b ? a : b; x < c ? x : c; })
minmax_i32   i=iii  ({ i32 x = a < b ? a : b; x > c ? x : c; })
mbcnt_lo_u32_b32 u=uu popcount(l < 32 ? a & ((1u << l) - 1) : a) + b
mbcnt_hi_u32_b32 u=uu (l < 32 ? 0 : popcount(a & ((1u << (l - 32)) - 1))) + b
bcnt_u32_b32 u=uu   popcount(a) + b

add_nc_u16   s=ss   a + b
sub_nc_u16   s=ss   a - b
subrev_nc_u16 s=ss  b - a
add_nc_i16   s=ss   a + b
sub_nc_i16   s=ss   a - b
add_nc_u16+clamp s=ss saturated((i64)a + b, 0, 65535)
sub_nc_u16+clamp s=ss saturated((i64)a - b, 0, 65535)
add_nc_i16+clamp t=tt saturated((i64)a + b, -32768, 32767)
sub_nc_i16+clamp t=tt saturated((i64)a - b, -32768, 32767)
mul_lo_u16   s=ss   a * b
mad_u16      s=sss  a * b + c
mad_i16      s=sss  a * b + c
max_u16      s=ss   a > b ? a : b
min_u16      s=ss   a < b ? a : b
max_i16      t=tt   a > b ? a : b
min_i16      t=tt   a < b ? a : b
max3_u16     s=sss  ({ u32 x = a > b ? a : b; x > c ? x : c; })
min3_u16     s=sss  ({ u32 x = a < b ? a : b; x < c ? x : c; })
max3_i16     t=ttt  ({ i32 x = a > b ? a : b; x > c ? x : c; })
min3_i16     t=ttt  ({ i32 x = a < b ? a : b; x < c ? x : c; })
med3_u16     s=sss  ({ u32 x = a > b ? a : b, y = a > b ? b : a; x < c ? x : y > c ? y : c; })
med3_i16     t=ttt  ({ i32 x = a > b ? a : b, y = a > b ? b : a; x < c ? x : y > c ? y : c; })
lshlrev_b16  s=ss   b << (a & 15)
lshrrev_b16  s=ss   b >> (a & 15)
ashrrev_i16  t=st   b >> (a & 15)
and_b16      s=ss   a & b
or_b16       s=ss   a | b
xor_b16      s=ss   a ^ b

dot2_f32_f16     f=ppf  dot2_f16(a, b, c)
dot2_f32_bf16    f=ppf  dot2_bf16(a, b, c)
dot2c_f32_f16    f=pp   dot2_f16(a, b, d)
dot2acc_f32_f16  f=pp   dot2_f16(a, b, d)
dot2c_f32_bf16   f=pp   dot2_bf16(a, b, d)
dot2acc_f32_bf16 f=pp   dot2_bf16(a, b, d)
dot2_f16_f16     h=pph  dot2_f16(a, b, (f32)c)
dot2_bf16_bf16   b=ppb  dot2_bf16(a, b, (f32)c)
dot4_f32_fp8_fp8 f=uuf  dot4_f8(a, b, c, 3, 3)
dot4_f32_fp8_bf8 f=uuf  dot4_f8(a, b, c, 3, 2)
dot4_f32_bf8_fp8 f=uuf  dot4_f8(a, b, c, 2, 3)
dot4_f32_bf8_bf8 f=uuf  dot4_f8(a, b, c, 2, 2)
dot2_i32_i16     i=uui  (i32)(dot(a, b, 16, 1, 1) + c)
dot2c_i32_i16    i=uu   (i32)(dot(a, b, 16, 1, 1) + d)
dot2_u32_u16     u=uuu  (u32)dot(a, b, 16, 0, 0) + c
dot4_i32_i8      i=uui  (i32)(dot(a, b, 8, 1, 1) + c)
dot4c_i32_i8     i=uu   (i32)(dot(a, b, 8, 1, 1) + d)
dot4_u32_u8      u=uuu  (u32)dot(a, b, 8, 0, 0) + c
dot4_i32_iu8     i=uui  (i32)(dot(a, b, 8, (int)args[0], (int)args[1]) + c)
dot8_i32_i4      i=uui  (i32)(dot(a, b, 4, 1, 1) + c)
dot8c_i32_i4     i=uu   (i32)(dot(a, b, 4, 1, 1) + d)
dot8_u32_u4      u=uuu  (u32)dot(a, b, 4, 0, 0) + c
dot8_i32_iu4     i=uui  (i32)(dot(a, b, 4, (int)args[0], (int)args[1]) + c)
dot2_i32_i16+clamp i=uui saturated(dot(a, b, 16, 1, 1) + c, -2147483648ll, 2147483647)
dot4_i32_i8+clamp  i=uui saturated(dot(a, b, 8, 1, 1) + c, -2147483648ll, 2147483647)
dot4_u32_u8+clamp  u=uuu saturated(dot(a, b, 8, 0, 0) + c, 0, 0xffffffff)
dot4_i32_iu8+clamp i=uui saturated(dot(a, b, 8, (int)args[0], (int)args[1]) + c, -2147483648ll, 2147483647)
dot8_i32_i4+clamp  i=uui saturated(dot(a, b, 4, 1, 1) + c, -2147483648ll, 2147483647)
dot8_u32_u4+clamp  u=uuu saturated(dot(a, b, 4, 0, 0) + c, 0, 0xffffffff)

cvt_f32_fp8  f=u    (f32)f8_of(a & 255, 3, (int)args[0])
cvt_f32_bf8  f=u    (f32)f8_of(a & 255, 2, (int)args[0])
cvt_pk_f32_fp8 U=u  bits_f32((f32)f8_of(a & 255, 3, (int)args[0])) | (u64)bits_f32((f32)f8_of(a >> 8 & 255, 3, (int)args[0])) << 32
cvt_pk_f32_bf8 U=u  bits_f32((f32)f8_of(a & 255, 2, (int)args[0])) | (u64)bits_f32((f32)f8_of(a >> 8 & 255, 2, (int)args[0])) << 32
cvt_pk_fp8_f32 s=ff f8_bits(a, 3, (int)args[0]) | f8_bits(b, 3, (int)args[0]) << 8
cvt_pk_bf8_f32 s=ff f8_bits(a, 2, (int)args[0]) | f8_bits(b, 2, (int)args[0]) << 8
"""

_INTEGERS = {"f": "0", "lt": "a < b", "eq": "a == b", "le": "a <= b", "gt": "a > b", "ne": "a != b", "ge": "a >= b", "t": "1"}
_FLOATS = {
    "f": "0", "lt": "a < b", "eq": "a == b", "le": "a <= b", "gt": "a > b", "lg": "a < b || a > b", "ge": "a >= b", "o": "a == a && b == b",
    "u": "a != a || b != b", "nge": "!(a >= b)", "nlg": "!(a < b || a > b)", "ngt": "!(a > b)", "nle": "!(a <= b)", "neq": "!(a == b)",
    "nlt": "!(a < b)", "t": "1", "tru": "1",
}
_TYPES = {"i16": "t", "u16": "s", "i32": "i", "u32": "u", "i64": "I", "u64": "U", "f16": "h", "f32": "f", "f64": "d"}


def _comparisons() -> tuple[Row, ...]:
    found = [Row(f"cmp_{relation}_{name}", "k", letter * 2, f"(o = {text}, 0)")
             for (name, letter) in _TYPES.items() for relation, text in (_FLOATS if name[0] == "f" else _INTEGERS).items()]
    classes = [Row(f"cmp_class_f{bits}", "k", sources, f"(o = class_f{bits}(a, b), 0)") for bits, sources in ((16, "mu"), (32, "nu"), (64, "Uu"))]
    return (*found, *classes)


ROWS = (*rows(_ROWS), *_comparisons())

# What other generations and the assembler call these, as patterns; the first that fits is used, and then the next.
ALIASES = (
    (r"^ffbh_u32$", "clz_i32_u32"), (r"^ffbl_b32$", "ctz_i32_b32"), (r"^ffbh_i32$", "cls_i32"),
    (r"^(add|sub|subrev)_u(16|32)$", r"\1_nc_u\2"), (r"^(add|sub)_i(16|32)$", r"\1_nc_i\2"),
    (r"^addc_co_u32$", "add_co_ci_u32"), (r"^subb_co_u32$", "sub_co_ci_u32"), (r"^subbrev_co_u32$", "subrev_co_ci_u32"),
    (r"^(max|min)_num_(f\d+)$", r"\1_\2"), (r"^(max|min)3_num_(f\d+)$", r"\g<1>3_\2"), (r"^(maxmin|minmax|med3)_num_(f\d+)$", r"\1_\2"),
    (r"^mad_co_([ui]64_[ui]32)$", r"mad_\1"), (r"^(lshlrev|lshrrev|ashrrev)_([bi]64)$", r"\1_\2"),
    (r"^cvt_pk_rtz_f16_f32$", "cvt_pkrtz_f16_f32"), (r"^cvt_pk_norm_([iu]16_f(16|32))$", r"cvt_pknorm_\1"),
    (r"^dot4_i32_i8_iu8$", "dot4_i32_iu8"), (r"^mad_legacy_(\w+)$", r"mad_\1"),
)

# 16-bit instructions of gfx9 that leave the other half of their register alone; the others of that generation clear it.
KEEPS_OTHER_HALF = frozenset({"fma_f16", "mad_u16", "mad_i16", "div_fixup_f16", "fma_mixlo_f16", "fma_mixhi_f16", "cvt_pk_fp8_f32", "cvt_pk_bf8_f32", "med3_f16", "min3_f16", "max3_f16",
                              *(f"{op}3_{kind}16" for op, kind in product(("min", "max", "med"), "iu"))})

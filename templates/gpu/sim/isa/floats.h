/* Arithmetic on bit patterns: f16, bf16, f32 and f64, each rounded once.  v_rcp, v_rsq, v_exp, v_log and v_sin are approximations in
   hardware, of about one unit in the last place; here they are rounded correctly. */
#define INLINE static inline __attribute__((unused))
#define CONVERT(name, from, to) INLINE to name(from x) { to y; __builtin_memcpy(&y, &x, sizeof y); return y; }
CONVERT(bits_f32, f32, u32) CONVERT(f32_of, u32, f32) CONVERT(bits_f64, f64, u64) CONVERT(f64_of, u64, f64)

INLINE int is_nan(f64 x) { return x != x; }
INLINE int sign_f64(f64 x) { return (int)(bits_f64(x) >> 63); }
INLINE f32 nan_f32(void) { return __builtin_nanf(""); }

/* A double to a float of `mbits` stored mantissa bits and exponents from emin, by RNE (up = 0) or toward zero (up = -1): the magnitude's bits. */
INLINE u32 narrow(f64 x, int mbits, int emin, u32 infinity, int toward_zero) {
  u64 b = bits_f64(x) & ~(1ull << 63);
  if (b > 0x7ffull << 52) return infinity | 1u << (mbits - 1);
  if (b == 0x7ffull << 52) return infinity;
  int e = (int)(b >> 52) - 1023;
  if (e < emin - mbits - 1) return 0;
  u64 m = (b & ((1ull << 52) - 1)) | (b >> 52 ? 1ull << 52 : 0);
  int drop = 52 - mbits + (e < emin ? emin - e : 0);
  u64 kept = drop > 63 ? 0 : m >> drop, rest = m & ((1ull << drop) - 1), half = 1ull << (drop - 1);
  if (!toward_zero && (rest > half || (rest == half && (kept & 1)))) kept++;
  u32 r = (u32)(e < emin ? kept : kept + ((u64)(e - emin) << mbits));  /* kept has its leading one, which adds 1 to the exponent field */
  return r >= infinity ? (toward_zero ? infinity - 1 : infinity) : r;
}
INLINE u32 f16_bits(f64 x) { return narrow(x, 10, -14, 0x7c00, 0) | (u32)sign_f64(x) << 15; }
INLINE u32 f16_toward_zero(f64 x) { return narrow(x, 10, -14, 0x7c00, 1) | (u32)sign_f64(x) << 15; }
INLINE u32 bf16_bits(f64 x) { return narrow(x, 7, -126, 0x7f80, 0) | (u32)sign_f64(x) << 15; }
INLINE f64 f16_of(u32 b) {
  u32 sign = (b & 0x8000) << 16, e = b >> 10 & 31, m = b & 1023;
  if (e == 0) return (sign ? -1.0 : 1.0) * (f64)m * 0x1p-24;
  return f32_of(sign | (e == 31 ? 0x7f800000 : (e + 112) << 23) | m << 13);
}
INLINE f64 bf16_of(u32 b) { return f32_of(b << 16); }

/* OCP's 8-bit floats (nan is all ones; e5m2 has infinities) and, as gfx942 has them, those with one zero and the bias one higher. */
INLINE f64 f8_of(u32 b, int mbits, int fnuz) {
  int ebits = 7 - mbits, bias = (1 << (ebits - 1)) - 1 + fnuz;
  u32 e = b >> mbits & ((1u << ebits) - 1), m = b & ((1u << mbits) - 1), top = (1u << ebits) - 1;
  f64 sign = b & 0x80 ? -1.0 : 1.0;
  if (fnuz && (b & 0xff) == 0x80) return __builtin_nan("");
  if (!fnuz && mbits == 3 && (b & 0x7f) == 0x7f) return __builtin_nan("");
  if (!fnuz && mbits == 2 && e == top) return m ? __builtin_nan("") : sign * __builtin_inf();
  return sign * (e ? __builtin_ldexp(1.0 + (f64)m / (1 << mbits), (int)e - bias) : __builtin_ldexp((f64)m / (1 << mbits), 1 - bias));
}
INLINE u32 f8_bits(f64 x, int mbits, int fnuz) {
  int ebits = 7 - mbits, bias = (1 << (ebits - 1)) - 1 + fnuz;
  u32 sign = (u32)sign_f64(x) << 7, nan = fnuz ? 0x80 : sign | 0x7f, all = 1u << 7;
  u32 over = fnuz ? 0x80 : mbits == 3 ? sign | 0x7f : sign | 0x7c;
  if (is_nan(x)) return nan;
  u32 r = narrow(x, mbits, 1 - bias, all, 0);
  if (fnuz) return r >= all ? over : r ? sign | r : 0;
  return sign | (mbits == 3 ? (r >= 0x7f ? 0x7f : r) : (r >= 0x7c ? 0x7c : r));
}

/* What s = a + b, rounded, lost; and a sum made odd in its last bit when something was lost, so that a second rounding is as good as one. */
INLINE f64 sum_error(f64 a, f64 b, f64 s) { f64 back = s - a; return (a - (s - back)) + (b - back); }
INLINE f64 odd(f64 s, f64 lost) {
  u64 bits = bits_f64(s);
  if (lost != 0 && s - s == 0 && !(bits & 1)) bits += (lost > 0) == (s > 0) ? 1 : -1;
  return f64_of(bits);
}
/* a * b + c of f16 or f32 values (whose product is exact), rounded to odd: rounding that again, to f16 or f32, rounds once. */
INLINE f64 fma_odd(f64 a, f64 b, f64 c) {
  f64 p = a * b, s = p + c;
  return odd(s, sum_error(p, c, s));
}
INLINE f32 fma_f32(f32 a, f32 b, f32 c) { return __builtin_fmaf(a, b, c); }
INLINE f64 fma_f64(f64 a, f64 b, f64 c) { return __builtin_fma(a, b, c); }

/* Minimum and maximum as IEEE 754-2008's minNum (a number wins over nan) and 754-2019's minimum (nan wins); +0 is above -0 in all. */
INLINE f64 greater(f64 a, f64 b) { return a > b ? a : b > a ? b : sign_f64(a) ? b : a; }
INLINE f64 lesser(f64 a, f64 b) { return a < b ? a : b < a ? b : sign_f64(a) ? a : b; }
INLINE f64 max_num(f64 a, f64 b) { return is_nan(a) ? b : is_nan(b) ? a : greater(a, b); }
INLINE f64 min_num(f64 a, f64 b) { return is_nan(a) ? b : is_nan(b) ? a : lesser(a, b); }
INLINE f64 maximum(f64 a, f64 b) { return is_nan(a) ? a : is_nan(b) ? b : greater(a, b); }
INLINE f64 minimum(f64 a, f64 b) { return is_nan(a) ? a : is_nan(b) ? b : lesser(a, b); }
INLINE f64 med3(f64 a, f64 b, f64 c) {
  if (is_nan(a) || is_nan(b) || is_nan(c)) return min_num(min_num(a, b), c);
  return greater(lesser(a, b), lesser(greater(a, b), c));
}

INLINE int exponent_f32(f32 x) { return bits_f32(x) >> 23 & 255; }
INLINE int exponent_f64(f64 x) { return bits_f64(x) >> 52 & 2047; }
INLINE int denormal_f32(f32 x) { return exponent_f32(x) == 0 && x != 0; }
INLINE int denormal_f64(f64 x) { return exponent_f64(x) == 0 && x != 0; }

/* exp2 and log2 take and give no denormals. */
INLINE f32 exp2_f32(f32 x) { f32 y = (f32)__builtin_exp2((f64)x); return denormal_f32(y) ? 0.0f : y; }
INLINE f32 log2_f32(f32 x) { return denormal_f32(x) ? -__builtin_inff() : (f32)__builtin_log2((f64)x); }
INLINE f32 rcp_f32(f32 x) { return (f32)(1.0 / (f64)x); }
INLINE f32 rsq_f32(f32 x) { return (f32)(1.0 / __builtin_sqrt((f64)x)); }
INLINE f64 turns(f64 x) { return (x - __builtin_floor(x)) * 6.283185307179586476925; }
INLINE f64 sin_turns(f64 x) { return __builtin_fabs(x) > 256 && x - x == 0 ? 0 : __builtin_sin(turns(x)); }
INLINE f64 cos_turns(f64 x) { return __builtin_fabs(x) > 256 && x - x == 0 ? 1 : __builtin_cos(turns(x)); }
INLINE f64 fract(f64 x, f64 below_one) { f64 r = x - __builtin_floor(x); return r > below_one ? below_one : r; }

/* Float to integer: nan is 0, what does not fit is the nearest that does. */
INLINE i64 to_int(f64 x, f64 least, f64 most) { return is_nan(x) ? 0 : (i64)(x <= least ? least : x >= most ? most : x); }
INLINE u32 to_i32(f64 x) { return (u32)to_int(x, -2147483648.0, 2147483647.0); }
INLINE u32 to_u32(f64 x) { return (u32)to_int(x, 0.0, 4294967295.0); }
INLINE u32 to_i16(f64 x) { return (u32)to_int(x, -32768.0, 32767.0) & 0xffff; }
INLINE u32 to_u16(f64 x) { return (u32)to_int(x, 0.0, 65535.0); }
INLINE u32 to_u8(f64 x) { return (u32)to_int(x, 0.0, 255.0); }

INLINE int frexp_exp(f64 x) { int e = 0; if (x - x == 0) __builtin_frexp(x, &e); return e; }
INLINE f64 frexp_mant(f64 x) { int e; return x - x == 0 ? __builtin_frexp(x, &e) : x; }
INLINE int clamped_exp(i32 e) { return e > 4096 ? 4096 : e < -4096 ? -4096 : e; }
INLINE f64 ldexp_f64(f64 x, i32 e) { return __builtin_ldexp(x, clamped_exp(e)); }
INLINE f32 ldexp_f32(f32 x, i32 e) { return (f32)__builtin_ldexp((f64)x, clamped_exp(e) > 600 ? 600 : clamped_exp(e) < -600 ? -600 : e); }

/* v_cmp_class: a bit for each of signalling nan, quiet nan, -inf, -normal, -denormal, -0, +0, +denormal, +normal, +inf. */
INLINE int class_of(int sign, int exponent, int top, u64 mantissa, int quiet) {
  if (exponent == top) return mantissa ? quiet : sign ? 2 : 9;
  if (exponent == 0) return mantissa ? (sign ? 4 : 7) : (sign ? 5 : 6);
  return sign ? 3 : 8;
}
INLINE int class_f32(u32 x, u32 mask) { return mask >> class_of((int)(x >> 31), (int)(x >> 23 & 255), 255, x & 0x7fffff, (int)(x >> 22 & 1)) & 1; }
INLINE int class_f16(u32 x, u32 mask) { return mask >> class_of((int)(x >> 15 & 1), (int)(x >> 10 & 31), 31, x & 0x3ff, (int)(x >> 9 & 1)) & 1; }
INLINE int class_f64(u64 x, u32 mask) { return mask >> class_of((int)(x >> 63), (int)(x >> 52 & 2047), 2047, x & ((1ull << 52) - 1), (int)(x >> 51 & 1)) & 1; }

/* Division is a reciprocal refined by fma: div_scale moves operands away from the ends of the range, div_fmas scales the quotient back,
   div_fixup puts special values in. */
#define DIVISION(F, T, FAR, TINY, SHIFT, VANISHED)                                                            \
  INLINE T div_scale_##F(T s0, T s1, T s2, int* scaled) { /* s0: whichever of s1, s2 is asked for */      \
    *scaled = 0;                                                                                          \
    if (s1 == 0 || s2 == 0) return (T)__builtin_nan("");                                                  \
    if (exponent_##F(s2) - exponent_##F(s1) >= FAR) return *scaled = 1, s0 == s1 ? ldexp_##F(s0, SHIFT) : s0;      \
    if (denormal_##F(s1)) return ldexp_##F(s0, SHIFT);                                                    \
    int small_rcp = denormal_f64(1 / (f64)s1), small_quotient = denormal_##F((T)(s2 / s1));               \
    if (small_rcp && small_quotient) return *scaled = 1, s0 == s1 ? ldexp_##F(s0, -(SHIFT)) : s0;         \
    if (small_rcp) return ldexp_##F(s0, -(SHIFT));                                                        \
    if (small_quotient) return *scaled = 1, s0 == s2 ? ldexp_##F(s0, SHIFT) : s0;                         \
    return exponent_##F(s2) <= TINY ? ldexp_##F(s0, SHIFT) : s0;                                          \
  }                                                                                                       \
  INLINE T div_fixup_##F(T q, T b, T a) { /* q is about a / b */                                          \
    T sign = sign_f64((f64)a) != sign_f64((f64)b) ? (T)-1 : (T)1;                                         \
    if (is_nan(a)) return a;                                                                              \
    if (is_nan(b)) return b;                                                                              \
    if ((a == 0 && b == 0) || (a - a != 0 && b - b != 0)) return (T)-__builtin_nan("");                   \
    if (b == 0 || a - a != 0) return sign * (T)__builtin_inf();                                           \
    if (a == 0 || b - b != 0 || exponent_##F(a) - exponent_##F(b) < VANISHED) return sign * (T)0;         \
    if (is_nan(q)) return sign * (T)__builtin_inf(); /* refining an infinity left that */                 \
    return sign * (T)__builtin_fabs(q);                                                                   \
  }
DIVISION(f32, f32, 96, 23, 64, -150)
DIVISION(f64, f64, 768, 53, 128, -1075)
/* Scaled back in the direction that the quotient c leaves room for. */
INLINE f32 div_fmas_f32(f32 a, f32 b, f32 c, int scaled) { f64 r = fma_odd(a, b, c); return (f32)(scaled ? ldexp_f64(r, exponent_f32(c) > 127 ? 64 : -64) : r); }
INLINE f64 div_fmas_f64(f64 a, f64 b, f64 c, int scaled) {
  f64 r = fma_f64(a, b, c), p = a * b, low = fma_f64(a, b, -p), t = c + low, u = p + t;
  if (!scaled) return r;
  if (exponent_f64(c) > 1023) return ldexp_f64(r, 128);
  /* A denormal: half way between two of them, what the fma lost decides. */
  f64 y = ldexp_f64(r, -128), gap = r - ldexp_f64(y, 128), lost = ((u - r) + sum_error(p, t, u)) + sum_error(c, low, t);
  if (__builtin_fabs(gap) == 0x1p-947 && lost != 0 && (gap > 0) == (lost > 0)) y += gap > 0 ? 0x1p-1074 : -0x1p-1074;
  return y;
}
INLINE f64 div_fixup_f16(f64 q, f64 b, f64 a) { return div_fixup_f64(q, b, a); }

/* Bits. */
INLINE u32 first_set(u64 x) { return x ? (u32)__builtin_ctzll(x) : 0xffffffffu; }
INLINE u32 leading_zeros(u32 x) { return x ? (u32)__builtin_clz(x) : 0xffffffffu; }
INLINE u32 leading_zeros64(u64 x) { return x ? (u32)__builtin_clzll(x) : 0xffffffffu; }
INLINE u32 sign_bits(u32 x) { return x == 0 || x == 0xffffffffu ? 0xffffffffu : (u32)__builtin_clz((i32)x < 0 ? ~x : x); }
INLINE u32 popcount(u64 x) { /* the builtin may be a call into libgcc, which is not linked */
  x -= x >> 1 & 0x5555555555555555ull;
  x = (x & 0x3333333333333333ull) + (x >> 2 & 0x3333333333333333ull);
  return (u32)(((x + (x >> 4)) & 0x0f0f0f0f0f0f0f0full) * 0x0101010101010101ull >> 56);
}
INLINE u32 reversed(u32 x) { u32 r = 0; for (int k = 0; k < 32; k++) r |= (x >> k & 1) << (31 - k); return r; }
INLINE u64 field(u64 x, u32 first, u32 width) { return width == 0 ? 0 : (first < 64 ? x >> first : 0) & (width >= 64 ? ~0ull : (1ull << width) - 1); }
INLINE i64 signed_field(i64 x, u32 first, u32 width) {
  u64 f = field((u64)(x >> (first > 63 ? 63 : first)), 0, width);
  return width == 0 ? 0 : width >= 64 ? (i64)f : (i64)(f << (64 - width)) >> (64 - width);
}
INLINE u32 sad_u8(u32 a, u32 b) { u32 r = 0; for (int k = 0; k < 32; k += 8) { i32 d = (i32)(a >> k & 255) - (i32)(b >> k & 255); r += (u32)(d < 0 ? -d : d); } return r; }
/* v_perm_b32: each byte of `select` names a byte of hi:lo, or a sign, or a constant. */
INLINE u32 permuted(u32 hi, u32 lo, u32 select) {
  u64 both = (u64)hi << 32 | lo; u32 r = 0;
  for (int k = 0; k < 4; k++) {
    u32 s = select >> (8 * k) & 255;
    u32 byte = s < 8 ? (u32)(both >> (8 * s)) & 255 : s < 12 ? (both >> (16 * (s - 8) + 15) & 1 ? 255 : 0) : s == 12 ? 0 : 255;
    r |= byte << (8 * k);
  }
  return r;
}
INLINE u32 bitop3(u32 a, u32 b, u32 c, u32 table) {
  u32 r = 0;
  for (u32 k = 0; k < 8; k++) if (table >> k & 1) r |= (k & 4 ? a : ~a) & (k & 2 ? b : ~b) & (k & 1 ? c : ~c);
  return r;
}
INLINE i64 saturated(i64 x, i64 least, i64 most) { return x < least ? least : x > most ? most : x; }

/* Dot products of packed integers, and of pairs of f16 and bf16 in f32. */
INLINE i64 dot(u32 a, u32 b, int bits, int a_signed, int b_signed) {
  i64 r = 0;
  for (int k = 0; k < 32; k += bits) {
    i64 x = (i64)field(a, (u32)k, (u32)bits), y = (i64)field(b, (u32)k, (u32)bits), top = 1ll << (bits - 1);
    r += (a_signed && x >= top ? x - 2 * top : x) * (b_signed && y >= top ? y - 2 * top : y);
  }
  return r;
}
INLINE f32 dot2_f16(u32 a, u32 b, f32 c) { return fma_f32((f32)f16_of(a & 0xffff), (f32)f16_of(b & 0xffff), fma_f32((f32)f16_of(a >> 16), (f32)f16_of(b >> 16), c)); }
INLINE f32 dot2_bf16(u32 a, u32 b, f32 c) { return fma_f32((f32)bf16_of(a & 0xffff), (f32)bf16_of(b & 0xffff), fma_f32((f32)bf16_of(a >> 16), (f32)bf16_of(b >> 16), c)); }
INLINE f32 dot4_f8(u32 a, u32 b, f32 c, int a_mbits, int b_mbits) {
  for (int k = 24; k >= 0; k -= 8) c = fma_f32((f32)f8_of(a >> k & 255, a_mbits, 0), (f32)f8_of(b >> k & 255, b_mbits, 0), c);
  return c;
}

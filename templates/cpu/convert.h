/* Casts.  rlx_to_T(x) is x as a value of type T, as rlxpy/ir/refs.py casts: float to integer truncates, saturates and makes NaN 0;
   integers wrap.  Floats narrower than f32 live in memory as codes and are f32 values in between: rlx_load_T and rlx_store_T
   convert, and rlx_to_T rounds to what T can hold; always to the nearest, ties to even. */
#define RLX_SATURATE(F, T, LO, HI) /* LO: the least T; HI: the greatest T plus 1 */ \
  RLX_INLINE T rlx_##F##_to_##T(F x) { return x != x ? 0 : x >= HI ? (T)~(T)LO : x <= LO ? (T)LO : (T)x; }
#define RLX_SATURATES(F) \
  RLX_SATURATE(F, i8, -128.0f, 128.0f) RLX_SATURATE(F, u8, 0.0f, 256.0f) \
  RLX_SATURATE(F, i16, -32768.0f, 32768.0f) RLX_SATURATE(F, u16, 0.0f, 65536.0f) \
  RLX_SATURATE(F, i32, -2147483648.0f, 2147483648.0f) RLX_SATURATE(F, u32, 0.0f, 4294967296.0f) \
  RLX_SATURATE(F, i64, -9223372036854775808.0f, 9223372036854775808.0f) RLX_SATURATE(F, u64, 0.0f, 18446744073709551616.0f)
RLX_SATURATES(f32)
RLX_SATURATES(f64)
#define rlx_to_f32(x) ((f32)(x))
#define rlx_to_f64(x) ((f64)(x))
#define rlx_to_bool(x) ((_Bool)((x) != 0))

#define rlx_to_c64(x) ((c64)(x))
#define rlx_to_c128(x) ((c128)(x))

/* Four bits in a byte: only the lower four are read, and those above are written as copies of the sign, 0 for u4. */
RLX_INLINE i8 rlx_load_i4(i8 code) { return (i8)((code & 7) - (code & 8)); }
RLX_INLINE u8 rlx_load_u4(u8 code) { return code & 15; }
#define rlx_store_i4(x) rlx_load_i4((i8)(x))
#define rlx_store_u4(x) rlx_load_u4((u8)(x))
#define RLX_SATURATE_FOUR(F) /* a float beyond the range is its end, as in the wider types */ \
  RLX_INLINE i8 rlx_##F##_to_i4(F x) { return x != x ? 0 : x >= 7 ? 7 : x <= -8 ? -8 : (i8)x; } \
  RLX_INLINE u8 rlx_##F##_to_u4(F x) { return x != x ? 0 : x >= 15 ? 15 : x <= 0 ? 0 : (u8)x; }
RLX_SATURATE_FOUR(f32)
RLX_SATURATE_FOUR(f64)

/* f64 to f32 towards zero with a sticky last bit: rounding that to a narrower type rounds x once. */
RLX_INLINE f32 rlx_sticky_f32(f64 x) {
  const f32 y = (f32)x;
  const f64 back = y;
  const u32 u = rlx_bits_f32(y);
  return back == x || x != x ? y : rlx_of_bits_f32((x < 0 ? back < x : back > x) ? (u - 1) | 1 : u | 1);
}

/* The code without sign of |x| in a format of `mant` explicit bits and exponent bias `bias`; beyond its end codes go on. */
RLX_INLINE u32 rlx_code(f32 x, u32 mant, u32 bias) {
  const u32 u = rlx_bits_f32(x) & 0x7fffffff, cut = 23 - mant;
  const u32 least = (128 - bias) << 23;            /* the least normal number, as an f32 */
  const u32 grid = least + (cut << 23);            /* the f32 whose steps are those of the format's subnormals */
  const u32 normal = ((u + ((1u << (cut - 1)) - 1) + ((u >> cut) & 1)) >> cut) - ((127 - bias) << mant);
  const u32 small = rlx_bits_f32(rlx_of_bits_f32(u) + rlx_of_bits_f32(grid)) - grid;
  return (i32)u < (i32)least ? small : normal;  /* AVX2 compares signed integers only */
}
RLX_INLINE f32 rlx_decoded(u32 code, u32 mant, u32 bias) {
  const u32 u = code << (23 - mant), least = (128 - bias) << 23;
  const f32 normal = rlx_of_bits_f32(u + ((127 - bias) << 23)), small = rlx_of_bits_f32(u + least) - rlx_of_bits_f32(least);
  return (i32)code < 1 << mant ? small : normal;
}
RLX_INLINE f32 rlx_signed(f32 magnitude, u32 sign) { return rlx_of_bits_f32(rlx_bits_f32(magnitude) | (sign << 31)); }

/* A format of BITS bits: codes from INF on are beyond the greatest value, and become OVER; NaN becomes NAN.  f4e2m1 has neither
   infinity nor NaN: it saturates, and turns NaN into the zero of the other sign, as ml_dtypes does. */
#define RLX_NARROW(T, C, BITS, MANT, BIAS, INF, OVER, NAN) \
  RLX_INLINE C rlx_store_##T(f32 x) { \
    const u32 code = rlx_code(x, MANT, BIAS), kept = x != x ? NAN : (i32)code >= INF ? OVER : code; \
    return (C)(kept ^ (rlx_bits_f32(x) >> 31) << (BITS - 1)); \
  }
RLX_NARROW(f16, u16, 16, 10, 15, 0x7c00, 0x7c00, 0x7e00)
RLX_NARROW(f8e5m2, u8, 8, 2, 15, 0x7c, 0x7c, 0x7e)
RLX_NARROW(f8e4m3fn, u8, 8, 3, 7, 0x7f, 0x7f, 0x7f)
RLX_NARROW(f4e2m1, u8, 4, 1, 1, 8, 7, 8)
RLX_INLINE u16 rlx_store_bf16(f32 x) {
  const u32 u = rlx_bits_f32(x);
  return (u16)(x != x ? (u >> 16) | 0x40 : (u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
#define RLX_IEEE_LOAD(T, C, BITS, MANT, INF) /* formats whose last exponent holds infinities and NaNs */ \
  RLX_INLINE f32 rlx_load_##T(C c) { \
    const u32 code = c & ((1u << (BITS - 1)) - 1); \
    const f32 special = rlx_of_bits_f32((code << (23 - MANT)) + (224u << 23)); \
    return rlx_signed((i32)code >= INF ? special : rlx_decoded(code, MANT, 15), (u32)c >> (BITS - 1)); \
  }
RLX_IEEE_LOAD(f16, u16, 16, 10, 0x7c00)
RLX_IEEE_LOAD(f8e5m2, u8, 8, 2, 0x7c)
RLX_INLINE f32 rlx_load_f8e4m3fn(u8 c) {
  const u32 code = c & 0x7f;
  return rlx_signed(code == 0x7f ? __builtin_nanf("") : rlx_decoded(code, 3, 7), c >> 7);
}
RLX_INLINE f32 rlx_load_f4e2m1(u8 c) { return rlx_signed(rlx_decoded(c & 7, 1, 1), (c >> 3) & 1); }
RLX_INLINE f32 rlx_load_bf16(u16 c) { return rlx_of_bits_f32((u32)c << 16); }

/* f64 is rounded once on its way to f16, as NumPy does, and goes through f32 to the others, as ml_dtypes does. */
RLX_INLINE f32 rlx_to_f16(f64 x) { return rlx_load_f16(rlx_store_f16(rlx_sticky_f32(x))); }
RLX_INLINE f32 rlx_to_bf16(f32 x) { return rlx_load_bf16(rlx_store_bf16(x)); }
RLX_INLINE f32 rlx_to_f8e4m3fn(f32 x) { return rlx_load_f8e4m3fn(rlx_store_f8e4m3fn(x)); }
RLX_INLINE f32 rlx_to_f8e5m2(f32 x) { return rlx_load_f8e5m2(rlx_store_f8e5m2(x)); }
RLX_INLINE f32 rlx_to_f4e2m1(f32 x) { return rlx_load_f4e2m1(rlx_store_f4e2m1(x)); }

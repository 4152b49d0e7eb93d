/* What every generated unit starts with: types, integers, conversions and mathematics, without any C library.
   C11 for gcc, clang and zig, on 64-bit machines.  Every function is inline and free of branches, so that a loop around it becomes
   vector code; the exceptions are f64 sin, cos and tan (from 2^20 on a turn takes many bits), and mod and floor_div of floats.
   rlx_exp(x) and so on choose by the type of x: f32 is computed in f32, but for pow and the turns of sin, cos and tan, f64 in f64.

   Largest errors in units in the last place (f32, f64), over all arguments, subnormal ones too; tests/test_cpu_prelude.py reads them here:
     exp    1.1 1.1    exp2   1.5 1.7    expm1  1.9 2.0    log    1.0 1.0    log2   1.0 1.0    log1p  1.0 1.0
     sin    1.7 1.0    cos    1.7 1.0    tan    4.0 2.2    asin   2.5 2.3    acos   1.3 1.3    atan   1.7 2.4
     sinh   1.8 1.8    cosh   1.6 1.6    tanh   2.7 2.7    atan2  1.7 2.3    pow    0.6 1.7    erf    1.4 1.6
     sigmoid 2.5 2.5   softplus 1.9 1.9  sqrt   0.5 0.5
   silu, gelu and gelu_tanh are within 4 units in the last place of x of the formulas of rlxpy/ir/refs.py; floor, ceil, trunc, rint, mod and floor_div are exact.
   Where a machine has no fused multiply-add the last digits differ from those of one that has. */

#if defined(__SIZEOF_POINTER__) && __SIZEOF_POINTER__ < 8
#error "rlxpy's generated C needs a 64-bit machine"
#endif
#if __FLT_EVAL_METHOD__ == 1 || __FLT_EVAL_METHOD__ == 2
#error "rlxpy's generated C needs float arithmetic that rounds to float"
#endif

typedef __INT8_TYPE__ i8;
typedef __INT16_TYPE__ i16;
typedef __INT32_TYPE__ i32;
typedef __INT64_TYPE__ i64;
typedef __UINT8_TYPE__ u8;
typedef __UINT16_TYPE__ u16;
typedef __UINT32_TYPE__ u32;
typedef __UINT64_TYPE__ u64;
typedef float f32;
typedef double f64;

#define RLX_UNUSED __attribute__((unused))
#define RLX_INLINE static inline __attribute__((always_inline, unused))
#define RLX_APART static __attribute__((noinline, unused))
#define RLX_TABLE static RLX_UNUSED const
#define RLX_HIGH_PRODUCT(a, b) ((u64)((unsigned __int128)(a) * (b) >> 64))
#define RLX_EXPORT __attribute__((visibility("default")))
#define RLX_ALIGNED __attribute__((aligned(64)))
#define RLX_PRAGMA(text) _Pragma(#text)
#define RLX_SIMD RLX_PRAGMA(omp simd)
#define RLX_SIMD_REDUCE(op, ...) RLX_PRAGMA(omp simd reduction(op: __VA_ARGS__))
#define RLX_SIMD_EXTREME(op, extreme, nan) RLX_PRAGMA(omp simd reduction(op: extreme) reduction(|: nan))
#define RLX_CAT(a, b) RLX_CAT_(a, b)
#define RLX_CAT_(a, b) a##b

/* a * b + c in one rounding where the machine has an instruction for it, else in two. */
#if defined(__FMA__) || defined(__aarch64__)
RLX_INLINE f32 rlx_fma_f32(f32 a, f32 b, f32 c) { return __builtin_fmaf(a, b, c); }
RLX_INLINE f64 rlx_fma_f64(f64 a, f64 b, f64 c) { return __builtin_fma(a, b, c); }
#else
RLX_INLINE f32 rlx_fma_f32(f32 a, f32 b, f32 c) { return a * b + c; }
RLX_INLINE f64 rlx_fma_f64(f64 a, f64 b, f64 c) { return a * b + c; }
#endif
#define RLX_FMA(a, b, c) _Generic((a), f64: rlx_fma_f64, default: rlx_fma_f32)(a, b, c)

/* The same on vectors of RLX_VL f32 and of RLX_VL / 2 f64. */
#if !defined(RLX_VL) && defined(__AVX512F__)
#define RLX_VL 16
#elif !defined(RLX_VL) && defined(__AVX__)
#define RLX_VL 8
#elif !defined(RLX_VL)
#define RLX_VL 4
#endif
typedef f32 rlx_vector __attribute__((vector_size(4 * RLX_VL)));
typedef f64 rlx_vector_f64 __attribute__((vector_size(4 * RLX_VL)));
#if defined(__clang__) && (defined(__FMA__) || defined(__aarch64__))
#define RLX_VFMA(a, b, c) __builtin_elementwise_fma((rlx_vector)(a), (rlx_vector)(b), (rlx_vector)(c))
#define RLX_VFMA_F64(a, b, c) __builtin_elementwise_fma((rlx_vector_f64)(a), (rlx_vector_f64)(b), (rlx_vector_f64)(c))
#elif defined(__AVX512F__) && RLX_VL == 16
#define RLX_VFMA(a, b, c) __builtin_ia32_vfmaddps512_mask((rlx_vector)(a), (rlx_vector)(b), (rlx_vector)(c), (u16)-1, 4)  /* 4: round as usual */
#define RLX_VFMA_F64(a, b, c) __builtin_ia32_vfmaddpd512_mask((rlx_vector_f64)(a), (rlx_vector_f64)(b), (rlx_vector_f64)(c), (u8)-1, 4)
#elif defined(__FMA__) && RLX_VL == 8
#define RLX_VFMA(a, b, c) __builtin_ia32_vfmaddps256((rlx_vector)(a), (rlx_vector)(b), (rlx_vector)(c))
#define RLX_VFMA_F64(a, b, c) __builtin_ia32_vfmaddpd256((rlx_vector_f64)(a), (rlx_vector_f64)(b), (rlx_vector_f64)(c))
#elif defined(__aarch64__) && RLX_VL == 4
#define RLX_VFMA(a, b, c) __builtin_aarch64_fmav4sf((rlx_vector)(a), (rlx_vector)(b), (rlx_vector)(c))
#define RLX_VFMA_F64(a, b, c) __builtin_aarch64_fmav2df((rlx_vector_f64)(a), (rlx_vector_f64)(b), (rlx_vector_f64)(c))
#else
#define RLX_VFMA(a, b, c) ((a) * (b) + (c))
#define RLX_VFMA_F64(a, b, c) ((a) * (b) + (c))
#endif

/* Eight f16 codes, or the first four, as f32; absolute values of 32 bytes.  clang has other names for these than gcc. */
#if defined(__clang__)
typedef f32 rlx_wide4 __attribute__((vector_size(16)));
typedef f32 rlx_wide8 __attribute__((vector_size(32)));
typedef _Float16 rlx_halves8 __attribute__((vector_size(16)));
#define RLX_WIDEN4(...) __builtin_convertvector(__builtin_shufflevector((rlx_halves8)(__VA_ARGS__), (rlx_halves8){0}, 0, 1, 2, 3), rlx_wide4)
#define RLX_WIDEN8(...) __builtin_convertvector((rlx_halves8)(__VA_ARGS__), rlx_wide8)
#define RLX_ABS8(bytes) __builtin_elementwise_abs((rlx_chars)(bytes))
#else
#define RLX_WIDEN4(...) __builtin_ia32_vcvtph2ps(__VA_ARGS__)
#define RLX_WIDEN8(...) __builtin_ia32_vcvtph2ps256(__VA_ARGS__)
#define RLX_ABS8(bytes) __builtin_ia32_pabsb256((rlx_chars)(bytes))
#endif

RLX_INLINE i64 rlx_least(i64 a, i64 b) { return a < b ? a : b; }
RLX_INLINE i64 rlx_most(i64 a, i64 b) { return a > b ? a : b; }
RLX_INLINE i64 rlx_floor_quotient(i64 a, i64 b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
RLX_INLINE i64 rlx_ceil_quotient(i64 a, i64 b) { return -rlx_floor_quotient(-a, b); }

RLX_INLINE u32 rlx_bits_f32(f32 x) { const union { f32 x; u32 u; } both = {.x = x}; return both.u; }
RLX_INLINE u64 rlx_bits_f64(f64 x) { const union { f64 x; u64 u; } both = {.x = x}; return both.u; }
RLX_INLINE f32 rlx_of_bits_f32(u32 u) { const union { u32 u; f32 x; } both = {.u = u}; return both.x; }
RLX_INLINE f64 rlx_of_bits_f64(u64 u) { const union { u64 u; f64 x; } both = {.u = u}; return both.x; }

/* Integer operations as NumPy has them: they wrap, divide downwards, give 0 when dividing by 0, and take any shift. */
#define RLX_INTEGER(T, U, BITS, IS_SIGNED) \
  RLX_INLINE T rlx_floor_div_##T(T a, T b) { \
    const T by = b == 0 || (IS_SIGNED && b == (T)-1) ? 1 : b, q = (T)(a / by); /* the two that trap */ \
    return b == 0 ? 0 : IS_SIGNED && b == (T)-1 ? (T)(0 - (U)a) : (T)(q - (a % by != 0 && (a < 0) != (b < 0))); \
  } \
  RLX_INLINE T rlx_mod_##T(T a, T b) { \
    const T by = b == 0 || (IS_SIGNED && b == (T)-1) ? 1 : b, r = (T)(a % by); \
    return r != 0 && (r < 0) != (b < 0) ? (T)(r + b) : r; \
  } \
  RLX_INLINE T rlx_shl_##T(T a, T by) { return (U)by < BITS ? (T)((U)a << by) : 0; } \
  RLX_INLINE T rlx_shr_##T(T a, T by) { return (U)by < BITS ? (T)(a >> by) : (T)(a < 0 ? -1 : 0); } \
  RLX_INLINE T rlx_bit_not_##T(T a) { return (T)~a; } \
  RLX_INLINE T rlx_abs_##T(T a) { return a < 0 ? (T)(0 - (U)a) : a; } \
  RLX_INLINE T rlx_sign_##T(T a) { return (T)((a > 0) - (a < 0)); } \
  RLX_INLINE T rlx_maximum_##T(T a, T b) { return a > b ? a : b; } \
  RLX_INLINE T rlx_minimum_##T(T a, T b) { return a < b ? a : b; }
RLX_INTEGER(i8, u8, 8, 1)
RLX_INTEGER(i16, u16, 16, 1)
RLX_INTEGER(i32, u32, 32, 1)
RLX_INTEGER(i64, u64, 64, 1)
RLX_INTEGER(u8, u8, 8, 0)
RLX_INTEGER(u16, u16, 16, 0)
RLX_INTEGER(u32, u32, 32, 0)
RLX_INTEGER(u64, u64, 64, 0)
RLX_INLINE _Bool rlx_bit_not_bool(_Bool a) { return !a; }
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
/* Minimax polynomials p of math.h, and 2/pi.  Printed by benchmarks/prelude_coefficients.py, which says what each stands for.
   Behind each: the error of the fit, relative to the result it serves.  Coefficients from the lowest power. */
#define RLX_X1(x) (x)
#define RLX_X2(x) (RLX_X1(x) * RLX_X1(x))
#define RLX_X4(x) (RLX_X2(x) * RLX_X2(x))
#define RLX_X8(x) (RLX_X4(x) * RLX_X4(x))
#define RLX_X16(x) (RLX_X8(x) * RLX_X8(x))
#define RLX_P1(fma, x, c0) (c0)
#define RLX_P2(fma, x, c0, c1) fma(RLX_P1(fma, x, c1), RLX_X1(x), RLX_P1(fma, x, c0))
#define RLX_P3(fma, x, c0, c1, c2) fma(RLX_P1(fma, x, c2), RLX_X2(x), RLX_P2(fma, x, c0, c1))
#define RLX_P4(fma, x, c0, c1, c2, c3) fma(RLX_P2(fma, x, c2, c3), RLX_X2(x), RLX_P2(fma, x, c0, c1))
#define RLX_P5(fma, x, c0, c1, c2, c3, c4) fma(RLX_P1(fma, x, c4), RLX_X4(x), RLX_P4(fma, x, c0, c1, c2, c3))
#define RLX_P6(fma, x, c0, c1, c2, c3, c4, c5) fma(RLX_P2(fma, x, c4, c5), RLX_X4(x), RLX_P4(fma, x, c0, c1, c2, c3))
#define RLX_P7(fma, x, c0, c1, c2, c3, c4, c5, c6) fma(RLX_P3(fma, x, c4, c5, c6), RLX_X4(x), RLX_P4(fma, x, c0, c1, c2, c3))
#define RLX_P8(fma, x, c0, c1, c2, c3, c4, c5, c6, c7) fma(RLX_P4(fma, x, c4, c5, c6, c7), RLX_X4(x), RLX_P4(fma, x, c0, c1, c2, c3))
#define RLX_P9(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8) fma(RLX_P1(fma, x, c8), RLX_X8(x), RLX_P8(fma, x, c0, c1, c2, c3, c4, c5, c6, c7))
#define RLX_P10(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9) fma(RLX_P2(fma, x, c8, c9), RLX_X8(x), RLX_P8(fma, x, c0, c1, c2, c3, c4, c5, c6, c7))
#define RLX_P11(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10) fma(RLX_P3(fma, x, c8, c9, c10), RLX_X8(x), RLX_P8(fma, x, c0, c1, c2, c3, c4, c5, c6, c7))
#define RLX_P12(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11) fma(RLX_P4(fma, x, c8, c9, c10, c11), RLX_X8(x), RLX_P8(fma, x, c0, c1, c2, c3, c4, c5, c6, c7))
#define RLX_P13(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12) fma(RLX_P5(fma, x, c8, c9, c10, c11, c12), RLX_X8(x), RLX_P8(fma, x, c0, c1, c2, c3, c4, c5, c6, c7))
#define RLX_P14(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13) fma(RLX_P6(fma, x, c8, c9, c10, c11, c12, c13), RLX_X8(x), RLX_P8(fma, x, c0, c1, c2, c3, c4, c5, c6, c7))
#define RLX_P15(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14) fma(RLX_P7(fma, x, c8, c9, c10, c11, c12, c13, c14), RLX_X8(x), RLX_P8(fma, x, c0, c1, c2, c3, c4, c5, c6, c7))
#define RLX_P16(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15) fma(RLX_P8(fma, x, c8, c9, c10, c11, c12, c13, c14, c15), RLX_X8(x), RLX_P8(fma, x, c0, c1, c2, c3, c4, c5, c6, c7))
#define RLX_P17(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15, c16) fma(RLX_P1(fma, x, c16), RLX_X16(x), RLX_P16(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15))
#define RLX_P18(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15, c16, c17) fma(RLX_P2(fma, x, c16, c17), RLX_X16(x), RLX_P16(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15))
#define RLX_P19(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15, c16, c17, c18) fma(RLX_P3(fma, x, c16, c17, c18), RLX_X16(x), RLX_P16(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15))
#define RLX_P20(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15, c16, c17, c18, c19) fma(RLX_P4(fma, x, c16, c17, c18, c19), RLX_X16(x), RLX_P16(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15))
#define RLX_P21(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15, c16, c17, c18, c19, c20) fma(RLX_P5(fma, x, c16, c17, c18, c19, c20), RLX_X16(x), RLX_P16(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15))
#define RLX_P22(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15, c16, c17, c18, c19, c20, c21) fma(RLX_P6(fma, x, c16, c17, c18, c19, c20, c21), RLX_X16(x), RLX_P16(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15))
#define RLX_P23(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15, c16, c17, c18, c19, c20, c21, c22) fma(RLX_P7(fma, x, c16, c17, c18, c19, c20, c21, c22), RLX_X16(x), RLX_P16(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15))
#define RLX_P24(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15, c16, c17, c18, c19, c20, c21, c22, c23) fma(RLX_P8(fma, x, c16, c17, c18, c19, c20, c21, c22, c23), RLX_X16(x), RLX_P16(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15))
#define RLX_P25(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15, c16, c17, c18, c19, c20, c21, c22, c23, c24) fma(RLX_P9(fma, x, c16, c17, c18, c19, c20, c21, c22, c23, c24), RLX_X16(x), RLX_P16(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15))
RLX_INLINE f32 rlx_exp_p_f32(f32 x) { return RLX_P5(rlx_fma_f32, x,  /* 2^-26 */
  0x1.fffffep-2f, 0x1.5554bp-3f, 0x1.555672p-5f, 0x1.122776p-7f, 0x1.6bece2p-10f); }
RLX_INLINE f32 rlx_exp2_p_f32(f32 x) { return RLX_P6(rlx_fma_f32, x,  /* 2^-29 */
  0x1.62e43p-1f, 0x1.ebfbdcp-3f, 0x1.c6aee8p-5f, 0x1.3b2d5p-7f, 0x1.5f3e84p-10f, 0x1.41fab4p-13f); }
RLX_INLINE f32 rlx_log_p_f32(f32 x) { return RLX_P3(rlx_fma_f32, x,  /* 2^-30 */
  0x1.55557ap-1f, 0x1.995e1p-2f, 0x1.31f66ap-2f); }
RLX_INLINE f32 rlx_sin_p_f32(f32 x) { return RLX_P3(rlx_fma_f32, x,  /* 2^-28 */
  -0x1.555546p-3f, 0x1.11073ap-7f, -0x1.994386p-13f); }
RLX_INLINE f32 rlx_cos_p_f32(f32 x) { return RLX_P3(rlx_fma_f32, x,  /* 2^-33 */
  0x1.55554ap-5f, -0x1.6c0c32p-10f, 0x1.99eb36p-16f); }
RLX_INLINE f32 rlx_asin_p_f32(f32 x) { return RLX_P5(rlx_fma_f32, x,  /* 2^-28 */
  0x1.5555c8p-3f, 0x1.3301ep-4f, 0x1.747ebep-5f, 0x1.8c2418p-6f, 0x1.59707p-5f); }
RLX_INLINE f32 rlx_atan_p_f32(f32 x) { return RLX_P9(rlx_fma_f32, x,  /* 2^-29 */
  -0x1.55553ep-2f, 0x1.9991fep-3f, -0x1.2421b4p-3f, 0x1.c099e8p-4f, -0x1.58344p-4f, 0x1.dac894p-5f, -0x1.fece64p-6f, 0x1.65a2d6p-7f, -0x1.d62928p-10f); }
RLX_INLINE f32 rlx_sinh_p_f32(f32 x) { return RLX_P4(rlx_fma_f32, x,  /* 2^-34 */
  0x1.555556p-3f, 0x1.111134p-7f, 0x1.9ffe92p-13f, 0x1.7a15dp-19f); }
RLX_INLINE f32 rlx_erf_near_p_f32(f32 x) { return RLX_P7(rlx_fma_f32, x,  /* 2^-30 */
  0x1.06eba8p-3f, -0x1.81273ep-2f, 0x1.ce2cf8p-4f, -0x1.b7f90ep-6f, 0x1.5405b8p-8f, -0x1.a3f71cp-11f, 0x1.496a66p-14f); }
RLX_INLINE f32 rlx_erf_far_p_f32(f32 x) { return RLX_P7(rlx_fma_f32, x,  /* 2^-30 */
  0x1.0bba7p-11f, 0x1.a03fcep+0f, 0x1.d76ed6p-1f, 0x1.306f0ap-3f, -0x1.01b2d2p-5f, 0x1.15eacap-8f, -0x1.18b39ap-12f); }
RLX_INLINE f32 rlx_tail_p_f32(f32 x) { return RLX_P9(rlx_fma_f32, x,  /* 2^-27 */
  0x1p+0f, 0x1.26aedep+0f, 0x1.d639dp-2f, 0x1.ae1f0ep-5f, -0x1.cfb32ep-8f, 0x1.31f6eap-13f, 0x1.7ecddap-13f, -0x1.43f2bp-15f, 0x1.740402p-19f); }
RLX_INLINE f64 rlx_exp_p_f64(f64 x) { return RLX_P11(rlx_fma_f64, x,  /* 2^-62 */
  0x1p-1, 0x1.5555555555559p-3, 0x1.555555555553fp-5, 0x1.111111110f6dbp-7, 0x1.6c16c16c1f0e7p-10, 0x1.a01a01afd38fbp-13, 0x1.a01a017ba0beap-16,
  0x1.71ddf87f5f8fp-19, 0x1.27e53680b5e4p-22, 0x1.af5e7412f7996p-26, 0x1.1ee8021698b61p-29); }
RLX_INLINE f64 rlx_exp2_p_f64(f64 x) { return RLX_P12(rlx_fma_f64, x,  /* 2^-64 */
  0x1.62e42fefa39efp-1, 0x1.ebfbdff82c58fp-3, 0x1.c6b08d704a0cfp-5, 0x1.3b2ab6fba4e22p-7, 0x1.5d87fe78a26b1p-10, 0x1.430912f883d88p-13, 0x1.ffcbfc74de1f8p-17,
  0x1.62c021e254749p-20, 0x1.b524dd42fd9bfp-24, 0x1.e4d06cab6accap-28, 0x1.ea016cbd6431ap-32, 0x1.c2ce85a901571p-36); }
RLX_INLINE f64 rlx_log_p_f64(f64 x) { return RLX_P7(rlx_fma_f64, x,  /* 2^-59 */
  0x1.5555555555595p-1, 0x1.999999997ef9dp-2, 0x1.24924942c7fd3p-2, 0x1.c71c514f29b6fp-3, 0x1.7466675b40b1fp-3, 0x1.399d70122525cp-3, 0x1.2f32b10c1b16p-3); }
RLX_INLINE f64 rlx_pow_p_f64(f64 x) { return RLX_P8(rlx_fma_f64, x,  /* 2^-73 */
  0x1.9999999999995p-2, 0x1.24924924930aap-2, 0x1.c71c71c57278cp-3, 0x1.745d1838ff011p-3, 0x1.3b1360ef359acp-3, 0x1.1120f9edc64a7p-3, 0x1.de289dfe95552p-4,
  0x1.eb6b33b94c4ebp-4); }
RLX_INLINE f64 rlx_sin_p_f64(f64 x) { return RLX_P6(rlx_fma_f64, x,  /* 2^-58 */
  -0x1.5555555555548p-3, 0x1.111111110f7ccp-7, -0x1.a01a019bfd4e2p-13, 0x1.71de35673cdfep-19, -0x1.ae5e5a14a4fbep-26, 0x1.5d8faba926c8cp-33); }
RLX_INLINE f64 rlx_cos_p_f64(f64 x) { return RLX_P6(rlx_fma_f64, x,  /* 2^-64 */
  0x1.555555555554bp-5, -0x1.6c16c16c14f8bp-10, 0x1.a01a019c83ae2p-16, -0x1.27e4f7ea47db3p-22, 0x1.1ee9d75b121e3p-29, -0x1.8fa469484be6p-37); }
RLX_INLINE f64 rlx_asin_p_f64(f64 x) { return RLX_P13(rlx_fma_f64, x,  /* 2^-60 */
  0x1.5555555555577p-3, 0x1.333333332e0f7p-4, 0x1.6db6db72149ddp-5, 0x1.f1c71a943d619p-6, 0x1.6e8bdef1d8c6ep-6, 0x1.1c49ef40b22a6p-6, 0x1.ca1fa5bc286ddp-7,
  0x1.7584d20018308p-7, 0x1.61404c53ae679p-7, 0x1.e5c04f46f2b07p-9, 0x1.63abbf1b200f2p-6, -0x1.58120eae2de92p-6, 0x1.0b4ce111110c2p-5); }
RLX_INLINE f64 rlx_atan_p_f64(f64 x) { return RLX_P20(rlx_fma_f64, x,  /* 2^-58 */
  -0x1.5555555555526p-2, 0x1.9999999995544p-3, -0x1.249249237e1bcp-3, 0x1.c71c717f92fc3p-4, -0x1.745d11aad8346p-4, 0x1.3b136674c451ep-4, -0x1.110e5012b48a8p-4,
  0x1.e1bb9aa363595p-5, -0x1.ae5e420ade4dfp-5, 0x1.82da3c9c3ff85p-5, -0x1.59a27f72bd50ep-5, 0x1.2c2b75d760acp-5, -0x1.e9f1426cc3767p-6, 0x1.683269f668766p-6,
  -0x1.c77cf682d0959p-7, 0x1.d79f57ec4032dp-8, -0x1.7a1fd0330152dp-9, 0x1.b3d75700d831bp-11, -0x1.3f1855fe9a717p-13, 0x1.bbbeb02398042p-17); }
RLX_INLINE f64 rlx_sinh_p_f64(f64 x) { return RLX_P7(rlx_fma_f64, x,  /* 2^-63 */
  0x1.5555555555556p-3, 0x1.11111111110a6p-7, 0x1.a01a01a028996p-13, 0x1.71de3a465b656p-19, 0x1.ae64671ae4489p-26, 0x1.611a56313375bp-33,
  0x1.b4c754ef9a15bp-41); }
RLX_INLINE f64 rlx_erf_near_p_f64(f64 x) { return RLX_P13(rlx_fma_f64, x,  /* 2^-63 */
  0x1.06eba8214db69p-3, -0x1.812746b0379e6p-2, 0x1.ce2f21a042b2p-4, -0x1.b82ce3128499dp-6, 0x1.565bcd0db02e3p-8, -0x1.c02db3d8ed1bap-11, 0x1.f9a321a11d741p-14,
  -0x1.f4d1df395a447p-17, 0x1.b9def19febd21p-20, -0x1.5f1d36dceafc5p-23, 0x1.f7a413abe044dp-27, -0x1.386ac657e9d73p-30, 0x1.0579bbe7988e2p-34); }
RLX_INLINE f64 rlx_erf_far_p_f64(f64 x) { return RLX_P20(rlx_fma_f64, x,  /* 2^-58 */
  0x1.2f05fbd1c449ep-25, 0x1.a0be7e63c21d5p+0, 0x1.d63f01f8924d2p-1, 0x1.2fa6a731f4689p-3, -0x1.c42100c01f472p-6, -0x1.3320ccd89568ap-12, 0x1.3d047f670c1d2p-9,
  -0x1.a35c32ac530bcp-11, -0x1.e35e4ac5dd1fcp-16, 0x1.4a8dc3c2a201bp-13, -0x1.8279607cdf485p-14, 0x1.20e44b9c65059p-15, -0x1.4143ab323c236p-17,
  0x1.14814afeb7f3p-19, -0x1.723db34b3e777p-22, 0x1.7c34d86eb0ccfp-25, -0x1.21e9b295f1f54p-28, 0x1.35815851fea83p-32, -0x1.9cdca333d3873p-37,
  0x1.02d6fe778a657p-42); }
RLX_INLINE f64 rlx_tail_p_f64(f64 x) { return RLX_P25(rlx_fma_f64, x,  /* 2^-56 */
  0x1p+0, 0x1.26aec21bce752p+0, 0x1.d63ed7499612bp-2, 0x1.ad6f35de7221cp-5, -0x1.c4242cdfc7dfdp-8, -0x1.bf8cfa2f543adp-15, 0x1.40bfa71cb26abp-12,
  -0x1.3ba466a7936f8p-14, 0x1.3a4cbf8c2819ap-19, 0x1.1301ac1d7edf7p-18, -0x1.62d9aed829105p-20, 0x1.836bd0006fcb1p-24, 0x1.5204206a2696cp-24,
  -0x1.400857632bf65p-25, 0x1.2adb4d94cb6f6p-27, -0x1.0617ce0e4d357p-30, -0x1.dfc8662820bc1p-34, 0x1.47d95c69a8863p-34, -0x1.4137d0e5edc28p-36,
  0x1.988ff55582bbdp-39, -0x1.6f17cc0b55155p-42, 0x1.d3079a1825ec4p-46, -0x1.92fe80c18b535p-50, 0x1.a8ad230ab671cp-55, -0x1.9d5e084d63587p-61); }
/* 2^k 2/pi mod 4 as two f64, the first of 29 bits, so that 24 bits times it are exact */
RLX_TABLE f64 rlx_turns_high[105] = {
0x1.45f306cp-1, 0x1.45f306cp+0, 0x1.45f306dp+1, 0x1.17cc1b6p+0, 0x1.17cc1b7p+1, 0x1.7cc1b7p-2, 0x1.7cc1b7p-1, 0x1.7cc1b72p+0, 0x1.7cc1b72p+1, 0x1.f306dc8p+0,
0x1.f306dc9p+1, 0x1.e60db93p+1, 0x1.cc1b727p+1, 0x1.9836e4ep+1, 0x1.306dc9cp+1, 0x1.836e4e4p-1, 0x1.836e4e4p+0, 0x1.836e4e4p+1, 0x1.06dc9c8p+1, 0x1.b72722p-4,
0x1.b72722p-3, 0x1.b72722p-2, 0x1.b72722p-1, 0x1.b72722p+0, 0x1.b72722p+1, 0x1.6e4e441p+1, 0x1.b939104p+0, 0x1.b939105p+1, 0x1.727220ap+1, 0x1.c9c882ap+0,
0x1.c9c882ap+1, 0x1.9391054p+1, 0x1.27220a9p+1, 0x1.3910548p-1, 0x1.391054ap+0, 0x1.391054ap+1, 0x1.c882a5p-1, 0x1.c882a52p+0, 0x1.c882a53p+1, 0x1.91054a7p+1,
0x1.220a94fp+1, 0x1.1054a7cp-1, 0x1.1054a7ep+0, 0x1.1054a7fp+1, 0x1.054a7fp-2, 0x1.054a7fp-1, 0x1.054a7fp+0, 0x1.054a7fp+1, 0x1.529fc2p-4, 0x1.529fc2p-3,
0x1.529fc2p-2, 0x1.529fc24p-1, 0x1.529fc26p+0, 0x1.529fc27p+1, 0x1.4a7f09cp+0, 0x1.4a7f09dp+1, 0x1.29fc274p+0, 0x1.29fc275p+1, 0x1.4fe13a8p-1, 0x1.4fe13aap+0,
0x1.4fe13abp+1, 0x1.3f84eaep+0, 0x1.3f84eafp+1, 0x1.fc2757cp-1, 0x1.fc2757cp+0, 0x1.fc2757dp+1, 0x1.f84eafap+1, 0x1.f09d5f4p+1, 0x1.e13abe8p+1, 0x1.c2757d1p+1,
0x1.84eafa3p+1, 0x1.09d5f47p+1, 0x1.3abe8fp-3, 0x1.3abe8f8p-2, 0x1.3abe8f8p-1, 0x1.3abe8fap+0, 0x1.3abe8fap+1, 0x1.d5f47d4p-1, 0x1.d5f47d4p+0, 0x1.d5f47d4p+1,
0x1.abe8fa9p+1, 0x1.57d1f53p+1, 0x1.5f47d4cp+0, 0x1.5f47d4dp+1, 0x1.7d1f534p+0, 0x1.7d1f534p+1, 0x1.f47d4d2p+0, 0x1.f47d4d3p+1, 0x1.e8fa9a6p+1, 0x1.d1f534dp+1,
0x1.a3ea69bp+1, 0x1.47d4d37p+1, 0x1.1f534dcp+0, 0x1.1f534ddp+1, 0x1.f534dd8p-2, 0x1.f534ddcp-1, 0x1.f534ddcp+0, 0x1.f534ddcp+1, 0x1.ea69bb8p+1, 0x1.d4d377p+1,
0x1.a9a6eep+1, 0x1.534ddcp+1, 0x1.4d37702p+0, 0x1.4d37703p+1, 0x1.34ddc0cp+0};
RLX_TABLE f64 rlx_turns_low[105] = {
0x1.c9c882a53f84fp-29, 0x1.c9c882a53f84fp-28, 0x1.9391054a7f09dp-28, 0x1.27220a94fe13bp-28, 0x1.391054a7f09d6p-30, 0x1.391054a7f09d6p-29, 0x1.391054a7f09d6p-28,
0x1.c882a53f84ebp-30, 0x1.c882a53f84ebp-29, 0x1.c882a53f84ebp-28, 0x1.91054a7f09d5fp-28, 0x1.220a94fe13abfp-28, 0x1.1054a7f09d5f4p-30, 0x1.1054a7f09d5f4p-29,
0x1.1054a7f09d5f4p-28, 0x1.054a7f09d5f48p-31, 0x1.054a7f09d5f48p-30, 0x1.054a7f09d5f48p-29, 0x1.054a7f09d5f48p-28, 0x1.529fc2757d1f5p-33, 0x1.529fc2757d1f5p-32,
0x1.529fc2757d1f5p-31, 0x1.529fc2757d1f5p-30, 0x1.529fc2757d1f5p-29, 0x1.529fc2757d1f5p-28, 0x1.4a7f09d5f47d5p-29, 0x1.4a7f09d5f47d5p-28, 0x1.29fc2757d1f53p-29,
0x1.29fc2757d1f53p-28, 0x1.4fe13abe8fa9ap-30, 0x1.4fe13abe8fa9ap-29, 0x1.4fe13abe8fa9ap-28, 0x1.3f84eafa3ea6ap-29, 0x1.3f84eafa3ea6ap-28, 0x1.fc2757d1f534ep-30,
0x1.fc2757d1f534ep-29, 0x1.fc2757d1f534ep-28, 0x1.f84eafa3ea69cp-28, 0x1.f09d5f47d4d37p-28, 0x1.e13abe8fa9a6fp-28, 0x1.c2757d1f534dep-28, 0x1.84eafa3ea69bcp-28,
0x1.09d5f47d4d377p-28, 0x1.3abe8fa9a6eep-32, 0x1.3abe8fa9a6eep-31, 0x1.3abe8fa9a6eep-30, 0x1.3abe8fa9a6eep-29, 0x1.3abe8fa9a6eep-28, 0x1.d5f47d4d37703p-30,
0x1.d5f47d4d37703p-29, 0x1.d5f47d4d37703p-28, 0x1.abe8fa9a6ee07p-28, 0x1.57d1f534ddc0ep-28, 0x1.5f47d4d377037p-29, 0x1.5f47d4d377037p-28, 0x1.7d1f534ddc0dbp-29,
0x1.7d1f534ddc0dbp-28, 0x1.f47d4d377036ep-29, 0x1.f47d4d377036ep-28, 0x1.e8fa9a6ee06dbp-28, 0x1.d1f534ddc0db6p-28, 0x1.a3ea69bb81b6cp-28, 0x1.47d4d377036d9p-28,
0x1.1f534ddc0db63p-29, 0x1.1f534ddc0db63p-28, 0x1.f534ddc0db629p-31, 0x1.f534ddc0db629p-30, 0x1.f534ddc0db629p-29, 0x1.f534ddc0db629p-28, 0x1.ea69bb81b6c53p-28,
0x1.d4d377036d8a5p-28, 0x1.a9a6ee06db14bp-28, 0x1.534ddc0db6296p-28, 0x1.4d377036d8a56p-29, 0x1.4d377036d8a56p-28, 0x1.34ddc0db6295ap-29, 0x1.34ddc0db6295ap-28,
0x1.a6ee06db14acdp-30, 0x1.a6ee06db14acdp-29, 0x1.a6ee06db14acdp-28, 0x1.4ddc0db629599p-28, 0x1.377036d8a5665p-29, 0x1.377036d8a5665p-28, 0x1.bb81b6c52b328p-30,
0x1.bb81b6c52b328p-29, 0x1.bb81b6c52b328p-28, 0x1.77036d8a5664fp-28, 0x1.dc0db6295993cp-29, 0x1.dc0db6295993cp-28, 0x1.b81b6c52b3279p-28, 0x1.7036d8a5664f1p-28,
0x1.c0db6295993c4p-29, 0x1.c0db6295993c4p-28, 0x1.81b6c52b32788p-28, 0x1.036d8a5664f11p-28, 0x1.b6c52b3278872p-34, 0x1.b6c52b3278872p-33, 0x1.b6c52b3278872p-32,
0x1.b6c52b3278872p-31, 0x1.b6c52b3278872p-30, 0x1.b6c52b3278872p-29, 0x1.b6c52b3278872p-28, 0x1.6d8a5664f10e4p-28, 0x1.b6295993c439p-29, 0x1.b6295993c439p-28};
/* 64 zeros, and 2/pi after the point */
RLX_TABLE u64 rlx_two_over_pi[21] = {0,
0xa2f9836e4e441529, 0xfc2757d1f534ddc0, 0xdb6295993c439041, 0xfe5163abdebbc561, 0xb7246e3a424dd2e0, 0x06492eea09d1921c, 0xfe1deb1cb129a73e, 0xe88235f52ebb4484,
0xe99c7026b45f7e41, 0x3991d639835339f4, 0x9c845f8bbdf9283b, 0x1ff897ffde05980f, 0xef2f118b5a0a6d1f, 0x6d367ecf27cb09b7, 0x4f463f669e5fea2d, 0x7527bac7ebe5f17b,
0x3d0739f78a5292ea, 0x6bfb5fb11f8d5d08, 0x56033046fc7b6bab, 0xf0cfbc209af4361d};
/* What math.h needs to know of f64, and what f64 does in a way of its own: the turns of an angle, pow. */
#define F f64
#define U u64
#define MANTISSA 52
#define BIAS 1023
#define ROUNDER 0x1.8p52        /* x + ROUNDER - ROUNDER is x to the nearest whole number; its last bits are that number */
#define LEAST_NORMAL 0x1p-1022
#define SQRT_HALF 0x3fe6a09e667f3bcdULL
#define HEAD 0xffffffff00000000ULL  /* bits of a factor whose product with LOG2E_HI is exact */
#define LN2_HI 0x1.62e42fefp-1
#define LN2_LO 0x1.473de6af278edp-34
#define LOG2E 0x1.71547652b82fep+0
#define LOG2E_HI 0x1.71547p+0
#define LOG2E_LO 0x1.94ae0bf85ddf4p-22
#define PI 0x1.921fb54442d18p+1
#define PI_LO 0x1.1a62633145c07p-53
#define EXP_LEAST (-746.0)      /* beyond these results are 0 and infinity, also of half and double the value */
#define EXP_MOST 711.0
#define EXP2_LEAST (-1076.0)
#define EXP2_MOST 1025.0
#define EXPM1_LEAST (-40.0)     /* beyond these results are -1, infinity, 1, 1 */
#define EXPM1_MOST 710.0
#define TANH_MOST 20.0
#define ERF_MOST 5.95
#define TAIL_MOST 8.3           /* beyond it 1 is all of the normal distribution; beyond the next a sigmoid is 1 */
#define SIGMOID_MOST 353.0
#define ROOT_OF_LEAST 0x1p-511
#define ROUND_TO(way) __builtin_##way
#define SQRT(x) __builtin_sqrt(x)

/* What a * b = p loses in rounding; exact while nothing overflows.  Dekker 1971. */
RLX_INLINE f64 rlx_lost(f64 a, f64 b, f64 p) {
#if defined(__FMA__) || defined(__aarch64__)
  return rlx_fma_f64(a, b, -p);
#else
  const f64 wa = a * 134217729.0, ah = wa - (wa - a), al = a - ah, wb = b * 134217729.0, bh = wb - (wb - b), bl = b - bh;
  return ((ah * bh - p) + ah * bl + al * bh) + al * bl;
#endif
}

/* An angle less a whole number of quarter turns: r + tail within an eighth of a turn, and that number's last bits. */
typedef struct { f64 r, tail; u64 quarters; } rlx_angle_f64;

/* x >= 2^20, by all the bits of 2/pi that matter.  Payne and Hanek 1983. */
RLX_APART rlx_angle_f64 rlx_far_angle(f64 x) {
  const u64 u = rlx_bits_f64(x), m = (u & 0xfffffffffffffULL) | 1ULL << 52, at = (u >> 52) - 1075 + 62;  /* x = m 2^(at - 62) */
  u64 w[3];
  for (u64 i = 0; i < 3; i++) {
    const u64 *t = rlx_two_over_pi + (at >> 6) + i;
    w[i] = at & 63 ? t[0] << (at & 63) | t[1] >> (64 - (at & 63)) : t[0];
  }
  const u64 low = m * w[2], middle = m * w[1] + RLX_HIGH_PRODUCT(m, w[2]), carry = middle < m * w[1];
  const u64 high = m * w[0] + RLX_HIGH_PRODUCT(m, w[1]) + carry;  /* quarter turns: two bits before the point */
  u64 f1 = high << 2 | middle >> 62, f0 = middle << 2 | low >> 62;
  const u64 up = f1 >> 63; /* more than a half: count down from the next */
  f1 ^= 0 - up, f0 ^= 0 - up;
  f64 one = up ? -1.0 : 1.0;
  for (; !(f1 >> 63); one *= 0.5) f1 = f1 << 1 | f0 >> 63, f0 <<= 1;  /* at most 61 times: no f64 is nearer to a multiple of pi/2 */
  const f64 a = (f64)(f1 >> 11) * 0x1p-53 * one, b = (f64)((f1 & 0x7ff) << 53 | f0 >> 11) * 0x1p-117 * one;
  const f64 p = a * (PI / 2), tail = rlx_lost(a, PI / 2, p) + (a * (PI_LO / 2) + b * (PI / 2)), r = p + tail;
  const rlx_angle_f64 angle = {r, (p - r) + tail, (high >> 62) + up};
  return angle;
}

/* 0 <= x < 2^20: pi/2 in three parts of which two have 33 bits.  Cody and Waite 1980. */
RLX_INLINE rlx_angle_f64 rlx_near_angle(f64 x) {
  const f64 t = x * 0x1.45f306dc9c883p-1 + ROUNDER, n = t - ROUNDER;
  const f64 a = x - n * 0x1.921fb544p+0, w = n * 0x1.0b4611a6p-34, b = a - w, tail = ((a - b) - w) - n * 0x1.3198a2e037073p-69, r = b + tail;
  const rlx_angle_f64 angle = {r, (b - r) + tail, rlx_bits_f64(t)};
  return angle;
}
RLX_INLINE rlx_angle_f64 rlx_angle_of_f64(f64 x) {
  const rlx_angle_f64 none = {x - x, 0, 0};
  if (x >= 0x1p20) return x < __builtin_inf() ? rlx_far_angle(x) : none;
  return rlx_near_angle(x);
}
RLX_INLINE f64 rlx_sin_near_f64(rlx_angle_f64 a) {
  const f64 z = a.r * a.r;
  return a.r + rlx_fma_f64(a.r * z, rlx_sin_p_f64(z), a.tail * rlx_fma_f64(z, -0.5, 1));
}
RLX_INLINE f64 rlx_cos_near_f64(rlx_angle_f64 a) {
  const f64 z = a.r * a.r, h = 0.5 * z, w = 1 - h;
  return w + (((1 - w) - h) + rlx_fma_f64(z * z, rlx_cos_p_f64(z), -a.r * a.tail));
}

/* a^y, a >= 0, |y| <= 2^66.  log2(a) = h + l to 2^-68, by log(1 + f) = 2 s + s z (2/3 + z p(z)) in pairs of f64. */
RLX_INLINE f64 rlx_power_of_f64(f64 a, f64 y) {
  const u64 u = rlx_bits_f64(a < LEAST_NORMAL ? a * 0x1p53 : a) + (0x3ff0000000000000ULL - SQRT_HALF);
  const f64 k = rlx_of_bits_f64(rlx_bits_f64(ROUNDER) + (u >> 52)) - (ROUNDER + BIAS) - (a < LEAST_NORMAL ? 53 : 0);
  const f64 f = rlx_of_bits_f64((u & 0xfffffffffffffULL) + SQRT_HALF) - 1, d = 2 + f, dl = f - (d - 2);
  const f64 s = f / d, p = s * d, sl = (((f - p) - rlx_lost(s, d, p)) - s * dl) / d;
  const f64 z = s * s, zl = rlx_lost(s, s, z) + 2 * s * sl, third = 0x1.5555555555555p-1, q = z * rlx_pow_p_f64(z);
  const f64 c = third + q, cl = ((third - c) + q) + 0x1.5555555555555p-55;
  const f64 v = z * c, vl = rlx_lost(z, c, v) + (z * cl + zl * c), w = 2 + v, wl = ((2 - w) + v) + vl;
  const f64 n = s * w, nl = rlx_lost(s, w, n) + (s * wl + sl * w);
  const f64 g = n * LOG2E, gl = rlx_lost(n, LOG2E, g) + (n * 0x1.777d0ffda0d24p-56 + nl * LOG2E), h = k + g, l = ((k - h) + g) + gl;
  const f64 log2a = a == 0 ? -__builtin_inf() : a < __builtin_inf() ? h : a, e = y * log2a;
  const f64 el = e > EXP2_LEAST && e < EXP2_MOST ? rlx_lost(y, h, e) + y * l : 0, x = e > EXP2_MOST ? EXP2_MOST : e < EXP2_LEAST ? EXP2_LEAST : e;
  const f64 t = x + ROUNDER, r = (x - (t - ROUNDER)) + el;
  const u64 twice = rlx_bits_f64(t) - rlx_bits_f64(ROUNDER) + 2 * BIAS, half = twice >> 1;
  return rlx_fma_f64(r, rlx_exp2_p_f64(r), 1) * rlx_of_bits_f64(half << 52) * rlx_of_bits_f64((twice - half) << 52);
}
/* Mathematics of one float type F, as f32.h and f64.h set it up.  Included once for each. */
#define NAME(f) RLX_CAT(rlx_##f##_, F)
#define SIGN ((U)1 << (sizeof(F) * 8 - 1))
#define INFINITE ((F)__builtin_inf())
#define NOT_A_NUMBER ((F)__builtin_nan(""))
#define ONE ((U)BIAS << MANTISSA)
#define LOWEST (-NAME(of_bits)(NAME(bits)(INFINITE) - 1))

RLX_INLINE F NAME(abs)(F x) { return NAME(of_bits)(NAME(bits)(x) & ~SIGN); }
RLX_INLINE F NAME(copysign)(F x, F sign) { return NAME(of_bits)((NAME(bits)(x) & ~SIGN) | (NAME(bits)(sign) & SIGN)); }
RLX_INLINE F NAME(sign)(F x) { return x > 0 ? 1 : x < 0 ? -1 : x == 0 ? 0 : x; }
RLX_INLINE F NAME(maximum)(F a, F b) { return a > b || a != a ? a : b; }
RLX_INLINE F NAME(minimum)(F a, F b) { return a < b || a != a ? a : b; }
RLX_INLINE u8 NAME(isnan)(F x) { return x != x; }
RLX_INLINE u8 NAME(isinf)(F x) { return NAME(abs)(x) == INFINITE; }
RLX_INLINE u8 NAME(isfinite)(F x) { return NAME(abs)(x) < INFINITE; }

#if defined(__SSE4_1__) || defined(__aarch64__) || defined(RLX_GPU)
RLX_INLINE F NAME(rint)(F x) { return ROUND_TO(rint)(x); }
RLX_INLINE F NAME(floor)(F x) { return ROUND_TO(floor)(x); }
RLX_INLINE F NAME(ceil)(F x) { return ROUND_TO(ceil)(x); }
RLX_INLINE F NAME(trunc)(F x) { return ROUND_TO(trunc)(x); }
#else
RLX_INLINE F NAME(rint)(F x) {
  const F whole = (F)((U)1 << MANTISSA), a = NAME(abs)(x);  /* from here on every float is whole */
  return a < whole ? NAME(copysign)(a + whole - whole, x) : x;
}
RLX_INLINE F NAME(floor)(F x) { const F r = NAME(rint)(x); return NAME(copysign)(r > x ? r - 1 : r, x); }
RLX_INLINE F NAME(ceil)(F x) { const F r = NAME(rint)(x); return NAME(copysign)(r < x ? r + 1 : r, x); }
RLX_INLINE F NAME(trunc)(F x) { return NAME(copysign)(NAME(floor)(NAME(abs)(x)), x); }
#endif
RLX_INLINE F NAME(sqrt)(F x) { return SQRT(x); }

/* ---- exponentials: x = n ln 2 + r, or x = n + r */
/* p 2^n of t = ROUNDER + 2 BIAS + n, in two steps, so that subnormal results round once */
RLX_INLINE F NAME(scaled)(F p, F t) {
  const U twice = NAME(bits)(t), half = twice >> 1;  /* what they have above an exponent is shifted out */
  return p * NAME(of_bits)(half << MANTISSA) * NAME(of_bits)((twice - half) << MANTISSA);
}
RLX_INLINE F NAME(exp_halved)(F x, U halvings) {
  const F zero = ROUNDER + 2 * BIAS - halvings, c = x > EXP_MOST ? EXP_MOST : x;
  const F t = NAME(fma)(c, LOG2E, zero), n = t - zero, r = NAME(fma)(n, -LN2_LO, NAME(fma)(n, -LN2_HI, c));
  const F y = NAME(scaled)(NAME(fma)(r * r, NAME(exp_p)(r), r) + 1, t);
  return x < EXP_LEAST ? 0 : y;
}
RLX_INLINE F NAME(exp)(F x) { return NAME(exp_halved)(x, 0); }
RLX_INLINE F NAME(exp2)(F x) {
  const F zero = ROUNDER + 2 * BIAS, c = x > EXP2_MOST ? EXP2_MOST : x, t = c + zero, r = c - (t - zero), y = NAME(scaled)(NAME(fma)(r, NAME(exp2_p)(r), 1), t);
  return x < EXP2_LEAST ? 0 : y;
}
/* 2^(n + less) of t = ROUNDER + BIAS + less + n */
RLX_INLINE F NAME(power)(F t) { return NAME(of_bits)(NAME(bits)(t) << MANTISSA); }
/* (exp(x) - 1) / 2 = 2^(n-1) (exp(r) - 1) + (2^(n-1) - 1/2), EXPM1_LEAST <= x <= EXPM1_MOST */
RLX_INLINE F NAME(expm1_half)(F x) {
  const F zero = ROUNDER + BIAS - 1, t = NAME(fma)(x, LOG2E, zero), n = t - zero, r = NAME(fma)(n, -LN2_LO, NAME(fma)(n, -LN2_HI, x)), s = NAME(power)(t);
  return NAME(fma)(s, NAME(fma)(r * r, NAME(exp_p)(r), r), s - (F)0.5);
}
RLX_INLINE F NAME(expm1)(F x) {
  const F y = 2 * NAME(expm1_half)(x > EXPM1_MOST ? EXPM1_MOST : x);
  return x < EXPM1_LEAST ? -1 : NAME(abs)(x) < 4 * LEAST_NORMAL ? x : y;
}
RLX_INLINE F NAME(tanh)(F x) {
  const F a = NAME(abs)(x), h = NAME(expm1_half)(a > TANH_MOST ? 2 * TANH_MOST : 2 * a);
  return NAME(copysign)(h / (h + 1), x);
}
RLX_INLINE F NAME(cosh)(F x) { const F e = NAME(exp_halved)(NAME(abs)(x), 1); return e + (F)0.25 / e; }
RLX_INLINE F NAME(sinh)(F x) {
  const F a = NAME(abs)(x), e = NAME(exp_halved)(a, 1), z = a * a, near = NAME(fma)(a * z, NAME(sinh_p)(z), a);
  return NAME(copysign)(a < 1 ? near : e - (F)0.25 / e, x);
}
/* 2^-q, 0 <= q < BIAS */
RLX_INLINE F NAME(exp2_of_minus)(F q) {
  const F zero = ROUNDER + BIAS, t = zero - q, r = (zero - t) - q;
  return NAME(fma)(r, NAME(exp2_p)(r), 1) * NAME(power)(t);
}
RLX_INLINE F NAME(erf)(F x) {
  F a = NAME(abs)(x);
  a = a > ERF_MOST ? ERF_MOST : a;
  const F z = a * a, near = NAME(fma)(a, NAME(erf_near_p)(z), a), far = 1 - NAME(exp2_of_minus)(NAME(erf_far_p)(a));
  return NAME(copysign)(a < 1 ? near : far, x);
}

/* ---- logarithms: x = 2^k (1 + f), f between sqrt(1/2) - 1 and sqrt(2) - 1; s = f / (2 + f); after fdlibm's e_log.c and e_log2.c */
typedef struct { F k, f; } NAME(parts);
RLX_INLINE NAME(parts) NAME(parts_of)(F x) {
  const F wide = (F)((U)1 << (MANTISSA + 1));
  const U u = NAME(bits)(x < LEAST_NORMAL ? x * wide : x) + (ONE - SQRT_HALF);
  const F k = NAME(of_bits)(NAME(bits)((F)ROUNDER) + (u >> MANTISSA)) - (ROUNDER + BIAS);
  const F m = NAME(of_bits)((u & (((U)1 << MANTISSA) - 1)) + SQRT_HALF);
  const NAME(parts) p = {x < LEAST_NORMAL ? k - (MANTISSA + 1) : k, m - 1};
  return p;
}
/* What a logarithm of x is where the formula does not say. */
RLX_INLINE F NAME(log_ends)(F x, F y) { return x > 0 ? (x < INFINITE ? y : x) : x == 0 ? -INFINITE : NOT_A_NUMBER; }
RLX_INLINE F NAME(log_sum)(NAME(parts) p, F more) {
  const F s = p.f / (2 + p.f), z = s * s, h = (F)0.5 * p.f * p.f, r = s * NAME(fma)(z, NAME(log_p)(z), h);
  return NAME(fma)(p.k, LN2_HI, p.f - (h - (r + NAME(fma)(p.k, LN2_LO, more))));
}
RLX_INLINE F NAME(log)(F x) { return NAME(log_ends)(x, NAME(log_sum)(NAME(parts_of)(x), 0)); }
RLX_INLINE F NAME(log1p_of)(F x, F u) { /* u = 1 + x; what that lost is added back */
  const F lost = u > 2 ? 1 - (u - x) : x - (u - 1);
  return NAME(log_sum)(NAME(parts_of)(u), lost / u);
}
RLX_INLINE F NAME(log1p)(F x) {
  const F u = 1 + x, y = NAME(log_ends)(u, NAME(log1p_of)(x, u));
  return NAME(abs)(x) < LEAST_NORMAL ? x : y;
}
RLX_INLINE F NAME(log2)(F x) {
  const NAME(parts) p = NAME(parts_of)(x);
  const F s = p.f / (2 + p.f), z = s * s, h = (F)0.5 * p.f * p.f;
  const F hi = NAME(of_bits)(NAME(bits)(p.f - h) & HEAD), lo = ((p.f - hi) - h) + s * NAME(fma)(z, NAME(log_p)(z), h);
  const F a = hi * LOG2E_HI, b = NAME(fma)(lo + hi, LOG2E_LO, lo * LOG2E_HI), w = p.k + a;
  return NAME(log_ends)(x, w + (((p.k - w) + a) + b));
}

/* ---- circular functions: an angle is r within an eighth of a turn and `quarters` quarter turns */
RLX_INLINE F NAME(turned)(NAME(angle) a, U quarters) { /* sin(a + quarters quarter turns) */
  const U q = a.quarters + quarters;
  const F y = q & 1 ? NAME(cos_near)(a) : NAME(sin_near)(a);
  return NAME(of_bits)(NAME(bits)(y) ^ ((q & 2) << (sizeof(F) * 8 - 2)));
}
RLX_INLINE F NAME(sin)(F x) {
  const F y = NAME(turned)(NAME(angle_of)(NAME(abs)(x)), 0);
  return NAME(of_bits)(NAME(bits)(y) ^ (NAME(bits)(x) & SIGN));
}
RLX_INLINE F NAME(cos)(F x) { return NAME(turned)(NAME(angle_of)(NAME(abs)(x)), 1); }
RLX_INLINE F NAME(tan)(F x) {
  const NAME(angle) a = NAME(angle_of)(NAME(abs)(x));
  const F s = NAME(sin_near)(a), c = NAME(cos_near)(a), y = a.quarters & 1 ? -c / s : s / c;
  return NAME(of_bits)(NAME(bits)(y) ^ (NAME(bits)(x) & SIGN));
}

/* asin(a) of 0 <= a <= 1/2, or half of acos(a) above, which is asin(sqrt((1 - a) / 2)) */
RLX_INLINE F NAME(asin_part)(F a) {
  const F z = a > (F)0.5 ? (1 - a) * (F)0.5 : a * a, s = a > (F)0.5 ? NAME(sqrt)(z) : a;
  return NAME(fma)(s * z, NAME(asin_p)(z), s);
}
RLX_INLINE F NAME(asin)(F x) {
  const F a = NAME(abs)(x), p = NAME(asin_part)(a);
  return NAME(copysign)(a > (F)0.5 ? PI / 2 - (2 * p - PI_LO / 2) : p, x);
}
RLX_INLINE F NAME(acos)(F x) {
  const F a = NAME(abs)(x), p = NAME(asin_part)(a);
  const F far = x > 0 ? 2 * p : PI - (2 * p - PI_LO), near = PI / 2 - (NAME(copysign)(p, x) - PI_LO / 2);
  return a > (F)0.5 ? far : near;
}
RLX_INLINE F NAME(atan2)(F y, F x) {
  const F a = NAME(abs)(x), b = NAME(abs)(y), less = b > a ? a : b, more = b > a ? b : a;
  const F t = less == more ? (more == 0 ? 0 : 1) : less / more, z = t * t, p = NAME(fma)(t * z, NAME(atan_p)(z), t);
  const F half = b > a ? PI / 2 - (p - PI_LO / 2) : p;
  return NAME(copysign)(NAME(bits)(x) & SIGN ? PI - (half - PI_LO) : half, y);
}
RLX_INLINE F NAME(atan)(F x) { return NAME(atan2)(x, 1); }

/* ---- powers, remainders */
RLX_INLINE F NAME(pow)(F x, F y) {
  const F a = NAME(abs)(x), r = NAME(power_of)(a, y > 0x1p66f ? 0x1p66f : y < -0x1p66f ? -0x1p66f : y);  /* which 0, 1 or infinity is settled */
  const F half = y * (F)0.5, negated = NAME(of_bits)(NAME(bits)(r) ^ (NAME(bits)(x) & SIGN));
  const F signed_ = NAME(rint)(y) == y && NAME(rint)(half) != half ? negated : r;  /* y is odd */
  const F real = x < 0 && a < INFINITE && NAME(rint)(y) != y ? NOT_A_NUMBER : signed_;
  return y == 0 || x == 1 ? 1 : x != x || y != y ? NOT_A_NUMBER : real;
}
RLX_INLINE F NAME(fmod)(F x, F y) {
  const F a = NAME(abs)(x), b = NAME(abs)(y);
  if (!(a < INFINITE) || !(b > 0)) return NOT_A_NUMBER;
  if (a < b) return x;
  const U hidden = (U)1 << MANTISSA, ua = NAME(bits)(a), ub = NAME(bits)(b), ea = ua >> MANTISSA, eb = ub >> MANTISSA;
  const U least = eb ? eb : 1;  /* subnormals have the exponent of the least normal numbers, and no hidden bit */
  const u64 by = (ub & (hidden - 1)) | (eb ? hidden : 0);
  u64 rest = ((ua & (hidden - 1)) | (ea ? hidden : 0)) % by;
  for (U left = (ea ? ea : 1) - least; left;) {
    const U step = left < 63 - MANTISSA ? left : 63 - MANTISSA;
    rest = (rest << step) % by, left -= step;
  }
  return NAME(copysign)((F)rest / (F)hidden * NAME(of_bits)(least << MANTISSA), x);
}
RLX_INLINE F NAME(mod)(F a, F b) {
  const F r = NAME(fmod)(a, b);
  return r == 0 ? NAME(copysign)(0, b) : (r < 0) != (b < 0) ? r + b : r;
}
RLX_INLINE F NAME(floor_div)(F a, F b) {
  if (b == 0) return a / b;
  const F r = NAME(fmod)(a, b), q = (a - r) / b, d = r != 0 && (r < 0) != (b < 0) ? q - 1 : q, low = NAME(floor)(d);
  return d == 0 ? NAME(copysign)(0, a / b) : d - low > (F)0.5 ? low + 1 : low;
}

/* ---- activations, as rlxpy/ir/refs.py has them */
/* -x, but not beyond the arguments whose exponential is the most that counts */
RLX_INLINE F NAME(opposite)(F x) { return -x > -EXP_LEAST ? -EXP_LEAST : -x; }
/* 1 / (1 + exp(x)), x <= -EXP_LEAST: both sides of the bar times 2^-(BIAS/2), so that no exponential is too large.  The other bound is looked
   at last: gcc 12 makes three comparisons and three blends of two bounds in a row. */
RLX_INLINE F NAME(logistic)(F x) {
  const F zero = ROUNDER + BIAS - BIAS / 2, one = ROOT_OF_LEAST;
  const F t = NAME(fma)(x, LOG2E, zero), n = t - zero, r = NAME(fma)(n, -LN2_LO, NAME(fma)(n, -LN2_HI, x));
  const F y = one / NAME(fma)(NAME(fma)(r * r, NAME(exp_p)(r), r) + 1, NAME(power)(t), one);
  return x < -SIGMOID_MOST ? 1 : y;
}
RLX_INLINE F NAME(sigmoid)(F x) { return NAME(logistic)(NAME(opposite)(x)); }
RLX_INLINE F NAME(finite)(F x) { return x < LOWEST ? LOWEST : x; }  /* -inf times 0 would be NaN */
RLX_INLINE F NAME(silu)(F x) { const F c = NAME(opposite)(x); return -c * NAME(logistic)(c); }
RLX_INLINE F NAME(softplus)(F x) {
  const F e = NAME(exp)(-NAME(abs)(x));
  return NAME(maximum)(x, 0) + NAME(log1p_of)(e, 1 + e);
}
/* x times the share of the normal distribution that lies below x */
RLX_INLINE F NAME(gelu)(F x) {
  const F a = NAME(abs)(x), beyond = a > TAIL_MOST ? 0 : NAME(exp2_of_minus)(NAME(tail_p)(a));
  return NAME(finite)(x) * (x > 0 ? 1 - beyond : beyond);
}
RLX_INLINE F NAME(gelu_tanh)(F x) {
  const F inner = (F)0.79788456080286535588 * (x + (F)0.044715 * x * x * x);  /* a cube that overflows has tanh 1 or -1, too */
  return NAME(finite)(x) * ((F)0.5 * (1 + NAME(tanh)(inner)));
}

#undef F
#undef U
#undef MANTISSA
#undef BIAS
#undef ROUNDER
#undef LEAST_NORMAL
#undef SQRT_HALF
#undef HEAD
#undef LN2_HI
#undef LN2_LO
#undef LOG2E
#undef LOG2E_HI
#undef LOG2E_LO
#undef PI
#undef PI_LO
#undef EXP_LEAST
#undef EXP_MOST
#undef EXP2_LEAST
#undef EXP2_MOST
#undef EXPM1_LEAST
#undef EXPM1_MOST
#undef TANH_MOST
#undef ERF_MOST
#undef TAIL_MOST
#undef SIGMOID_MOST
#undef ROOT_OF_LEAST
#undef ROUND_TO
#undef SQRT
#undef NAME
#undef SIGN
#undef INFINITE
#undef NOT_A_NUMBER
#undef ONE
#undef LOWEST
/* What math.h needs to know of f32, and what f32 does in a way of its own: the turns of an angle, pow.  See f64.h. */
#define F f32
#define U u32
#define MANTISSA 23
#define BIAS 127
#define ROUNDER 0x1.8p23f
#define LEAST_NORMAL 0x1p-126f
#define SQRT_HALF 0x3f3504f3U
#define HEAD 0xfffff000U
#define LN2_HI 0x1.62e4p-1f
#define LN2_LO 0x1.7f7d1cp-20f
#define LOG2E 0x1.715476p+0f
#define LOG2E_HI 0x1.714p+0f
#define LOG2E_LO 0x1.47652cp-12f
#define PI 0x1.921fb6p+1f
#define PI_LO (-0x1.777a5cp-24f)
#define EXP_LEAST (-104.0f)
#define EXP_MOST 90.0f
#define EXP2_LEAST (-151.0f)
#define EXP2_MOST 129.0f
#define EXPM1_LEAST (-20.0f)
#define EXPM1_MOST 89.0f
#define TANH_MOST 10.0f
#define ERF_MOST 3.93f
#define TAIL_MOST 5.6f
#define SIGMOID_MOST 43.0f
#define ROOT_OF_LEAST 0x1p-63f
#define ROUND_TO(way) __builtin_##way##f
#define SQRT(x) __builtin_sqrtf(x)

typedef struct { f32 r; u32 quarters; } rlx_angle_f32;

/* x >= 0.  From 2^24 on x is a whole number m 2^k, and quarter turns are m times (2^k 2/pi mod 4): exact to 2^-56. */
RLX_INLINE rlx_angle_f32 rlx_angle_of_f32(f32 x) {
  const u32 u = rlx_bits_f32(x), e = u >> 23, k = e > 150 ? e - 150 : 0;
  const i64 row = k > 104 ? 104 : k;  /* this wide, gcc 12 makes vectors of the look-ups */
  const f64 m = rlx_of_bits_f32(u - (k << 23)), high = m * rlx_turns_high[row], low = m * rlx_turns_low[row], t = high + low + 0x1.8p52;
  const f64 rest = ((high - (t - 0x1.8p52)) + low) * 0x1.921fb54442d18p+0;
  const rlx_angle_f32 angle = {x < __builtin_inff() ? (f32)rest : x - x, (u32)rlx_bits_f64(t)};
  return angle;
}
RLX_INLINE f32 rlx_sin_near_f32(rlx_angle_f32 a) { const f32 z = a.r * a.r; return rlx_fma_f32(a.r * z, rlx_sin_p_f32(z), a.r); }
RLX_INLINE f32 rlx_cos_near_f32(rlx_angle_f32 a) {
  const f32 z = a.r * a.r;
  return rlx_fma_f32(z * z, rlx_cos_p_f32(z), rlx_fma_f32(z, -0.5f, 1));
}

/* a^y, a >= 0, |y| <= 2^66 */
RLX_INLINE f32 rlx_power_of_f32(f32 a, f32 y) { return (f32)rlx_exp2_f64(rlx_log2_f64(a) * y); }
/* Mathematics of one float type F, as f32.h and f64.h set it up.  Included once for each. */
#define NAME(f) RLX_CAT(rlx_##f##_, F)
#define SIGN ((U)1 << (sizeof(F) * 8 - 1))
#define INFINITE ((F)__builtin_inf())
#define NOT_A_NUMBER ((F)__builtin_nan(""))
#define ONE ((U)BIAS << MANTISSA)
#define LOWEST (-NAME(of_bits)(NAME(bits)(INFINITE) - 1))

RLX_INLINE F NAME(abs)(F x) { return NAME(of_bits)(NAME(bits)(x) & ~SIGN); }
RLX_INLINE F NAME(copysign)(F x, F sign) { return NAME(of_bits)((NAME(bits)(x) & ~SIGN) | (NAME(bits)(sign) & SIGN)); }
RLX_INLINE F NAME(sign)(F x) { return x > 0 ? 1 : x < 0 ? -1 : x == 0 ? 0 : x; }
RLX_INLINE F NAME(maximum)(F a, F b) { return a > b || a != a ? a : b; }
RLX_INLINE F NAME(minimum)(F a, F b) { return a < b || a != a ? a : b; }
RLX_INLINE u8 NAME(isnan)(F x) { return x != x; }
RLX_INLINE u8 NAME(isinf)(F x) { return NAME(abs)(x) == INFINITE; }
RLX_INLINE u8 NAME(isfinite)(F x) { return NAME(abs)(x) < INFINITE; }

#if defined(__SSE4_1__) || defined(__aarch64__) || defined(RLX_GPU)
RLX_INLINE F NAME(rint)(F x) { return ROUND_TO(rint)(x); }
RLX_INLINE F NAME(floor)(F x) { return ROUND_TO(floor)(x); }
RLX_INLINE F NAME(ceil)(F x) { return ROUND_TO(ceil)(x); }
RLX_INLINE F NAME(trunc)(F x) { return ROUND_TO(trunc)(x); }
#else
RLX_INLINE F NAME(rint)(F x) {
  const F whole = (F)((U)1 << MANTISSA), a = NAME(abs)(x);  /* from here on every float is whole */
  return a < whole ? NAME(copysign)(a + whole - whole, x) : x;
}
RLX_INLINE F NAME(floor)(F x) { const F r = NAME(rint)(x); return NAME(copysign)(r > x ? r - 1 : r, x); }
RLX_INLINE F NAME(ceil)(F x) { const F r = NAME(rint)(x); return NAME(copysign)(r < x ? r + 1 : r, x); }
RLX_INLINE F NAME(trunc)(F x) { return NAME(copysign)(NAME(floor)(NAME(abs)(x)), x); }
#endif
RLX_INLINE F NAME(sqrt)(F x) { return SQRT(x); }

/* ---- exponentials: x = n ln 2 + r, or x = n + r */
/* p 2^n of t = ROUNDER + 2 BIAS + n, in two steps, so that subnormal results round once */
RLX_INLINE F NAME(scaled)(F p, F t) {
  const U twice = NAME(bits)(t), half = twice >> 1;  /* what they have above an exponent is shifted out */
  return p * NAME(of_bits)(half << MANTISSA) * NAME(of_bits)((twice - half) << MANTISSA);
}
RLX_INLINE F NAME(exp_halved)(F x, U halvings) {
  const F zero = ROUNDER + 2 * BIAS - halvings, c = x > EXP_MOST ? EXP_MOST : x;
  const F t = NAME(fma)(c, LOG2E, zero), n = t - zero, r = NAME(fma)(n, -LN2_LO, NAME(fma)(n, -LN2_HI, c));
  const F y = NAME(scaled)(NAME(fma)(r * r, NAME(exp_p)(r), r) + 1, t);
  return x < EXP_LEAST ? 0 : y;
}
RLX_INLINE F NAME(exp)(F x) { return NAME(exp_halved)(x, 0); }
RLX_INLINE F NAME(exp2)(F x) {
  const F zero = ROUNDER + 2 * BIAS, c = x > EXP2_MOST ? EXP2_MOST : x, t = c + zero, r = c - (t - zero), y = NAME(scaled)(NAME(fma)(r, NAME(exp2_p)(r), 1), t);
  return x < EXP2_LEAST ? 0 : y;
}
/* 2^(n + less) of t = ROUNDER + BIAS + less + n */
RLX_INLINE F NAME(power)(F t) { return NAME(of_bits)(NAME(bits)(t) << MANTISSA); }
/* (exp(x) - 1) / 2 = 2^(n-1) (exp(r) - 1) + (2^(n-1) - 1/2), EXPM1_LEAST <= x <= EXPM1_MOST */
RLX_INLINE F NAME(expm1_half)(F x) {
  const F zero = ROUNDER + BIAS - 1, t = NAME(fma)(x, LOG2E, zero), n = t - zero, r = NAME(fma)(n, -LN2_LO, NAME(fma)(n, -LN2_HI, x)), s = NAME(power)(t);
  return NAME(fma)(s, NAME(fma)(r * r, NAME(exp_p)(r), r), s - (F)0.5);
}
RLX_INLINE F NAME(expm1)(F x) {
  const F y = 2 * NAME(expm1_half)(x > EXPM1_MOST ? EXPM1_MOST : x);
  return x < EXPM1_LEAST ? -1 : NAME(abs)(x) < 4 * LEAST_NORMAL ? x : y;
}
RLX_INLINE F NAME(tanh)(F x) {
  const F a = NAME(abs)(x), h = NAME(expm1_half)(a > TANH_MOST ? 2 * TANH_MOST : 2 * a);
  return NAME(copysign)(h / (h + 1), x);
}
RLX_INLINE F NAME(cosh)(F x) { const F e = NAME(exp_halved)(NAME(abs)(x), 1); return e + (F)0.25 / e; }
RLX_INLINE F NAME(sinh)(F x) {
  const F a = NAME(abs)(x), e = NAME(exp_halved)(a, 1), z = a * a, near = NAME(fma)(a * z, NAME(sinh_p)(z), a);
  return NAME(copysign)(a < 1 ? near : e - (F)0.25 / e, x);
}
/* 2^-q, 0 <= q < BIAS */
RLX_INLINE F NAME(exp2_of_minus)(F q) {
  const F zero = ROUNDER + BIAS, t = zero - q, r = (zero - t) - q;
  return NAME(fma)(r, NAME(exp2_p)(r), 1) * NAME(power)(t);
}
RLX_INLINE F NAME(erf)(F x) {
  F a = NAME(abs)(x);
  a = a > ERF_MOST ? ERF_MOST : a;
  const F z = a * a, near = NAME(fma)(a, NAME(erf_near_p)(z), a), far = 1 - NAME(exp2_of_minus)(NAME(erf_far_p)(a));
  return NAME(copysign)(a < 1 ? near : far, x);
}

/* ---- logarithms: x = 2^k (1 + f), f between sqrt(1/2) - 1 and sqrt(2) - 1; s = f / (2 + f); after fdlibm's e_log.c and e_log2.c */
typedef struct { F k, f; } NAME(parts);
RLX_INLINE NAME(parts) NAME(parts_of)(F x) {
  const F wide = (F)((U)1 << (MANTISSA + 1));
  const U u = NAME(bits)(x < LEAST_NORMAL ? x * wide : x) + (ONE - SQRT_HALF);
  const F k = NAME(of_bits)(NAME(bits)((F)ROUNDER) + (u >> MANTISSA)) - (ROUNDER + BIAS);
  const F m = NAME(of_bits)((u & (((U)1 << MANTISSA) - 1)) + SQRT_HALF);
  const NAME(parts) p = {x < LEAST_NORMAL ? k - (MANTISSA + 1) : k, m - 1};
  return p;
}
/* What a logarithm of x is where the formula does not say. */
RLX_INLINE F NAME(log_ends)(F x, F y) { return x > 0 ? (x < INFINITE ? y : x) : x == 0 ? -INFINITE : NOT_A_NUMBER; }
RLX_INLINE F NAME(log_sum)(NAME(parts) p, F more) {
  const F s = p.f / (2 + p.f), z = s * s, h = (F)0.5 * p.f * p.f, r = s * NAME(fma)(z, NAME(log_p)(z), h);
  return NAME(fma)(p.k, LN2_HI, p.f - (h - (r + NAME(fma)(p.k, LN2_LO, more))));
}
RLX_INLINE F NAME(log)(F x) { return NAME(log_ends)(x, NAME(log_sum)(NAME(parts_of)(x), 0)); }
RLX_INLINE F NAME(log1p_of)(F x, F u) { /* u = 1 + x; what that lost is added back */
  const F lost = u > 2 ? 1 - (u - x) : x - (u - 1);
  return NAME(log_sum)(NAME(parts_of)(u), lost / u);
}
RLX_INLINE F NAME(log1p)(F x) {
  const F u = 1 + x, y = NAME(log_ends)(u, NAME(log1p_of)(x, u));
  return NAME(abs)(x) < LEAST_NORMAL ? x : y;
}
RLX_INLINE F NAME(log2)(F x) {
  const NAME(parts) p = NAME(parts_of)(x);
  const F s = p.f / (2 + p.f), z = s * s, h = (F)0.5 * p.f * p.f;
  const F hi = NAME(of_bits)(NAME(bits)(p.f - h) & HEAD), lo = ((p.f - hi) - h) + s * NAME(fma)(z, NAME(log_p)(z), h);
  const F a = hi * LOG2E_HI, b = NAME(fma)(lo + hi, LOG2E_LO, lo * LOG2E_HI), w = p.k + a;
  return NAME(log_ends)(x, w + (((p.k - w) + a) + b));
}

/* ---- circular functions: an angle is r within an eighth of a turn and `quarters` quarter turns */
RLX_INLINE F NAME(turned)(NAME(angle) a, U quarters) { /* sin(a + quarters quarter turns) */
  const U q = a.quarters + quarters;
  const F y = q & 1 ? NAME(cos_near)(a) : NAME(sin_near)(a);
  return NAME(of_bits)(NAME(bits)(y) ^ ((q & 2) << (sizeof(F) * 8 - 2)));
}
RLX_INLINE F NAME(sin)(F x) {
  const F y = NAME(turned)(NAME(angle_of)(NAME(abs)(x)), 0);
  return NAME(of_bits)(NAME(bits)(y) ^ (NAME(bits)(x) & SIGN));
}
RLX_INLINE F NAME(cos)(F x) { return NAME(turned)(NAME(angle_of)(NAME(abs)(x)), 1); }
RLX_INLINE F NAME(tan)(F x) {
  const NAME(angle) a = NAME(angle_of)(NAME(abs)(x));
  const F s = NAME(sin_near)(a), c = NAME(cos_near)(a), y = a.quarters & 1 ? -c / s : s / c;
  return NAME(of_bits)(NAME(bits)(y) ^ (NAME(bits)(x) & SIGN));
}

/* asin(a) of 0 <= a <= 1/2, or half of acos(a) above, which is asin(sqrt((1 - a) / 2)) */
RLX_INLINE F NAME(asin_part)(F a) {
  const F z = a > (F)0.5 ? (1 - a) * (F)0.5 : a * a, s = a > (F)0.5 ? NAME(sqrt)(z) : a;
  return NAME(fma)(s * z, NAME(asin_p)(z), s);
}
RLX_INLINE F NAME(asin)(F x) {
  const F a = NAME(abs)(x), p = NAME(asin_part)(a);
  return NAME(copysign)(a > (F)0.5 ? PI / 2 - (2 * p - PI_LO / 2) : p, x);
}
RLX_INLINE F NAME(acos)(F x) {
  const F a = NAME(abs)(x), p = NAME(asin_part)(a);
  const F far = x > 0 ? 2 * p : PI - (2 * p - PI_LO), near = PI / 2 - (NAME(copysign)(p, x) - PI_LO / 2);
  return a > (F)0.5 ? far : near;
}
RLX_INLINE F NAME(atan2)(F y, F x) {
  const F a = NAME(abs)(x), b = NAME(abs)(y), less = b > a ? a : b, more = b > a ? b : a;
  const F t = less == more ? (more == 0 ? 0 : 1) : less / more, z = t * t, p = NAME(fma)(t * z, NAME(atan_p)(z), t);
  const F half = b > a ? PI / 2 - (p - PI_LO / 2) : p;
  return NAME(copysign)(NAME(bits)(x) & SIGN ? PI - (half - PI_LO) : half, y);
}
RLX_INLINE F NAME(atan)(F x) { return NAME(atan2)(x, 1); }

/* ---- powers, remainders */
RLX_INLINE F NAME(pow)(F x, F y) {
  const F a = NAME(abs)(x), r = NAME(power_of)(a, y > 0x1p66f ? 0x1p66f : y < -0x1p66f ? -0x1p66f : y);  /* which 0, 1 or infinity is settled */
  const F half = y * (F)0.5, negated = NAME(of_bits)(NAME(bits)(r) ^ (NAME(bits)(x) & SIGN));
  const F signed_ = NAME(rint)(y) == y && NAME(rint)(half) != half ? negated : r;  /* y is odd */
  const F real = x < 0 && a < INFINITE && NAME(rint)(y) != y ? NOT_A_NUMBER : signed_;
  return y == 0 || x == 1 ? 1 : x != x || y != y ? NOT_A_NUMBER : real;
}
RLX_INLINE F NAME(fmod)(F x, F y) {
  const F a = NAME(abs)(x), b = NAME(abs)(y);
  if (!(a < INFINITE) || !(b > 0)) return NOT_A_NUMBER;
  if (a < b) return x;
  const U hidden = (U)1 << MANTISSA, ua = NAME(bits)(a), ub = NAME(bits)(b), ea = ua >> MANTISSA, eb = ub >> MANTISSA;
  const U least = eb ? eb : 1;  /* subnormals have the exponent of the least normal numbers, and no hidden bit */
  const u64 by = (ub & (hidden - 1)) | (eb ? hidden : 0);
  u64 rest = ((ua & (hidden - 1)) | (ea ? hidden : 0)) % by;
  for (U left = (ea ? ea : 1) - least; left;) {
    const U step = left < 63 - MANTISSA ? left : 63 - MANTISSA;
    rest = (rest << step) % by, left -= step;
  }
  return NAME(copysign)((F)rest / (F)hidden * NAME(of_bits)(least << MANTISSA), x);
}
RLX_INLINE F NAME(mod)(F a, F b) {
  const F r = NAME(fmod)(a, b);
  return r == 0 ? NAME(copysign)(0, b) : (r < 0) != (b < 0) ? r + b : r;
}
RLX_INLINE F NAME(floor_div)(F a, F b) {
  if (b == 0) return a / b;
  const F r = NAME(fmod)(a, b), q = (a - r) / b, d = r != 0 && (r < 0) != (b < 0) ? q - 1 : q, low = NAME(floor)(d);
  return d == 0 ? NAME(copysign)(0, a / b) : d - low > (F)0.5 ? low + 1 : low;
}

/* ---- activations, as rlxpy/ir/refs.py has them */
/* -x, but not beyond the arguments whose exponential is the most that counts */
RLX_INLINE F NAME(opposite)(F x) { return -x > -EXP_LEAST ? -EXP_LEAST : -x; }
/* 1 / (1 + exp(x)), x <= -EXP_LEAST: both sides of the bar times 2^-(BIAS/2), so that no exponential is too large.  The other bound is looked
   at last: gcc 12 makes three comparisons and three blends of two bounds in a row. */
RLX_INLINE F NAME(logistic)(F x) {
  const F zero = ROUNDER + BIAS - BIAS / 2, one = ROOT_OF_LEAST;
  const F t = NAME(fma)(x, LOG2E, zero), n = t - zero, r = NAME(fma)(n, -LN2_LO, NAME(fma)(n, -LN2_HI, x));
  const F y = one / NAME(fma)(NAME(fma)(r * r, NAME(exp_p)(r), r) + 1, NAME(power)(t), one);
  return x < -SIGMOID_MOST ? 1 : y;
}
RLX_INLINE F NAME(sigmoid)(F x) { return NAME(logistic)(NAME(opposite)(x)); }
RLX_INLINE F NAME(finite)(F x) { return x < LOWEST ? LOWEST : x; }  /* -inf times 0 would be NaN */
RLX_INLINE F NAME(silu)(F x) { const F c = NAME(opposite)(x); return -c * NAME(logistic)(c); }
RLX_INLINE F NAME(softplus)(F x) {
  const F e = NAME(exp)(-NAME(abs)(x));
  return NAME(maximum)(x, 0) + NAME(log1p_of)(e, 1 + e);
}
/* x times the share of the normal distribution that lies below x */
RLX_INLINE F NAME(gelu)(F x) {
  const F a = NAME(abs)(x), beyond = a > TAIL_MOST ? 0 : NAME(exp2_of_minus)(NAME(tail_p)(a));
  return NAME(finite)(x) * (x > 0 ? 1 - beyond : beyond);
}
RLX_INLINE F NAME(gelu_tanh)(F x) {
  const F inner = (F)0.79788456080286535588 * (x + (F)0.044715 * x * x * x);  /* a cube that overflows has tanh 1 or -1, too */
  return NAME(finite)(x) * ((F)0.5 * (1 + NAME(tanh)(inner)));
}

#undef F
#undef U
#undef MANTISSA
#undef BIAS
#undef ROUNDER
#undef LEAST_NORMAL
#undef SQRT_HALF
#undef HEAD
#undef LN2_HI
#undef LN2_LO
#undef LOG2E
#undef LOG2E_HI
#undef LOG2E_LO
#undef PI
#undef PI_LO
#undef EXP_LEAST
#undef EXP_MOST
#undef EXP2_LEAST
#undef EXP2_MOST
#undef EXPM1_LEAST
#undef EXPM1_MOST
#undef TANH_MOST
#undef ERF_MOST
#undef TAIL_MOST
#undef SIGMOID_MOST
#undef ROOT_OF_LEAST
#undef ROUND_TO
#undef SQRT
#undef NAME
#undef SIGN
#undef INFINITE
#undef NOT_A_NUMBER
#undef ONE
#undef LOWEST
/* The functions by the type of their first operand; the second is converted to it. */
#define RLX_OF_FLOAT(name, x) _Generic((x), f32: name##_f32, f64: name##_f64)
#define RLX_OF_INTEGER(name, x, ...) \
  _Generic((x), i8: name##_i8, i16: name##_i16, i32: name##_i32, i64: name##_i64, u8: name##_u8, u16: name##_u16, u32: name##_u32, u64: name##_u64 __VA_ARGS__)
#define RLX_OF_REAL(name, x) RLX_OF_INTEGER(name, x, , f32: name##_f32, f64: name##_f64)
#define rlx_exp(x) RLX_OF_FLOAT(rlx_exp, x)(x)
#define rlx_exp2(x) RLX_OF_FLOAT(rlx_exp2, x)(x)
#define rlx_expm1(x) RLX_OF_FLOAT(rlx_expm1, x)(x)
#define rlx_log(x) RLX_OF_FLOAT(rlx_log, x)(x)
#define rlx_log2(x) RLX_OF_FLOAT(rlx_log2, x)(x)
#define rlx_log1p(x) RLX_OF_FLOAT(rlx_log1p, x)(x)
#define rlx_sqrt(x) RLX_OF_FLOAT(rlx_sqrt, x)(x)
#define rlx_sin(x) RLX_OF_FLOAT(rlx_sin, x)(x)
#define rlx_cos(x) RLX_OF_FLOAT(rlx_cos, x)(x)
#define rlx_tan(x) RLX_OF_FLOAT(rlx_tan, x)(x)
#define rlx_asin(x) RLX_OF_FLOAT(rlx_asin, x)(x)
#define rlx_acos(x) RLX_OF_FLOAT(rlx_acos, x)(x)
#define rlx_atan(x) RLX_OF_FLOAT(rlx_atan, x)(x)
#define rlx_atan2(y, x) RLX_OF_FLOAT(rlx_atan2, y)(y, x)
#define rlx_sinh(x) RLX_OF_FLOAT(rlx_sinh, x)(x)
#define rlx_cosh(x) RLX_OF_FLOAT(rlx_cosh, x)(x)
#define rlx_tanh(x) RLX_OF_FLOAT(rlx_tanh, x)(x)
#define rlx_erf(x) RLX_OF_FLOAT(rlx_erf, x)(x)
#define rlx_pow(x, y) RLX_OF_FLOAT(rlx_pow, x)(x, y)
#define rlx_floor(x) RLX_OF_FLOAT(rlx_floor, x)(x)
#define rlx_ceil(x) RLX_OF_FLOAT(rlx_ceil, x)(x)
#define rlx_trunc(x) RLX_OF_FLOAT(rlx_trunc, x)(x)
#define rlx_rint(x) RLX_OF_FLOAT(rlx_rint, x)(x)
#define rlx_isnan(x) RLX_OF_FLOAT(rlx_isnan, x)(x)
#define rlx_isinf(x) RLX_OF_FLOAT(rlx_isinf, x)(x)
#define rlx_isfinite(x) RLX_OF_FLOAT(rlx_isfinite, x)(x)
#define rlx_sigmoid(x) RLX_OF_FLOAT(rlx_sigmoid, x)(x)
#define rlx_silu(x) RLX_OF_FLOAT(rlx_silu, x)(x)
#define rlx_softplus(x) RLX_OF_FLOAT(rlx_softplus, x)(x)
#define rlx_gelu(x) RLX_OF_FLOAT(rlx_gelu, x)(x)
#define rlx_gelu_tanh(x) RLX_OF_FLOAT(rlx_gelu_tanh, x)(x)
#define rlx_abs(x) RLX_OF_REAL(rlx_abs, x)(x)
#define rlx_sign(x) RLX_OF_REAL(rlx_sign, x)(x)
#define rlx_maximum(a, b) RLX_OF_REAL(rlx_maximum, a)(a, b)
#define rlx_minimum(a, b) RLX_OF_REAL(rlx_minimum, a)(a, b)
#define rlx_floor_div(a, b) RLX_OF_REAL(rlx_floor_div, a)(a, b)
#define rlx_mod(a, b) RLX_OF_REAL(rlx_mod, a)(a, b)
#define rlx_shl(a, by) RLX_OF_INTEGER(rlx_shl, a)(a, by)
#define rlx_shr(a, by) RLX_OF_INTEGER(rlx_shr, a)(a, by)
#define rlx_bit_not(a) RLX_OF_INTEGER(rlx_bit_not, a, , _Bool: rlx_bit_not_bool)(a)
RLX_INLINE i64 rlx_integer(i64 x) { return x; }
#define RLX_TO(x, T) ((T)_Generic((x), f32: rlx_f32_to_##T, f64: rlx_f64_to_##T, default: rlx_integer)(x))
#define rlx_to_i8(x) RLX_TO(x, i8)
#define rlx_to_i16(x) RLX_TO(x, i16)
#define rlx_to_i32(x) RLX_TO(x, i32)
#define rlx_to_i64(x) RLX_TO(x, i64)
#define rlx_to_u8(x) RLX_TO(x, u8)
#define rlx_to_u16(x) RLX_TO(x, u16)
#define rlx_to_u32(x) RLX_TO(x, u32)
#define rlx_to_u64(x) RLX_TO(x, u64)

enum { RLX_SYMBOLS = 0 };
/* Threads.  A caller goes through its steps alone until one has more than one task; then it offers the run to workers that are idle, and
   a counter a step deals out its tasks.  A step is over when all its tasks are done, and a run when its caller is through: a thread
   that the system has put aside holds up nobody unless it has a task in hand. */
#define RLX_NOINLINE __attribute__((noinline))
#if defined(__clang__)
#define RLX_AS_WRITTEN __attribute__((optnone, noinline))
#elif defined(__GNUC__)
#define RLX_AS_WRITTEN __attribute__((optimize("O0"), noinline))
#endif

typedef struct { u64 low, high; } rlx_pair;  /* 16 bytes that are only moved */

typedef struct {
  i64 next;     /* first task not yet taken */
  i32 done;
  i32 waiting;  /* threads that sleep until all are done */
} RLX_ALIGNED rlx_counter;

struct rlx_worker;
typedef struct rlx_pool {
  void (*run)(struct rlx_pool *, i64 first);
  struct rlx_worker *workers;
  i64 workers_count;
  i64 lo, hi, first;  /* steps lo..hi; workers begin with step `first` */
  char *arena, *state;
  void *const *lent, *const *fixed;
  const i64 *size;
  i32 threads;
  i32 users;  /* workers that may still read this; it is free for another run when there are none */
  rlx_counter step[];
} rlx_pool;

/* One idle or busy thread.  `offer` is the run it is asked to take part in, RLX_BUSY while it does, or nothing. */
typedef struct rlx_worker {
  rlx_pool *offer;
  i32 bell, asleep;
} RLX_ALIGNED rlx_worker;
#define RLX_BUSY ((rlx_pool *)1)

typedef f32 rlx_v __attribute__((vector_size(4 * RLX_VL), aligned(4)));  /* a vector anywhere in memory */

/* A unit compiled with RLX_PROFILE notes when each thread began and ended its part of each step; otherwise nothing of this is there. */
#ifdef RLX_PROFILE
typedef struct { i64 begin, end; } rlx_span;  /* ns of the monotonic clock */
typedef struct { long s, ns; } rlx_timespec;
int clock_gettime(int clock, rlx_timespec *now);
static struct { rlx_span *at; i64 steps, threads; i32 joined; } rlx_spans;

/* at: zeros, [threads][steps]. */
RLX_EXPORT void rlx_profile(rlx_span *at, i64 steps, i64 threads) { rlx_spans.at = at; rlx_spans.steps = steps; rlx_spans.threads = threads; }

static i64 rlx_now(void) {
  rlx_timespec t;
#if defined(__APPLE__)
  clock_gettime(6, &t);
#else
  clock_gettime(1, &t);
#endif
  return t.s*1000000000LL + t.ns;
}

/* The row of a thread that joins a run: its caller comes first. */
static rlx_span *rlx_join(void) { return rlx_spans.at + __atomic_fetch_add(&rlx_spans.joined, 1, __ATOMIC_RELAXED) % rlx_spans.threads * rlx_spans.steps; }

#define RLX_LEAD rlx_spans.joined = 0;
#define RLX_JOIN rlx_span *const spans = rlx_join();
#define RLX_BEGIN const i64 begin_ = rlx_now();
#define RLX_END(took_part) if (took_part) spans[step] = (rlx_span){begin_, rlx_now()};
#else
#define RLX_LEAD
#define RLX_JOIN
#define RLX_BEGIN
#define RLX_END(took_part)
#endif

enum { RLX_SPINS = 4000 };  /* tens of us: longer than a step's imbalance and the gap between two calls, far shorter than a time slice */

static void rlx_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

#if defined(__linux__)
#if defined(__x86_64__)
#define RLX_SYS_FUTEX 202
#else
#define RLX_SYS_FUTEX 98
#endif
long syscall(long number, ...);
/* Sleep while *word is `value`; may return early. */
static void rlx_sleep(i32 *word, i32 value) { syscall(RLX_SYS_FUTEX, word, 128 /* wait, private */, value, (void *)0, (void *)0, 0); }
static void rlx_wake(i32 *word) { syscall(RLX_SYS_FUTEX, word, 129 /* wake, private */, 0x7fffffff, (void *)0, (void *)0, 0); }
#else
int sched_yield(void);
static void rlx_sleep(i32 *word, i32 value) { (void)word; (void)value; sched_yield(); }
static void rlx_wake(i32 *word) { (void)word; }
#endif

/* Ask every idle worker to take part from step `first` on. */
static RLX_NOINLINE void rlx_engage(rlx_pool *pool, i64 first) {
  pool->first = first;
  i32 threads = 1;
  for (i64 k = 0; k < pool->workers_count; k++) {
    rlx_worker *const w = &pool->workers[k];
    rlx_pool *none = 0;
    if (__atomic_load_n(&w->offer, __ATOMIC_RELAXED)) continue;
    __atomic_fetch_add(&pool->users, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&pool->threads, 2, __ATOMIC_RELAXED);
    if (!__atomic_compare_exchange_n(&w->offer, &none, pool, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {
      __atomic_fetch_sub(&pool->users, 1, __ATOMIC_RELAXED);
      continue;
    }
    threads++;
    __atomic_fetch_add(&w->bell, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&w->asleep, __ATOMIC_SEQ_CST)) rlx_wake(&w->bell);
  }
  if (threads == 1) __atomic_store_n(&pool->threads, 1, __ATOMIC_RELAXED);
}

/* A run, from its first step to its last. */
RLX_INLINE void rlx_lead(rlx_pool *pool, void (*run)(rlx_pool *, i64)) {
  __builtin_memset(pool->step, 0, (u64)(pool->hi - pool->lo) * sizeof *pool->step);
  pool->run = run;
  pool->threads = 1;
  RLX_LEAD
  run(pool, pool->lo);
  for (i64 k = 0; pool->threads > 1 && k < pool->workers_count; k++) {  /* take back what nobody took up */
    rlx_pool *mine = pool;
    if (__atomic_compare_exchange_n(&pool->workers[k].offer, &mine, (rlx_pool *)0, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
      __atomic_fetch_sub(&pool->users, 1, __ATOMIC_RELAXED);
  }
}

/* A worker's life.  It never returns. */
RLX_EXPORT void rlx_work(rlx_worker *w) {
  for (;;) {
    const i32 heard = __atomic_load_n(&w->bell, __ATOMIC_SEQ_CST);
    rlx_pool *offer = 0;
    for (int spin = 0; spin < RLX_SPINS && !(offer = __atomic_load_n(&w->offer, __ATOMIC_RELAXED)); spin++) rlx_pause();
    if (!offer) {
      __atomic_store_n(&w->asleep, 1, __ATOMIC_SEQ_CST);
      if (!__atomic_load_n(&w->offer, __ATOMIC_SEQ_CST)) rlx_sleep(&w->bell, heard);
      __atomic_store_n(&w->asleep, 0, __ATOMIC_SEQ_CST);
    } else if (__atomic_compare_exchange_n(&w->offer, &offer, RLX_BUSY, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
      offer->run(offer, offer->first);
      __atomic_fetch_sub(&offer->users, 1, __ATOMIC_RELEASE);
      __atomic_store_n(&w->offer, (rlx_pool *)0, __ATOMIC_RELEASE);
    }
  }
}

static void rlx_finish(rlx_counter *c, i32 mine) {
  __atomic_fetch_add(&c->done, mine, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&c->waiting, __ATOMIC_SEQ_CST)) rlx_wake(&c->done);
}

static void rlx_wait(rlx_counter *c, i32 wanted) {
  for (int spin = 0; spin < RLX_SPINS; spin++) {
    if (__atomic_load_n(&c->done, __ATOMIC_ACQUIRE) >= wanted) return;
    rlx_pause();
  }
  __atomic_store_n(&c->waiting, 1, __ATOMIC_SEQ_CST);
  for (i32 done; (done = __atomic_load_n(&c->done, __ATOMIC_SEQ_CST)) < wanted;) rlx_sleep(&c->done, done);
}

/* Steps `first`..hi in order; every thread of a run goes through them, and takes its share of their tasks.  `task` does tasks t0..t1 of a
   step, or says how many there are; where it says -1, every thread calls `walk`. */
static void rlx_share(rlx_pool *pool, i64 first, i64 (*task)(const rlx_pool *, i64 step, i64 t0, i64 t1), void (*walk)(rlx_pool *, i64 step)) {
  RLX_JOIN
  for (i64 step = first; step < pool->hi; step++) {
    const i64 tasks = task(pool, step, -1, 0);
    if (tasks == 0) continue;
    if (tasks > 1 && __atomic_load_n(&pool->threads, __ATOMIC_RELAXED) == 1) rlx_engage(pool, step);
    RLX_BEGIN
    if (tasks < 0) {
      walk(pool, step);
      RLX_END(1)
      continue;
    }
    if (__atomic_load_n(&pool->threads, __ATOMIC_RELAXED) == 1) {
      task(pool, step, 0, tasks);
      RLX_END(1)
      continue;
    }
    rlx_counter *const counter = &pool->step[step - pool->lo];
    i32 mine = 0;
    for (i64 t; (t = __atomic_fetch_add(&counter->next, 1, __ATOMIC_RELAXED)) < tasks; mine++) task(pool, step, t, t + 1);
    RLX_END(mine)
    if (mine) rlx_finish(counter, mine);
    rlx_wait(counter, (i32)tasks);
  }
}
#define RLX_TASKS(count, call) { if (t0 < 0) return (count); call; }

/* Loops and branches are one step each, whose kernels run again and again on one rlx_loop, in the place of the step's counter.  Threads go
   through them in one order and count the kernels as they go: the upper half of `next` and `done` says of which kernel the lower half
   tells, so that a thread that is behind finds the others done with its kernel, and catches up.  What data decides is said in `go`, and
   when that is of another kernel the thread leaves the rest of the loop to the others.  Behind the end everything is said to be over. */
typedef struct {
  u64 next, done, go;
  i32 turns, waiting;  /* kernels done, for threads to sleep on; whether any does */
} RLX_ALIGNED rlx_loop;
#define RLX_OVER (~(u64)0)

RLX_INLINE i64 rlx_ticket(rlx_loop *loop, u64 kernel, i64 tasks) {
  for (u64 seen = __atomic_load_n(&loop->next, __ATOMIC_ACQUIRE);;) {
    const i64 mine = seen >> 32 == kernel ? (i64)(u32)seen : 0;
    if (seen >> 32 > kernel || mine >= tasks) return -1;
    if (__atomic_compare_exchange_n(&loop->next, &seen, kernel << 32 | (u64)(mine + 1), 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return mine;
  }
}

static RLX_UNUSED void rlx_await(rlx_loop *loop, u64 wanted) {
  for (int spin = 0; spin < RLX_SPINS; spin++) {
    if (__atomic_load_n(&loop->done, __ATOMIC_ACQUIRE) >= wanted) return;
    rlx_pause();
  }
  __atomic_store_n(&loop->waiting, 1, __ATOMIC_SEQ_CST);
  for (;;) {
    const i32 turns = __atomic_load_n(&loop->turns, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&loop->done, __ATOMIC_SEQ_CST) >= wanted) return;
    rlx_sleep(&loop->turns, turns);
  }
}

static RLX_UNUSED void rlx_turn(rlx_loop *loop) {
  __atomic_fetch_add(&loop->turns, 1, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&loop->waiting, __ATOMIC_SEQ_CST)) rlx_wake(&loop->turns);
}

/* `mine` tasks of a kernel are done here; go on when all are. */
static RLX_UNUSED void rlx_through(rlx_loop *loop, u64 kernel, i64 mine, i64 tasks) {
  const u64 wanted = kernel << 32 | (u64)tasks;
  u64 seen = __atomic_load_n(&loop->done, __ATOMIC_ACQUIRE), now = 0;
  while (mine && !__atomic_compare_exchange_n(&loop->done, &seen, now = kernel << 32 | (u64)((seen >> 32 == kernel ? (i64)(u32)seen : 0) + mine), 0,
                                              __ATOMIC_SEQ_CST, __ATOMIC_ACQUIRE)) {}
  if (now == wanted) rlx_turn(loop);
  else if (tasks) rlx_await(loop, wanted);
}

static RLX_UNUSED void rlx_over(rlx_loop *loop) {
  __atomic_store_n(&loop->next, RLX_OVER, __ATOMIC_SEQ_CST);
  if (__atomic_exchange_n(&loop->done, RLX_OVER, __ATOMIC_SEQ_CST) != RLX_OVER) rlx_turn(loop);
}

/* alone: every kernel is a single task, so that one thread does it all. */
#define RLX_LOOP_BEGIN(alone) \
  __label__ behind_; \
  rlx_loop *const loop_ = (rlx_loop *)&pool->step[step - lo]; \
  const int alone_ = (alone); \
  if (!alone_ && __atomic_load_n(&pool->threads, __ATOMIC_RELAXED) == 1) rlx_engage(pool, step); \
  const int many_ = __atomic_load_n(&pool->threads, __ATOMIC_RELAXED) > 1, together_ = many_ && !alone_; \
  u64 kernel_ = 0; (void)kernel_; \
  RLX_BEGIN \
  if (together_ || !many_ || rlx_ticket(loop_, 1, 1) == 0) {
#define RLX_LOOP_END \
    RLX_END(1) \
    rlx_over(loop_); \
  } else { behind_: RLX_UNUSED; rlx_await(loop_, RLX_OVER); }
#define RLX_AGAIN(count, ...) { const i64 tasks_ = (count); \
  if (!together_) { const i64 t0 = 0, t1 = tasks_; (void)t0; (void)t1; __VA_ARGS__; } \
  else { \
    i64 mine_ = 0; \
    if (__atomic_load_n(&loop_->next, __ATOMIC_RELAXED) == RLX_OVER) goto behind_; \
    kernel_++; \
    for (i64 t0; (t0 = rlx_ticket(loop_, kernel_, tasks_)) >= 0; mine_++) { const i64 t1 = t0 + 1; (void)t1; __VA_ARGS__; } \
    rlx_through(loop_, kernel_, mine_, tasks_); \
  } }
/* `name` is what the byte at `flag` says, read by one thread for all. */
#define RLX_DECIDE(name, flag) \
  RLX_AGAIN(1, __atomic_store_n(&loop_->go, kernel_ << 1 | (*(const u8 *)(flag) != 0), __ATOMIC_RELEASE)) \
  const u64 said_##name = __atomic_load_n(&loop_->go, __ATOMIC_ACQUIRE); \
  if (said_##name >> 1 != kernel_) goto behind_; \
  const int name = (int)(said_##name & 1);

/* Sizes end with {step node + 1, index, bound}, written by the first kernel that meets a bad index, and the undo log. */
typedef struct {
  i64 node, index, bound;
  char *log;
  i64 used;
} rlx_tail;

static rlx_tail *rlx_tail_of(const i64 *size) { return (rlx_tail *)(size + RLX_SYMBOLS); }

static void rlx_fail(const i64 *size, i64 node, i64 index, i64 bound) {
  rlx_tail *const tail = rlx_tail_of(size);
  i64 none = 0;
  if (__atomic_compare_exchange_n(&tail->node, &none, node + 1, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) { tail->index = index; tail->bound = bound; }
}

/* Note what memory holds before it is overwritten, so that a run that fails can put it back: the bytes, then where and how many. */
typedef struct { char *where; i64 nbytes; } rlx_note;

static RLX_UNUSED void rlx_keep(const i64 *size, void *where, i64 nbytes) {
  rlx_tail *const tail = rlx_tail_of(size);
  const i64 room = (nbytes + 15) / 16 * 16;
  char *const to = tail->log + __atomic_fetch_add(&tail->used, room + (i64)sizeof(rlx_note), __ATOMIC_RELAXED);
  __builtin_memcpy(to, where, (u64)nbytes);
  *(rlx_note *)(to + room) = (rlx_note){where, nbytes};
}

/* Everything noted, the last first. */
RLX_EXPORT void rlx_undo(rlx_tail *tail) {
  while (tail->used) {
    const rlx_note note = *(rlx_note *)(tail->log + tail->used - sizeof(rlx_note));
    tail->used -= (i64)sizeof note + (note.nbytes + 15) / 16 * 16;
    __builtin_memcpy(note.where, tail->log + tail->used, (u64)note.nbytes);
  }
}

/* Order by key.  An item has its key in the upper half and its index in the lower, so equal keys stand in the order of their indices. */
typedef unsigned __int128 u128;

/* A key that grows with x; 0.0 and -0.0 are equal, NaN is greatest, also of the keys that `flip` (all ones) turns round. */
RLX_INLINE u32 rlx_key_f32(f32 x, u32 flip) { const u32 u = rlx_bits_f32(x + 0.0f); return x != x ? (u32)-1 : ((i32)u < 0 ? ~u : u | (u32)1 << 31) ^ flip; }
RLX_INLINE u64 rlx_key_f64(f64 x, u64 flip) { const u64 u = rlx_bits_f64(x + 0.0); return x != x ? (u64)-1 : ((i64)u < 0 ? ~u : u | (u64)1 << 63) ^ flip; }

/* n items, which begin in the order of their indices, sorted by `digits` bytes of their keys; the result is in a or in other. */
RLX_UNUSED static u64 *rlx_sort_u64(u64 *a, u64 *other, i64 n, int digits) {
  if (n <= 48) {  /* below this, insertion is quicker than counting */
    for (i64 i = 1; i < n; i++) {
      const u64 item = a[i];
      i64 j = i;
      for (; j > 0 && a[j - 1] > item; j--) a[j] = a[j - 1];
      a[j] = item;
    }
    return a;
  }
  for (int shift = 32; shift < 32 + 8*digits; shift += 8) {
    i64 start[256] = {0}, before = 0;
    for (i64 i = 0; i < n; i++) start[(u8)(a[i] >> shift)]++;
    if (start[(u8)(a[0] >> shift)] == n) continue;  /* one digit everywhere */
    for (int d = 0; d < 256; d++) { const i64 count = start[d]; start[d] = before; before += count; }
    for (i64 i = 0; i < n; i++) other[start[(u8)(a[i] >> shift)]++] = a[i];
    u64 *const sorted = other;
    other = a;
    a = sorted;
  }
  return a;
}

/* heap[at] sinks to its place among n items whose greatest is to be first. */
RLX_INLINE void rlx_sink_u64(u64 *heap, i64 at, i64 n) {
  const u64 item = heap[at];
  for (i64 child; (child = 2*at + 1) < n; at = child) {
    if (child + 1 < n && heap[child + 1] > heap[child]) child++;
    if (heap[child] <= item) break;
    heap[at] = heap[child];
  }
  heap[at] = item;
}

RLX_UNUSED static void rlx_heap_u64(u64 *heap, i64 n) { for (i64 i = n/2; i-- > 0;) rlx_sink_u64(heap, i, n); }

RLX_UNUSED static void rlx_replace_u64(u64 *heap, i64 n, u64 item) { heap[0] = item; rlx_sink_u64(heap, 0, n); }

/* A heap becomes sorted, the least first. */
RLX_UNUSED static void rlx_unheap_u64(u64 *heap, i64 n) {
  for (i64 last = n - 1; last > 0; last--) {
    const u64 greatest = heap[0];
    heap[0] = heap[last];
    heap[last] = greatest;
    rlx_sink_u64(heap, 0, last);
  }
}

/* n items, which begin in the order of their indices, sorted by `digits` bytes of their keys; the result is in a or in other. */
RLX_UNUSED static u128 *rlx_sort_u128(u128 *a, u128 *other, i64 n, int digits) {
  if (n <= 48) {  /* below this, insertion is quicker than counting */
    for (i64 i = 1; i < n; i++) {
      const u128 item = a[i];
      i64 j = i;
      for (; j > 0 && a[j - 1] > item; j--) a[j] = a[j - 1];
      a[j] = item;
    }
    return a;
  }
  for (int shift = 64; shift < 64 + 8*digits; shift += 8) {
    i64 start[256] = {0}, before = 0;
    for (i64 i = 0; i < n; i++) start[(u8)(a[i] >> shift)]++;
    if (start[(u8)(a[0] >> shift)] == n) continue;  /* one digit everywhere */
    for (int d = 0; d < 256; d++) { const i64 count = start[d]; start[d] = before; before += count; }
    for (i64 i = 0; i < n; i++) other[start[(u8)(a[i] >> shift)]++] = a[i];
    u128 *const sorted = other;
    other = a;
    a = sorted;
  }
  return a;
}

/* heap[at] sinks to its place among n items whose greatest is to be first. */
RLX_INLINE void rlx_sink_u128(u128 *heap, i64 at, i64 n) {
  const u128 item = heap[at];
  for (i64 child; (child = 2*at + 1) < n; at = child) {
    if (child + 1 < n && heap[child + 1] > heap[child]) child++;
    if (heap[child] <= item) break;
    heap[at] = heap[child];
  }
  heap[at] = item;
}

RLX_UNUSED static void rlx_heap_u128(u128 *heap, i64 n) { for (i64 i = n/2; i-- > 0;) rlx_sink_u128(heap, i, n); }

RLX_UNUSED static void rlx_replace_u128(u128 *heap, i64 n, u128 item) { heap[0] = item; rlx_sink_u128(heap, 0, n); }

/* A heap becomes sorted, the least first. */
RLX_UNUSED static void rlx_unheap_u128(u128 *heap, i64 n) {
  for (i64 last = n - 1; last > 0; last--) {
    const u128 greatest = heap[0];
    heap[0] = heap[last];
    heap[last] = greatest;
    rlx_sink_u128(heap, 0, last);
  }
}


/* What attention kernels share: vectors at any address, their sums, exponentials of differences, rows of f16. */
typedef f32 rlx_any_vector __attribute__((vector_size(4 * RLX_VL), aligned(4)));  /* at an address that need not be a multiple of its size */

RLX_INLINE f32 rlx_sum_of_lanes(rlx_vector v) {
  const union { rlx_vector v; f32 x[RLX_VL]; } of = {.v = v};
  f32 s[RLX_VL];
  for (int l = 0; l < RLX_VL; l++) s[l] = of.x[l];
  for (int half = RLX_VL / 2; half > 0; half /= 2)
    for (int l = 0; l < half; l++) s[l] += s[l + half];
  return s[0];
}

/* exp(x) of x <= 0, 0 below the normal numbers, within 1.2 units in the last place; NaN stays NaN */
RLX_INLINE f32 rlx_exp_below(f32 x) {
  const f32 zero = 0x1.8p23f + 127, t = rlx_fma_f32(x, 0x1.715476p+0f, zero), n = t - zero;  /* x = n ln 2 + r */
  const f32 r = rlx_fma_f32(n, -0x1.7f7d1cp-20f, rlx_fma_f32(n, -0x1.62e4p-1f, x));
  return x < -87.0f ? 0 : (rlx_fma_f32(r * r, rlx_exp_p_f32(r), r) + 1) * rlx_power_f32(t);
}

/* n codes of f16, side by side, as f32 */
RLX_INLINE void rlx_widen_f16(f32 *restrict to, const u16 *restrict from, i64 n) {
  i64 c = 0;
#if defined(__F16C__)
  typedef f32 eight __attribute__((vector_size(32), aligned(4)));
  typedef i16 codes __attribute__((vector_size(16), aligned(2)));
  for (; c + 8 <= n; c += 8) *(eight *)(to + c) = RLX_WIDEN8(*(const codes *)(from + c));
#endif
  RLX_SIMD
  for (i64 j = c; j < n; j++) to[j] = rlx_load_f16(from[j]);
}

/* rlx_tile_f32: c[height][panels*16] = a[height][K] x b[panels][K][16], element (i, k) of a at a[i*lda + k*a_step].
   panels: 1, or for few rows rlx_panels_f32(height).  b + ahead is fetched while b is read, 0 for nothing new.  Panels are packed by rlxpy/backends/cpu/packing.py and rlx_panel_*. */

static RLX_NOINLINE void rlx_tile_f32_1x1(i64 K, i64 ahead, const f32 *restrict a, i64 lda, i64 a_step, const f32 *restrict b, f32 *restrict c) {
  (void)ahead;
  typedef f32 v __attribute__((vector_size(32), aligned(4)));
  const f32 *a0 = a + 0*lda; v c0_0 = {0}, c0_1 = {0};
  const f32 *b0 = b + 0*K*16;
  for (i64 k = 0; k < K; k++) {
    const v w0 = *(const v *)(b0), w1 = *(const v *)(b0 + 8);
    __builtin_prefetch(b0 + 512);
    b0 += 16;
    { const v x = a0[k*a_step] - (v){0}; c0_0 = RLX_VFMA(x, w0, c0_0); c0_1 = RLX_VFMA(x, w1, c0_1); }
  }
  *(v *)(c + 0) = c0_0;
  *(v *)(c + 8) = c0_1;
}

static RLX_NOINLINE void rlx_tile_f32_2x1(i64 K, i64 ahead, const f32 *restrict a, i64 lda, i64 a_step, const f32 *restrict b, f32 *restrict c) {
  (void)ahead;
  typedef f32 v __attribute__((vector_size(32), aligned(4)));
  const f32 *a0 = a + 0*lda; v c0_0 = {0}, c0_1 = {0};
  const f32 *a1 = a + 1*lda; v c1_0 = {0}, c1_1 = {0};
  const f32 *b0 = b + 0*K*16;
  for (i64 k = 0; k < K; k++) {
    const v w0 = *(const v *)(b0), w1 = *(const v *)(b0 + 8);
    __builtin_prefetch(b0 + 512);
    b0 += 16;
    { const v x = a0[k*a_step] - (v){0}; c0_0 = RLX_VFMA(x, w0, c0_0); c0_1 = RLX_VFMA(x, w1, c0_1); }
    { const v x = a1[k*a_step] - (v){0}; c1_0 = RLX_VFMA(x, w0, c1_0); c1_1 = RLX_VFMA(x, w1, c1_1); }
  }
  *(v *)(c + 0) = c0_0;
  *(v *)(c + 8) = c0_1;
  *(v *)(c + 16) = c1_0;
  *(v *)(c + 24) = c1_1;
}

static RLX_NOINLINE void rlx_tile_f32_3x1(i64 K, i64 ahead, const f32 *restrict a, i64 lda, i64 a_step, const f32 *restrict b, f32 *restrict c) {
  (void)ahead;
  typedef f32 v __attribute__((vector_size(32), aligned(4)));
  const f32 *a0 = a + 0*lda; v c0_0 = {0}, c0_1 = {0};
  const f32 *a1 = a + 1*lda; v c1_0 = {0}, c1_1 = {0};
  const f32 *a2 = a + 2*lda; v c2_0 = {0}, c2_1 = {0};
  const f32 *b0 = b + 0*K*16;
  for (i64 k = 0; k < K; k++) {
    const v w0 = *(const v *)(b0), w1 = *(const v *)(b0 + 8);
    __builtin_prefetch(b0 + ahead, 0, 2);
    b0 += 16;
    { const v x = a0[k*a_step] - (v){0}; c0_0 = RLX_VFMA(x, w0, c0_0); c0_1 = RLX_VFMA(x, w1, c0_1); }
    { const v x = a1[k*a_step] - (v){0}; c1_0 = RLX_VFMA(x, w0, c1_0); c1_1 = RLX_VFMA(x, w1, c1_1); }
    { const v x = a2[k*a_step] - (v){0}; c2_0 = RLX_VFMA(x, w0, c2_0); c2_1 = RLX_VFMA(x, w1, c2_1); }
  }
  *(v *)(c + 0) = c0_0;
  *(v *)(c + 8) = c0_1;
  *(v *)(c + 16) = c1_0;
  *(v *)(c + 24) = c1_1;
  *(v *)(c + 32) = c2_0;
  *(v *)(c + 40) = c2_1;
}

static RLX_NOINLINE void rlx_tile_f32_4x1(i64 K, i64 ahead, const f32 *restrict a, i64 lda, i64 a_step, const f32 *restrict b, f32 *restrict c) {
  (void)ahead;
  typedef f32 v __attribute__((vector_size(32), aligned(4)));
  const f32 *a0 = a + 0*lda; v c0_0 = {0}, c0_1 = {0};
  const f32 *a1 = a + 1*lda; v c1_0 = {0}, c1_1 = {0};
  const f32 *a2 = a + 2*lda; v c2_0 = {0}, c2_1 = {0};
  const f32 *a3 = a + 3*lda; v c3_0 = {0}, c3_1 = {0};
  const f32 *b0 = b + 0*K*16;
  for (i64 k = 0; k < K; k++) {
    const v w0 = *(const v *)(b0), w1 = *(const v *)(b0 + 8);
    __builtin_prefetch(b0 + ahead, 0, 2);
    b0 += 16;
    { const v x = a0[k*a_step] - (v){0}; c0_0 = RLX_VFMA(x, w0, c0_0); c0_1 = RLX_VFMA(x, w1, c0_1); }
    { const v x = a1[k*a_step] - (v){0}; c1_0 = RLX_VFMA(x, w0, c1_0); c1_1 = RLX_VFMA(x, w1, c1_1); }
    { const v x = a2[k*a_step] - (v){0}; c2_0 = RLX_VFMA(x, w0, c2_0); c2_1 = RLX_VFMA(x, w1, c2_1); }
    { const v x = a3[k*a_step] - (v){0}; c3_0 = RLX_VFMA(x, w0, c3_0); c3_1 = RLX_VFMA(x, w1, c3_1); }
  }
  *(v *)(c + 0) = c0_0;
  *(v *)(c + 8) = c0_1;
  *(v *)(c + 16) = c1_0;
  *(v *)(c + 24) = c1_1;
  *(v *)(c + 32) = c2_0;
  *(v *)(c + 40) = c2_1;
  *(v *)(c + 48) = c3_0;
  *(v *)(c + 56) = c3_1;
}

static RLX_NOINLINE void rlx_tile_f32_5x1(i64 K, i64 ahead, const f32 *restrict a, i64 lda, i64 a_step, const f32 *restrict b, f32 *restrict c) {
  (void)ahead;
  typedef f32 v __attribute__((vector_size(32), aligned(4)));
  const f32 *a0 = a + 0*lda; v c0_0 = {0}, c0_1 = {0};
  const f32 *a1 = a + 1*lda; v c1_0 = {0}, c1_1 = {0};
  const f32 *a2 = a + 2*lda; v c2_0 = {0}, c2_1 = {0};
  const f32 *a3 = a + 3*lda; v c3_0 = {0}, c3_1 = {0};
  const f32 *a4 = a + 4*lda; v c4_0 = {0}, c4_1 = {0};
  const f32 *b0 = b + 0*K*16;
  for (i64 k = 0; k < K; k++) {
    const v w0 = *(const v *)(b0), w1 = *(const v *)(b0 + 8);
    __builtin_prefetch(b0 + ahead, 0, 2);
    b0 += 16;
    { const v x = a0[k*a_step] - (v){0}; c0_0 = RLX_VFMA(x, w0, c0_0); c0_1 = RLX_VFMA(x, w1, c0_1); }
    { const v x = a1[k*a_step] - (v){0}; c1_0 = RLX_VFMA(x, w0, c1_0); c1_1 = RLX_VFMA(x, w1, c1_1); }
    { const v x = a2[k*a_step] - (v){0}; c2_0 = RLX_VFMA(x, w0, c2_0); c2_1 = RLX_VFMA(x, w1, c2_1); }
    { const v x = a3[k*a_step] - (v){0}; c3_0 = RLX_VFMA(x, w0, c3_0); c3_1 = RLX_VFMA(x, w1, c3_1); }
    { const v x = a4[k*a_step] - (v){0}; c4_0 = RLX_VFMA(x, w0, c4_0); c4_1 = RLX_VFMA(x, w1, c4_1); }
  }
  *(v *)(c + 0) = c0_0;
  *(v *)(c + 8) = c0_1;
  *(v *)(c + 16) = c1_0;
  *(v *)(c + 24) = c1_1;
  *(v *)(c + 32) = c2_0;
  *(v *)(c + 40) = c2_1;
  *(v *)(c + 48) = c3_0;
  *(v *)(c + 56) = c3_1;
  *(v *)(c + 64) = c4_0;
  *(v *)(c + 72) = c4_1;
}

static RLX_NOINLINE void rlx_tile_f32_6x1(i64 K, i64 ahead, const f32 *restrict a, i64 lda, i64 a_step, const f32 *restrict b, f32 *restrict c) {
  (void)ahead;
  typedef f32 v __attribute__((vector_size(32), aligned(4)));
  const f32 *a0 = a + 0*lda; v c0_0 = {0}, c0_1 = {0};
  const f32 *a1 = a + 1*lda; v c1_0 = {0}, c1_1 = {0};
  const f32 *a2 = a + 2*lda; v c2_0 = {0}, c2_1 = {0};
  const f32 *a3 = a + 3*lda; v c3_0 = {0}, c3_1 = {0};
  const f32 *a4 = a + 4*lda; v c4_0 = {0}, c4_1 = {0};
  const f32 *a5 = a + 5*lda; v c5_0 = {0}, c5_1 = {0};
  const f32 *b0 = b + 0*K*16;
  for (i64 k = 0; k < K; k++) {
    const v w0 = *(const v *)(b0), w1 = *(const v *)(b0 + 8);
    __builtin_prefetch(b0 + ahead, 0, 2);
    b0 += 16;
    { const v x = a0[k*a_step] - (v){0}; c0_0 = RLX_VFMA(x, w0, c0_0); c0_1 = RLX_VFMA(x, w1, c0_1); }
    { const v x = a1[k*a_step] - (v){0}; c1_0 = RLX_VFMA(x, w0, c1_0); c1_1 = RLX_VFMA(x, w1, c1_1); }
    { const v x = a2[k*a_step] - (v){0}; c2_0 = RLX_VFMA(x, w0, c2_0); c2_1 = RLX_VFMA(x, w1, c2_1); }
    { const v x = a3[k*a_step] - (v){0}; c3_0 = RLX_VFMA(x, w0, c3_0); c3_1 = RLX_VFMA(x, w1, c3_1); }
    { const v x = a4[k*a_step] - (v){0}; c4_0 = RLX_VFMA(x, w0, c4_0); c4_1 = RLX_VFMA(x, w1, c4_1); }
    { const v x = a5[k*a_step] - (v){0}; c5_0 = RLX_VFMA(x, w0, c5_0); c5_1 = RLX_VFMA(x, w1, c5_1); }
  }
  *(v *)(c + 0) = c0_0;
  *(v *)(c + 8) = c0_1;
  *(v *)(c + 16) = c1_0;
  *(v *)(c + 24) = c1_1;
  *(v *)(c + 32) = c2_0;
  *(v *)(c + 40) = c2_1;
  *(v *)(c + 48) = c3_0;
  *(v *)(c + 56) = c3_1;
  *(v *)(c + 64) = c4_0;
  *(v *)(c + 72) = c4_1;
  *(v *)(c + 80) = c5_0;
  *(v *)(c + 88) = c5_1;
}

static RLX_NOINLINE void rlx_tile_f32_1x4(i64 K, i64 ahead, const f32 *restrict a, i64 lda, i64 a_step, const f32 *restrict b, f32 *restrict c) {
  (void)ahead;
  typedef f32 v __attribute__((vector_size(32), aligned(4)));
  const f32 *a0 = a + 0*lda; v c0_0 = {0}, c0_1 = {0}, c0_2 = {0}, c0_3 = {0}, c0_4 = {0}, c0_5 = {0}, c0_6 = {0}, c0_7 = {0};
  const f32 *b0 = b + 0*K*16;
  const f32 *b1 = b + 1*K*16;
  const f32 *b2 = b + 2*K*16;
  const f32 *b3 = b + 3*K*16;
  for (i64 k = 0; k < K; k++) {
    const v w0 = *(const v *)(b0), w1 = *(const v *)(b0 + 8);
    __builtin_prefetch(b0 + 512);
    b0 += 16;
    const v w2 = *(const v *)(b1), w3 = *(const v *)(b1 + 8);
    __builtin_prefetch(b1 + 512);
    b1 += 16;
    const v w4 = *(const v *)(b2), w5 = *(const v *)(b2 + 8);
    __builtin_prefetch(b2 + 512);
    b2 += 16;
    const v w6 = *(const v *)(b3), w7 = *(const v *)(b3 + 8);
    __builtin_prefetch(b3 + 512);
    b3 += 16;
    { const v x = a0[k*a_step] - (v){0}; c0_0 = RLX_VFMA(x, w0, c0_0); c0_1 = RLX_VFMA(x, w1, c0_1); c0_2 = RLX_VFMA(x, w2, c0_2); c0_3 = RLX_VFMA(x, w3, c0_3); c0_4 = RLX_VFMA(x, w4, c0_4); c0_5 = RLX_VFMA(x, w5, c0_5); c0_6 = RLX_VFMA(x, w6, c0_6); c0_7 = RLX_VFMA(x, w7, c0_7); }
  }
  *(v *)(c + 0) = c0_0;
  *(v *)(c + 8) = c0_1;
  *(v *)(c + 16) = c0_2;
  *(v *)(c + 24) = c0_3;
  *(v *)(c + 32) = c0_4;
  *(v *)(c + 40) = c0_5;
  *(v *)(c + 48) = c0_6;
  *(v *)(c + 56) = c0_7;
}

static RLX_NOINLINE void rlx_tile_f32_2x2(i64 K, i64 ahead, const f32 *restrict a, i64 lda, i64 a_step, const f32 *restrict b, f32 *restrict c) {
  (void)ahead;
  typedef f32 v __attribute__((vector_size(32), aligned(4)));
  const f32 *a0 = a + 0*lda; v c0_0 = {0}, c0_1 = {0}, c0_2 = {0}, c0_3 = {0};
  const f32 *a1 = a + 1*lda; v c1_0 = {0}, c1_1 = {0}, c1_2 = {0}, c1_3 = {0};
  const f32 *b0 = b + 0*K*16;
  const f32 *b1 = b + 1*K*16;
  for (i64 k = 0; k < K; k++) {
    const v w0 = *(const v *)(b0), w1 = *(const v *)(b0 + 8);
    __builtin_prefetch(b0 + 512);
    b0 += 16;
    const v w2 = *(const v *)(b1), w3 = *(const v *)(b1 + 8);
    __builtin_prefetch(b1 + 512);
    b1 += 16;
    { const v x = a0[k*a_step] - (v){0}; c0_0 = RLX_VFMA(x, w0, c0_0); c0_1 = RLX_VFMA(x, w1, c0_1); c0_2 = RLX_VFMA(x, w2, c0_2); c0_3 = RLX_VFMA(x, w3, c0_3); }
    { const v x = a1[k*a_step] - (v){0}; c1_0 = RLX_VFMA(x, w0, c1_0); c1_1 = RLX_VFMA(x, w1, c1_1); c1_2 = RLX_VFMA(x, w2, c1_2); c1_3 = RLX_VFMA(x, w3, c1_3); }
  }
  *(v *)(c + 0) = c0_0;
  *(v *)(c + 8) = c0_1;
  *(v *)(c + 16) = c0_2;
  *(v *)(c + 24) = c0_3;
  *(v *)(c + 32) = c1_0;
  *(v *)(c + 40) = c1_1;
  *(v *)(c + 48) = c1_2;
  *(v *)(c + 56) = c1_3;
}
RLX_INLINE i64 rlx_panels_f32(i64 height) { return height == 1 ? 4 : height == 2 ? 2 : 1; }
static void rlx_tile_f32(i64 height, i64 panels, i64 K, i64 ahead, const f32 *a, i64 lda, i64 a_step, const f32 *b, f32 *c) {
  switch (panels == 1 ? height : -height) {
    case 1: rlx_tile_f32_1x1(K, ahead, a, lda, a_step, b, c); break;
    case 2: rlx_tile_f32_2x1(K, ahead, a, lda, a_step, b, c); break;
    case 3: rlx_tile_f32_3x1(K, ahead, a, lda, a_step, b, c); break;
    case 4: rlx_tile_f32_4x1(K, ahead, a, lda, a_step, b, c); break;
    case 5: rlx_tile_f32_5x1(K, ahead, a, lda, a_step, b, c); break;
    case 6: rlx_tile_f32_6x1(K, ahead, a, lda, a_step, b, c); break;
    case -1: rlx_tile_f32_1x4(K, ahead, a, lda, a_step, b, c); break;
    case -2: rlx_tile_f32_2x2(K, ahead, a, lda, a_step, b, c); break;
  }
}
/* Tasks that share the columns of one block of rows, and the panels of each.  blocks: of rows, in all matrices. */
RLX_INLINE i64 rlx_per_group_f32(i64 blocks, i64 N, i64 K) {
  return rlx_most((i64)1, rlx_least(2048 / rlx_most(K, (i64)1), blocks*rlx_ceil_quotient(N, (i64)16)/16));
}
RLX_INLINE i64 rlx_groups_f32(i64 blocks, i64 N, i64 K) { return rlx_ceil_quotient(rlx_ceil_quotient(N, (i64)16), rlx_per_group_f32(blocks, N, K)); }

/* cpu/fused.matmul: %3 = fused %0, %1, %2 {kind='matmul'} : f32[1,16,384] */
static RLX_NOINLINE void matmul_add_1x16x384(const i64 *size, const f32 *restrict w0, const f32 *restrict x0, const f32 *restrict x1, f32 *restrict y, i64 t0, i64 t1) {
  (void)size;
  const i64 M = 16, N = 384, K = 384, tiles = rlx_ceil_quotient(N, (i64)16);
  const i64 blocks = rlx_ceil_quotient(M, (i64)96), per_group = rlx_per_group_f32(1*blocks, N, K), groups = rlx_groups_f32(1*blocks, N, K);
  const i64 ahead = blocks <= 2 ? K*16 : 0;  /* panels that few rows pass over come from memory: the next one meanwhile */
  for (i64 t = t0; t < t1; t++) {
    const i64 batch = t / groups / blocks, m0 = t / groups % blocks*96, m1 = rlx_least(m0 + 96, M);
    const i64 n0 = t % groups*per_group, n1 = rlx_least(n0 + per_group, tiles);
    const f32 *a = x0 + 0;
    const f32 *b0 = w0 + (0)*tiles*K*16;
    const i64 high = rlx_ceil_quotient(m1 - m0, rlx_ceil_quotient(m1 - m0, (i64)6));  /* tiles of equal height: 16 rows are 8 and 8, not 12 and 4 */
    for (i64 tile = n0, step; tile < n1; tile += step) {
      step = rlx_panels_f32(m1 - m0);
      if (tile + step > n1) step = 1;
      const i64 j0 = tile*16, width = rlx_least(step*16, N - j0);
      for (i64 m = m0; m < m1; m += high) {
        const i64 height = rlx_least(high, m1 - m);
        f32 c0[96] RLX_ALIGNED;
        rlx_tile_f32(height, step, K, ahead, a + m*384, 384, 1, b0 + tile*K*16, c0);
        for (i64 i = 0; i < height; i++) {
          const i64 r = batch*M + m + i;
          const f32 *e1 = x1 + 0;
          f32 *q = y + r*384;
          RLX_SIMD
          for (i64 jj = 0; jj < width; jj++) {
            const i64 j = j0 + jj;
            (void)j;
            const f32 a2 = e1[j];
            const f32 v4 = (c0[i*step*16 + jj]+a2);
            q[j] = v4;
          }
        }
      }
    }
  }
}

/* Where weights are in `fixed`. */
enum {
  w_w = 1,
  w_bias = 2,
  packed_w = 4,
};


/* Tasks t0..t1 of a step; with a negative t0, how many it has: -1 for a loop or branch.  It grows with the model and only passes on
   addresses: optimising it would take longer than compiling all kernels. */
static RLX_AS_WRITTEN i64 rlx_task(const rlx_pool *pool, i64 step, i64 t0, i64 t1) {
  char *const arena = pool->arena, *const state = pool->state;
  void *const *const lent = pool->lent, *const *const fixed = pool->fixed;
  const i64 *const size = pool->size;
  (void)arena; (void)lent; (void)state; (void)fixed; (void)size;
  (void)t1;
  switch (step) {
    case 0: /* %3 = fused %0, %1, %2 {kind='matmul'} : f32[1,16,384]  /tmp/h/enc6-scratch/gb.py:9 (through fuse) */
      RLX_TASKS(1*rlx_ceil_quotient(16, 96)*rlx_groups_f32(1*rlx_ceil_quotient(16, 96), 384, 384), matmul_add_1x16x384(size, (const f32 *)fixed[packed_w], (f32 *)(lent[0]), (f32 *)(fixed[w_bias]), (f32 *)(lent[1]), t0, t1)) break;
  }
  return 0;
}

/* A loop or branch: every thread walks through it. */
static void rlx_walk(rlx_pool *pool, i64 step) {
  char *const arena = pool->arena, *const state = pool->state;
  void *const *const lent = pool->lent, *const *const fixed = pool->fixed;
  const i64 *const size = pool->size;
  (void)arena; (void)lent; (void)state; (void)fixed; (void)size;
  const i64 lo = pool->lo; (void)lo;
  switch (step) {

  }
}

static void rlx_steps(rlx_pool *pool, i64 first) { rlx_share(pool, first, rlx_task, rlx_walk); }

RLX_EXPORT void rlx_run(rlx_pool *pool) { rlx_lead(pool, rlx_steps); }

int printf(const char*,...);void *aligned_alloc(u64,u64);
static u64 tsc(void){u32 a,d; __asm__ volatile("rdtscp":"=a"(a),"=d"(d)::"rcx"); return ((u64)d<<32)|a;}
static f32 *mk(i64 n){f32*p=aligned_alloc(4096,(n*4+4096)/4096*4096);for(i64 i=0;i<n;i++)p[i]=((i*7919)%1000-500)*1e-3f;return p;}
int main(){
  f32 *w0=mk(147456);
  f32 *x0=mk(6144);
  f32 *x1=mk(6144);
  f32 *y=mk(6144);
  i64 n=1*rlx_ceil_quotient(16, 96)*rlx_groups_f32(1*rlx_ceil_quotient(16, 96), 384, 384); static u64 best[100000]; for(i64 t=0;t<n;t++)best[t]=-1ull;
  for(i64 r=0;r<30;r++) for(i64 t=0;t<n;t++){u64 a=tsc(); matmul_add_1x16x384(0,w0+(r%1)*147456, x0, x1, y,t,t+1); a=tsc()-a; if(a<best[t])best[t]=a;}
  u64 sum=0; for(i64 t=0;t<n;t++)sum+=best[t]; printf("tasks %ld core Mcycles %.3f  FMA share %.3f\n",n,sum*1.325e-6,16.0*384*384/16/(sum*1.325));return 0;}

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
typedef float _Complex c64;
typedef double _Complex c128;

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

#define RLX_RE(x) __real__(x)
#define RLX_IM(x) __imag__(x)
#define rlx_parts_c64(re, im) __builtin_complex((f32)(re), (f32)(im))
#define rlx_parts_c128(re, im) __builtin_complex((f64)(re), (f64)(im))

#include "integers.h"
#include "convert.h"
#include "complex.h"
#include "polynomials.h"
#include "f64.h"
#include "math.h"
#include "f32.h"
#include "math.h"
#include "choose.h"

// What every GPU module starts with, for hipRTC, NVRTC and clang alike: types, and what the vendors name differently.  No header, no
// library: arithmetic is that of the cpu backend, text for text, so that results agree with it to the last bit where the order of
// operations is the same.  Compile without contraction (-ffp-contract=off, --fmad=false); rlx_fma_f32 asks for it.
typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;
#include "complex.h"
#define _Bool bool
#define RLX_GPU 1
#define RLX_INLINE static __device__ __forceinline__
#define RLX_APART static __device__
#define RLX_TABLE static __device__ const
#define RLX_SIMD                // hints to the cpu's compilers, in text that both share
#define RLX_SIMD_EXTREME(...)
#define RLX_CAT(a, b) RLX_CAT_(a, b)
#define RLX_CAT_(a, b) a##b

#if defined(__CUDACC__)  // NVIDIA: 32 lanes, which a shuffle names
#define RLX_WAVE 32
#define RLX_SHUFFLE_XOR(v, lanes) __shfl_xor_sync(0xffffffffu, v, lanes)
#define RLX_SHUFFLE(v, lane) __shfl_sync(0xffffffffu, v, lane)
#define RLX_HIGH_PRODUCT(a, b) __umul64hi(a, b)
#define __builtin_fmaf(a, b, c) __fmaf_rn(a, b, c)
#define __builtin_fma(a, b, c) __fma_rn(a, b, c)
#define __builtin_sqrtf(x) __fsqrt_rn(x)
#define __builtin_sqrt(x) __dsqrt_rn(x)
#define __builtin_inf() __longlong_as_double(0x7ff0000000000000LL)
#define __builtin_inff() __int_as_float(0x7f800000)
#define __builtin_nan(text) __longlong_as_double(0x7ff8000000000000LL)
#define __builtin_nanf(text) __int_as_float(0x7fc00000)
#define __builtin_rintf(x) rintf(x)
#define __builtin_floorf(x) floorf(x)
#define __builtin_ceilf(x) ceilf(x)
#define __builtin_truncf(x) truncf(x)
#define __builtin_rint(x) rint(x)
#define __builtin_floor(x) floor(x)
#define __builtin_ceil(x) ceil(x)
#define __builtin_trunc(x) trunc(x)
#else                    // AMD: 32 lanes (RDNA) or 64 (CDNA), by the target
#define RLX_WAVE warpSize
#define RLX_SHUFFLE_XOR(v, lanes) __shfl_xor(v, lanes)
#define RLX_SHUFFLE(v, lane) __shfl(v, lane)
#define RLX_HIGH_PRODUCT(a, b) ((u64)((unsigned __int128)(a) * (b) >> 64))
#endif

RLX_INLINE u32 rlx_bits_f32(f32 x) { return __builtin_bit_cast(u32, x); }
RLX_INLINE u64 rlx_bits_f64(f64 x) { return __builtin_bit_cast(u64, x); }
RLX_INLINE f32 rlx_of_bits_f32(u32 u) { return __builtin_bit_cast(f32, u); }
RLX_INLINE f64 rlx_of_bits_f64(u64 u) { return __builtin_bit_cast(f64, u); }
RLX_INLINE f32 rlx_fma_f32(f32 a, f32 b, f32 c) { return __builtin_fmaf(a, b, c); }
RLX_INLINE f64 rlx_fma_f64(f64 a, f64 b, f64 c) { return __builtin_fma(a, b, c); }
RLX_INLINE f32 rlx_fma(f32 a, f32 b, f32 c) { return __builtin_fmaf(a, b, c); }
RLX_INLINE f64 rlx_fma(f64 a, f64 b, f64 c) { return __builtin_fma(a, b, c); }
RLX_INLINE i64 rlx_least(i64 a, i64 b) { return a < b ? a : b; }
RLX_INLINE i64 rlx_most(i64 a, i64 b) { return a > b ? a : b; }
RLX_INLINE i64 rlx_floor_quotient(i64 a, i64 b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
RLX_INLINE i64 rlx_ceil_quotient(i64 a, i64 b) { return -rlx_floor_quotient(-a, b); }
// A thread's number in a one-dimensional grid.
RLX_INLINE i64 rlx_thread() { return (i64)blockIdx.x * blockDim.x + threadIdx.x; }

#define RLX_RE(x) ((x).re)
#define RLX_IM(x) ((x).im)
#define rlx_parts_c64(re, im) c64(re, im)
#define rlx_parts_c128(re, im) c128(re, im)

#include "../cpu/integers.h"
#include "../cpu/convert.h"
#include "../cpu/complex.h"
#include "../cpu/polynomials.h"
#include "../cpu/f64.h"
#include "../cpu/math.h"
#include "../cpu/f32.h"
#include "../cpu/math.h"
#include "choose.h"
#include "block.h"

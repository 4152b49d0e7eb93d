// The device language as host code: what stands before a kernel's text when g++ or clang++ compiles it for the simulated device.
// Threads of a block take turns on one processor, so atomic operations need no more than a read and a write.
#pragma once
#include "kernel.h"

#define __HIP__ 1
#define __HIP_PLATFORM_AMD__ 1
#define __HIP_DEVICE_COMPILE__ 1
#define RLX_SIM_HOST 1

#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
// One section holds a module's shared memory, so that the runtime can poison it before every block.
#define __shared__ static __attribute__((section("rlx_shared")))
// What `extern __shared__ type name[]` becomes, inside of functions and outside.
#define SIM_DYNAMIC_SHARED(type, name) type *const &name = *(type *const *)&rlx_here.dynamic_shared
#define __align__(n) __attribute__((aligned(n)))

typedef __SIZE_TYPE__ size_t;
typedef __UINT32_TYPE__ uint;

extern "C" { RlxHere rlx_here; }
#define threadIdx (rlx_here.thread)
#define blockIdx (rlx_here.block)
#define blockDim (rlx_here.block_dim)
#define gridDim (rlx_here.grid_dim)
#define warpSize RLX_SIM_WAVE
#define __AMDGCN_WAVEFRONT_SIZE RLX_SIM_WAVE
#define __syncthreads() rlx_here.barrier(__LINE__)

inline unsigned __lane_id() { return rlx_here.lane; }
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}

// ---- values as bits
template <class To, class From> inline To sim_bits(From value) {
    static_assert(sizeof(To) == sizeof(From), "of one size");
    To to;
    __builtin_memcpy(&to, &value, sizeof to);
    return to;
}
inline int __float_as_int(float v) { return sim_bits<int>(v); }
inline unsigned __float_as_uint(float v) { return sim_bits<unsigned>(v); }
inline float __int_as_float(int v) { return sim_bits<float>(v); }
inline float __uint_as_float(unsigned v) { return sim_bits<float>(v); }
inline long long __double_as_longlong(double v) { return sim_bits<long long>(v); }
inline double __longlong_as_double(long long v) { return sim_bits<double>(v); }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }
inline int __clzll(long long v) { return v ? __builtin_clzll((unsigned long long)v) : 64; }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __ffsll(unsigned long long v) { return __builtin_ffsll((long long)v); }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) { return (unsigned long long)((unsigned __int128)a * b >> 64); }

// ---- a wave's lanes.  What a lane takes from one that is not there is all ones: a NaN, and -1.
template <class T> inline T sim_shuffle(T value, int source, unsigned line) {
    static_assert(sizeof(T) <= 8, "at most 64 bits");
    unsigned long long bits = 0;
    __builtin_memcpy(&bits, &value, sizeof value);
    bits = rlx_here.exchange(RLX_SHUFFLE, bits, (unsigned)source, line);
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}
template <class T> inline T __shfl(T value, int source, int width = warpSize, unsigned line = __builtin_LINE()) {
    const int lane = (int)rlx_here.lane;
    return sim_shuffle(value, (lane & ~(width - 1)) + (source & (width - 1)), line);
}
template <class T> inline T __shfl_xor(T value, int mask, int width = warpSize, unsigned line = __builtin_LINE()) {
    const int lane = (int)rlx_here.lane, source = lane ^ mask;
    return sim_shuffle(value, source >= ((lane + width) & ~(width - 1)) ? lane : source, line);
}
template <class T> inline T __shfl_down(T value, unsigned by, int width = warpSize, unsigned line = __builtin_LINE()) {
    const int lane = (int)rlx_here.lane;
    return sim_shuffle(value, (lane & (width - 1)) + (int)by >= width ? lane : lane + (int)by, line);
}
template <class T> inline T __shfl_up(T value, unsigned by, int width = warpSize, unsigned line = __builtin_LINE()) {
    const int lane = (int)rlx_here.lane;
    return sim_shuffle(value, (lane & (width - 1)) < (int)by ? lane : lane - (int)by, line);
}
inline unsigned long long __ballot(int holds, unsigned line = __builtin_LINE()) { return rlx_here.exchange(RLX_BALLOT, holds != 0, 0, line); }
inline int __any(int holds, unsigned line = __builtin_LINE()) { return __ballot(holds, line) != 0; }
inline int __all(int holds, unsigned line = __builtin_LINE()) { return __ballot(!holds, line) == 0; }

// ---- atomics: each returns what was there
template <class T> inline T sim_replace(T *at, T with) {
    const T old = *at;
    *at = with;
    return old;
}
template <class T> inline T atomicAdd(T *at, T v) { return sim_replace(at, (T)(*at + v)); }
template <class T> inline T atomicSub(T *at, T v) { return sim_replace(at, (T)(*at - v)); }
template <class T> inline T atomicMax(T *at, T v) { return sim_replace(at, *at < v ? v : *at); }
template <class T> inline T atomicMin(T *at, T v) { return sim_replace(at, v < *at ? v : *at); }
template <class T> inline T atomicAnd(T *at, T v) { return sim_replace(at, (T)(*at & v)); }
template <class T> inline T atomicOr(T *at, T v) { return sim_replace(at, (T)(*at | v)); }
template <class T> inline T atomicXor(T *at, T v) { return sim_replace(at, (T)(*at ^ v)); }
template <class T> inline T atomicExch(T *at, T v) { return sim_replace(at, v); }
template <class T> inline T atomicCAS(T *at, T expected, T v) { return sim_replace(at, *at == expected ? v : *at); }
#define __MEMORY_SCOPE_DEVICE 1
#define __MEMORY_SCOPE_WRKGRP 2
#define __scoped_atomic_load_n(at, order, scope) (*(at))
#define __scoped_atomic_store_n(at, v, order, scope) ((void)(*(at) = (v)))
#define __scoped_atomic_fetch_add(at, v, order, scope) sim_replace((at), (decltype(*(at) + 0))(*(at) + (v)))
#define __scoped_atomic_fetch_max(at, v, order, scope) sim_replace((at), *(at) < (v) ? (v) : *(at))

// ---- arithmetic: the processor's own library
#define SIM_MATH1(X) X(sqrt) X(exp) X(exp2) X(expm1) X(log) X(log2) X(log10) X(log1p) X(sin) X(cos) X(tan) X(asin) X(acos) X(atan) X(sinh) X(cosh) X(tanh) \
    X(asinh) X(acosh) X(atanh) X(erf) X(erfc) X(tgamma) X(lgamma) X(cbrt) X(fabs) X(floor) X(ceil) X(trunc) X(round) X(rint) X(nearbyint)
#define SIM_MATH2(X) X(pow) X(atan2) X(fmod) X(fmax) X(fmin) X(hypot) X(copysign) X(remainder) X(nextafter) X(fdim)
extern "C" {
#define SIM_DECLARE1(name) double name(double) noexcept; float name##f(float) noexcept;
#define SIM_DECLARE2(name) double name(double, double) noexcept; float name##f(float, float) noexcept;
SIM_MATH1(SIM_DECLARE1)
SIM_MATH2(SIM_DECLARE2)
double fma(double, double, double) noexcept;
float fmaf(float, float, float) noexcept;
double ldexp(double, int) noexcept;
float ldexpf(float, int) noexcept;
double frexp(double, int *) noexcept;
float frexpf(float, int *) noexcept;
int abs(int) noexcept;
}
#define SIM_OVERLOAD1(name) inline float name(float a) { return name##f(a); }
#define SIM_OVERLOAD2(name) inline float name(float a, float b) { return name##f(a, b); }
SIM_MATH1(SIM_OVERLOAD1)
SIM_MATH2(SIM_OVERLOAD2)
inline float fma(float a, float b, float c) { return fmaf(a, b, c); }
inline float ldexp(float a, int by) { return ldexpf(a, by); }
inline float rsqrtf(float v) { return 1.0f / sqrtf(v); }
inline double rsqrt(double v) { return 1.0 / sqrt(v); }
inline float __expf(float v) { return expf(v); }
inline float __exp2f(float v) { return exp2f(v); }
inline float __logf(float v) { return logf(v); }
inline float __log2f(float v) { return log2f(v); }
inline float __sinf(float v) { return sinf(v); }
inline float __cosf(float v) { return cosf(v); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float v) { return 1.0f / v; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __builtin_amdgcn_rcpf(float v) { return 1.0f / v; }
inline float __builtin_amdgcn_rsqf(float v) { return 1.0f / sqrtf(v); }
inline float __builtin_amdgcn_exp2f(float v) { return exp2f(v); }
inline float __builtin_amdgcn_logf(float v) { return log2f(v); }
inline float __builtin_amdgcn_sinf(float turns) { return sinf(turns * 6.2831853071795864f); }
inline float __builtin_amdgcn_cosf(float turns) { return cosf(turns * 6.2831853071795864f); }
template <class T> inline bool isnan(T v) { return v != v; }
template <class T> inline bool isinf(T v) { return __builtin_isinf(v); }
template <class T> inline bool isfinite(T v) { return __builtin_isfinite(v); }
template <class T> inline bool signbit(T v) { return __builtin_signbit(v); }
template <class T> inline T min(T a, T b) { return a < b ? a : b; }
template <class T> inline T max(T a, T b) { return a > b ? a : b; }

// ---- small vectors
#define SIM_VECTORS(X) X(float, float) X(int, int) X(uint, unsigned) X(double, double) X(short, short) X(ushort, unsigned short) X(char, signed char) X(uchar, unsigned char)
#define SIM_VECTOR(name, T) \
    struct alignas(2 * sizeof(T)) name##2 { T x, y; }; \
    struct name##3 { T x, y, z; }; \
    struct alignas(sizeof(T) < 8 ? 4 * sizeof(T) : 16) name##4 { T x, y, z, w; }; \
    inline name##2 make_##name##2(T x, T y) { return {x, y}; } \
    inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; } \
    inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
SIM_VECTORS(SIM_VECTOR)

// ---- what a module tells the runtime
template <class... A> struct SimSignature {
    static constexpr unsigned count = sizeof...(A);
    static constexpr unsigned sizes[] = {sizeof(A)..., 0}, aligns[] = {alignof(A)..., 0};
};
template <unsigned... I> struct SimPlaces {};
template <unsigned N, unsigned... I> struct SimCount : SimCount<N - 1, N - 1, I...> {};
template <unsigned... I> struct SimCount<0, I...> { typedef SimPlaces<I...> places; };
template <class T> struct SimPlain { typedef T type; };
template <class T> struct SimPlain<const T> { typedef T type; };
template <class... A, unsigned... I> inline void sim_apply(void (*kernel)(A...), void **arguments, SimPlaces<I...>) {
    kernel(*(typename SimPlain<A>::type *)arguments[I]...);
}
template <class... A> inline void sim_apply(void (*kernel)(A...), void **arguments) { sim_apply(kernel, arguments, typename SimCount<sizeof...(A)>::places()); }
template <class... A> constexpr SimSignature<A...> sim_signature(void (*)(A...)) { return {}; }

extern "C" {
extern char __start_rlx_shared[] __attribute__((weak, visibility("hidden")));
extern char __stop_rlx_shared[] __attribute__((weak, visibility("hidden")));
}
#define SIM_EXPORT extern "C" __attribute__((visibility("default")))
#define SIM_MODULE(arch) \
    SIM_EXPORT const RlxModule rlx_module; \
    const RlxModule rlx_module = {arch, RLX_SIM_WAVE, &rlx_here, __start_rlx_shared, __stop_rlx_shared};
#define SIM_KERNEL(name, most_threads, shared_nbytes) \
    SIM_EXPORT const RlxKernel rlx_kernel_##name; \
    const RlxKernel rlx_kernel_##name = {[](void **arguments) { sim_apply(name, arguments); }, decltype(sim_signature(name))::count, \
        decltype(sim_signature(name))::sizes, decltype(sim_signature(name))::aligns, most_threads, shared_nbytes};

// The device language for plain clang: what hipRTC has built in and kernels here use.  No ROCm header, no device library.
#pragma once
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __host__ __attribute__((host))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __launch_bounds__(threads, ...) __attribute__((amdgpu_flat_work_group_size(1, threads)))
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
#define HIP_INLINE static __device__ __forceinline__

typedef __SIZE_TYPE__ size_t;
typedef unsigned int uint;

// ---- where a thread is: threadIdx.x and its like are read from registers when they are named
#define HIP_PLACE(type, x_, y_, z_) \
    struct type { \
        __declspec(property(get = read_x)) uint x; \
        __declspec(property(get = read_y)) uint y; \
        __declspec(property(get = read_z)) uint z; \
        HIP_INLINE uint read_x() { return x_; } \
        HIP_INLINE uint read_y() { return y_; } \
        HIP_INLINE uint read_z() { return z_; } \
    }
#define HIP_BLOCKS(axis) ((__builtin_amdgcn_grid_size_##axis() + __builtin_amdgcn_workgroup_size_##axis() - 1) / __builtin_amdgcn_workgroup_size_##axis())
HIP_PLACE(hip_thread_place, __builtin_amdgcn_workitem_id_x(), __builtin_amdgcn_workitem_id_y(), __builtin_amdgcn_workitem_id_z());
HIP_PLACE(hip_block_place, __builtin_amdgcn_workgroup_id_x(), __builtin_amdgcn_workgroup_id_y(), __builtin_amdgcn_workgroup_id_z());
HIP_PLACE(hip_block_size, __builtin_amdgcn_workgroup_size_x(), __builtin_amdgcn_workgroup_size_y(), __builtin_amdgcn_workgroup_size_z());
HIP_PLACE(hip_grid_size, HIP_BLOCKS(x), HIP_BLOCKS(y), HIP_BLOCKS(z));
static const __device__ hip_thread_place threadIdx{};
static const __device__ hip_block_place blockIdx{};
static const __device__ hip_block_size blockDim{};
static const __device__ hip_grid_size gridDim{};

// ---- order
#define warpSize ((int)__builtin_amdgcn_wavefrontsize())
HIP_INLINE void __syncthreads() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
HIP_INLINE void __threadfence_block() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "workgroup"); }
HIP_INLINE void __threadfence() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent"); }
HIP_INLINE void __threadfence_system() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, ""); }

// ---- values as bits
HIP_INLINE int __float_as_int(float v) { return __builtin_bit_cast(int, v); }
HIP_INLINE uint __float_as_uint(float v) { return __builtin_bit_cast(uint, v); }
HIP_INLINE float __int_as_float(int v) { return __builtin_bit_cast(float, v); }
HIP_INLINE float __uint_as_float(uint v) { return __builtin_bit_cast(float, v); }
HIP_INLINE long long __double_as_longlong(double v) { return __builtin_bit_cast(long long, v); }
HIP_INLINE double __longlong_as_double(long long v) { return __builtin_bit_cast(double, v); }
HIP_INLINE int __popc(uint v) { return __builtin_popcount(v); }
HIP_INLINE int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
HIP_INLINE int __clz(int v) { return v ? __builtin_clz((uint)v) : 32; }
HIP_INLINE int __clzll(long long v) { return v ? __builtin_clzll((unsigned long long)v) : 64; }
HIP_INLINE int __ffs(int v) { return v ? __builtin_ctz((uint)v) + 1 : 0; }
HIP_INLINE int __ffsll(unsigned long long v) { return v ? __builtin_ctzll(v) + 1 : 0; }
HIP_INLINE uint __umulhi(uint a, uint b) { return (uint)((unsigned long long)a * b >> 32); }
HIP_INLINE unsigned long long __umul64hi(unsigned long long a, unsigned long long b) { return (unsigned long long)((unsigned __int128)a * b >> 64); }

// ---- a wave's lanes: 32 bits at a time through ds_bpermute, which takes four times the source's number
HIP_INLINE uint __lane_id() { return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u)); }
HIP_INLINE int hip_take_word(int value, int source) {
#if defined(__GFX10__) || defined(__GFX11__)  // whose ds_bpermute stays within 32 lanes: in a wave of 64 each lane shows its value in turn
    if (warpSize == 64) {
        int taken = 0;
        for (int lane = 0; lane < 64; lane++) {
            const int shown = __builtin_amdgcn_readlane(value, lane);
            if ((source & 63) == lane) taken = shown;
        }
        return taken;
    }
#endif
    return __builtin_amdgcn_ds_bpermute(source << 2, value);
}
template <class T> HIP_INLINE T hip_take(T value, int source) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "32 or 64 bits");
    if constexpr (sizeof(T) == 4) {
        return __builtin_bit_cast(T, hip_take_word(__builtin_bit_cast(int, value), source));
    } else {
        struct Halves { int low, high; } halves = __builtin_bit_cast(Halves, value);
        halves.low = hip_take_word(halves.low, source);
        halves.high = hip_take_word(halves.high, source);
        return __builtin_bit_cast(T, halves);
    }
}
template <class T> HIP_INLINE T __shfl(T value, int source, int width = warpSize) {
    const int lane = (int)__lane_id();
    return hip_take(value, (lane & ~(width - 1)) + (source & (width - 1)));
}
template <class T> HIP_INLINE T __shfl_xor(T value, int mask, int width = warpSize) {
    const int lane = (int)__lane_id(), source = lane ^ mask;
    return hip_take(value, source >= ((lane + width) & ~(width - 1)) ? lane : source);
}
template <class T> HIP_INLINE T __shfl_down(T value, uint by, int width = warpSize) {
    const int lane = (int)__lane_id();
    return hip_take(value, (lane & (width - 1)) + (int)by >= width ? lane : lane + (int)by);
}
template <class T> HIP_INLINE T __shfl_up(T value, uint by, int width = warpSize) {
    const int lane = (int)__lane_id();
    return hip_take(value, (lane & (width - 1)) < (int)by ? lane : lane - (int)by);
}
HIP_INLINE unsigned long long __ballot(int holds) {
    return __builtin_amdgcn_ballot_w64(holds != 0);  // in a wave of 32 its upper half is 0
}
HIP_INLINE int __any(int holds) { return __ballot(holds) != 0; }
HIP_INLINE int __all(int holds) { return __ballot(!holds) == 0; }

// ---- atomics: relaxed, for the whole device; each returns what was there
#define HIP_ATOMIC(name, builtin) \
    template <class T> HIP_INLINE T name(T *at, T v) { return __scoped_atomic_##builtin(at, v, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE); }
HIP_ATOMIC(atomicAdd, fetch_add)
HIP_ATOMIC(atomicSub, fetch_sub)
HIP_ATOMIC(atomicMax, fetch_max)
HIP_ATOMIC(atomicMin, fetch_min)
HIP_ATOMIC(atomicAnd, fetch_and)
HIP_ATOMIC(atomicOr, fetch_or)
HIP_ATOMIC(atomicXor, fetch_xor)
HIP_ATOMIC(atomicExch, exchange_n)
template <class T> HIP_INLINE T atomicCAS(T *at, T expected, T v) {
    __scoped_atomic_compare_exchange_n(at, &expected, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
    return expected;
}

// ---- arithmetic that the compiler writes without a library
#define HIP_MATH1(name, builtin) \
    HIP_INLINE float name##f(float a) { return builtin##f(a); } \
    HIP_INLINE float name(float a) { return builtin##f(a); } \
    HIP_INLINE double name(double a) { return builtin(a); }
#define HIP_MATH2(name, builtin) \
    HIP_INLINE float name##f(float a, float b) { return builtin##f(a, b); } \
    HIP_INLINE float name(float a, float b) { return builtin##f(a, b); } \
    HIP_INLINE double name(double a, double b) { return builtin(a, b); }
HIP_MATH1(sqrt, __builtin_sqrt)
HIP_MATH1(fabs, __builtin_fabs)
HIP_MATH1(floor, __builtin_floor)
HIP_MATH1(ceil, __builtin_ceil)
HIP_MATH1(trunc, __builtin_trunc)
HIP_MATH1(round, __builtin_round)
HIP_MATH1(rint, __builtin_rint)
HIP_MATH2(fmax, __builtin_fmax)
HIP_MATH2(fmin, __builtin_fmin)
HIP_MATH2(copysign, __builtin_copysign)
HIP_INLINE float expf(float v) { return __builtin_expf(v); }
HIP_INLINE float exp2f(float v) { return __builtin_exp2f(v); }
HIP_INLINE float logf(float v) { return __builtin_logf(v); }
HIP_INLINE float log2f(float v) { return __builtin_log2f(v); }
HIP_INLINE float log10f(float v) { return __builtin_log10f(v); }
HIP_INLINE float sinf(float v) { return __builtin_sinf(v); }
HIP_INLINE float cosf(float v) { return __builtin_cosf(v); }
HIP_INLINE float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
HIP_INLINE double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
HIP_INLINE float ldexpf(float v, int by) { return __builtin_ldexpf(v, by); }
HIP_INLINE double ldexp(double v, int by) { return __builtin_ldexp(v, by); }
HIP_INLINE float rsqrtf(float v) { return 1.0f / __builtin_sqrtf(v); }
HIP_INLINE float __expf(float v) { return __builtin_expf(v); }
HIP_INLINE float __logf(float v) { return __builtin_logf(v); }
HIP_INLINE float __log2f(float v) { return __builtin_log2f(v); }
HIP_INLINE float __sinf(float v) { return __builtin_sinf(v); }
HIP_INLINE float __cosf(float v) { return __builtin_cosf(v); }
HIP_INLINE float __fdividef(float a, float b) { return a / b; }
HIP_INLINE int abs(int v) { return v < 0 ? -v : v; }
template <class T> HIP_INLINE bool isnan(T v) { return v != v; }
template <class T> HIP_INLINE bool isinf(T v) { return __builtin_isinf(v); }
template <class T> HIP_INLINE bool isfinite(T v) { return __builtin_isfinite(v); }
template <class T> HIP_INLINE T min(T a, T b) { return a < b ? a : b; }
template <class T> HIP_INLINE T max(T a, T b) { return a > b ? a : b; }

// ---- small vectors
#define HIP_VECTOR(name, T) \
    struct alignas(2 * sizeof(T)) name##2 { T x, y; }; \
    struct name##3 { T x, y, z; }; \
    struct alignas(sizeof(T) < 8 ? 4 * sizeof(T) : 16) name##4 { T x, y, z, w; }; \
    HIP_INLINE name##2 make_##name##2(T x, T y) { return {x, y}; } \
    HIP_INLINE name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; } \
    HIP_INLINE name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
HIP_VECTOR(float, float)
HIP_VECTOR(double, double)
HIP_VECTOR(int, int)
HIP_VECTOR(uint, uint)
HIP_VECTOR(short, short)
HIP_VECTOR(ushort, unsigned short)
HIP_VECTOR(char, signed char)
HIP_VECTOR(uchar, unsigned char)

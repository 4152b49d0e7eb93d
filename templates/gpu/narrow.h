// By the hardware's own instructions where a vendor has them: rounding to 16 bits, to the nearest, and back; and powers of two, for
// numbers that are narrow right after, so that an error of some 2^-22 is nothing.
#if defined(__CUDACC__)
RLX_INLINE u16 rlx_round_f16(f32 x) { u16 y; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x)); return y; }
RLX_INLINE u16 rlx_round_bf16(f32 x) { u16 y; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x)); return y; }
RLX_INLINE f32 rlx_widen_f16(u16 x) { f32 y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x)); return y; }
RLX_INLINE f32 rlx_near_exp2(f32 x) { f32 y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
#elif defined(__AMDGCN__)
RLX_INLINE u16 rlx_round_f16(f32 x) { return __builtin_bit_cast(u16, (_Float16)x); }
RLX_INLINE f32 rlx_widen_f16(u16 x) { return (f32)__builtin_bit_cast(_Float16, x); }
#if __clang_major__ >= 19
RLX_INLINE u16 rlx_round_bf16(f32 x) { return __builtin_bit_cast(u16, (__bf16)x); }
#else
RLX_INLINE u16 rlx_round_bf16(f32 x) { return rlx_store_bf16(x); }
#endif
#if __has_builtin(__builtin_amdgcn_exp2f)
RLX_INLINE f32 rlx_near_exp2(f32 x) { return __builtin_amdgcn_exp2f(x); }
#else
RLX_INLINE f32 rlx_near_exp2(f32 x) { return __builtin_exp2f(x); }
#endif
#else  // host code
RLX_INLINE u16 rlx_round_f16(f32 x) { return rlx_store_f16(x); }
RLX_INLINE f32 rlx_widen_f16(u16 x) { return rlx_load_f16(x); }
RLX_INLINE u16 rlx_round_bf16(f32 x) { return rlx_store_bf16(x); }
RLX_INLINE f32 rlx_near_exp2(f32 x) { return rlx_exp2(x); }
#endif
RLX_INLINE f32 rlx_widen_bf16(u16 x) { return rlx_load_bf16(x); }
RLX_INLINE f32 rlx_near_exp(f32 x) { return rlx_near_exp2(x*0x1.715476p+0f); }

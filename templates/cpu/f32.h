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

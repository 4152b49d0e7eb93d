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

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

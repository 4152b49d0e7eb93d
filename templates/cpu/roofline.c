/* What one thread can do at most: products added in registers, and memory read in four streams. */
enum { RLX_CHAINS = 10 };  /* independent accumulators: more than an addition's latency times the units */

RLX_EXPORT f32 rlx_peak(i64 rounds) {
  rlx_vector acc[RLX_CHAINS], x, y;
  for (int l = 0; l < RLX_VL; l++) { x[l] = 0.999f; y[l] = 1e-3f; }
  for (int c = 0; c < RLX_CHAINS; c++) acc[c] = y;
  for (i64 r = 0; r < rounds; r++) {
#pragma GCC unroll 10
    for (int c = 0; c < RLX_CHAINS; c++) acc[c] = RLX_VFMA(acc[c], x, y);
  }
  f32 sum = 0;
  for (int c = 0; c < RLX_CHAINS; c++) sum += acc[c][0];
  return sum;
}

/* count: floats, a multiple of 4*2*RLX_VL. */
RLX_EXPORT f32 rlx_stream(const f32 *p, i64 count) {
  const i64 part = count / 4;
  rlx_vector s[8];
  for (int k = 0; k < 8; k++) s[k] = (rlx_vector){0};
  for (i64 i = 0; i < part; i += 2*RLX_VL) {
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
      const f32 *q = p + k*part + i;
      __builtin_prefetch(q + 1024);
      s[k] += *(const rlx_vector *)q;
      s[k + 4] += *(const rlx_vector *)(q + RLX_VL);
    }
  }
  f32 sum = 0;
  for (int k = 0; k < 8; k++) sum += s[k][0];
  return sum;
}

/* Bytes of packed weights as vectors.  rlx_v: RLX_VL floats, rlx_vi: as many i32; rlx_bytes: RLX_BYTES codes of one byte each, and
   rlx_sums: a quarter as many i32, each the sum over four neighbours.  Instructions that no operator gives are asked for by name. */
#if defined(__clang__)
#define RLX_ONCE static __attribute__((noinline, unused))
#else
#define RLX_ONCE static __attribute__((noinline, noclone, unused))  /* unasked, gcc compiles one for each depth that it finds */
#endif
typedef f32 rlx_v __attribute__((vector_size(4 * RLX_VL), aligned(4)));
typedef i32 rlx_vi __attribute__((vector_size(4 * RLX_VL)));
typedef u8 rlx_b16 __attribute__((vector_size(16), aligned(1), may_alias));
typedef u64 rlx_u64x2 __attribute__((vector_size(16)));
#if RLX_VL >= 8
#define RLX_BYTES 32
#else
#define RLX_BYTES 16
#endif
typedef u8 rlx_bytes __attribute__((vector_size(RLX_BYTES), aligned(1), may_alias));
typedef i16 rlx_pairs __attribute__((vector_size(RLX_BYTES), aligned(1), may_alias));
typedef i32 rlx_sums __attribute__((vector_size(RLX_BYTES), aligned(1), may_alias));
typedef f32 rlx_scales __attribute__((vector_size(RLX_BYTES), aligned(1), may_alias));

#if defined(__F16C__)
RLX_INLINE f32 rlx_half(u16 bits) {
  typedef i16 halves __attribute__((vector_size(16)));
  typedef i32 words __attribute__((vector_size(16)));
  return RLX_WIDEN4((halves)(words){bits})[0];
}
#else
RLX_INLINE f32 rlx_half(u16 bits) { return rlx_load_f16(bits); }
#endif

/* RLX_VL bytes, each widened to an i32, with zeros or with its sign. */
#if (RLX_VL == 16 && defined(__AVX512F__)) || (RLX_VL == 8 && defined(__AVX2__))
#define RLX_WIDE(name, extend, T) \
  RLX_INLINE rlx_vi name(const u8 *p) { rlx_vi wide; __asm__("vpmov" extend "bd %1, %0" : "=v"(wide) : "m"(*(const u8 (*)[RLX_VL])p)); return wide; }
#elif RLX_VL == 4 && defined(__SSE4_1__)
#define RLX_WIDE(name, extend, T) \
  RLX_INLINE rlx_vi name(const u8 *p) { rlx_vi wide; __asm__("pmov" extend "bd %1, %0" : "=x"(wide) : "m"(*(const u8 (*)[RLX_VL])p)); return wide; }
#else
#define RLX_WIDE(name, extend, T) \
  RLX_INLINE rlx_vi name(const u8 *p) { rlx_vi wide; for (int l = 0; l < RLX_VL; l++) wide[l] = (T)p[l]; return wide; }
#endif
RLX_WIDE(rlx_wide, "zx", u8)
RLX_WIDE(rlx_wide_signed, "sx", i8)

RLX_INLINE u64 rlx_load8(const u8 *p) { u64 v; __builtin_memcpy(&v, p, 8); return v; }
RLX_INLINE rlx_b16 rlx_load16(const u8 *p) { return *(const rlx_b16 *)p; }
RLX_INLINE rlx_b16 rlx_join16(u64 low, u64 high) { return (rlx_b16)(rlx_u64x2){low, high}; }
/* Bit l of a byte as byte l. */
RLX_INLINE u64 rlx_bits8(u8 bits) {
  const u64 each = (bits * 0x0101010101010101ULL) & 0x8040201008040201ULL;
  return ((each + 0x7f7f7f7f7f7f7f7fULL) >> 7) & 0x0101010101010101ULL;
}
#if RLX_BYTES == 32
RLX_INLINE rlx_bytes rlx_load32(const u8 *p) { return *(const rlx_bytes *)p; }
RLX_INLINE rlx_bytes rlx_join32(rlx_b16 low, rlx_b16 high) {
#if defined(__clang__) || __GNUC__ >= 12
  return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31);
#else
  const union { rlx_b16 half[2]; rlx_bytes whole; } both = {.half = {low, high}};
  return both.whole;
#endif
}
#endif

/* Dot products read 16 codes of RLX_ABREAST weight rows at once: of row r, or of r in the low half and q in the high one. */
#define RLX_ABREAST (RLX_BYTES / 16)
#if RLX_ABREAST == 2
#define RLX_ROWS(of_r, of_q) rlx_join32(of_r, of_q)
RLX_INLINE rlx_bytes rlx_each(const u8 *p) { const rlx_b16 x = rlx_load16(p); return rlx_join32(x, x); }
RLX_INLINE rlx_scales rlx_scale_rows(f32 r, f32 q) { return (rlx_scales){r, r, r, r, q, q, q, q}; }
#else
#define RLX_ROWS(of_r, of_q) (of_r)
RLX_INLINE rlx_bytes rlx_each(const u8 *p) { return rlx_load16(p); }
RLX_INLINE rlx_scales rlx_scale_rows(f32 r, f32 q) { (void)q; return r - (rlx_scales){0}; }
#endif
#if RLX_ABREAST == 2 && defined(__F16C__)
/* The first two f16 of four rows, and the first (0) or third (1) number of each half in all places of it. */
RLX_INLINE rlx_scales rlx_heads(const u8 *a, const u8 *b, const u8 *c, const u8 *d) {
  typedef i16 halves __attribute__((vector_size(16)));
  typedef i32 words __attribute__((vector_size(16)));
  i32 w[4];
  __builtin_memcpy(w, a, 4); __builtin_memcpy(w + 1, b, 4); __builtin_memcpy(w + 2, c, 4); __builtin_memcpy(w + 3, d, 4);
  return RLX_WIDEN8((halves)(words){w[0], w[1], w[2], w[3]});
}
#define RLX_SPREAD(heads, which) ((rlx_scales)__builtin_ia32_shufps256(heads, heads, (which) ? 0xaa : 0))
#endif

/* f16 side by side, one for each lane of rlx_scales. */
RLX_INLINE rlx_scales rlx_half_lanes(const u8 *p) {
#if defined(__F16C__)
  typedef i16 halves __attribute__((vector_size(16), aligned(1), may_alias));
#if RLX_BYTES == 32
  return (rlx_scales)RLX_WIDEN8(*(const halves *)p);
#else
  typedef u64 pair __attribute__((vector_size(16)));
  u64 four;
  __builtin_memcpy(&four, p, 8);
  return (rlx_scales)RLX_WIDEN4((halves)(pair){four, 0});
#endif
#else
  rlx_scales wide;
  for (int l = 0; l < RLX_BYTES / 4; l++) { u16 bits; __builtin_memcpy(&bits, p + 2*l, 2); wide[l] = rlx_half(bits); }
  return wide;
#endif
}

/* table[code] of 16 signed bytes; each code below 16. */
#if RLX_BYTES == 32 && defined(__AVX2__)
RLX_INLINE rlx_bytes rlx_look_up(const u8 *table, rlx_bytes code) {
  const rlx_b16 t = rlx_load16(table);
  rlx_bytes found;
  __asm__("vpshufb %2, %1, %0" : "=x"(found) : "x"(rlx_join32(t, t)), "xm"(code));
  return found;
}
#elif defined(__SSSE3__)
RLX_INLINE rlx_bytes rlx_look_up(const u8 *table, rlx_bytes code) {
  rlx_bytes found = rlx_load16(table);
  __asm__("pshufb %1, %0" : "+x"(found) : "x"(code));
  return found;
}
#else
RLX_INLINE rlx_bytes rlx_look_up(const u8 *table, rlx_bytes code) {
  rlx_bytes found;
  for (int l = 0; l < RLX_BYTES; l++) found[l] = table[code[l]];
  return found;
}
#endif
/* The same of RLX_VL codes that are i32. */
#if 4 * RLX_VL == RLX_BYTES && defined(__SSSE3__)
RLX_INLINE rlx_vi rlx_look_up_wide(const u8 *table, rlx_vi code) { return (rlx_vi)rlx_look_up(table, (rlx_bytes)code) << 24 >> 24; }
#else
RLX_INLINE rlx_vi rlx_look_up_wide(const u8 *table, rlx_vi code) {
  rlx_vi found;
  for (int l = 0; l < RLX_VL; l++) found[l] = (i8)table[code[l]];
  return found;
}
#endif

/* Dot products of bytes; x: signed bytes in -127..127.  rlx_part_add adds products of code and x to a part, rlx_part_sum a part to sums
   over four neighbours.  Codes are unsigned for rlx_part_add and signed for rlx_part_add_signed; a machine may have only one of the two.
   A part holds the products of 8 calls, with AVX2 alone no more than fit into 16 bits: 32767 / (254 * greatest code) calls. */
#if RLX_BYTES == 32 && defined(RLX_VNNI_EMULATED)
typedef rlx_sums rlx_part;
RLX_INLINE rlx_part rlx_part_add(rlx_part part, rlx_bytes code, rlx_bytes x) {
  const rlx_pairs c = (rlx_pairs)code, v = (rlx_pairs)x;
  const rlx_sums low = (rlx_sums)((c & 255)*(v << 8 >> 8)), high = (rlx_sums)((c >> 8 & 255)*(v >> 8));
  return part + (low << 16 >> 16) + (low >> 16) + (high << 16 >> 16) + (high >> 16);
}
RLX_INLINE rlx_sums rlx_part_sum(rlx_sums sums, rlx_part part) { return sums + part; }
#elif RLX_BYTES == 32 && (defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__)))
#if defined(__AVX512VNNI__)
#define RLX_DPBUSD "vpdpbusd %2, %1, %0"
#else
#define RLX_DPBUSD "%{vex%} vpdpbusd %2, %1, %0"
#endif
typedef rlx_sums rlx_part;
RLX_INLINE rlx_part rlx_part_add(rlx_part part, rlx_bytes code, rlx_bytes x) {
  __asm__(RLX_DPBUSD : "+x"(part) : "x"(code), "xm"(x));
  return part;
}
RLX_INLINE rlx_sums rlx_part_sum(rlx_sums sums, rlx_part part) { return sums + part; }
#elif RLX_BYTES == 32 && defined(__AVX2__)
typedef char rlx_chars __attribute__((vector_size(32)));
typedef rlx_pairs rlx_part;
RLX_INLINE rlx_part rlx_part_add(rlx_part part, rlx_bytes code, rlx_bytes x) {
  part += (rlx_pairs)__builtin_ia32_pmaddubsw256((rlx_chars)code, (rlx_chars)x);
  __asm__("" : "+x"(part));  /* sums in this order: gcc would make all products first, and spill them */
  return part;
}
RLX_INLINE rlx_part rlx_part_add_signed(rlx_part part, rlx_bytes code, rlx_bytes x) {
  return rlx_part_add(part, (rlx_bytes)RLX_ABS8(code), (rlx_bytes)__builtin_ia32_psignb256((rlx_chars)x, (rlx_chars)code));
}
RLX_INLINE rlx_sums rlx_part_sum(rlx_sums sums, rlx_part part) { return sums + (rlx_sums)__builtin_ia32_pmaddwd256(part, (rlx_pairs){0} + 1); }
#else
typedef rlx_sums rlx_part;
RLX_INLINE rlx_part rlx_part_add_signed(rlx_part part, rlx_bytes code, rlx_bytes x) {
#if defined(__ARM_FEATURE_DOTPROD)
  __asm__("sdot %0.4s, %1.16b, %2.16b" : "+w"(part) : "w"(code), "w"(x));
  return part;
#else
  const rlx_pairs c = (rlx_pairs)code, v = (rlx_pairs)x, two = (c << 8 >> 8)*(v << 8 >> 8) + (c >> 8)*(v >> 8);
  return part + ((rlx_sums)two << 16 >> 16) + ((rlx_sums)two >> 16);
#endif
}
RLX_INLINE rlx_sums rlx_part_sum(rlx_sums sums, rlx_part part) { return sums + part; }
#endif

/* a*b + c of rlx_scales */
#if defined(__clang__) && (defined(__FMA__) || defined(__aarch64__))
#define RLX_SCALE_FMA(a, b, c) __builtin_elementwise_fma((rlx_scales)(a), (rlx_scales)(b), (rlx_scales)(c))
#elif RLX_BYTES == 32 && defined(__FMA__)
#define RLX_SCALE_FMA(a, b, c) ((rlx_scales)__builtin_ia32_vfmaddps256(a, b, c))
#elif defined(__aarch64__)
#define RLX_SCALE_FMA(a, b, c) RLX_VFMA(a, b, c)
#else
#define RLX_SCALE_FMA(a, b, c) ((a)*(b) + (c))
#endif

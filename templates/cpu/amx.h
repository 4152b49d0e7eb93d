/* Tile registers tmm0..7 of 16 rows x 64 bytes: the machine's own, or with RLX_AMX_EMULATED the same steps in C, for tests on any machine.
   A task that uses them lies between RLX_AMX_BEGIN and RLX_AMX_END; a function that does begins with RLX_AMX_TILES.
   RLX_AMX_I8_DEEP(c, a, b): c i32 [16][16] += a i8 [16][64] x b i8 [16 fours of rows][16 columns][4].
   RLX_AMX_BF16(c, a, b): c f32 [16][16] += a bf16 [16][32] x b bf16 [16 pairs of rows][16 columns][2], flushing subnormal numbers.
   Between RLX_AMX_BEGIN_I8 and RLX_AMX_END tiles 4 and 5 have 16 rows x 32 bytes, 6 and 7 have 8 x 64, and
   RLX_AMX_I8(c, a, b): c i32 [16][16] += a i8 [16][32] x b i8 [8 fours of rows][16 columns][4]. */
typedef f32 rlx_v16 __attribute__((vector_size(64)));
#if RLX_VL == 16
#define RLX_V16FMA(a, b, c) RLX_VFMA(a, b, c)
#else
#define RLX_V16FMA(a, b, c) ((a)*(b) + (c))
#endif
typedef f32 rlx_any16 __attribute__((vector_size(64), aligned(4)));
#ifdef __AVX512BF16__
typedef u16 rlx_halves16 __attribute__((vector_size(32), aligned(2)));
/* The nearest bf16 of finite numbers; subnormal ones become 0, as they do in tiles. */
RLX_INLINE rlx_halves16 rlx_near16(rlx_v16 x) {
  rlx_halves16 y;
  __asm__("vcvtneps2bf16 %1, %0" : "=v"(y) : "v"(x));
  return y;
}
#endif
#ifdef RLX_AMX_EMULATED
typedef struct { u32 row[8][16][16]; } rlx_tiles;
RLX_INLINE f32 rlx_flushed(f32 x) { return rlx_abs_f32(x) < 0x1p-126f ? rlx_of_bits_f32(rlx_bits_f32(x) & 0x80000000u) : x; }
static RLX_UNUSED RLX_NOINLINE void rlx_rows64(char *restrict to, i64 to_step, const char *restrict from, i64 from_step) {
  for (i64 r = 0; r < 16; r++) __builtin_memcpy(to + r*to_step, from + r*from_step, 64);
}
static RLX_UNUSED RLX_NOINLINE void rlx_tiles_bf16(u32 (*restrict c)[16], u32 (*restrict a)[16], u32 (*restrict b)[16]) {
  for (int m = 0; m < 16; m++)
    for (int n = 0; n < 16; n++) {
      f32 even = 0, odd = 0;
      for (int k = 0; k < 16; k++) {
        even = rlx_flushed(rlx_fma_f32(rlx_flushed(rlx_of_bits_f32(a[m][k] << 16)), rlx_flushed(rlx_of_bits_f32(b[k][n] << 16)), even));
        odd = rlx_flushed(rlx_fma_f32(rlx_flushed(rlx_of_bits_f32(a[m][k] & 0xffff0000u)), rlx_flushed(rlx_of_bits_f32(b[k][n] & 0xffff0000u)), odd));
      }
      c[m][n] = rlx_bits_f32(rlx_flushed(rlx_flushed(rlx_of_bits_f32(c[m][n])) + rlx_flushed(even + odd)));
    }
}
static RLX_UNUSED RLX_NOINLINE void rlx_tiles_i8(int fours, u32 (*restrict c)[16], u32 (*restrict a)[16], u32 (*restrict b)[16]) {
  for (int m = 0; m < 16; m++)
    for (int k = 0; k < fours; k++)
      for (int e = 0; e < 32; e += 8)
        for (int n = 0; n < 16; n++) c[m][n] += (u32)((i32)(i8)(a[m][k] >> e)*(i32)(i8)(b[k][n] >> e));
}
#define RLX_AMX_BEGIN
#define RLX_AMX_BEGIN_I8
#define RLX_AMX_END
#define RLX_AMX_TILES rlx_tiles tiles_;
#define RLX_AMX_ZERO(n) __builtin_memset(tiles_.row[n], 0, sizeof tiles_.row[n]);
#define RLX_AMX_LOAD(n, from, step) rlx_rows64((char *)tiles_.row[n], 64, (const char *)(from), step);
#define RLX_AMX_LOAD_WHOLE(n, from) RLX_AMX_LOAD(n, from, 64)
#define RLX_AMX_STORE(n, to, step) rlx_rows64((char *)(to), step, (const char *)tiles_.row[n], 64);
#define RLX_AMX_LOAD_I8_A(n, from, step) for (i64 r_ = 0; r_ < 16; r_++) __builtin_memcpy(tiles_.row[n][r_], (const char *)(from) + r_*(step), 32);
#define RLX_AMX_LOAD_I8_B(n, from, step) for (i64 r_ = 0; r_ < 8; r_++) __builtin_memcpy(tiles_.row[n][r_], (const char *)(from) + r_*(step), 64);
#define RLX_AMX_BF16(c, a, b) rlx_tiles_bf16(tiles_.row[c], tiles_.row[a], tiles_.row[b]);
#define RLX_AMX_I8(c, a, b) rlx_tiles_i8(8, tiles_.row[c], tiles_.row[a], tiles_.row[b]);
#define RLX_AMX_I8_DEEP(c, a, b) rlx_tiles_i8(16, tiles_.row[c], tiles_.row[a], tiles_.row[b]);
#else
typedef struct { u8 palette, start, reserved[14]; u16 row_nbytes[16]; u8 rows[16]; } rlx_tile_shapes;
static const rlx_tile_shapes RLX_UNUSED rlx_whole_tiles RLX_ALIGNED = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
static const rlx_tile_shapes RLX_UNUSED rlx_int8_tiles RLX_ALIGNED = {1, 0, {0}, {64, 64, 64, 64, 32, 32, 64, 64}, {16, 16, 16, 16, 16, 16, 8, 8}};
#define RLX_AMX_BEGIN_I8 __asm__ volatile("ldtilecfg %0" :: "m"(rlx_int8_tiles) : "memory");
#define RLX_AMX_BEGIN __asm__ volatile("ldtilecfg %0" :: "m"(rlx_whole_tiles) : "memory");
#define RLX_AMX_END __asm__ volatile("tilerelease" ::: "memory");
#define RLX_AMX_TILES
#define RLX_AMX_ZERO(n) __asm__ volatile("tilezero %%tmm" #n ::);
#define RLX_AMX_LOAD(n, from, step) __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #n :: "r"(from), "r"((i64)(step)) : "memory");
/* A tile whose rows lie one after another: only its bytes are read, so that other values may stay in registers. */
#define RLX_AMX_LOAD_WHOLE(n, from) __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #n :: "r"(from), "r"((i64)64), "m"(*(const char (*)[1024])(from)));
#define RLX_AMX_STORE(n, to, step) __asm__ volatile("tilestored %%tmm" #n ", (%0,%1,1)" :: "r"(to), "r"((i64)(step)) : "memory");
#define RLX_AMX_LOAD_I8_A(n, from, step) RLX_AMX_LOAD(n, from, step)
#define RLX_AMX_LOAD_I8_B(n, from, step) RLX_AMX_LOAD(n, from, step)
#define RLX_AMX_BF16(c, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::);
#define RLX_AMX_I8(c, a, b) __asm__ volatile("tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::);
#define RLX_AMX_I8_DEEP(c, a, b) RLX_AMX_I8(c, a, b)
#endif
/* The nearest bf16 of a finite number, in the upper half of a word. */
RLX_INLINE u32 rlx_near(f32 x) { const u32 u = rlx_bits_f32(x); return u + 0x7fff + ((u >> 16) & 1); }
/* Magnitudes compare as their bits do. */
RLX_INLINE u32 rlx_greater(u32 most, f32 x) { const u32 u = rlx_bits_f32(x) & 0x7fffffff; return (i32)u > (i32)most ? u : most; }

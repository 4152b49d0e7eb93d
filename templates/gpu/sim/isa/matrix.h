/* Matrix instructions: D = A B + C on small matrices that lie spread over a wave's registers.  Products are summed one by one, k ascending, by
   fma in the type of D; hardware sums in an order of its own. */

/* args: 0 family, 1 M, 2 N, 3 K, 4 blocks, 5 type of A, 6 type of B, 7 type of C and D, 8 flags.  src: A, B, C; dst: D. */
enum { MFMA, WMMA11, WMMA12 };
enum { M_F32, M_F16, M_BF16, M_F64, M_I8, M_U8, M_I4, M_U4, M_I32, M_FP8, M_BF8, M_FP8Z, M_BF8Z };
enum { M_CLAMP = 1, M_HIGH = 2 };
static const u8 M_BITS[] = {32, 16, 16, 64, 8, 8, 4, 4, 32, 8, 8, 8, 8};

/* Element `item` of a lane's packed operand. */
static f64 element(const Wave* w, const Src* s, u32 type, u32 lane, u32 item) {
  const u32 bits = M_BITS[type], at = item * bits;
  if (s->kind != SRC_VGPR) { /* an inline constant stands in every place */
    u64 x = scalar(w, s, WHOLE);
    return type == M_F64 ? f64_of(x) : type == M_F32 ? f32_of((u32)x) : type == M_I32 ? (f64)(i32)x : type == M_F16 ? f16_of((u32)x & 0xffff) : bf16_of((u32)x & 0xffff);
  }
  if (type == M_F64) return f64_of((u64)w->v[s->reg + 2 * item + 1][lane] << 32 | w->v[s->reg + 2 * item][lane]);
  u32 x = w->v[s->reg + at / 32][lane] >> (at % 32);
  switch (type) {
    case M_F32: return f32_of(x);
    case M_I32: return (i32)x;
    case M_F16: return f16_of(x & 0xffff);
    case M_BF16: return bf16_of(x & 0xffff);
    case M_I8: return (i8)x;
    case M_U8: return (u8)x;
    case M_I4: return (i32)(x << 28) >> 28;
    case M_U4: return x & 15;
    case M_FP8: return f8_of(x & 255, 3, 0);
    case M_BF8: return f8_of(x & 255, 2, 0);
    case M_FP8Z: return f8_of(x & 255, 3, 1);
    default: return f8_of(x & 255, 2, 1);
  }
}

typedef struct { u32 lane, item; } Spot;

/* Where element (row or column, k) of block b of A or B lies; `side` is M for A and N for B. */
static Spot input_spot(const Ins* i, u32 lanes, u32 side, u32 at, u32 k, u32 b) {
  const u32 K = i->args[3], blocks = i->args[4];
  if (i->args[0] == WMMA11) return (Spot){at, k};  /* every group of 16 lanes holds all of it */
  if (i->args[7] == M_F64 && blocks > 1) return (Spot){at + side * (b + blocks * k), 0};
  const u32 each = side * K * blocks / lanes, group = k / each + K / each * b;
  return (Spot){at + side * group, k % each};
}

/* Where element (row, column) of block b of C and D lies. */
static Spot output_spot(const Ins* i, u32 lanes, u32 row, u32 column, u32 b) {
  const u32 M = i->args[1], N = i->args[2], blocks = i->args[4], high = lanes / N;
  if (i->args[0] == WMMA11) return (Spot){column + N * (row % high), row / high};
  if (i->args[0] == WMMA12) return (Spot){column + N * (row / (M / high)), row % (M / high)};
  if (i->args[7] == M_F64) return blocks > 1 ? (Spot){column + N * (b + blocks * row), 0} : (Spot){column + N * (row % high), row / high};
  const u32 group = row / 4 + M / 4 * b;  /* four rows lie in four registers of one lane */
  return (Spot){column + N * (group % high), row % 4 + 4 * (group / high)};
}

static f64 accumulated(const Wave* w, const Ins* i, u32 row, u32 column, u32 b, f64 c) {
  const u32 type = i->args[7];
  for (u32 k = 0; k < i->args[3]; k++) {
    Spot p = input_spot(i, w->lanes, i->args[1], row, k, b), q = input_spot(i, w->lanes, i->args[2], column, k, b);
    f64 x = element(w, &i->src[0], i->args[5], p.lane, p.item), y = element(w, &i->src[1], i->args[6], q.lane, q.item);
    c = type == M_F32 || type == M_F16 || type == M_BF16 ? (f64)(f32)fma_odd(x, y, c) : type == M_I32 ? x * y + c : fma_f64(x, y, c);
  }
  return c;
}

static int step_matrix(Wave* w, const Ins* i) {
  const u32 type = i->args[7], M = i->args[1], N = i->args[2], high = i->args[8] & M_HIGH;
  static _Thread_local u32 result[64][LANES];
  u32 used = 0;
  /* 16-bit results of gfx11 lie one a register, in the half that op_sel names; elsewhere two a register. */
  const u32 apart = i->args[0] == WMMA11 && M_BITS[type] == 16;
  __builtin_memset(result, 0, sizeof result);
  for (u32 b = 0; b < i->args[4]; b++) for (u32 row = 0; row < M; row++) for (u32 column = 0; column < N; column++) {
    Spot d = output_spot(i, w->lanes, row, column, b);
    f64 x = accumulated(w, i, row, column, b, element(w, &i->src[2], type, d.lane, apart ? 2 * d.item + (high != 0) : d.item));
    u32 reg = type == M_F64 ? 2 * d.item : M_BITS[type] == 16 && !apart ? d.item / 2 : d.item;
    if (type == M_F64) { u64 y = bits_f64(x); result[reg][d.lane] = (u32)y; result[++reg][d.lane] = (u32)(y >> 32); }
    else if (type == M_I32) result[reg][d.lane] = i->args[8] & M_CLAMP ? to_i32(x) : (u32)(i64)x;
    else if (type == M_F32) result[reg][d.lane] = bits_f32((f32)x);
    else {
      u32 y = type == M_F16 ? f16_bits(x) : bf16_bits(x);
      if (apart) result[reg][d.lane] = high ? (w->v[i->dst + reg][d.lane] & 0xffff) | y << 16 : (w->v[i->dst + reg][d.lane] & 0xffff0000) | y;
      else result[reg][d.lane] |= y << (16 * (d.item & 1));
    }
    if (reg + 1 > used) used = reg + 1;
  }
  for (u32 r = 0; r < used; r++) __builtin_memcpy(w->v[i->dst + r], result[r], sizeof(u32) * w->lanes);
  return STEP_ON;
}

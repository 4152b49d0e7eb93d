/* Vector instructions: sources are read into arrays of lanes, one function computes them all, and what EXEC lets through is written. */
INLINE u64 get64(const Wave* w, u32 reg) { return (u64)w->s[reg + 1] << 32 | w->s[reg]; }
INLINE void set32(Wave* w, u32 reg, u32 x) { if (reg != NULL_SGPR) w->s[reg] = x; }
INLINE void set64(Wave* w, u32 reg, u64 x) { set32(w, reg, (u32)x); if (reg != NULL_SGPR) w->s[reg + 1] = (u32)(x >> 32); }
INLINE u64 get_mask(const Wave* w, u32 reg) { return w->lanes == 64 ? get64(w, reg) : w->s[reg]; }
INLINE void set_mask(Wave* w, u32 reg, u64 x) { if (w->lanes == 64) set64(w, reg, x); else set32(w, reg, (u32)x); }
INLINE u64 exec_of(const Wave* w) { return get_mask(w, EXEC); }

static int fault_at(Wave* w, const Ins* i, u32 kind, u32 lane, u64 address, u64 nbytes, u64 other) {
  Report* r = &w->launch->report;
  *r = (Report){.kind = kind, .wave = w->number, .lane = lane, .pc = i->pc, .address = address, .nbytes = nbytes, .other = other};
  __builtin_memcpy(r->block, w->block->id, sizeof r->block);
  return STEP_FAULT;
}

INLINE int is_wide(u32 type) { return type == 'U' || type == 'I' || type == 'd'; }
INLINE int is_short(u32 type) { return type == 'h' || type == 's' || type == 't' || type == 'm' || type == 'b'; }
INLINE u64 sign_bit(u32 type) { return type == 'd' ? 1ull << 63 : is_short(type) || type == 'p' ? 1ull << 15 : 1ull << 31; }

INLINE u64 part_of(u64 x, u32 sel, int sext) {
  switch (sel) {
    case WORD_0: case WORD_1: x = x >> (16 * (sel - WORD_0)) & 0xffff; return sext ? (u32)(i16)x : x;
    case BYTE_0: case BYTE_1: case BYTE_2: case BYTE_3: x = x >> (8 * (sel - BYTE_0)) & 0xff; return sext ? (u32)(i8)x : x;
    default: return x;
  }
}

static u64 scalar(const Wave* w, const Src* s, u32 sel) {
  switch (s->kind) {
    case SRC_SGPR: return s->reg == NULL_SGPR ? 0 : is_wide(s->type) ? get64(w, s->reg) : w->s[s->reg + (sel == DWORD_1)];
    case SRC_CONST: return sel == DWORD_1 ? s->value >> 32 : s->value;
    case SRC_SCC: return w->scc;
    case SRC_VCCZ: return get_mask(w, VCC) == 0;
    case SRC_EXECZ: return exec_of(w) == 0;
    default: return 0;
  }
}

/* What each lane finds in the lane that its first source is taken from.  Returns the lanes whose result is not written. */
static u64 permute(const Wave* w, const Ins* i, Lanes x) {
  const i8* from = w->launch->perms + (u64)(i->perm - 1) * LANES;
  u64 exec = exec_of(w), blocked = 0;
  Lanes old;
  __builtin_memcpy(old, x, sizeof old);
  for (u32 l = 0; l < w->lanes; l++) {
    int valid = from[l] >= 0 && ((exec >> (from[l] & 63) & 1) || (i->flags & FETCH_INACTIVE));
    x[l] = valid ? old[from[l]] : 0;
    if (!valid && !(i->flags & BOUND_CTRL)) blocked |= 1ull << l;
  }
  return blocked;
}

INLINE int flushes(const Wave* w, u32 type) {
  return type == 'f' ? (w->mode & DENORM_F32) != DENORM_F32 : (type == 'h' || type == 'd') && (w->mode & DENORM_F64) != DENORM_F64;
}
INLINE u64 flushed(u64 x, u32 type) {
  if (type == 'f') return x & 0x7f800000 ? x : x & 0x80000000;
  if (type == 'h') return x & 0x7c00 ? x : x & 0x8000;
  return x & 0x7ffull << 52 ? x : x & 1ull << 63;
}

/* A vector register's number where gfx9 shifts it: M0 has the distance, and a bit for sources 0 to 2 and the result, which is 3. */
INLINE u32 shifted(const Wave* w, u32 reg, u32 k) { return w->indexing && w->s[M0] >> (12 + k) & 1 ? (reg + (w->s[M0] & 255)) % VGPRS : reg; }

/* Source k of a vector instruction in every lane; half 1 is the high half of a packed one.  Returns the lanes that DPP blocks. */
static u64 fetch(const Wave* w, const Ins* i, u32 k, int half, Lanes x) {
  const Src* s = &i->src[k];
  const u32 n = w->lanes, sel = half ? s->sel_hi : s->sel, neg = s->flags & (half ? NEG_HI : NEG);
  u64 blocked = 0;
  if (s->kind == SRC_VGPR) {
    const u32 reg = shifted(w, s->reg, k);
    const u32* low = w->v[reg + (sel == DWORD_1)];
    if (is_wide(s->type)) for (u32 l = 0; l < n; l++) x[l] = (u64)w->v[reg + 1][l] << 32 | low[l];
    else for (u32 l = 0; l < n; l++) x[l] = low[l];
    if (i->perm && k == 0) blocked = permute(w, i, x);
  } else {
    u64 value = scalar(w, s, sel);
    for (u32 l = 0; l < n; l++) x[l] = value;
  }
  if (s->type == 'p') { /* a pair: two halves of one register, each chosen */
    u64 flip = (s->flags & NEG ? 0x8000u : 0) | (s->flags & NEG_HI ? 0x80000000u : 0);
    for (u32 l = 0; l < n; l++) x[l] = (part_of(x[l], s->sel, 0) & 0xffff) | (part_of(x[l], s->sel_hi, 0) & 0xffff) << 16;
    if (flip) for (u32 l = 0; l < n; l++) x[l] ^= flip;
    return blocked;
  }
  if (sel >= WORD_0 && sel <= BYTE_3) for (u32 l = 0; l < n; l++) x[l] = part_of(x[l], sel, (s->flags & SEXT) != 0);
  if (is_short(s->type) || s->flags & WIDEN) for (u32 l = 0; l < n; l++) x[l] &= 0xffff;
  if (s->flags & WIDEN) for (u32 l = 0; l < n; l++) x[l] = bits_f32((f32)f16_of((u32)x[l]));
  if (s->flags & ABS) for (u32 l = 0; l < n; l++) x[l] &= ~sign_bit(s->type);
  if (neg) for (u32 l = 0; l < n; l++) x[l] ^= sign_bit(s->type);
  if (flushes(w, s->type)) for (u32 l = 0; l < n; l++) x[l] = flushed(x[l], s->type);
  return blocked;
}

static f64 scaled_and_clamped(f64 x, const Ins* i) {
  static const f64 scales[] = {1, 2, 4, 0.5};
  x *= scales[i->omod];
  return i->flags & CLAMP ? (x > 0 ? (x < 1 ? x : 1) : 0) : x; /* nan becomes 0 */
}

static void finish(const Wave* w, const Ins* i, u32 type, Lanes r) {
  if (i->omod || i->flags & CLAMP) {
    for (u32 l = 0; l < w->lanes; l++) {
      if (type == 'f') r[l] = bits_f32((f32)scaled_and_clamped(f32_of((u32)r[l]), i));
      if (type == 'h') r[l] = f16_bits(scaled_and_clamped(f16_of((u32)r[l]), i));
      if (type == 'd') r[l] = bits_f64(scaled_and_clamped(f64_of(r[l]), i));
    }
  }
  if (flushes(w, type)) for (u32 l = 0; l < w->lanes; l++) r[l] = flushed(r[l], type);
}

/* One pass of an instruction's function: over all of its operands, or over one half of packed ones. */
static u64 pass(const Wave* w, const Ins* i, int half, Lanes r, u64* blocked) {
  Lanes in[4];
  u64 out = 0;
  for (u32 k = 0; k < 4; k++) if (i->src[k].kind != SRC_NONE) *blocked |= fetch(w, i, k, half, in[k]);
  LANE_OPS[i->op].run((int)w->lanes, in[0], in[1], in[2], in[3], i->mask_in == NO_REG ? 0 : get_mask(w, i->mask_in), r, &out, i->args);
  finish(w, i, LANE_OPS[i->op].type, r);
  return out;
}

static u64 compute(const Wave* w, const Ins* i, Lanes r, u64* blocked) {
  u64 out = pass(w, i, 0, r, blocked);
  if (i->flags & (PACKED | PACKED_F32)) {
    Lanes high;
    pass(w, i, 1, high, blocked);
    u32 by = i->flags & PACKED_F32 ? 32 : 16;
    for (u32 l = 0; l < w->lanes; l++) r[l] = (by == 32 ? (u32)r[l] : r[l] & 0xffff) | high[l] << by;
  }
  return out;
}

static void put_lane(Wave* w, const Ins* i, u32 dst, u32 l, u64 x, int wide) {
  u32* d = &w->v[dst][l];
  u32 bits = 0, at = 0;
  if (i->dst_sel >= WORD_0 && i->dst_sel <= WORD_1) bits = 16, at = 16 * (i->dst_sel - WORD_0);
  if (i->dst_sel >= BYTE_0 && i->dst_sel <= BYTE_3) bits = 8, at = 8 * (i->dst_sel - BYTE_0);
  if (!bits) {
    *d = (u32)x;
    if (wide) w->v[dst + 1][l] = (u32)(x >> 32);
    return;
  }
  u32 ones = (1u << bits) - 1, part = ((u32)x & ones) << at;
  if (i->dst_rest == KEEP) *d = (*d & ~(ones << at)) | part;
  else *d = part | (i->dst_rest == SIGN && (x >> (bits - 1) & 1) ? ~((ones << at) | ((1u << at) - 1)) : 0);
}

static void store(Wave* w, const Ins* i, const Lanes r, u64 out, u64 blocked) {
  u64 exec = exec_of(w), mask = exec & i->writable & ~blocked;
  int wide = is_wide(LANE_OPS[i->op].type) || i->flags & PACKED_F32;
  if (i->flags & WRITES_EXEC) set_mask(w, EXEC, out & exec);
  if (i->mask_out != NO_REG) set_mask(w, i->mask_out, out & exec);
  if (i->flags & NO_DST) return;
  const u32 dst = shifted(w, i->dst, 3);
  if (i->dst_sel == WHOLE && !wide) {
    for (u32 l = 0; l < w->lanes; l++) if (mask >> l & 1) w->v[dst][l] = (u32)r[l];
    return;
  }
  for (u32 l = 0; l < w->lanes; l++) if (mask >> l & 1) put_lane(w, i, dst, l, r[l], wide);
}

static int step_valu(Wave* w, const Ins* i) {
  Lanes r, other;
  u64 blocked = 0, out = compute(w, i, r, &blocked);
  if (i->flags & PAIRED) { /* both halves of a dual instruction read before either writes */
    u64 none = 0;
    compute(w, i + 1, other, &none);
    store(w, i + 1, other, 0, none);
    w->ip++;
  }
  store(w, i, r, out, blocked);
  return STEP_ON;
}

/* Moves between lanes.  args[0] says which. */
static int step_lane(Wave* w, const Ins* i) {
  const u32 n = w->lanes, kind = i->args[0];
  const u64 exec = exec_of(w);
  Lanes a, b, r;
  if (kind == LANE_READFIRST || kind == LANE_READ || kind == LANE_WRITE) {
    u32 lane = kind == LANE_READFIRST ? (exec ? (u32)__builtin_ctzll(exec) : 0) : (u32)scalar(w, &i->src[1], WHOLE) & (n - 1);
    if (kind == LANE_WRITE) w->v[i->dst][lane] = (u32)scalar(w, &i->src[0], WHOLE);
    else set32(w, i->dst, i->src[0].kind == SRC_VGPR ? w->v[i->src[0].reg][lane] : (u32)scalar(w, &i->src[0], WHOLE));
    return STEP_ON;
  }
  fetch(w, i, 0, 0, a);
  if (kind == LANE_SWAP || kind == LANE_SWAP16 || kind == LANE_SWAP32) { /* dst and src[0] exchange: all, odd rows for even ones, the upper half for the lower */
    u32* d = w->v[i->dst]; u32* s = w->v[i->src[0].reg];
    u32 by = kind == LANE_SWAP16 ? 16 : kind == LANE_SWAP32 ? 32 : 0;
    for (u32 l = 0; l < n; l++) {
      u32 to = l, from = by ? l ^ by : l;
      if (by ? !(l & by) || !(exec >> from & 1) : !(exec >> l & 1)) continue;
      u32 t = d[to]; d[to] = s[from]; s[from] = t;
    }
    return STEP_ON;
  }
  if (kind == LANE_MOVRELS || kind == LANE_MOVRELD) {
    u32 by = w->s[i->args[1]], d = i->dst + (kind == LANE_MOVRELD ? by : 0), s = i->src[0].reg + (kind == LANE_MOVRELS ? by : 0);
    if (d >= VGPRS || s >= VGPRS) return fault_at(w, i, INDEX, 0, by, 0, 0);
    if (i->src[0].kind == SRC_VGPR) for (u32 l = 0; l < n; l++) a[l] = w->v[s][l];
    for (u32 l = 0; l < n; l++) if (exec >> l & 1) w->v[d][l] = (u32)a[l];
    return STEP_ON;
  }
  u64 chosen = 0, blocked = 0;
  if (i->src[1].kind != SRC_NONE) fetch(w, i, 1, 0, b);
  if (kind == LANE_ROW || kind == LANE_ROW_X) chosen = scalar(w, &i->src[2], WHOLE) << 32 | (i->src[1].kind == SRC_VGPR ? 0 : (u32)b[0]);
  for (u32 l = 0; l < n; l++) {
    u32 from = l;
    switch (kind) {
      case LANE_BPERMUTE: from = (l & ~(i->args[1] - 1)) | ((u32)((b[l] + (u64)i->offset) >> 2) & (i->args[1] - 1)); break;
      case LANE_ROW: from = (l & ~15u) | (u32)((i->src[1].kind == SRC_VGPR ? b[l] : chosen >> (4 * (l & 15))) & 15); break;
      case LANE_ROW_X: from = ((l & ~15u) ^ 16) | (u32)((i->src[1].kind == SRC_VGPR ? b[l] : chosen >> (4 * (l & 15))) & 15); break;
      case LANE_HALVES: from = n == 64 ? l ^ 32 : l; break;
      case LANE_TABLE: { i8 t = w->launch->perms[(u64)(i->args[1]) * LANES + l]; from = t < 0 ? l : (u32)t; break; }
      default: break;
    }
    int valid = exec >> from & 1 || i->flags & FETCH_INACTIVE;
    r[l] = valid ? a[from] : 0;
    if (!valid && (kind == LANE_ROW || kind == LANE_ROW_X) && !(i->flags & BOUND_CTRL)) blocked |= 1ull << l;
  }
  if (kind == LANE_PERMUTE) { /* pushed, not pulled: the highest lane that names a place wins */
    for (u32 l = 0; l < n; l++) r[l] = 0;
    for (u32 l = 0; l < n; l++) if (exec >> l & 1) r[(l & ~(i->args[1] - 1)) | ((u32)((b[l] + (u64)i->offset) >> 2) & (i->args[1] - 1))] = a[l];
  }
  for (u32 l = 0; l < n; l++) if ((exec & ~blocked) >> l & 1) w->v[i->dst][l] = (u32)r[l];
  return STEP_ON;
}

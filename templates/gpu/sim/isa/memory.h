/* Memory: each access is checked, by lane, against what the kernel was given. */
enum { ACCESS_LOAD, ACCESS_STORE, ACCESS_ATOMIC };
enum { SPACE_GLOBAL, SPACE_FLAT, SPACE_SCRATCH, SPACE_BUFFER };
enum { SHARED_APERTURE = 0x20000, PRIVATE_APERTURE = 0x10000 };  /* the high words of flat addresses that are not global */
enum { OFFEN = 1, IDXEN = 2 };

static int in_ranges(const Launch* g, u64 a, u64 n) {
  u64 low = 0, high = g->nranges;
  while (low < high) { u64 mid = (low + high) / 2; if (g->ranges[2 * mid] <= a) low = mid + 1; else high = mid; }
  return low && a + n >= a && a + n <= g->ranges[2 * low - 1];
}

/* Compilers make an atomic that hardware lacks of a load and a loop of compare and swap, so that a load of what an atomic wrote is judged later. */
static void suspect(Wave* w, const Ins* i, Shadow* h, int arises, int clears) {
  if (arises && !h->suspect) {
    h->suspect = 1 + (u32)(i - w->launch->code), h->suspect_wave = (u16)w->number;
    w->block->suspects++;
  } else if (clears && h->suspect && h->suspect_wave == w->number) {
    h->suspect = 0;
    w->block->suspects--;
  }
}
/* When an interval ends, what is still suspected is a race. */
static int judge(Launch* g, Block* b) {
  for (u32 k = 0; b->suspects && k < g->lds_nbytes; k++) {
    Shadow* h = &b->shadow[k];
    if (h->suspect) return fault_at(&g->waves[h->suspect_wave], &g->code[h->suspect - 1], LDS_RACE, 0, k, 1, h->writer);
  }
  return STEP_ON;
}

/* A byte of LDS is used by one wave, or read by several, between two barriers; and read only when it was written. */
static int touch(Wave* w, const Ins* i, u32 lane, u64 at, u64 n, int access) {
  const Launch* g = w->launch;
  if (at + n > g->lds_nbytes) return fault_at(w, i, LDS_RANGE, lane, at, n, g->lds_nbytes);
  const u32 now = w->block->epoch + 1, me = w->number;
  for (u64 k = at; k < at + n; k++) {
    Shadow* h = &w->block->shadow[k];
    int others_wrote = h->write_epoch == now && h->writer != me, others_read = h->read_epoch == now && h->reader != me;
    if (access != ACCESS_STORE && !h->written) return fault_at(w, i, LDS_UNINITIALISED, lane, at, n, k);
    if (others_wrote && (access == ACCESS_STORE || !h->atomic)) return fault_at(w, i, LDS_RACE, lane, at, n, h->writer);
    if (others_read && access == ACCESS_STORE) return fault_at(w, i, LDS_RACE, lane, at, n, h->reader);
    suspect(w, i, h, access == ACCESS_LOAD && others_wrote, access == ACCESS_ATOMIC);
    if (access == ACCESS_LOAD) {
      h->reader = others_read ? MANY : (u16)me;
      h->read_epoch = now;
    } else {
      h->writer = others_wrote ? MANY : (u16)me;
      h->write_epoch = now;
      h->atomic = access == ACCESS_ATOMIC;
      h->written = 1;
    }
  }
  return STEP_ON;
}

/* Where an access of one lane lies on the host; NULL after a fault. */
static u8* lds_place(Wave* w, const Ins* i, u32 lane, u64 at, u64 n, int access) {
  if (access == ACCESS_ATOMIC && at % n) return fault_at(w, i, UNALIGNED, lane, at, n, 0), (u8*)0;
  return touch(w, i, lane, at, n, access) == STEP_ON ? w->block->lds + at : 0;
}
static u8* scratch_place(Wave* w, const Ins* i, u32 lane, u64 at, u64 n) {
  u32 size = w->launch->scratch_nbytes;
  if (at + n > size || at + n < at) return fault_at(w, i, SCRATCH_RANGE, lane, at, n, size), (u8*)0;
  return w->scratch + (u64)lane * size + at;
}
static u8* place(Wave* w, const Ins* i, u32 lane, u64 a, u64 n, int access) {
  if (i->args[0] == SPACE_SCRATCH) return scratch_place(w, i, lane, a, n);
  if (i->args[0] == SPACE_FLAT && a >> 32 == SHARED_APERTURE) return lds_place(w, i, lane, (u32)a, n, access);
  if (i->args[0] == SPACE_FLAT && a >> 32 == PRIVATE_APERTURE) return scratch_place(w, i, lane, (u32)a, n);
  if (access == ACCESS_ATOMIC && a % n) return fault_at(w, i, UNALIGNED, lane, a, n, 0), (u8*)0;
  if (!in_ranges(w->launch, a, n)) return fault_at(w, i, GLOBAL_RANGE, lane, a, n, access), (u8*)0;
  return (u8*)a;
}

INLINE u32 lane_of(const Wave* w, const Src* s, u32 lane, u32 dword) {
  return s->kind == SRC_VGPR ? w->v[s->reg + dword][lane] : (u32)(scalar(w, s, WHOLE) >> (32 * dword));
}
INLINE u64 lane64(const Wave* w, const Src* s, u32 lane) { return (u64)lane_of(w, s, lane, 1) << 32 | lane_of(w, s, lane, 0); }

/* args of vector memory: 0 space, 1 access, 2 bytes, 3 sign extension, 4 part of the register, 5 data register, 6 atomic function, 7 register of
   the old value or NO_VGPR, 8 buffer addressing.  src: 0 vector address, 1 scalar address or resource, 2 scalar offset. */
enum { NO_VGPR = 0xffff };

/* 0: to be done at *a.  1: a buffer's lane outside its records: loads give 0, stores do nothing. */
static int buffer_address(Wave* w, const Ins* i, u32 lane, u64* a, int* scratch) {
  const u32* r = &w->s[i->src[1].reg];
  u64 base = (u64)(r[1] & 0xffff) << 32 | r[0], stride = r[1] >> 16 & 0x3fff, soffset = (u32)scalar(w, &i->src[2], WHOLE);
  u64 index = i->args[8] & IDXEN ? lane_of(w, &i->src[0], lane, 0) : 0;
  u64 offset = (u64)i->offset + (i->args[8] & OFFEN ? lane_of(w, &i->src[0], lane, (i->args[8] & IDXEN) != 0) : 0);
  *scratch = base == (w->launch->scratch_base & 0xffffffffffff) && w->launch->scratch_base;
  if (*scratch) { /* the private segment's resource: its scalar offset counts the bytes of a whole wave */
    *a = soffset / w->lanes + offset;
    return 0;
  }
  *a = base + soffset + index * stride + offset;
  return stride ? index >= r[2] : offset + i->args[2] > r[2];
}

static void load_into(Wave* w, const Ins* i, u32 d, u32 lane, const u8* p) {
  u32 n = i->args[2], x = 0;
  if (n >= 4) { for (u32 k = 0; k < n / 4; k++) __builtin_memcpy(&w->v[d + k][lane], p + 4 * k, 4); return; }
  if (n == 1) x = i->args[3] ? (u32)(i32)(i8)p[0] : p[0];
  if (n == 2) { u16 y; __builtin_memcpy(&y, p, 2); x = i->args[3] ? (u32)(i32)(i16)y : y; }
  u32* to = &w->v[d][lane];
  *to = i->args[4] == WORD_0 ? (*to & 0xffff0000) | (x & 0xffff) : i->args[4] == WORD_1 ? (*to & 0xffff) | x << 16 : x;
}
static void store_from(const Wave* w, const Ins* i, u32 reg, u32 lane, u8* p) {
  u32 n = i->args[2];
  if (n >= 4) { for (u32 k = 0; k < n / 4; k++) __builtin_memcpy(p + 4 * k, &w->v[reg + k][lane], 4); return; }
  u32 x = w->v[reg][lane] >> (i->args[4] == WORD_1 ? 16 : 0);
  __builtin_memcpy(p, &x, n);
}
/* data: one register or two; other: what is compared with or, for LDS of gfx11 on, stored by cmpstore. */
static void atomic_at(Wave* w, const Ins* i, u32 lane, u8* p, u32 data, u32 other) {
  u32 n = i->args[2];
  u64 old = 0, x = w->v[data][lane], y = other == NO_VGPR ? 0 : w->v[other][lane];
  if (n == 8) { x |= (u64)w->v[data + 1][lane] << 32; if (other != NO_VGPR) y |= (u64)w->v[other + 1][lane] << 32; }
  __builtin_memcpy(&old, p, n);
  u64 new = ATOMIC_OPS[i->args[6]](old, x, y);
  __builtin_memcpy(p, &new, n);
  if (i->args[7] == NO_VGPR) return;
  w->v[i->args[7]][lane] = (u32)old;
  if (n == 8) w->v[i->args[7] + 1][lane] = (u32)(old >> 32);
}

static int step_vector_memory(Wave* w, const Ins* i) {
  const u64 exec = exec_of(w);
  const u32 n = i->args[2], access = i->args[1];
  for (u32 l = 0; l < w->lanes; l++) {
    if (!(exec >> l & 1)) continue;
    u64 a;
    u8* p;
    if (i->args[0] == SPACE_BUFFER) {
      int scratch, outside = buffer_address(w, i, l, &a, &scratch);
      static const u8 zeros[16];
      if (outside && access == ACCESS_LOAD) load_into(w, i, i->args[5], l, zeros);
      if (outside) continue;
      p = scratch ? scratch_place(w, i, l, a, n) : place(w, i, l, a, n, (int)access);
    } else {
      const Src *v = &i->src[0], *s = &i->src[1];
      if (i->args[0] == SPACE_SCRATCH) a = (u32)(lane_of(w, v, l, 0) + lane_of(w, s, l, 0) + (u32)i->offset);
      else a = (s->kind == SRC_NONE ? lane64(w, v, l) : lane64(w, s, l) + lane_of(w, v, l, 0)) + (u64)i->offset;
      p = place(w, i, l, a, n, (int)access);
    }
    if (!p) return STEP_FAULT;
    if (access == ACCESS_LOAD) load_into(w, i, i->args[5], l, p);
    else if (access == ACCESS_STORE) store_from(w, i, i->args[5], l, p);
    else atomic_at(w, i, l, p, i->args[5], i->args[9]);
  }
  return STEP_ON;
}

/* args of LDS: as above, and 10, 11 the two offsets of instructions with two addresses (8: how many).  src: 0 address. */
static int step_lds(Wave* w, const Ins* i) {
  const u64 exec = exec_of(w);
  const u32 n = i->args[2], access = i->args[1];
  for (u32 l = 0; l < w->lanes; l++) {
    if (!(exec >> l & 1)) continue;
    const u32 base = lane_of(w, &i->src[0], l, 0);
    u8* p[2];
    for (u32 k = 0; k < i->args[8]; k++) if (!(p[k] = lds_place(w, i, l, base + i->args[10 + k], n, (int)access))) return STEP_FAULT;
    if (access == ACCESS_ATOMIC) { atomic_at(w, i, l, p[0], i->args[5], i->args[9]); continue; }
    for (u32 k = 0; k < i->args[8]; k++) {
      if (access == ACCESS_LOAD) load_into(w, i, i->args[5] + k * n / 4, l, p[k]);
      else store_from(w, i, k ? i->args[9] : i->args[5], l, p[k]);
    }
  }
  return STEP_ON;
}

/* Scalar loads.  args: 0 whether the base is a buffer resource, 2 bytes, 3 sign extension.  src: 0 base, 1 offset. */
static int step_scalar_memory(Wave* w, const Ins* i) {
  u32 n = i->args[2], bytes[16] = {0};
  u64 offset = (u32)scalar(w, &i->src[1], WHOLE) + (u64)i->offset, base = get64(w, i->src[0].reg);
  if (i->args[0]) base &= 0xffffffffffff;
  u64 a = base + offset;
  int outside = i->args[0] && offset + n > w->s[i->src[0].reg + 2];
  if (a % (n < 4 ? n : 4)) return fault_at(w, i, UNALIGNED, 0, a, n, 0);
  if (!outside && !in_ranges(w->launch, a, n)) return fault_at(w, i, GLOBAL_RANGE, 0, a, n, ACCESS_LOAD);
  if (!outside) __builtin_memcpy(bytes, (const void*)a, n);
  if (n == 1 && i->args[3]) bytes[0] = (u32)(i32)(i8)bytes[0];
  if (n == 2 && i->args[3]) bytes[0] = (u32)(i32)(i16)bytes[0];
  for (u32 k = 0; k < (n + 3) / 4; k++) set32(w, i->dst == NULL_SGPR ? NULL_SGPR : i->dst + k, bytes[k]);
  return STEP_ON;
}

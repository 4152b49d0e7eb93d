/* A launch: blocks one after the other, the waves of a block in turns of at most QUANTUM instructions. */
enum { QUANTUM = 100000, POISON = 0x7fd1d1d1 };  /* registers and LDS start as a nan that is a large integer too */

static int run_wave(Wave* w) {
  const Ins* code = w->launch->code;
  for (u32 k = 0; k < QUANTUM; k++) {
    const Ins* i = &code[w->ip++];
    w->count++;
    int r = STEPS[i->unit](w, i);
    if (r != STEP_ON) return r;
  }
  return STEP_YIELD;
}

static void fill(u32* to, u64 n) { for (u64 k = 0; k < n; k++) to[k] = POISON; }

static void begin_wave(Launch* g, Block* b, Wave* w, u32 number) {
  const u32 threads = g->block[0] * g->block[1] * g->block[2], first = number * g->lanes, n = threads - first < g->lanes ? threads - first : g->lanes;
  fill(w->s, SGPRS);
  fill(&w->v[0][0], VGPRS * LANES);
  w->lanes = g->lanes, w->scc = 0, w->mode = g->mode, w->indexing = 0, w->state = READY, w->number = number, w->signalled = 0, w->signal_epoch = NO_EPOCH;
  w->ip = g->entry, w->count = 0, w->block = b, w->launch = g, w->scratch = g->scratch + (u64)number * g->lanes * g->scratch_nbytes;
  set64(w, EXEC, n == 64 ? ~0ull : (1ull << n) - 1);
  for (u32 k = 0; k < g->nuser; k++) w->s[k] = g->user[k];
  for (u32 k = 0; k < 3; k++) if (g->system[k] != NO_REG) w->s[g->system[k]] = b->id[k];
  if (g->system[3] != NO_REG) w->s[g->system[3]] = number == 0 ? (threads + g->lanes - 1) / g->lanes : 0;
  if (g->system[4] != NO_REG) w->s[g->system[4]] = 0;  /* where this wave's scratch begins */
  if (g->ids_in_ttmp) w->s[TTMP + 9] = b->id[0], w->s[TTMP + 7] = (b->id[1] & 0xffff) | b->id[2] << 16;
  for (u32 l = 0; l < n; l++) {
    u32 t = first + l, x = t % g->block[0], y = t / g->block[0] % g->block[1], z = t / (g->block[0] * g->block[1]);
    if (g->packed_ids) { w->v[0][l] = x | y << 10 | z << 20; continue; }
    w->v[0][l] = x;
    if (g->id_count > 0) w->v[1][l] = y;
    if (g->id_count > 1) w->v[2][l] = z;
  }
}

/* When every wave that has not ended has signalled, a new interval begins. */
static int open_barrier(Launch* g, Block* b, u32 nwaves) {
  Wave* first = 0;
  for (u32 k = 0; k < nwaves; k++) {
    Wave* w = &g->waves[k];
    if (w->state == DONE) continue;
    if (!w->signalled) return STEP_ON;
    if (!first) first = w;
    if (w->barrier_pc != first->barrier_pc) return fault_at(w, &g->code[w->barrier], DIVERGENT_BARRIER, 0, 0, 0, first->barrier_pc);
  }
  if (judge(g, b) == STEP_FAULT) return STEP_FAULT;
  if (!first) return STEP_ON;
  b->epoch++;
  g->barriers++;
  for (u32 k = 0; k < nwaves; k++) g->waves[k].signalled = 0;
  return STEP_ON;
}

static int run_block(Launch* g, Block* b) {
  const u32 nwaves = (g->block[0] * g->block[1] * g->block[2] + g->lanes - 1) / g->lanes;
  fill((u32*)g->lds, (g->lds_nbytes + 3) / 4);
  __builtin_memset(g->shadow, 0, sizeof(Shadow) * g->lds_nbytes);
  b->lds = g->lds, b->shadow = g->shadow, b->epoch = 0, b->suspects = 0;
  for (u32 k = 0; k < nwaves; k++) begin_wave(g, b, &g->waves[k], k);
  fill((u32*)g->scratch, (u64)nwaves * g->lanes * g->scratch_nbytes / 4);
  for (;;) {
    u32 ready = 0, held = 0;
    for (u32 k = 0; k < nwaves; k++) {
      Wave* w = &g->waves[k];
      if (w->state == WAITING && w->signal_epoch < b->epoch) w->state = READY, w->signal_epoch = NO_EPOCH;
      if (w->state != READY) { held += w->state == WAITING; continue; }
      ready++;
      u64 before = w->count;
      int r = run_wave(w);
      g->executed += w->count - before;
      if (r == STEP_FAULT) return r;
      if (g->executed > g->budget) return fault_at(w, &g->code[w->ip], ENDLESS, 0, 0, g->budget, 0);
      if (open_barrier(g, b, nwaves) == STEP_FAULT) return STEP_FAULT;
    }
    if (!ready && !held) return STEP_ON;
    int woken = 0;
    for (u32 k = 0; k < nwaves; k++) woken |= g->waves[k].state == WAITING && g->waves[k].signal_epoch < b->epoch;
    if (!ready && !woken) for (u32 k = 0; k < nwaves; k++) if (g->waves[k].state == WAITING) return fault_at(&g->waves[k], &g->code[g->waves[k].ip - 1], DEADLOCK, 0, 0, 0, 0);
  }
}

#define EXPORT __attribute__((visibility("default")))
EXPORT u32 rlx_sizes(u32 k) { const u32 sizes[] = {sizeof(Src), sizeof(Ins), sizeof(Report), sizeof(Shadow), sizeof(Wave), sizeof(Launch)}; return sizes[k]; }

EXPORT u32 rlx_launch(Launch* g) {
  Block b = {0};
  for (u32 z = 0; z < g->grid[2]; z++) for (u32 y = 0; y < g->grid[1]; y++) for (u32 x = 0; x < g->grid[0]; x++) {
    b.id[0] = x, b.id[1] = y, b.id[2] = z;
    if (run_block(g, &b) == STEP_FAULT) return g->report.kind;
  }
  return NO_FAULT;
}

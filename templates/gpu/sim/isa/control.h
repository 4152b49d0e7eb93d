/* Scalar instructions, branches and what ends or holds a wave. */
static int step_nop(Wave* w, const Ins* i) { (void)w; (void)i; return STEP_ON; }
static int step_unknown(Wave* w, const Ins* i) { return fault_at(w, i, UNKNOWN, 0, 0, 0, 0); }
static int step_trap(Wave* w, const Ins* i) { return fault_at(w, i, TRAP, 0, i->args[0], 0, 0); }

static int step_salu(Wave* w, const Ins* i) {
  u64 in[3] = {0}, exec = exec_of(w), before = exec;
  for (u32 k = 0; k < 3; k++) if (i->src[k].kind != SRC_NONE) in[k] = scalar(w, &i->src[k], WHOLE);
  u64 r = SCALAR_OPS[i->op].run(in[0], in[1], in[2], &w->scc, &exec, (u32)w->lanes);
  if (exec != before) set_mask(w, EXEC, exec);
  if (i->flags & NO_DST) return STEP_ON;
  if (is_wide(SCALAR_OPS[i->op].type)) set64(w, i->dst, r); else set32(w, i->dst, (u32)r);
  return STEP_ON;
}

/* args: 0 the condition, 1 the index to go to. */
static int step_branch(Wave* w, const Ins* i) {
  int taken = 1;
  switch (i->args[0]) {
    case IF_SCC0: taken = !w->scc; break;
    case IF_SCC1: taken = w->scc != 0; break;
    case IF_VCCZ: taken = get_mask(w, VCC) == 0; break;
    case IF_VCCNZ: taken = get_mask(w, VCC) != 0; break;
    case IF_EXECZ: taken = exec_of(w) == 0; break;
    case IF_EXECNZ: taken = exec_of(w) != 0; break;
    default: break;
  }
  if (taken) w->ip = i->args[1];
  return STEP_ON;
}

/* s_getpc, s_setpc, s_swappc, s_call: args: 0 whether the next pc is kept in dst, 1 whether to jump, 2 1 + a known index to jump to. */
static int step_jump(Wave* w, const Ins* i) {
  u64 to = i->src[0].kind == SRC_NONE ? 0 : get64(w, i->src[0].reg), word = (to - w->launch->first_pc) / 4;
  if (i->args[0]) set64(w, i->dst, i->pc + i->args[3]);
  if (!i->args[1]) return STEP_ON;
  if (i->args[2]) { w->ip = i->args[2] - 1; return STEP_ON; }
  if (to < w->launch->first_pc || word >= w->launch->nwords || w->launch->index_of_word[word] < 0) return fault_at(w, i, JUMP, 0, to, 0, 0);
  w->ip = (u64)w->launch->index_of_word[word];
  return STEP_ON;
}

/* The MODE register: denormals and rounding; any rounding but to the nearest is refused.  args: 0 what is written, 1 first bit, 2 bits. */
static int step_mode(Wave* w, const Ins* i) {
  const u32 ones = i->args[2] >= 32 ? ~0u : (1u << i->args[2]) - 1;
  if (i->args[0] == MODE_READ) { set32(w, i->dst, w->mode >> i->args[1] & ones); return STEP_ON; }
  const u32 x = (u32)scalar(w, &i->src[0], WHOLE);
  w->mode = (w->mode & ~(ones << i->args[1])) | (x & ones) << i->args[1];
  return w->mode & 15 ? fault_at(w, i, MODE, 0, w->mode, 0, 0) : STEP_ON;
}

/* s_set_gpr_idx_*: args: 0 a bit each for setting the distance and the mode, 1 whether registers are shifted from here on, 2 the mode. */
static int step_index(Wave* w, const Ins* i) {
  u32* m = &w->s[M0];
  if (i->args[0] & 1) *m = (*m & ~255u) | ((u32)scalar(w, &i->src[0], WHOLE) & 255);
  if (i->args[0] & 2) *m = (*m & ~0xf000u) | i->args[2] << 12;
  if (i->args[1] < 2) w->indexing = i->args[1];
  return STEP_ON;
}

/* s_movrels and s_movreld: M0 shifts the source or the result.  args: 0 whether the result, 1 words. */
static int step_relative(Wave* w, const Ins* i) {
  const u32 by = w->s[M0], from = i->src[0].reg + (i->args[0] ? 0 : by), to = i->dst + (i->args[0] ? by : 0);
  if (from + i->args[1] > VCC || to + i->args[1] > VCC) return fault_at(w, i, INDEX, 0, by, 0, 0);
  for (u32 k = 0; k < i->args[1]; k++) w->s[to + k] = w->s[from + k];
  return STEP_ON;
}

static int step_clock(Wave* w, const Ins* i) {
  if (i->args[0] == 8) set64(w, i->dst, w->count); else set32(w, i->dst, (u32)w->count);
  return STEP_ON;
}

static int step_end(Wave* w, const Ins* i) { (void)i; w->state = DONE; return STEP_YIELD; }
static int step_sleep(Wave* w, const Ins* i) { (void)w; (void)i; return STEP_YIELD; }

/* args: 0 whether it signals, 1 whether it waits.  grid.h lets waves go when all have signalled. */
static int step_barrier(Wave* w, const Ins* i) {
  if (i->args[0]) { w->signalled = 1; w->signal_epoch = w->block->epoch; w->barrier_pc = i->pc; w->barrier = (u64)(i - w->launch->code); }
  if (!i->args[1]) return STEP_YIELD;
  if (w->signal_epoch == NO_EPOCH) return fault_at(w, i, DEADLOCK, 0, 0, 0, 0);
  w->state = WAITING;
  return STEP_YIELD;
}

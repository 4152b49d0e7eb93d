/* Threads.  A caller goes through its steps alone until one has more than one task; then it offers the run to workers that are idle, and
   counters of each step deal out its tasks.  A thread first goes through a share of its own in order, so that what a task fetches for
   the next one is fetched for itself; then it helps with the others' shares.  A step is over when all its tasks are done, and a run when
   its caller is through: a thread that the system has put aside holds up nobody unless it has a task in hand. */
#define RLX_NOINLINE __attribute__((noinline))
#if defined(__clang__)
#define RLX_AS_WRITTEN __attribute__((optnone, noinline))
#elif defined(__GNUC__)
#define RLX_AS_WRITTEN __attribute__((optimize("O0"), noinline))
#endif

enum { RLX_SHARES = 4 };  /* of a step; more threads than that have some together, since all look into every share before a step is over */

typedef struct {
  struct { i64 taken; } RLX_ALIGNED share[RLX_SHARES];  /* tasks of each share; a line each, since the others seldom look there */
  i32 done;
  i32 waiting;  /* threads that sleep until all are done */
} RLX_ALIGNED rlx_counter;

struct rlx_worker;
typedef struct rlx_pool {
  void (*run)(struct rlx_pool *, i64 first, i64 thread);
  struct rlx_worker *workers;
  i64 workers_count;
  i64 lo, hi, first;  /* steps lo..hi; workers begin with step `first` */
  char *arena, *state;
  void *const *lent, *const *fixed;
  const i64 *size;
  i32 threads;
  i32 users;  /* workers that may still read this; it is free for another run when there are none */
  i32 processor;  /* where its caller was when it asked for help */
  rlx_counter step[];
} rlx_pool;

/* One idle or busy thread.  `offer` is the run it is asked to take part in, RLX_BUSY while it does, or nothing. */
typedef struct rlx_worker {
  rlx_pool *offer;
  i32 bell, asleep;
} RLX_ALIGNED rlx_worker;
#define RLX_BUSY ((rlx_pool *)1)

typedef f32 rlx_v __attribute__((vector_size(4 * RLX_VL), aligned(4)));  /* a vector anywhere in memory */

/* A unit compiled with RLX_PROFILE notes when each thread began and ended its part of each step; otherwise nothing of this is there. */
#ifdef RLX_PROFILE
typedef struct { i64 begin, end; } rlx_span;  /* ns of the monotonic clock */
typedef struct { long s, ns; } rlx_timespec;
int clock_gettime(int clock, rlx_timespec *now);
static struct { rlx_span *at; i64 steps, threads; i32 joined; } rlx_spans;

/* at: zeros, [threads][steps]. */
RLX_EXPORT void rlx_profile(rlx_span *at, i64 steps, i64 threads) { rlx_spans.at = at; rlx_spans.steps = steps; rlx_spans.threads = threads; }

static i64 rlx_now(void) {
  rlx_timespec t;
#if defined(__APPLE__)
  clock_gettime(6, &t);
#else
  clock_gettime(1, &t);
#endif
  return t.s*1000000000LL + t.ns;
}

/* The row of a thread that joins a run: its caller comes first. */
static rlx_span *rlx_join(void) { return rlx_spans.at + __atomic_fetch_add(&rlx_spans.joined, 1, __ATOMIC_RELAXED) % rlx_spans.threads * rlx_spans.steps; }

#define RLX_LEAD rlx_spans.joined = 0;
#define RLX_JOIN rlx_span *const spans = rlx_join();
#define RLX_BEGIN const i64 begin_ = rlx_now();
#define RLX_END(took_part) if (took_part) spans[step] = (rlx_span){begin_, rlx_now()};
#else
#define RLX_LEAD
#define RLX_JOIN
#define RLX_BEGIN
#define RLX_END(took_part)
#endif

enum { RLX_SPINS = 4000 };  /* tens of us: longer than a step's imbalance and the gap between two calls, far shorter than a time slice */

static void rlx_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

#if defined(__linux__)
#if defined(__x86_64__)
enum { RLX_SYS_FUTEX = 202, RLX_SYS_SET_AFFINITY = 203, RLX_SYS_GET_AFFINITY = 204 };
#else
enum { RLX_SYS_FUTEX = 98, RLX_SYS_SET_AFFINITY = 122, RLX_SYS_GET_AFFINITY = 123 };
#endif
long syscall(long number, ...);
int sched_getcpu(void);
/* Sleep while *word is `value`; may return early. */
static void rlx_sleep(i32 *word, i32 value) { syscall(RLX_SYS_FUTEX, word, 128 /* wait, private */, value, (void *)0, (void *)0, 0); }
static void rlx_wake(i32 *word) { syscall(RLX_SYS_FUTEX, word, 129 /* wake, private */, 0x7fffffff, (void *)0, (void *)0, 0); }
static i32 rlx_processor(void) { return sched_getcpu(); }
/* This thread goes on elsewhere, where it may: Linux likes to wake a thread beside the one that woke it, and on a busy machine it would stay there,
   to take turns with a caller that it is to help. */
static void rlx_step_aside(i32 processor) {
  enum { MOST = 1024 };
  u64 all[MOST/64] = {0}, others[MOST/64], any = 0;
  if (processor < 0 || processor >= MOST || sched_getcpu() != processor || syscall(RLX_SYS_GET_AFFINITY, 0, sizeof all, all) < 0) return;
  for (i64 k = 0; k < MOST/64; k++) any |= others[k] = all[k] & ~(k == processor/64 ? (u64)1 << processor%64 : 0);
  if (!any) return;
  syscall(RLX_SYS_SET_AFFINITY, 0, sizeof others, others);
  syscall(RLX_SYS_SET_AFFINITY, 0, sizeof all, all);
}
#else
int sched_yield(void);
static i32 rlx_processor(void) { return -1; }
static void rlx_step_aside(i32 processor) { (void)processor; }
static void rlx_sleep(i32 *word, i32 value) { (void)word; (void)value; sched_yield(); }
static void rlx_wake(i32 *word) { (void)word; }
#endif

/* Ask every idle worker to take part from step `first` on. */
static RLX_NOINLINE void rlx_engage(rlx_pool *pool, i64 first) {
  pool->first = first;
  pool->processor = rlx_processor();
  i32 threads = 1;
  for (i64 k = 0; k < pool->workers_count; k++) {
    rlx_worker *const w = &pool->workers[k];
    rlx_pool *none = 0;
    if (__atomic_load_n(&w->offer, __ATOMIC_RELAXED)) continue;
    __atomic_fetch_add(&pool->users, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&pool->threads, 2, __ATOMIC_RELAXED);
    if (!__atomic_compare_exchange_n(&w->offer, &none, pool, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {
      __atomic_fetch_sub(&pool->users, 1, __ATOMIC_RELAXED);
      continue;
    }
    threads++;
    __atomic_fetch_add(&w->bell, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&w->asleep, __ATOMIC_SEQ_CST)) rlx_wake(&w->bell);
  }
  if (threads == 1) __atomic_store_n(&pool->threads, 1, __ATOMIC_RELAXED);
}

/* A run, from its first step to its last. */
RLX_INLINE void rlx_lead(rlx_pool *pool, void (*run)(rlx_pool *, i64, i64)) {
  __builtin_memset(pool->step, 0, (u64)(pool->hi - pool->lo) * sizeof *pool->step);
  pool->run = run;
  pool->threads = 1;
  RLX_LEAD
  run(pool, pool->lo, 0);
  for (i64 k = 0; pool->threads > 1 && k < pool->workers_count; k++) {  /* take back what nobody took up */
    rlx_pool *mine = pool;
    if (__atomic_compare_exchange_n(&pool->workers[k].offer, &mine, (rlx_pool *)0, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
      __atomic_fetch_sub(&pool->users, 1, __ATOMIC_RELAXED);
  }
}

/* A worker's life.  It never returns. */
RLX_EXPORT void rlx_work(rlx_worker *w) {
  for (;;) {
    const i32 heard = __atomic_load_n(&w->bell, __ATOMIC_SEQ_CST);
    rlx_pool *offer = 0;
    for (int spin = 0; spin < RLX_SPINS && !(offer = __atomic_load_n(&w->offer, __ATOMIC_RELAXED)); spin++) rlx_pause();
    if (!offer) {
      __atomic_store_n(&w->asleep, 1, __ATOMIC_SEQ_CST);
      if (!__atomic_load_n(&w->offer, __ATOMIC_SEQ_CST)) rlx_sleep(&w->bell, heard);
      __atomic_store_n(&w->asleep, 0, __ATOMIC_SEQ_CST);
    } else if (__atomic_compare_exchange_n(&w->offer, &offer, RLX_BUSY, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
      rlx_step_aside(offer->processor);
      offer->run(offer, offer->first, w - offer->workers + 1);
      __atomic_fetch_sub(&offer->users, 1, __ATOMIC_RELEASE);
      __atomic_store_n(&w->offer, (rlx_pool *)0, __ATOMIC_RELEASE);
    }
  }
}

static void rlx_finish(rlx_counter *c, i32 mine) {
  __atomic_fetch_add(&c->done, mine, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&c->waiting, __ATOMIC_SEQ_CST)) rlx_wake(&c->done);
}

static void rlx_wait(rlx_counter *c, i32 wanted) {
  for (int spin = 0; spin < RLX_SPINS; spin++) {
    if (__atomic_load_n(&c->done, __ATOMIC_ACQUIRE) >= wanted) return;
    rlx_pause();
  }
  __atomic_store_n(&c->waiting, 1, __ATOMIC_SEQ_CST);
  for (i32 done; (done = __atomic_load_n(&c->done, __ATOMIC_SEQ_CST)) < wanted;) rlx_sleep(&c->done, done);
}

/* Steps `first`..hi in order; every thread of a run goes through them, `thread` 0 being its caller, and takes its share of their tasks.
   `task` does tasks t0..t1 of a step, or says how many there are; where it says -1, every thread calls `walk`. */
static void rlx_share(rlx_pool *pool, i64 first, i64 thread, i64 (*task)(const rlx_pool *, i64 step, i64 t0, i64 t1), void (*walk)(rlx_pool *, i64 step)) {
  const i64 shares = rlx_least(pool->workers_count + 1, (i64)RLX_SHARES);
  RLX_JOIN
  for (i64 step = first; step < pool->hi; step++) {
    const i64 tasks = task(pool, step, -1, 0);
    if (tasks == 0) continue;
    if (tasks > 1 && __atomic_load_n(&pool->threads, __ATOMIC_RELAXED) == 1) rlx_engage(pool, step);
    RLX_BEGIN
    if (tasks < 0) {
      walk(pool, step);
      RLX_END(1)
      continue;
    }
    if (__atomic_load_n(&pool->threads, __ATOMIC_RELAXED) == 1) {
      task(pool, step, 0, tasks);
      RLX_END(1)
      continue;
    }
    rlx_counter *const counter = &pool->step[step - pool->lo];
    i32 mine = 0;
    for (i64 k = thread; k < thread + shares; k++) {
      const i64 share = k % shares, lo = tasks*share/shares, count = tasks*(share + 1)/shares - lo;
      i64 *const taken = &counter->share[share].taken;
      for (i64 t; __atomic_load_n(taken, __ATOMIC_RELAXED) < count && (t = __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED)) < count; mine++)
        task(pool, step, lo + t, lo + t + 1);
    }
    RLX_END(mine)
    if (mine) rlx_finish(counter, mine);
    rlx_wait(counter, (i32)tasks);
  }
}
/* Tasks t0..t1 of several kernels that come one after another; `done` are those of the kernels before. */
#define RLX_PART(count, call) { const i64 part_ = (count), lo_ = rlx_most(t0 - done, (i64)0), hi_ = rlx_least(t1 - done, part_); done += part_; if (lo_ < hi_) { const i64 t0 = lo_, t1 = hi_; call; } }
#define RLX_TASKS(count, call) { if (t0 < 0) return (count); call; }

/* Loops and branches are one step each, whose kernels run again and again on one rlx_loop, in the place of the step's counter.  Threads go
   through them in one order and count the kernels as they go: the upper half of `next` and `done` says of which kernel the lower half
   tells, so that a thread that is behind finds the others done with its kernel, and catches up.  What data decides is said in `go`, and
   when that is of another kernel the thread leaves the rest of the loop to the others.  Behind the end everything is said to be over. */
typedef struct {
  u64 next, done, go;
  i32 turns, waiting;  /* kernels done, for threads to sleep on; whether any does */
} RLX_ALIGNED rlx_loop;
#define RLX_OVER (~(u64)0)

RLX_INLINE i64 rlx_ticket(rlx_loop *loop, u64 kernel, i64 tasks) {
  for (u64 seen = __atomic_load_n(&loop->next, __ATOMIC_ACQUIRE);;) {
    const i64 mine = seen >> 32 == kernel ? (i64)(u32)seen : 0;
    if (seen >> 32 > kernel || mine >= tasks) return -1;
    if (__atomic_compare_exchange_n(&loop->next, &seen, kernel << 32 | (u64)(mine + 1), 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return mine;
  }
}

static RLX_UNUSED void rlx_await(rlx_loop *loop, u64 wanted) {
  for (int spin = 0; spin < RLX_SPINS; spin++) {
    if (__atomic_load_n(&loop->done, __ATOMIC_ACQUIRE) >= wanted) return;
    rlx_pause();
  }
  __atomic_store_n(&loop->waiting, 1, __ATOMIC_SEQ_CST);
  for (;;) {
    const i32 turns = __atomic_load_n(&loop->turns, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&loop->done, __ATOMIC_SEQ_CST) >= wanted) return;
    rlx_sleep(&loop->turns, turns);
  }
}

static RLX_UNUSED void rlx_turn(rlx_loop *loop) {
  __atomic_fetch_add(&loop->turns, 1, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&loop->waiting, __ATOMIC_SEQ_CST)) rlx_wake(&loop->turns);
}

/* `mine` tasks of a kernel are done here; go on when all are. */
static RLX_UNUSED void rlx_through(rlx_loop *loop, u64 kernel, i64 mine, i64 tasks) {
  const u64 wanted = kernel << 32 | (u64)tasks;
  u64 seen = __atomic_load_n(&loop->done, __ATOMIC_ACQUIRE), now = 0;
  while (mine && !__atomic_compare_exchange_n(&loop->done, &seen, now = kernel << 32 | (u64)((seen >> 32 == kernel ? (i64)(u32)seen : 0) + mine), 0,
                                              __ATOMIC_SEQ_CST, __ATOMIC_ACQUIRE)) {}
  if (now == wanted) rlx_turn(loop);
  else if (tasks) rlx_await(loop, wanted);
}

static RLX_UNUSED void rlx_over(rlx_loop *loop) {
  __atomic_store_n(&loop->next, RLX_OVER, __ATOMIC_SEQ_CST);
  if (__atomic_exchange_n(&loop->done, RLX_OVER, __ATOMIC_SEQ_CST) != RLX_OVER) rlx_turn(loop);
}

/* alone: every kernel is a single task, so that one thread does it all. */
#define RLX_LOOP_BEGIN(alone) \
  __label__ behind_; \
  rlx_loop *const loop_ = (rlx_loop *)&pool->step[step - lo]; \
  const int alone_ = (alone); \
  if (!alone_ && __atomic_load_n(&pool->threads, __ATOMIC_RELAXED) == 1) rlx_engage(pool, step); \
  const int many_ = __atomic_load_n(&pool->threads, __ATOMIC_RELAXED) > 1, together_ = many_ && !alone_; \
  u64 kernel_ = 0; (void)kernel_; \
  if (together_ || !many_ || rlx_ticket(loop_, 1, 1) == 0) {
#define RLX_LOOP_END \
    rlx_over(loop_); \
  } else { behind_: RLX_UNUSED; rlx_await(loop_, RLX_OVER); }
#define RLX_AGAIN(count, ...) { const i64 tasks_ = (count); \
  if (!together_) { const i64 t0 = 0, t1 = tasks_; (void)t0; (void)t1; __VA_ARGS__; } \
  else { \
    i64 mine_ = 0; \
    if (__atomic_load_n(&loop_->next, __ATOMIC_RELAXED) == RLX_OVER) goto behind_; \
    kernel_++; \
    for (i64 t0; (t0 = rlx_ticket(loop_, kernel_, tasks_)) >= 0; mine_++) { const i64 t1 = t0 + 1; (void)t1; __VA_ARGS__; } \
    rlx_through(loop_, kernel_, mine_, tasks_); \
  } }
/* `name` is what the byte at `flag` says, read by one thread for all. */
#define RLX_DECIDE(name, flag) \
  RLX_AGAIN(1, __atomic_store_n(&loop_->go, kernel_ << 1 | (*(const u8 *)(flag) != 0), __ATOMIC_RELEASE)) \
  const u64 said_##name = __atomic_load_n(&loop_->go, __ATOMIC_ACQUIRE); \
  if (said_##name >> 1 != kernel_) goto behind_; \
  const int name = (int)(said_##name & 1);

/* Sizes end with {step node + 1, index, bound}, written by the first kernel that meets a bad index, and the undo log: none where nothing
   fails after the first write to what outlives the run. */
typedef struct {
  i64 node, index, bound;
  char *log;
  i64 used;
} rlx_tail;

static rlx_tail *rlx_tail_of(const i64 *size) { return (rlx_tail *)(size + RLX_SYMBOLS); }

static void rlx_fail(const i64 *size, i64 node, i64 index, i64 bound) {
  rlx_tail *const tail = rlx_tail_of(size);
  i64 none = 0;
  if (__atomic_compare_exchange_n(&tail->node, &none, node + 1, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) { tail->index = index; tail->bound = bound; }
}

/* Whether a kernel before this one has: then what outlives the run is left as it is. */
static RLX_UNUSED int rlx_failed(const i64 *size) { return __atomic_load_n(&rlx_tail_of(size)->node, __ATOMIC_RELAXED) != 0; }

/* Note what memory holds before it is overwritten, so that a run that fails can put it back: the bytes, then where and how many. */
typedef struct { char *where; i64 nbytes; } rlx_note;

static RLX_UNUSED void rlx_keep(const i64 *size, void *where, i64 nbytes) {
  rlx_tail *const tail = rlx_tail_of(size);
  if (!tail->log || nbytes == 0) return;
  const i64 room = (nbytes + 15) / 16 * 16;
  char *const to = tail->log + __atomic_fetch_add(&tail->used, room + (i64)sizeof(rlx_note), __ATOMIC_RELAXED);
  __builtin_memcpy(to, where, (u64)nbytes);
  *(rlx_note *)(to + room) = (rlx_note){where, nbytes};
}

/* Everything noted, the last first. */
RLX_EXPORT void rlx_undo(rlx_tail *tail) {
  while (tail->used) {
    const rlx_note note = *(rlx_note *)(tail->log + tail->used - sizeof(rlx_note));
    tail->used -= (i64)sizeof note + (note.nbytes + 15) / 16 * 16;
    __builtin_memcpy(note.where, tail->log + tail->used, (u64)note.nbytes);
  }
}

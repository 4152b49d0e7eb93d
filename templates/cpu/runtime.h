/* Threads: every thread of a call runs the same steps; a counter a step deals out its tasks, a barrier ends it. */
#define RLX_NOINLINE __attribute__((noinline))

typedef struct { u64 low, high; } rlx_pair;  /* 16 bytes that are only moved */

enum { RLX_STEPS_AHEAD = 64 };

typedef struct {
  int threads;
  int arrived;                    /* at the barrier of the current step */
  unsigned round;                 /* barriers passed */
  i64 next[RLX_STEPS_AHEAD];      /* first task not yet taken, for the steps under way */
} rlx_pool;

/* The error word: sizes end with {step node + 1, index, bound}, written by the first kernel that meets a bad index. */
static i64 *rlx_error_of(const i64 *size) { return (i64 *)(size + RLX_SYMBOLS); }

static void rlx_fail(const i64 *size, i64 node, i64 index, i64 bound) {
  i64 *e = rlx_error_of(size), none = 0;
  if (__atomic_compare_exchange_n(&e[0], &none, node + 1, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) { e[1] = index; e[2] = bound; }
}

#define RLX_TASKS(count, call) { const i64 tasks_ = (count); \
  if (pool->threads == 1) { const i64 t0 = 0, t1 = tasks_; call; } \
  else for (i64 t0; (t0 = __atomic_fetch_add(&pool->next[step % RLX_STEPS_AHEAD], 1, __ATOMIC_RELAXED)) < tasks_;) { const i64 t1 = t0 + 1; call; } }

int sched_yield(void);

static void rlx_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

enum { RLX_SPINS = 20000 };  /* about 100 us: longer than a step's imbalance, shorter than a time slice */

static void rlx_barrier(rlx_pool *pool, i64 step) {
  if (pool->threads == 1) return;
  const unsigned round = __atomic_load_n(&pool->round, __ATOMIC_ACQUIRE);
  if (__atomic_add_fetch(&pool->arrived, 1, __ATOMIC_ACQ_REL) == pool->threads) {
    pool->arrived = 0;
    pool->next[step % RLX_STEPS_AHEAD] = 0;
    __atomic_store_n(&pool->round, round + 1, __ATOMIC_RELEASE);
    return;
  }
  for (int spin = 0; __atomic_load_n(&pool->round, __ATOMIC_ACQUIRE) == round; spin++) {
    if (spin < RLX_SPINS) rlx_pause(); else sched_yield();
  }
}

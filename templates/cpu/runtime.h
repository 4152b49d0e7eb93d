/* Threads: every thread of a call goes through the same steps.  A counter a step deals out its tasks, and a step is over when all its
   tasks are done: a thread that the system has put aside holds up nobody unless it has a task in hand. */
#define RLX_NOINLINE __attribute__((noinline))

typedef struct { u64 low, high; } rlx_pair;  /* 16 bytes that are only moved */

typedef struct {
  i64 next;  /* first task not yet taken */
  i64 done;
} RLX_ALIGNED rlx_counter;

typedef struct {
  int threads;
  rlx_counter step[];  /* zero at the start of a call */
} rlx_pool;

int sched_yield(void);

enum { RLX_SPINS = 20000 };  /* about 100 us: longer than a step's imbalance, shorter than a time slice */

static void rlx_wait(const i64 *done, i64 wanted) {
  for (int spin = 0; __atomic_load_n(done, __ATOMIC_ACQUIRE) < wanted; spin++) {
    if (spin >= RLX_SPINS) sched_yield();
#if defined(__x86_64__) || defined(__i386__)
    else __builtin_ia32_pause();
#elif defined(__aarch64__)
    else __asm__ volatile("yield");
#endif
  }
}

#define RLX_TASKS(count, call) { const i64 tasks_ = (count); \
  if (pool->threads == 1) { const i64 t0 = 0, t1 = tasks_; call; } \
  else { \
    rlx_counter *const counter_ = &pool->step[step - lo]; \
    i64 mine_ = 0; \
    for (i64 t0; (t0 = __atomic_fetch_add(&counter_->next, 1, __ATOMIC_RELAXED)) < tasks_; mine_++) { const i64 t1 = t0 + 1; call; } \
    if (mine_) __atomic_fetch_add(&counter_->done, mine_, __ATOMIC_ACQ_REL); \
    rlx_wait(&counter_->done, tasks_); \
  } }

/* The error word: sizes end with {step node + 1, index, bound}, written by the first kernel that meets a bad index. */
static i64 *rlx_error_of(const i64 *size) { return (i64 *)(size + RLX_SYMBOLS); }

static void rlx_fail(const i64 *size, i64 node, i64 index, i64 bound) {
  i64 *e = rlx_error_of(size), none = 0;
  if (__atomic_compare_exchange_n(&e[0], &none, node + 1, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) { e[1] = index; e[2] = bound; }
}

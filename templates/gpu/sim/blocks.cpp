// Runs a grid of blocks: the threads of a block take turns, each until it waits at a barrier or for its wave.
#include "runtime.h"

#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "context.h"

namespace {
constexpr size_t stack_nbytes = 64 << 10, guard_nbytes = 4 << 10;
constexpr unsigned widest_wave = 64;
constexpr unsigned long long absent = ~0ull;  // what a lane takes from one that is not there

enum class State : unsigned char { ready, at_barrier, in_exchange, done };

struct Thread {
    RlxIndex place;
    unsigned lane;
    State state;
    Context context;
    char *stack;
    unsigned line;  // where it waits
    RlxExchange exchange;
    unsigned source;
    unsigned long long value;
};

// The one block that runs.  Static, for it must outlive a jump out of a fault.
struct Block {
    Site site;
    void **arguments;
    std::vector<Thread> threads;
    unsigned begun, done, stacks;  // how many
    bool backwards;                // the last thread first
    Thread *now;
    Context scheduler;
    RlxHere &here() const { return *site.module->here; }
    Thread &turn(size_t n) { return threads[backwards ? threads.size() - 1 - n : n]; }
} block;

// ---- what a signal's handler reads and leaves
volatile sig_atomic_t running;          // whether this launch may be ended
volatile sig_atomic_t in_kernel;        // whether a thread of the kernel is what runs
volatile sig_atomic_t lapsed;           // no thread ended for too long
volatile unsigned long ended, watched;  // threads of this launch that ended; how many had when the clock last struck

// ---- stacks: one mapping, a page that faults below each
char *stack(unsigned n) {
    static char *all = [] {
        char *base = (char *)mmap(nullptr, most_threads * (stack_nbytes + guard_nbytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (base == MAP_FAILED) return (char *)nullptr;
        for (unsigned i = 0; i < most_threads; i++) mprotect(base + i * (stack_nbytes + guard_nbytes), guard_nbytes, PROT_NONE);
        return base;
    }();
    return all ? all + n * (stack_nbytes + guard_nbytes) + guard_nbytes : nullptr;
}

// ---- going from thread to thread
void show(Thread &t) {
    block.now = &t;
    block.here().thread = t.place;
    block.here().lane = t.lane;
}

void wait() {
    go(block.now->context, block.scheduler);
}

void resume(Thread &t) {
    in_kernel = 1;
    go(block.scheduler, t.context);
    in_kernel = 0;
}

void at_barrier(unsigned line) {
    block.now->state = State::at_barrier;
    block.now->line = line;
    wait();
}

unsigned long long in_exchange(RlxExchange what, unsigned long long value, unsigned source, unsigned line) {
    Thread &self = *block.now;
    self.state = State::in_exchange;
    self.exchange = what;
    self.value = value;
    self.source = source;
    self.line = line;
    wait();
    return self.value;
}

// The next thread that has not begun takes over a stack whose thread has ended: a kernel that never waits needs one stack.
Thread *begin_next(char *on) {
    if (block.begun == block.threads.size()) return nullptr;
    Thread &t = block.turn(block.begun++);
    t.stack = on;
    show(t);
    return &t;
}

void thread_main() {
    for (;;) {
        block.site.code->call(block.arguments);
        Thread &self = *block.now;
        self.state = State::done;
        block.done++;
        ended = ended + 1;
        if (!begin_next(self.stack)) go(self.context, block.scheduler);  // and never comes back
    }
}

void begin_all() {
    while (block.begun < block.threads.size()) {
        Thread *t = begin_next(stack(block.stacks++));
        begin(t->context, t->stack, stack_nbytes, thread_main);
        resume(*t);
    }
}

void resume_ready() {
    for (size_t n = 0; n < block.threads.size(); n++) {
        Thread &t = block.turn(n);
        if (t.state != State::ready) continue;
        show(t);
        resume(t);
    }
}

// ---- what threads wait for
// Lanes of one wave that wait at one line exchange values.  Of several lines the first: lanes that are behind catch up.
bool exchange(Thread *first, Thread *end) {
    unsigned line = ~0u;
    for (Thread *t = first; t < end; t++)
        if (t->state == State::in_exchange && t->line < line) line = t->line;
    if (line == ~0u) return false;
    unsigned long long values[widest_wave], holds = 0, takes_part = 0;
    for (Thread *t = first; t < end; t++)
        if (t->state == State::in_exchange && t->line == line) {
            values[t->lane] = t->value;
            takes_part |= 1ull << t->lane;
            if (t->value) holds |= 1ull << t->lane;
        }
    for (Thread *t = first; t < end; t++)
        if (t->lane < widest_wave && takes_part >> t->lane & 1) {
            const bool there = t->source < widest_wave && takes_part >> t->source & 1;
            t->value = t->exchange == RLX_BALLOT ? holds : there ? values[t->source] : absent;
            t->state = State::ready;
        }
    return true;
}

bool exchange_all() {
    const size_t wave = block.site.module->wave;
    bool any = false;
    for (size_t w = 0; w < block.threads.size(); w += wave) any |= exchange(&block.threads[w], &block.threads[0] + std::min(w + wave, block.threads.size()));
    return any;
}

// All threads that have not ended wait at a barrier: one and the same, or the kernel is wrong.
hipError_t open_barrier() {
    const Thread *first = nullptr;
    for (Thread &t : block.threads) {
        if (t.state != State::at_barrier) continue;
        if (first && first->line != t.line)
            return fail(hipErrorLaunchFailure, "kernel %s, block (%u, %u, %u): divergent barriers: thread (%u, %u, %u) waits at line %u, thread (%u, %u, %u) at line %u", block.site.kernel,
                        block.here().block.x, block.here().block.y, block.here().block.z, first->place.x, first->place.y, first->place.z, first->line, t.place.x, t.place.y, t.place.z, t.line);
        if (!first) first = &t;
        t.state = State::ready;
    }
    return hipSuccess;
}

// A thread that ran when the clock struck waits for what does not come, and so do those that it meets at barriers.
hipError_t stuck() {
    const RlxIndex b = block.here().block, t = block.now->place;
    const unsigned long long n = b.x + (unsigned long long)block.here().grid_dim.x * (b.y + (unsigned long long)block.here().grid_dim.y * b.z);
    return fail(hipErrorLaunchTimeOut, "kernel %s, block (%u, %u, %u), thread (%u, %u, %u): no thread ended in %g s; %llu blocks before this one are done, those after it begin when it ends: "
                "it waits for one of them, or for another thread, or it has no end", block.site.kernel, b.x, b.y, b.z, t.x, t.y, t.z, device.patience_s, n);
}

// Every other block runs backwards, the first among them: most of what a missing barrier protects is written by low threads and read by high ones.
hipError_t run_block(const RlxIndex &b) {
    block.begun = block.done = block.stacks = 0;
    block.backwards = (b.x + b.y + b.z) % 2 == 0;
    for (Thread &t : block.threads) t.state = State::ready;
    begin_all();
    while (block.done < block.threads.size()) {
        if (lapsed) return stuck();
        if (!exchange_all())
            if (hipError_t error = open_barrier()) return error;
        resume_ready();
    }
    return hipSuccess;
}

// ---- faults
constexpr int caught[] = {SIGSEGV, SIGBUS, SIGFPE};
struct sigaction before[3];
sigjmp_buf escape;
pthread_t runner;
siginfo_t fault;

// Of a thread's own processor time, so that a busy machine makes nobody late.  Whoever else gets its signal would ignore it.
constexpr int clock_signal = SIGURG;
#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

// A fault of the thread that runs a kernel ends the launch; anybody else's goes to who was there before.
void on_fault(int signal, siginfo_t *info, void *) {
    if (running && pthread_equal(runner, pthread_self())) {
        running = 0;
        fault = *info;
        siglongjmp(escape, 1);
    }
    for (int i = 0; i < 3; i++)
        if (caught[i] == signal) sigaction(signal, &before[i], nullptr);
}

void on_clock(int, siginfo_t *, void *) {
    if (!running || !pthread_equal(runner, pthread_self())) return;
    const bool late = watched == ended;
    watched = ended;
    if (!late) return;
    lapsed = 1;
    if (!in_kernel) return;  // whoever resumes threads looks
    running = 0;
    siglongjmp(escape, 1);
}

// Strikes after so much time of this thread, and again.
struct Clock {
    timer_t timer;
    bool there = false;
    struct sigaction before;
    explicit Clock(double seconds) {
        watched = ~0ul, lapsed = 0;
        if (seconds <= 0) return;
        struct sigaction action = {};
        action.sa_sigaction = on_clock;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
        sigaction(clock_signal, &action, &before);
        struct sigevent event = {};
        event.sigev_notify = SIGEV_THREAD_ID;
        event.sigev_signo = clock_signal;
        event.sigev_notify_thread_id = (pid_t)syscall(SYS_gettid);
        there = timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &timer) == 0;
        const timespec span = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
        const itimerspec times = {span, span};
        if (there) timer_settime(timer, 0, &times, nullptr);
        else sigaction(clock_signal, &before, nullptr);
    }
    ~Clock() {
        if (!there) return;
        timer_delete(timer);
        sigaction(clock_signal, &before, nullptr);
    }
};

// While it lives, faults are ours.  They are handled on a stack of their own, for the thread's may be what is full.
struct Catching {
    static constexpr size_t nbytes = 64 << 10;
    stack_t previous;
    Catching() {
        static char *own = (char *)malloc(nbytes);
        stack_t alternative = {};
        alternative.ss_sp = own;
        alternative.ss_size = nbytes;
        sigaltstack(&alternative, &previous);
        struct sigaction action = {};
        action.sa_sigaction = on_fault;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK;
        for (int i = 0; i < 3; i++) sigaction(caught[i], &action, &before[i]);
        runner = pthread_self();
        in_kernel = 0;
        running = 1;
    }
    ~Catching() {
        running = 0;
        for (int i = 0; i < 3; i++) sigaction(caught[i], &before[i], nullptr);
        sigaltstack(&previous, nullptr);
    }
};

std::string what_happened() {
    if (fault.si_signo == SIGFPE) return "integer division by zero";
    const char *at = (const char *)fault.si_addr, *stacks = stack(0) - guard_nbytes;
    if (at >= stacks && at < stacks + most_threads * (stack_nbytes + guard_nbytes)) return "the thread's stack is full";
    return "access to memory that is not the device's: " + near_to(at);
}

hipError_t faulted() {
    const RlxIndex b = block.here().block, t = block.now->place;
    return fail(fault.si_signo == SIGFPE ? hipErrorLaunchFailure : hipErrorIllegalAddress, "kernel %s, block (%u, %u, %u), thread (%u, %u, %u): %s", block.site.kernel, b.x, b.y, b.z, t.x, t.y, t.z,
                what_happened().c_str());
}

// ---- dynamic shared memory: what lies past its end faults
struct Shared {
    char *base = nullptr, *begin = nullptr;
    size_t nbytes, mapped;
    explicit Shared(size_t n) : nbytes(n) {
        if (n == 0) return;
        const size_t page = (size_t)sysconf(_SC_PAGESIZE), usable = (n + page - 1) / page * page;
        mapped = usable + page;
        base = (char *)mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        mprotect(base + usable, page, PROT_NONE);
        begin = base + usable - (n + 15) / 16 * 16;
    }
    ~Shared() {
        if (base) munmap(base, mapped);
    }
};

void poison_shared(const Shared &dynamic) {
    const RlxModule &m = *block.site.module;
    if (m.shared) memset(m.shared, 0xFF, m.shared_end - m.shared);
    if (dynamic.begin) memset(dynamic.begin, 0xFF, dynamic.nbytes);
}

void lay_out(const Site &site, void **arguments, dim3 grid, dim3 size, char *dynamic_shared) {
    block.site = site;
    block.arguments = arguments;
    block.threads.assign((size_t)size.x * size.y * size.z, Thread());
    for (unsigned i = 0; i < block.threads.size(); i++) {
        block.threads[i].place = {i % size.x, i / size.x % size.y, i / (size.x * size.y)};
        block.threads[i].lane = i % site.module->wave;
    }
    *site.module->here = {{}, {}, {size.x, size.y, size.z}, {grid.x, grid.y, grid.z}, 0, dynamic_shared, at_barrier, in_exchange};
}
}  // namespace

hipError_t run_grid(const Site &site, void **arguments, dim3 grid, dim3 size, size_t shared_nbytes) {
    if (!stack(0)) return fail(hipErrorOutOfMemory, "no room for the stacks of %u threads", most_threads);
    Shared dynamic(shared_nbytes);
    lay_out(site, arguments, grid, size, dynamic.begin);
    Catching catching;
    Clock clock(device.patience_s);
    if (sigsetjmp(escape, 1)) return lapsed ? stuck() : faulted();
    RlxIndex &b = block.here().block;
    for (b.z = 0; b.z < grid.z; b.z++)
        for (b.y = 0; b.y < grid.y; b.y++)
            for (b.x = 0; b.x < grid.x; b.x++) {
                poison_shared(dynamic);
                if (hipError_t error = run_block(b)) return error;
            }
    return hipSuccess;
}

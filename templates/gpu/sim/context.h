// One thread of control that can be left and taken up again: by a few instructions on x86-64, by <ucontext.h> elsewhere.
#pragma once
#include <cstddef>

#if defined(__x86_64__) && !defined(RLX_SIM_UCONTEXT)

struct Context { void *stack; };

// Keeps what a call must keep on the stack that is left, and takes it from the one that is entered.
extern "C" void rlx_switch(void **left, void *entered) __attribute__((visibility("hidden")));
asm(R"(
    .text
    .hidden rlx_switch
    .globl rlx_switch
    .type rlx_switch, @function
rlx_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size rlx_switch, .-rlx_switch
)");

inline void go(Context &from, Context &to) { rlx_switch(&from.stack, to.stack); }

// The first switch "returns" into `entry`, on a stack that is aligned as after a call.
inline void begin(Context &context, char *stack, size_t nbytes, void (*entry)()) {
    void **top = (void **)(stack + nbytes);
    *--top = nullptr;
    *--top = (void *)entry;
    for (int saved = 0; saved < 6; saved++) *--top = nullptr;
    context.stack = top;
}

#else
#include <ucontext.h>

struct Context { ucontext_t state; };

inline void go(Context &from, Context &to) { swapcontext(&from.state, &to.state); }

inline void begin(Context &context, char *stack, size_t nbytes, void (*entry)()) {
    getcontext(&context.state);
    context.state.uc_stack.ss_sp = stack;
    context.state.uc_stack.ss_size = nbytes;
    context.state.uc_link = nullptr;
    makecontext(&context.state, entry, 0);
}

#endif

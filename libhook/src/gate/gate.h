/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every call that submits work passes the gate:
 *
 *     gate_enter(stream);
 *     result = the driver's own function(...);
 *     gate_leave();
 *
 * A passing thread marks itself inside on its own cache line, then reads whether the gate is open;
 * a closing thread closes it, then checks whether a thread is inside (gate.c). The pass's memory
 * barrier costs about 5 ns. membarrier(2) could save it, but a sandbox or a restored checkpoint may
 * refuse that.
 *
 * A process has one gate: a program on several GPUs may submit only while all its clients run. Each
 * reason to be closed is a bit. While only bits of GATE_AJAR are set, threads pass: with
 * GATE_PACED, a limited number of times; with GATE_PUBLISHING, after publishing or reading counters
 * in shared pages; with GATE_CAPTURING, uncaptured passes are counted.
 */
#pragma once

#include <stdatomic.h>

#include "driver/driver.h"
#include "driver/locked.h"

#define GATE_PACED ((uint64_t)1 << 63)             /* set by flight/pace.c */
#define GATE_PUBLISHING ((uint64_t)1 << 62)        /* set by inflight.c */
#define GATE_CAPTURING ((uint64_t)1 << 61)         /* set by flight/capture.c */
#define GATE_AJAR (GATE_PACED | GATE_PUBLISHING | GATE_CAPTURING)
#define GATE_NO_STREAM ((CUstream)(uintptr_t)-1)   /* the call waits even during a capture */

#define GATE_FRAMES 4                /* power of 2; passes nest within a tracing tool's callbacks */

/* Entry of a thread that has passed the gate or was BLOCKED. */
struct gate_thread {
    _Alignas(128) _Atomic uint32_t inside; /* depth of nested passes; only its thread writes */
    _Atomic uint32_t passes;         /* number of passes; wraps to 0 */
    /* Values of gate.openings and `passes` when the thread began to wait at the gate. */
    _Atomic uint32_t waits;          /* 0: the thread does not wait */
    _Atomic uint32_t waits_pass;
    _Atomic uint32_t blocked;        /* `passes` + 1 when the thread became BLOCKED; else 0 */
    struct gate_thread *next;
    _Atomic bool in_use;             /* reused after its thread has ended */
    uintptr_t frames[GATE_FRAMES];   /* stack pointers of the passes, the outermost first */
};

extern _Atomic uint64_t gate_closed;               /* bits: reasons to be closed; 0: open */
extern __thread struct gate_thread *gate_self __attribute__((tls_model("initial-exec")));

struct gate_thread *gate_register_thread(void);
bool gate_wait(struct gate_thread *self, CUstream stream, bool until_stop);
/* The depth `inside`, but for passes that an exception has left. `stack`: the stack pointer now. */
uint32_t gate_depth(struct gate_thread *self, uint32_t inside, uintptr_t stack);

static inline uintptr_t stack_pointer(void)
{
    uintptr_t stack;
#if defined(__x86_64__)
    __asm__("mov %%rsp, %0" : "=r"(stack));
#else
    __asm__("mov %0, sp" : "=r"(stack));
#endif
    return stack;
}

/* Waits while the gate is closed, unless `stream` is being captured or the thread is inside.
 * With `until_stop`, a STOP of any client ends the wait, too: returns false, the thread outside. */
static inline bool gate_enter_until_stop(CUstream stream, bool until_stop)
{
    struct gate_thread *self = gate_self;
    if (__builtin_expect(self == NULL, 0))
        self = gate_register_thread();
    uintptr_t stack = stack_pointer();
    uint32_t inside = atomic_load_explicit(&self->inside, memory_order_relaxed);
    if (__builtin_expect(inside != 0, 0))
        inside = gate_depth(self, inside, stack);
    self->frames[inside % GATE_FRAMES] = stack;
    atomic_store_explicit(&self->passes,
                          atomic_load_explicit(&self->passes, memory_order_relaxed) + 1,
                          memory_order_relaxed);
    atomic_store(&self->inside, inside + 1);
    return __builtin_expect(atomic_load(&gate_closed) == 0, 1) || inside != 0
        || gate_wait(self, stream, until_stop);
}

static inline void gate_enter(CUstream stream)
{
    gate_enter_until_stop(stream, false);
}

/* No memory barrier: a closing thread that does not see this store yet checks again later. */
static inline void gate_leave(void)
{
    struct gate_thread *self = gate_self;
    atomic_store_explicit(&self->inside,
                          atomic_load_explicit(&self->inside, memory_order_relaxed) - 1,
                          memory_order_release);
}

/* A thread that is inside never calls gate_close(). */
void gate_close(uint64_t reason);                  /* returns while threads may be inside */
void gate_open(uint64_t reason);
void gate_recheck(void);                           /* wakes waiting threads to check again */
bool gate_empty(void);                             /* no thread but the caller is inside */
bool gate_has_waiters(void);
bool gate_has_blocked(void);                       /* a thread waits at the gate, or is BLOCKED */
uint64_t gate_passes(void);                        /* sum of all threads' `passes` */
uint64_t gate_submissions(void);                   /* number of passes counted by GATE_CAPTURING */
void gate_allow(uint64_t goal);                    /* sets gate_goal */

/* BLOCKED: until the end of the scope this program thread waits within the library where the driver
 * would not wait. Work in flight may depend on the thread's next action, so a drain treats it like
 * a thread at the gate. After a jump out, the thread stays BLOCKED until its next pass. */
#define BLOCKED AT_END(gate_unblock) const uint32_t blocked_before = gate_block()
uint32_t gate_block(void);
void gate_unblock(const uint32_t *before);

/* Number of passes let through while GATE_PACED was set, and the number at which threads wait. */
extern _Atomic uint64_t gate_taken, gate_goal;
/* Called by a passing thread inside the gate while GATE_PACED is set. `number`: gate_taken now. */
extern void (*gate_on_taken)(uint64_t number);
/* Called, outside the gate, by a thread that only GATE_PACED makes wait. True: the thread
 * checks the gate again; false: it sleeps. `*since`: 0 at the first call of each wait. */
extern bool (*gate_on_paced)(uint64_t *since);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gate: every call that submits work passes it.
 *
 *     gate_enter(stream);
 *     result = the driver's own function(...);
 *     gate_leave();
 *
 * No pass is missed. A passing thread marks itself inside on a cache line of its own, then reads
 * whether the gate is open. A closing thread closes the gate first and then checks whether a thread
 * is inside. Both have a full memory barrier in between, so each passing thread either is seen
 * inside or sees the gate closed. The passing thread's barrier costs about 5 ns. membarrier(2)
 * would save that, but a sandbox or a restored checkpoint may refuse it later.
 *
 * One gate for each process: a program with clients on several GPUs may submit only while all of
 * them run. Each reason to be closed is one bit of a word. While only bits of GATE_AJAR are set,
 * threads may pass: with GATE_PACED, a limited number of times; with GATE_PUBLISHING, after they
 * have published or read counters in shared pages; with GATE_CAPTURING, uncaptured passes are
 * counted.
 */
#pragma once

#include <stdatomic.h>

#include "driver/driver.h"
#include "driver/locked.h"

#define GATE_PACED ((uint64_t)1 << 63)             /* pace.c */
#define GATE_PUBLISHING ((uint64_t)1 << 62)        /* inflight.c */
#define GATE_CAPTURING ((uint64_t)1 << 61)         /* capture.c */
#define GATE_AJAR (GATE_PACED | GATE_PUBLISHING | GATE_CAPTURING) /* while no other bit is
                                                                  set, threads may pass */
#define GATE_NO_STREAM ((CUstream)(uintptr_t)-1)   /* for work that cannot be captured */

/* One for each thread that has ever passed, on cache lines of its own. Only its thread writes
 * `inside`, which counts nested passes. */
struct gate_thread {
    _Alignas(128) _Atomic uint32_t inside;
    _Atomic uint32_t passes;         /* how often it has passed; wraps */
    /* The mark of a thread that waits at the gate (gate.c): the numbers of openings and of its own
     * passes when it began to wait. */
    _Atomic uint32_t waits;          /* 0: it does not wait */
    _Atomic uint32_t waits_pass;
    _Atomic uint32_t blocked;        /* `passes` + 1 when it became BLOCKED; 0: it is not */
    struct gate_thread *next;
    _Atomic bool in_use;             /* reused after its thread has ended */
};

extern _Atomic uint64_t gate_closed;               /* set of reasons; 0: open */
extern __thread struct gate_thread *gate_self __attribute__((tls_model("initial-exec")));

struct gate_thread *gate_register_thread(void);
bool gate_wait(struct gate_thread *self, CUstream stream, bool until_stop);

/* Waits while the gate is closed, unless `stream` is being captured (nothing is submitted then) or
 * this thread is inside already. `until_stop`: waits only while no client carries out a STOP.
 * False: a client does, and the thread is not inside. */
static inline bool gate_enter_until_stop(CUstream stream, bool until_stop)
{
    struct gate_thread *self = gate_self;
    if (__builtin_expect(self == NULL, 0))
        self = gate_register_thread();
    uint32_t inside = atomic_load_explicit(&self->inside, memory_order_relaxed);
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

/* Needs no barrier: a closing thread that misses this store checks again after a short sleep. */
static inline void gate_leave(void)
{
    struct gate_thread *self = gate_self;
    atomic_store_explicit(&self->inside,
                          atomic_load_explicit(&self->inside, memory_order_relaxed) - 1,
                          memory_order_release);
}

/* For the closing thread; never called by a thread that is inside. */
void gate_close(uint64_t reason);                  /* returns while threads may be inside */
void gate_open(uint64_t reason);
void gate_recheck(void);                        /* wakes waiting threads to check again */
bool gate_empty(void);                             /* no thread (but the caller) is inside */
bool gate_has_waiters(void);
bool gate_has_blocked(void);                       /* a thread waits at the gate, or is BLOCKED */
uint64_t gate_passes(void);                        /* sum of all threads' `passes` */
uint64_t gate_submissions(void);                   /* uncaptured passes under GATE_CAPTURING */
void gate_allow(uint64_t goal);                    /* sets gate_goal */

/* BLOCKED: until the end of the block this thread of the program waits within the library, where
 * the driver would not have made it wait. Work in flight may depend on the thread's next action, so
 * a drain that does not end counts it like a thread at the gate. If the thread leaves by
 * siglongjmp() from a signal handler, the mark ends with its next pass. */
#define BLOCKED AT_END(gate_unblock) const uint32_t blocked_before = gate_block()
uint32_t gate_block(void);
void gate_unblock(const uint32_t *before);

/* Functions of inflight.c that threads call while GATE_PUBLISHING is set; assigned before that bit
 * is set for the first time. A pass waits while the page of a program of higher priority
 * shows work in flight. If that work seems endless, inflight.c allows single passes. */
struct gate_publishing {
    void (*count)(void);             /* counts a pass; called inside, before the gate is checked */
    bool (*may_pass)(void);          /* called inside: whether the pass may go on; uses up an
                                        allowed pass if it needs one */
    bool (*holds)(void);             /* called outside: whether a pass would have to wait */
};
extern const struct gate_publishing *_Atomic gate_publishing;

/* Number of passes let through while GATE_PACED was set, since the process began, and the number at
 * which further passes wait. */
extern _Atomic uint64_t gate_taken, gate_goal;
/* Called inside by a thread that passes while GATE_PACED is set, with its number in gate_taken. */
extern void (*gate_on_taken)(uint64_t number);
/* Called outside by a thread of a background program that waits for a paced pass and for nothing
 * else. True: the thread checks the gate again at once; false: it sleeps. `*since`: 0 at the first
 * call of each wait. */
extern bool (*gate_on_paced)(uint64_t *since);

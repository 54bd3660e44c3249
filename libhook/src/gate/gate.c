/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gate is exact. A passing thread does (1) inside = 1, (2) read gate_closed. The closing thread
 * does (3) gate_closed = 1, (4) read inside. All four are sequentially consistent. If (2) read 0,
 * it precedes (3) in their total order, hence (1) precedes (4), which sees the thread inside.
 * Otherwise the passing thread sees the gate closed, steps outside, waits, and passes in the same
 * way again.
 *
 * A waiting thread may leave by a jump out of a signal handler. It therefore holds no lock,
 * waits on no condition variable and is counted nowhere: it sleeps on a futex word (bell.h), and
 * marks its entry with the opening and the pass for which it waits. The mark is void once the gate
 * has opened or the thread has passed again. Except while it sleeps, signals are blocked.
 */
#define _GNU_SOURCE
#include "gate/gate.h"

#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "driver/bell.h"
#include "driver/forked.h"
#include "driver/glibc.h"
#include "driver/log.h"
#include "driver/ops.h"
#include "gate/client.h"
#include "gate/contexts.h"
#include "gate/inflight.h"

_Atomic uint64_t gate_closed;
__thread struct gate_thread *gate_self __attribute__((tls_model("initial-exec")));
_Atomic uint64_t gate_taken, gate_goal;
void (*gate_on_taken)(uint64_t number);
bool (*gate_on_paced)(uint64_t *since);

/* A forked child's thread finds its entry and the key as they were. */
static KEPT_IN_CHILD struct {
    _Atomic uint32_t openings; /* number of openings; skips 0 (gate_thread.waits: no wait) */
    _Atomic uint32_t opened;         /* futex word (bell.h) on which waiting threads sleep */
    _Atomic uint64_t submissions;
    _Atomic(struct gate_thread *) threads; /* all entries; none is ever removed */
    /* The key's destructor makes an ended thread's entry reusable; without a key no entry is. */
    pthread_key_t key;
    bool has_key;
    pthread_once_t once;
} gate = { .openings = 1, .once = PTHREAD_ONCE_INIT };

/* This thread's entry; gate_self is set only at the thread's first pass. */
static __thread struct gate_thread *own_entry __attribute__((tls_model("initial-exec")));

static void thread_ends(void *argument)
{
    struct gate_thread *thread = argument;
    atomic_store_explicit(&thread->inside, 0, memory_order_release);
    atomic_store(&thread->waits, 0);
    atomic_store(&thread->blocked, 0);
    atomic_store_explicit(&thread->in_use, false, memory_order_release);
    /* Another destructor of this thread may pass the gate later, with a new entry. */
    gate_self = own_entry = NULL;
}

static bool has_pass_below(const struct gate_thread *self, uint32_t inside, uintptr_t stack)
{
    return inside > 0 && (inside > GATE_FRAMES || self->frames[inside - 1] < stack);
}

static uint32_t end_passes_below(struct gate_thread *self, uintptr_t stack)
{
    uint32_t inside = atomic_load_explicit(&self->inside, memory_order_relaxed);
    while (has_pass_below(self, inside, stack))
        inside--;
    atomic_store_explicit(&self->inside, inside, memory_order_release);
    return inside;
}

uint32_t gate_depth(struct gate_thread *self, uint32_t inside, uintptr_t stack)
{
    return inside <= GATE_FRAMES && has_pass_below(self, inside, stack)
            && !leave_is_on_signal_stack()
        ? end_passes_below(self, stack) : inside;
}

/* The thread jumps to a frame with this stack pointer: ends the passes of the frames that it leaves.
 * A jump out of a driver call inside the gate would else keep the gate from ever being empty. */
static void end_passes(uintptr_t stack)
{
    struct gate_thread *self = own_entry;
    if (self == NULL || self->frames[0] >= stack)
        return;
    end_passes_below(self, stack);
    atomic_store(&self->waits, 0);
}

static void initialise(void)
{
    leave_calls(end_passes);
    gate.has_key = pthread_key_create(&gate.key, thread_ends) == 0;
}

/* No malloc(): the program's malloc() may call CUDA, or share cache lines with program data. */
static struct gate_thread *new_thread(void)
{
    struct gate_thread *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        fatal("no memory for a thread's entry at the gate");
    size_t count = 4096 / sizeof *page;
    atomic_init(&page[0].in_use, true);
    for (size_t i = 0; i < count; i++) {
        struct gate_thread *head = atomic_load(&gate.threads);
        do
            page[i].next = head;
        while (!atomic_compare_exchange_weak(&gate.threads, &head, &page[i]));
    }
    return &page[0];
}

static struct gate_thread *own_thread_entry(void)
{
    if (own_entry != NULL)
        return own_entry;
    if (pthread_once != NULL)           /* NULL before glibc 2.34 without libpthread (glibc.h) */
        pthread_once(&gate.once, initialise);
    for (struct gate_thread *t = atomic_load(&gate.threads); t != NULL; t = t->next)
        if (!atomic_exchange(&t->in_use, true)) {
            own_entry = t;
            break;
        }
    if (own_entry == NULL)
        own_entry = new_thread();
    if (gate.has_key)
        pthread_setspecific(gate.key, own_entry);
    return own_entry;
}

struct gate_thread *gate_register_thread(void)
{
    struct gate_thread *thread = own_thread_entry();
    /* Lists the current context, if it was created by a function that is not wrapped. */
    CUcontext context;
    contexts_current(&context);
    return gate_self = thread;
}

static bool is_capturing(CUstream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return stream != GATE_NO_STREAM
        && REAL(cuStreamIsCapturing)(stream, &status) == CUDA_SUCCESS
        && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static bool take_paced_pass(void)
{
    uint64_t number = atomic_load(&gate_taken);
    while (number < atomic_load(&gate_goal))
        if (atomic_compare_exchange_weak(&gate_taken, &number, number + 1)) {
            gate_on_taken(number + 1);
            return true;
        }
    return false;
}

/* Called inside the gate. True: the thread passes; with GATE_CAPTURING, its pass is counted. */
static bool try_pass(CUstream stream)
{
    uint64_t closed = atomic_load(&gate_closed);
    if ((closed & GATE_PUBLISHING) != 0)
        inflight_count();
    if ((closed & ~GATE_AJAR) != 0
        || ((closed & GATE_PUBLISHING) != 0 && !inflight_may_pass())
        || ((closed & GATE_PACED) != 0 && !take_paced_pass()))
        return false;
    if ((closed & GATE_CAPTURING) != 0 && !is_capturing(stream))
        atomic_fetch_add(&gate.submissions, 1);
    return true;
}

static bool may_pass_now(void)
{
    uint64_t closed = atomic_load(&gate_closed);
    return (closed & ~GATE_AJAR) == 0
           && ((closed & GATE_PUBLISHING) == 0 || !inflight_holds())
           && ((closed & GATE_PACED) == 0 || atomic_load(&gate_taken) < atomic_load(&gate_goal));
}

static bool is_held_by_pace_alone(void)
{
    return (atomic_load(&gate_closed) & ~GATE_CAPTURING) == (GATE_PACED | GATE_PUBLISHING)
           && !inflight_holds();
}

/* Sleeps until the gate must be checked again. A signal handler may run here, and leave by
 * siglongjmp() or submit work itself; that submission sets self->waits to 0. */
static void sleep_at_gate(const struct gate_thread *self, bool until_stop)
{
    uint64_t since = 0;
    for (;;) {
        uint32_t opened = atomic_load(&gate.opened);
        if (may_pass_now() || atomic_load(&self->waits) != atomic_load(&gate.openings)
            || (until_stop && clients_stopping()))
            return;
        if (is_held_by_pace_alone() && gate_on_paced(&since))
            continue;
        bell_wait(&gate.opened, opened, NULL);
    }
}

bool gate_wait(struct gate_thread *self, CUstream stream, bool until_stop)
{
    if (try_pass(stream))
        return true;
    /* A captured call submits no work; a thread in a tracing tool's callback must not wait. */
    if (is_capturing(stream) || client_is_called_back())
        return true;

    /* What an exception has left behind, as a gate closed in exclusive.c, may be what closes it. */
    leave_abandoned(self->frames[0]);
    bool inside = true;
    int saved_errno = errno;
    defer_begin();
    do {
        /* Stored before clients_want(), after which gate_has_waiters() must find the thread. */
        atomic_store(&self->waits_pass, atomic_load(&self->passes));
        atomic_store(&self->waits, atomic_load(&gate.openings));
        atomic_store_explicit(&self->inside, 0, memory_order_release);
        clients_want();
        defer_end();
        sleep_at_gate(self, until_stop);
        defer_begin();
        inside = !until_stop || !clients_stopping();
        atomic_store(&self->inside, inside);
    } while (inside && !try_pass(stream)); /* inflight_clear() may have cleared an earlier count */
    atomic_store(&self->waits, 0);
    defer_end();
    errno = saved_errno;
    return inside;
}

void gate_close(uint64_t reason)
{
    atomic_fetch_or(&gate_closed, reason);
}

void gate_open(uint64_t reason)
{
    if ((atomic_fetch_and(&gate_closed, ~reason) & ~reason & ~GATE_AJAR) != 0)
        return;
    if (atomic_fetch_add(&gate.openings, 1) == UINT32_MAX)
        atomic_fetch_add(&gate.openings, 1);
    bell_ring(&gate.opened);
}

void gate_recheck(void)
{
    bell_ring(&gate.opened);
}

void gate_allow(uint64_t goal)
{
    if (atomic_exchange(&gate_goal, goal) != goal)
        gate_recheck();
}

bool gate_empty(void)
{
    for (struct gate_thread *t = atomic_load(&gate.threads); t != NULL; t = t->next)
        if (t != gate_self && atomic_load(&t->inside) != 0)
            return false;
    return true;
}

bool gate_has_waiters(void)
{
    uint32_t openings = atomic_load(&gate.openings);
    for (struct gate_thread *t = atomic_load(&gate.threads); t != NULL; t = t->next)
        if (atomic_load(&t->waits) == openings
            && atomic_load(&t->waits_pass) == atomic_load(&t->passes))
            return true;
    return false;
}

bool gate_has_blocked(void)
{
    for (struct gate_thread *t = atomic_load(&gate.threads); t != NULL; t = t->next)
        if (atomic_load(&t->blocked) == atomic_load(&t->passes) + 1)
            return true;
    return gate_has_waiters();
}

uint32_t gate_block(void)
{
    struct gate_thread *self = own_thread_entry();
    return atomic_exchange(&self->blocked, atomic_load(&self->passes) + 1);
}

void gate_unblock(const uint32_t *before)
{
    atomic_store(&own_entry->blocked, *before);
}

uint64_t gate_passes(void)
{
    uint64_t sum = 0;
    for (struct gate_thread *t = atomic_load(&gate.threads); t != NULL; t = t->next)
        sum += atomic_load_explicit(&t->passes, memory_order_relaxed);
    return sum;
}

uint64_t gate_submissions(void)
{
    return atomic_load(&gate.submissions);
}

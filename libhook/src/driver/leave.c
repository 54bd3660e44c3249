/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "driver/leave.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "driver/bell.h"
#include "driver/glibc.h"
#include "driver/locked.h"
#include "driver/locks.h"

#define NOTES_MOST 12
#define HELD_MOST 6

/* Signals of the C library's for cancellation and setuid(), and those that an instruction raises,
 * are never blocked: the thread would be killed by the latter. */
#define BIT(signal) ((uint64_t)1 << ((signal) - 1))
#define DEFERRABLE (~(BIT(32) | BIT(33) | BIT(SIGSEGV) | BIT(SIGBUS) | BIT(SIGFPE) | BIT(SIGILL) \
                      | BIT(SIGTRAP) | BIT(SIGSYS)))

static __thread struct {
    bool ours, ends, forked;
    unsigned depth;                  /* of DEFERRED scopes */
    int cancel_before;               /* state of cancellation before the outermost scope */
    uint64_t signals_before;
    unsigned held_count;
    pthread_mutex_t *held[HELD_MOST];
    unsigned count;                  /* of notes; those beyond NOTES_MOST are not kept */
    struct note notes[NOTES_MOST];
    bool has_key;
} self __attribute__((tls_model("initial-exec")));

#define CALLED_MOST 4

__thread pid_t thread_number __attribute__((tls_model("initial-exec")));

static void (*_Atomic also_called[CALLED_MOST])(uintptr_t stack);
static void (*_Atomic called_first)(void);

/* A direct system call: no cancellation point, and cheap. */
static void set_signals(uint64_t mask, uint64_t *before)
{
    int error = errno;
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &mask, before, sizeof mask);
    errno = error;
}

static uint64_t block_signals(void)
{
    uint64_t mask = DEFERRABLE, before = 0;
    int error = errno;
    syscall(SYS_rt_sigprocmask, SIG_BLOCK, &mask, &before, sizeof mask);
    errno = error;
    return before;
}

static void defer(void)
{
    int state;
    uint64_t before = block_signals();
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
    self.signals_before = before;
    self.cancel_before = state;
    self.depth = 1;
}

void defer_begin(void)
{
    if (self.ours)
        return;
    if (self.depth > 0) {
        self.depth++;
        return;
    }
    defer();
}

void defer_end(void)
{
    if (self.ours || --self.depth > 0)
        return;
    uint64_t before = self.signals_before;
    pthread_setcancelstate(self.cancel_before, NULL);
    set_signals(before, NULL);       /* last: signals that have waited are delivered here */
}

static void note_held(pthread_mutex_t *mutex)
{
    if (self.held_count < HELD_MOST)
        self.held[self.held_count] = mutex;
    self.held_count++;
}

static void forget_held(const pthread_mutex_t *mutex)
{
    unsigned at = self.held_count--;
    while (at-- > 0)
        if (at < HELD_MOST && self.held[at] == mutex) {
            for (; at < self.held_count && at + 1 < HELD_MOST; at++)
                self.held[at] = self.held[at + 1];
            return;
        }
}

void mutex_lock(pthread_mutex_t *mutex)
{
    void (*first)(void) = atomic_load_explicit(&called_first, memory_order_relaxed);
    if (__builtin_expect(first != NULL, 0) && self.depth == 0 && !self.ours)
        first();
    defer_begin();
    pthread_mutex_lock(mutex);
    if (!self.ours)
        note_held(mutex);
}

void mutex_lock_patiently(pthread_mutex_t *mutex)
{
    for (uint64_t us = 20; !self.ours; us = us < 1000 ? 2 * us : us) {
        defer_begin();
        if (pthread_mutex_trylock(mutex) == 0) {
            note_held(mutex);
            return;
        }
        defer_end();
        bell_nap(us);
    }
    pthread_mutex_lock(mutex);
}

void mutex_unlock(pthread_mutex_t *mutex)
{
    pthread_mutex_unlock(mutex);
    if (self.ours)
        return;
    forget_held(mutex);
    defer_end();
}

/* Noted first: a jump out of pthread_mutex_lock() is told by locked_here(). */
void mutex_lock_to_read(pthread_mutex_t *mutex)
{
    if (!self.ours)
        note_held(mutex);
    LOCK_CHECK_READ(mutex);
    pthread_mutex_lock(mutex);
}

void mutex_unlock_read(pthread_mutex_t *mutex)
{
    pthread_mutex_unlock(mutex);
    if (!self.ours)
        forget_held(mutex);
}

/* A thread that an exception took out of a section has notes of locks that it does not hold. */
bool leave_holds_lock(void)
{
    for (unsigned i = 0; i < self.held_count && i < HELD_MOST; i++)
        if (locked_here(self.held[i]))
            return true;
    return false;
}

void leave_thread_is_ours(void)
{
    self.ours = true;
}

void leave_in_child(void)
{
    self.forked = true;
    thread_number = 0;
}

static void undo_last(void)
{
    unsigned last = --self.count;
    if (last >= NOTES_MOST || self.forked)
        return;                      /* in a child other threads' locks may stay locked */
    const struct note note = self.notes[last];
    note.undo(note.subject, note.value);
}

/* Releases all locks: the thread leaves a section by the handler of a signal that its own
 * instruction has raised, or by its end in a tool's callback. */
static void release_locks(void)
{
    while (self.held_count > 0) {
        unsigned last = --self.held_count;
        if (last < HELD_MOST && locked_here(self.held[last]))
            pthread_mutex_unlock(self.held[last]);
    }
    if (self.depth > 0) {
        self.depth = 1;
        defer_end();
    }
}

static bool has_note_below(uintptr_t stack)
{
    return self.count > 0
        && (self.count > NOTES_MOST || self.notes[self.count - 1].frame < stack);
}

void leave_frames_below(uintptr_t stack)
{
    int error = errno;
    void (*also)(uintptr_t);
    if (self.held_count > 0 || self.depth > 0)
        release_locks();
    while (has_note_below(stack))
        undo_last();
    for (unsigned i = 0; i < CALLED_MOST && (also = atomic_load(&also_called[i])) != NULL; i++)
        also(stack);
    errno = error;
}

bool leave_is_on_signal_stack(void)
{
    stack_t stack;
    return sigaltstack(NULL, &stack) == 0 && (stack.ss_flags & SS_ONSTACK) != 0;
}

void leave_abandoned(uintptr_t stack)
{
    if (!has_note_below(stack) || leave_is_on_signal_stack())
        return;
    int error = errno;
    while (has_note_below(stack))
        undo_last();
    errno = error;
}

void lock_after(void (*first)(void))
{
    atomic_store(&called_first, first);
}

void leave_if_cancelled(void)
{
    if (pthread_testcancel != NULL)  /* NULL before glibc 2.34 without libpthread (glibc.h) */
        pthread_testcancel();
}

bool leave_is_forked(void)
{
    return self.forked;
}

bool leave_is_thread_end(void)
{
    return self.ends;
}

static pthread_key_t key;
static bool has_key;

static void thread_ends(void *unused)
{
    (void)unused;
    self.ends = true;
    self.has_key = false;            /* a later destructor may call the driver */
    leave_frames_below(UINTPTR_MAX);
    self.ends = false;
}

static void make_key(void)
{
    has_key = pthread_key_create(&key, thread_ends) == 0;
}

static void watch_thread(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    self.has_key = true;
    if (pthread_once != NULL)        /* NULL before glibc 2.34 without libpthread (glibc.h) */
        pthread_once(&once, make_key);
    if (has_key)
        pthread_setspecific(key, &self);
}

void leave_calls(void (*also)(uintptr_t stack))
{
    if (!self.has_key)
        watch_thread();
    for (unsigned i = 0; i < CALLED_MOST; i++) {
        void (*there)(uintptr_t) = NULL;
        if (atomic_compare_exchange_strong(&also_called[i], &there, also) || there == also)
            return;
    }
}

/* Whether an exception has left the frame of `note`, as a frame makes no note twice. */
static bool is_stale(const struct note *note, const struct note *next)
{
    return note->frame < next->frame || (note->frame == next->frame && note->site == next->site);
}

unsigned leave_note(const struct note *note)
{
    if (self.ours)
        return 0;
    if (!self.has_key)
        watch_thread();
    while (self.count > 0 && self.count <= NOTES_MOST
           && is_stale(&self.notes[self.count - 1], note) && !leave_is_on_signal_stack())
        undo_last();
    unsigned place = self.count;
    if (place < NOTES_MOST)
        self.notes[place] = *note;
    atomic_signal_fence(memory_order_seq_cst);       /* a handler sees the whole note */
    self.count = place + 1;
    return place;
}

void leave_forget(const unsigned *note)
{
    if (!self.ours)
        self.count = *note;
}

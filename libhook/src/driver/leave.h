/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread of the program may leave a call of the library without returning from it: a signal
 * handler jumps out (siglongjmp) or throws, or the thread is cancelled or ends. Therefore:
 *
 *   - In short sections, all that hold a lock, signals and cancellation wait (DEFERRED).
 *   - A wait without a short bound holds no lock, and signals and cancellation may act there.
 *   - What a thread has to take back after such a wait or a long call of the driver is noted:
 *
 *         UNLESS_LEFT(undo, subject, value);     until the end of the scope
 *
 *     If the thread leaves the scope by a jump, by cancellation or by its end, `undo` runs in the
 *     thread, in a signal handler at worst: no lock of the library is then held. `subject` must not
 *     lie on the thread's stack. Leaving by an exception that a signal handler throws is noticed
 *     only when the thread makes its next such note in an outer or the same frame, waits at the gate
 *     or ends.
 *
 * Jumps are seen as the library defines siglongjmp() and its like (jump.c).
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define AT_END(function) __attribute__((cleanup(function), unused))

/* DEFERRED: until the end of the scope signals and cancellation of this thread wait, but for
 * signals that the thread's own instructions raise. Such scopes may be nested. */
void defer_begin(void);
void defer_end(void);
static inline void deferred_end(const char *unused)
{
    (void)unused;
    defer_end();
}
#define DEFERRED AT_END(deferred_end) const char deferred_here = (defer_begin(), '\0')

/* Locks within DEFERRED. mutex_unlock() releases any of the thread's mutexes. */
void mutex_lock(pthread_mutex_t *mutex);
void mutex_unlock(pthread_mutex_t *mutex);
/* As mutex_lock(), for a mutex that others may hold for long: signals and cancellation wait only
 * once it is locked. The caller holds no lock. */
void mutex_lock_patiently(pthread_mutex_t *mutex);
/* Locks for a section that only reads: signals do not wait, and a jump out releases the mutex. */
void mutex_lock_to_read(pthread_mutex_t *mutex);
void mutex_unlock_read(pthread_mutex_t *mutex);

/* Whether the thread holds a mutex that one of these has locked; false in the library's own threads. */
bool leave_holds_lock(void);

/* The library's own threads receive no signals and are not cancelled. */
void leave_thread_is_ours(void);
void leave_in_child(void);           /* called in a forked child: nothing is undone there */

typedef void undo_function(void *subject, uint64_t value);

struct note {
    undo_function *undo;
    void *subject;
    uint64_t value;
    const void *site;                /* unique for each place in the sources that notes something */
    uintptr_t frame;                 /* of the function that would be left */
};

/* Returns what leave_forget() takes. */
unsigned leave_note(const struct note *note);
void leave_forget(const unsigned *note);
#define UNLESS_LEFT(undo, subject, value)                                                  \
    static const char site_of_##undo;                                                      \
    AT_END(leave_forget) const unsigned note_of_##undo = leave_note(&(const struct note){  \
        undo, subject, value, &site_of_##undo, (uintptr_t)__builtin_frame_address(0) })

/* A cancellation point. */
void leave_if_cancelled(void);

/* Whether `undo` runs because the thread ends. */
bool leave_is_thread_end(void);
bool leave_is_forked(void);          /* the process is a forked child */

/* Called before the thread jumps to a frame whose stack pointer is `stack`. */
void leave_frames_below(uintptr_t stack);
/* Called in a frame whose stack pointer is `stack`: undoes what frames below it have noted, which an
 * exception must have left. */
void leave_abandoned(uintptr_t stack);
/* Whether the thread is in a signal handler with a stack of its own, which may lie above the frames
 * that the signal has interrupted. */
bool leave_is_on_signal_stack(void);
/* From now on `also` is called for each such jump, and the end of each thread with notes. */
void leave_calls(void (*also)(uintptr_t stack));
/* `first` is called before a thread that is not DEFERRED locks; NULL: nothing is. */
void lock_after(void (*first)(void));

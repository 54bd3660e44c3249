/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scopes that hold a lock. Signals and cancellation of the thread wait meanwhile (leave.h).
 *
 *     LOCKED(mutex);        the mutex is locked; code in the block may release it for a while.
 *                           Where the thread has locked it already, in a tool's callback within a
 *                           driver call of the library, the scope leaves it locked.
 *     LOCKED_TO_READ(mutex);    for short sections that change nothing: cheaper, as signals do not
 *                           wait; a thread that leaves by a jump releases the mutex
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include "driver/leave.h"
#include "driver/locks.h"

/* The kernel's number of the calling thread; thread_number: 0 while unknown, as in a new child. */
extern __thread pid_t thread_number __attribute__((tls_model("initial-exec")));
static inline pid_t thread_id(void)
{
    if (thread_number == 0)
        thread_number = (pid_t)syscall(SYS_gettid);
    return thread_number;
}

/* Whether the calling thread has locked the mutex: glibc records the owner of a mutex. */
static inline bool locked_here(const pthread_mutex_t *mutex)
{
    return __atomic_load_n(&mutex->__data.__owner, __ATOMIC_RELAXED) == thread_id();
}

static inline pthread_mutex_t *locked_begin(pthread_mutex_t *mutex)
{
    if (locked_here(mutex))
        return NULL;
    mutex_lock(mutex);
    return mutex;
}

static inline void locked_end(pthread_mutex_t *const *mutex)
{
    if (*mutex != NULL)
        mutex_unlock(*mutex);
}

static inline pthread_mutex_t *locked_to_read_begin(pthread_mutex_t *mutex)
{
    if (locked_here(mutex))
        return NULL;
    mutex_lock_to_read(mutex);
    return mutex;
}

static inline void locked_to_read_end(pthread_mutex_t *const *mutex)
{
    if (*mutex != NULL)
        mutex_unlock_read(*mutex);
}

#define LOCKED(mutex) \
    AT_END(locked_end) pthread_mutex_t *const locked_##mutex = locked_begin(&(mutex))
#define LOCKED_TO_READ(mutex)                                                      \
    AT_END(locked_to_read_end) pthread_mutex_t *const locked_##mutex =             \
        locked_to_read_begin(&(mutex))

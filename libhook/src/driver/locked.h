/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks of code with an action at their end, however control leaves them.
 *
 *     UNCANCELLED;          cancellation is disabled: a cancelled thread would keep its locks
 *     LOCKED(mutex);        the mutex is locked; code in the block may release it for a while
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

static inline pthread_mutex_t *locked_begin(pthread_mutex_t *mutex)
{
    pthread_mutex_lock(mutex);
    return mutex;
}

/* The kernel's number of the calling thread. */
static inline pid_t thread_id(void)
{
    static __thread pid_t self __attribute__((tls_model("initial-exec")));
    if (self == 0)
        self = (pid_t)syscall(SYS_gettid);
    return self;
}

/* Whether the calling thread has locked the mutex: glibc records the owner of a mutex. */
static inline bool locked_here(const pthread_mutex_t *mutex)
{
    return __atomic_load_n(&mutex->__data.__owner, __ATOMIC_RELAXED) == thread_id();
}

static inline void locked_end(pthread_mutex_t *const *mutex)
{
    pthread_mutex_unlock(*mutex);
}

static inline int uncancelled_begin(void)
{
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    return before;
}

static inline void uncancelled_end(const int *before)
{
    pthread_setcancelstate(*before, NULL);
}

#define AT_END(function) __attribute__((cleanup(function), unused))
#define LOCKED(mutex) \
    AT_END(locked_end) pthread_mutex_t *const locked_##mutex = locked_begin(&(mutex))
#define UNCANCELLED AT_END(uncancelled_end) const int cancelled_before = uncancelled_begin()

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a block of code undoes at its end, however that is left.
 *
 *     UNCANCELLED;          the thread is not cancelled meanwhile: it would keep its locks
 *     LOCKED(mutex);        the mutex is locked; the block may release it for a while
 */
#pragma once

#include <pthread.h>

static inline pthread_mutex_t *locked_begin(pthread_mutex_t *mutex)
{
    pthread_mutex_lock(mutex);
    return mutex;
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

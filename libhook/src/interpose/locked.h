/* SPDX-License-Identifier: Apache-2.0 */
/* LOCKED(mutex) locks a mutex until the end of the block, however that is left. */
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

#define LOCKED(mutex) \
    __attribute__((cleanup(locked_end), unused)) \
    pthread_mutex_t *const locked_##mutex = locked_begin(&(mutex))

/* SPDX-License-Identifier: Apache-2.0 */
/* The contexts of this process, and the calling thread's stack of them. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "driver/device.h"

/* LOCKED(mutex): the mutex is locked until the end of the block. */
static inline pthread_mutex_t *locked_begin(pthread_mutex_t *mutex)
{
    pthread_mutex_lock(mutex);
    return mutex;
}
static inline void locked_end(pthread_mutex_t *const *mutex)
{
    pthread_mutex_unlock(*mutex);
}
#define LOCKED(mutex)                                                                    \
    __attribute__((cleanup(locked_end), unused))                                         \
    pthread_mutex_t *const locked_##mutex = locked_begin(&(mutex))

struct stream;

/* A moment in a stream: all that was submitted up to operation `number` is done. */
struct position {
    struct stream *stream;           /* a reference; NULL: none */
    uint64_t number;
};

struct context {
    struct device *device;
    bool primary;
    struct context *owner;           /* of its memory, events and modules: itself, or a green one's primary */
    CUgreenCtx green;                /* its name as a green one */
    const void *thread;              /* the one that a green context is current to, */
    unsigned entered;                /* and how often; under context_lock */
    _Atomic bool alive;
    unsigned flags;
    unsigned long long id;
    unsigned attached;               /* by cuCtxAttach, and not detached yet; under context_lock */
    struct stream *legacy;           /* the NULL stream */
    struct stream *recorder;         /* holds what cuCtxRecordEvent and cuCtxWaitEvent order */
    struct position gate;            /* all later work waits for it: cuCtxWaitEvent */
    struct stream *streams;          /* all of them, under the engine's lock */
    size_t limits[CU_LIMIT_CIG_SHMEM_FALLBACK_ENABLED + 1];
    CUfunc_cache cache;
    struct context *next;            /* all contexts ever made: never freed, so that a stale handle stays harmless */
};

/* What the calling thread works with; NULL or CUDA_ERROR_INVALID_CONTEXT if none. */
struct context *context_current(void);
bool context_push(struct context *context);          /* false: it is green, and current to another thread */
void context_pop(void);
CUresult context_check(struct context *context);     /* destroyed, or broken by a fault */
struct context *context_from(CUcontext handle);      /* NULL handle: the current one. NULL: none such */
void context_fault(CUresult error);
CUresult context_error(void);                        /* of the first fault in the process */

/* Protects the devices' primary contexts, the list of contexts. Taken before all others. */
extern pthread_mutex_t context_lock;
extern struct context *all_contexts;

/* Protects every stream, event, capture and graph of the process. Behind it
 * only the space's lock, a stream table's and the shared state's are taken. */
extern pthread_mutex_t engine_lock;

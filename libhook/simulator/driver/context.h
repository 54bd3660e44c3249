/* SPDX-License-Identifier: Apache-2.0 */
/* The contexts of this process, and the calling thread's stack of them. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "driver/device.h"

/* LOCKED(mutex): locks the mutex until the end of the block. */
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

/* A position in a stream. It is reached when all operations up to `number` are done. */
struct position {
    struct stream *stream;           /* a counted reference; NULL: no position */
    uint64_t number;
};

struct context {
    struct device *device;
    bool primary;
    struct context *owner;           /* owns memory, events and modules: the context itself, or
                                        the primary context of a green one */
    CUgreenCtx green;                /* the handle of a green context */
    const void *thread;              /* the thread in which a green context is current, */
    unsigned entered;                /* and how often it is on that thread's stack; protected by
                                        context_lock */
    _Atomic bool alive;
    unsigned flags;
    unsigned long long id;
    unsigned attached;               /* calls of cuCtxAttach without cuCtxDetach; protected by
                                        context_lock */
    struct stream *legacy;           /* the NULL stream */
    struct stream *recorder;         /* the operations of cuCtxRecordEvent and cuCtxWaitEvent */
    struct position gate;            /* cuCtxWaitEvent: all later operations wait for this
                                        position */
    struct stream *streams;          /* all streams of the context; protected by engine_lock */
    size_t limits[CU_LIMIT_CIG_SHMEM_FALLBACK_ENABLED + 1];
    CUfunc_cache cache;
    struct context *next;            /* list of all contexts; none is ever freed, so that a stale
                                        handle can be recognised */
};

/* The calling thread's current context; NULL or CUDA_ERROR_INVALID_CONTEXT if it has none. */
struct context *context_current(void);
bool context_push(struct context *context);          /* false: a green context that is current in
                                                        another thread */
void context_pop(void);
CUresult context_check(struct context *context);     /* an error if the context is destroyed or
                                                        broken */
struct context *context_from(CUcontext handle);      /* NULL `handle`: the current context. NULL
                                                        result: no such context */
void context_fault(CUresult error);
CUresult context_error(void);                        /* the error of the first fault in the
                                                        process */

/* Protects the primary contexts of devices and the list of contexts. Locked before all other
 * locks. */
extern pthread_mutex_t context_lock;
extern struct context *all_contexts;

/* Protects all streams, events, captures and graphs of the process. Its holder may lock only the
 * lock of the address space, of a table of streams, and of the shared state. */
extern pthread_mutex_t engine_lock;

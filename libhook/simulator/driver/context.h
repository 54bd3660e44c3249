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
    struct context *owner;           /* owns memory, events, modules: itself or a primary one */
    CUgreenCtx green;                /* the handle of a green context */
    const void *thread;              /* the thread in which a green context is current, */
    unsigned entered;                /* and how often it is on that thread's stack */
    _Atomic bool alive;
    unsigned flags;
    unsigned long long id;
    unsigned attached;               /* calls of cuCtxAttach without cuCtxDetach */
    struct stream *legacy;           /* the NULL stream */
    struct stream *recorder;         /* the operations of cuCtxRecordEvent */
    struct stream *streams;          /* all streams of the context; protected by engine_lock */
    unsigned waiting;                /* threads in context_drain_alone(); under engine_lock */
    size_t limits[CU_LIMIT_CIG_SHMEM_FALLBACK_ENABLED + 1];
    struct context *next;            /* never freed, so that stale handles are recognised */
};

/* The calling thread's current context; NULL or CUDA_ERROR_INVALID_CONTEXT if it has none. */
struct context *context_current(void);
bool context_push(struct context *context);          /* false: the context is green and
                                                        current in another thread */
void context_pop(void);
CUresult context_check(struct context *context);     /* an error: destroyed or broken context */
struct context *context_from(CUcontext handle);      /* for NULL: the current context */
void context_fault(CUresult error);
CUresult context_error(void);  /* error of the first fault; CUDA_SUCCESS: no fault */

/* Protects primary contexts, the list, `entered` and `attached`. Locked before all other locks. */
extern pthread_mutex_t context_lock;
extern struct context *all_contexts;

/* Protects all streams, events, captures and graphs. Its holder may lock only the address space,
 * a table of streams, and the shared state. */
extern pthread_mutex_t engine_lock;

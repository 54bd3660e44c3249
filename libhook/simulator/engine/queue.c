/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the simulated GPU works
 *
 * A process has one address space for all GPUs (space.c): reserved ranges with mappings of physical
 * memory (physical.c), which is host memory of the process at another address. Only the amount that
 * each process uses of each GPU is known to all, in a file (shared_state.c). Code that accesses
 * device memory translates each address first, piece by piece, with the address space locked for
 * reading: no mapping disappears during an access.
 *
 * Each stream is a queue of operations with a thread that executes them in order. An operation may
 * wait for positions in other streams: a stream and the number of an operation, fixed at the call.
 * An event stores the position of its last recording; a context's position is that of all its
 * streams. An operation of the NULL stream waits for all that blocking streams of its context hold
 * at the call, and theirs for all that the NULL stream holds. A captured stream queues nothing: its
 * work becomes nodes of a graph (capture.c), later executed as one operation.
 *
 * An access to an unmapped address breaks the context: later work is dropped, and every later call
 * fails with the same error. On a real GPU, memory may be unmapped under submitted work and mapped
 * again before the work runs, unnoticed. Here each unmapping dooms all submitted operations that
 * would access the memory: they fault, however late they run, so a program that moves memory with
 * work in flight is always found.
 *
 * engine_lock protects all queues, and is not held while work or a callback runs. `progress` wakes
 * threads that wait for a position. Threads of streams are never joined: they end with their stream
 * or the process, even if a kernel still runs.
 */
#include "engine/queue.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "driver/entry.h"

struct operation {
    struct operation *next;
    uint64_t number;
    struct position *after;          /* positions that must be reached first */
    size_t after_count;
    _Atomic bool doomed;             /* its memory was unmapped: it faults */
    size_t count;
    struct work works[];
};

static pthread_cond_t progress = PTHREAD_COND_INITIALIZER;
static _Atomic uint32_t progresses;  /* futex word: changes with each broadcast of `progress` */

static void notify_progress(void)
{
    pthread_cond_broadcast(&progress);
    atomic_fetch_add(&progresses, 1);
    syscall(SYS_futex, &progresses, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Waits in a call, with engine_lock released. The thread may leave by a jump out of a signal handler:
 * it is recorded nowhere. No cancellation point. */
static void await_progress(void)
{
    uint32_t before = atomic_load(&progresses);
    pthread_mutex_unlock(&engine_lock);
    unsigned depth = entry_sleeps();
    syscall(SYS_futex, &progresses, FUTEX_WAIT_PRIVATE, before, NULL, NULL, 0);
    entry_wakes(depth);
    pthread_mutex_lock(&engine_lock);
}

static bool may_start(const struct operation *operation)
{
    for (size_t i = 0; i < operation->after_count; i++)
        if (!stream_reached(&operation->after[i]))
            return false;
    return true;
}

/* Without the lock. In a broken context no work runs. */
static void carry_out(struct stream *stream, struct operation *operation)
{
    struct context *context = stream->context;
    for (size_t i = 0; i < operation->count; i++) {
        if (context_error() != CUDA_SUCCESS)
            return;
        CUresult result = work_run(context, &operation->works[i], &operation->doomed);
        if (result == CUDA_SUCCESS && atomic_load(&operation->doomed))
            result = CUDA_ERROR_ILLEGAL_ADDRESS;
        if (result != CUDA_SUCCESS)
            context_fault(result);
    }
}

static void operation_free(struct operation *operation)
{
    for (size_t i = 0; i < operation->count; i++) {
        struct work *work = &operation->works[i];
        if (work->kind == WORK_COPY)
            free(work->copy.staged);
        work_drop(work);
    }
    positions_drop(operation->after, operation->after_count);
    free(operation);
}

static void *stream_thread(void *argument)
{
    struct stream *stream = argument;
    pthread_mutex_lock(&engine_lock);
    while (stream->first != NULL || !stream->destroyed) {
        struct operation *operation = stream->first;
        if (operation == NULL) {
            pthread_cond_wait(&stream->work, &engine_lock);
            continue;
        }
        while (!may_start(operation))
            pthread_cond_wait(&progress, &engine_lock);
        pthread_mutex_unlock(&engine_lock);
        carry_out(stream, operation);
        pthread_mutex_lock(&engine_lock);
        stream->first = operation->next;
        if (stream->first == NULL)
            stream->last = NULL;
        stream->completed = operation->number;
        notify_progress();
        operation_free(operation);
    }
    stream_drop(stream);
    pthread_mutex_unlock(&engine_lock);
    return NULL;
}

/* Starts the stream's thread with its first operation. */
static void start_thread(struct stream *stream)
{
    pthread_detach(driver_thread(stream_thread, stream));
    stream->has_thread = true;
    stream_hold(stream);
}

uint64_t stream_queue(struct stream *stream, const struct work *works, size_t count,
                      const struct position *after, size_t after_count)
{
    struct operation *operation = checked(calloc(1, sizeof *operation + count * sizeof *works));
    operation->number = ++stream->submitted;
    operation->count = count;
    memcpy(operation->works, works, count * sizeof *works);
    for (size_t i = 0; i < count; i++)
        work_hold(&works[i]);
    for (size_t i = 0; i < after_count; i++)
        stream_add(&operation->after, &operation->after_count, after[i]);
    stream_add_implicit(stream, &operation->after, &operation->after_count);
    if (stream->last != NULL)
        stream->last->next = operation;
    else
        stream->first = operation;
    stream->last = operation;
    if (!stream->has_thread)
        start_thread(stream);
    pthread_cond_signal(&stream->work);
    return operation->number;
}

CUresult stream_wait(struct stream *stream, uint64_t number)
{
    stream_hold(stream);
    while (stream->completed < number)
        await_progress();
    stream_drop(stream);
    return context_error();
}

CUresult context_wait(struct context *context)
{
    size_t count;
    struct position *list = context_positions(context, &count);
    for (size_t i = 0; i < count; i++)
        stream_wait(list[i].stream, list[i].number);
    positions_drop(list, count);
    return context_error();
}

uint64_t context_queue(struct context *context, const struct work *work)
{
    size_t count;
    struct position *positions = context_positions(context, &count);
    uint64_t number = stream_queue(context->recorder, work, 1, positions, count);
    positions_drop(positions, count);
    return number;
}

void streams_doom(CUdeviceptr base, size_t size)
{
    for (struct context *context = all_contexts; context != NULL; context = context->next)
        for (struct stream *stream = context->streams; stream != NULL; stream = stream->next)
            for (struct operation *operation = stream->first; operation != NULL;
                 operation = operation->next)
                for (size_t i = 0; i < operation->count; i++)
                    if (work_touches(&operation->works[i], base, size))
                        atomic_store(&operation->doomed, true);
}

CUresult context_drain(struct context *context)
{
    LOCKED(engine_lock);
    return context_wait(context);
}

CUresult context_drain_alone(struct context *context)
{
    LOCKED(engine_lock);
    context->waiting++;
    CUresult result = context_wait(context);
    context->waiting--;
    notify_progress();
    return result;
}

void context_enter(struct context *context)
{
    while (context->waiting > 0)
        await_progress();
}

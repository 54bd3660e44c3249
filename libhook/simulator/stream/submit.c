/* SPDX-License-Identifier: Apache-2.0 */
/* Submits work, and has the entry points of streams. */
#include "stream/submit.h"

#include <stdlib.h>

#include "driver/object.h"
#include "stream/capture.h"

/* A thread's default stream in a context, found by the context's id: a primary context gets a new
 * id when it is reset. */
struct own_stream {
    struct own_stream *next;
    struct context *context;
    unsigned long long id;
    struct stream *stream;
};

static __thread struct own_stream *own_streams;
static pthread_key_t ending;
static pthread_once_t ending_once = PTHREAD_ONCE_INIT;

static void thread_ends(void *list)
{
    LOCKED(engine_lock);
    for (struct own_stream *own = list, *next; own != NULL; own = next) {
        next = own->next;
        bool same = atomic_load(&own->context->alive) && own->context->id == own->id;
        if (same && !own->stream->destroyed)
            stream_close(own->stream);
        free(own);
    }
}

static void make_key(void)
{
    if (pthread_key_create(&ending, thread_ends) != 0)
        abort();
}

/* The stream CU_STREAM_PER_THREAD of this thread, created at its first use. */
static struct stream *own_stream(struct context *context)
{
    pthread_once(&ending_once, make_key);
    for (struct own_stream *own = own_streams; own != NULL; own = own->next)
        if (own->context == context && own->id == context->id)
            return own->stream;
    struct own_stream *own = checked(calloc(1, sizeof *own));
    struct stream *stream = stream_make(context, CU_STREAM_DEFAULT, 0);
    stream->per_thread = true;
    *own = (struct own_stream){own_streams, context, context->id, stream};
    own_streams = own;
    pthread_setspecific(ending, own);
    return stream;
}

CUresult stream_from(CUstream handle, struct context *context, struct stream **stream)
{
    bool own = handle == NULL || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD;
    TRY(own ? context_check(context) : CUDA_SUCCESS);
    FAIL_IF(!own && !object_is(handle, OBJECT_STREAM), CUDA_ERROR_INVALID_HANDLE);
    *stream = handle == CU_STREAM_PER_THREAD ? own_stream(context)
        : own ? context->legacy : (struct stream *)handle;
    return context_check((*stream)->context);
}

CUresult stream_submit(struct stream *stream, const struct work *work)
{
    if (stream->capture != NULL)
        return capture_add(stream, work);
    context_enter(stream->context->owner);
    CUresult result = capture_allows(stream);
    if (result == CUDA_SUCCESS)
        stream_queue(stream, work, 1, NULL, 0);
    return result;
}

CUresult stream_new(struct context *context, unsigned flags, int priority, CUstream *handle)
{
    FAIL_IF(handle == NULL || flags > CU_STREAM_NON_BLOCKING, CUDA_ERROR_INVALID_VALUE);
    priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
    *handle = (CUstream)stream_make(context, flags, priority);
    return CUDA_SUCCESS;
}

FORWARD(cuStreamCreate, (CUstream *stream, unsigned int flags), ENTRY_CONTEXT,
        stream_new(context_current(), flags, 0, stream))
FORWARD(cuStreamCreateWithPriority, (CUstream *stream, unsigned int flags, int priority),
        ENTRY_CONTEXT, stream_new(context_current(), flags, priority, stream))

static CUresult destroy(CUstream handle)
{
    FAIL_IF(!object_is(handle, OBJECT_STREAM), CUDA_ERROR_INVALID_HANDLE);
    struct stream *stream = (struct stream *)handle;
    CUresult broken = context_error();
    LOCKED(engine_lock);
    CUresult result = CUDA_SUCCESS;
    if (stream == stream->context->legacy || stream->per_thread)
        result = CUDA_ERROR_INVALID_HANDLE;
    else if (stream->capture != NULL)
        capture_leave(stream);
    if (result == CUDA_SUCCESS)
        stream_close(stream);
    return result == CUDA_SUCCESS ? broken : result;
}

FORWARD_BOTH(cuStreamDestroy, _v2, (CUstream stream), ENTRY_INIT, destroy(stream))

/* Checks whether all work of the stream has ended, for the NULL stream also that of blocking
 * streams; with `wait`, first waits for that end. */
static CUresult check_ended(struct stream *stream, bool wait)
{
    size_t count = 0;
    struct position *ends = NULL;
    TRY(capture_prohibits());
    LOCKED(engine_lock);
    TRY(capture_forbids_stream(stream));
    stream_add_position(&ends, &count, stream);
    if (stream == stream->context->legacy)
        stream_add_implicit(stream, &ends, &count);
    for (size_t i = 0; i < count && wait; i++)
        stream_wait(ends[i].stream, ends[i].number);
    positions_drop(ends, count);
    return count == 0 || wait ? context_check(stream->context) : CUDA_ERROR_NOT_READY;
}

/* Defines both variants (plain and _ptsz) of a function with a stream; its body uses `stream`. */
#define STREAM_API_ON(name, needs, on, parameters, ...)                                  \
    API(name, UNPACK parameters)                                                         \
    {                                                                                    \
        ENTER(needs);                                                                    \
        FIND_STREAM(on);                                                                 \
        __VA_ARGS__                                                                      \
    }
#define STREAM_API(name, needs, parameters, ...)                                         \
    STREAM_API_ON(name, needs, handle, parameters, __VA_ARGS__)                          \
    STREAM_API_ON(name##_ptsz, needs, DEFAULT(handle), parameters, __VA_ARGS__)
#define DEFAULT(stream) ((stream) == NULL ? CU_STREAM_PER_THREAD : (stream))
#define GIVE(pointer, value)                                                             \
    {                                                                                    \
        if ((pointer) == NULL)                                                           \
            return CUDA_ERROR_INVALID_VALUE;                                             \
        *(pointer) = (value);                                                            \
        return CUDA_SUCCESS;                                                             \
    }

STREAM_API(cuStreamQuery, ENTRY_CALLBACK, (CUstream handle), return check_ended(stream, false);)
STREAM_API(cuStreamSynchronize, ENTRY_INIT, (CUstream handle), return check_ended(stream, true);)
STREAM_API(cuStreamGetPriority, ENTRY_INIT, (CUstream handle, int *priority),
           GIVE(priority, stream->priority))
STREAM_API(cuStreamGetFlags, ENTRY_INIT, (CUstream handle, unsigned int *flags),
           GIVE(flags, stream->flags))
STREAM_API(cuStreamGetId, ENTRY_INIT, (CUstream handle, unsigned long long *id),
           GIVE(id, stream->id))
STREAM_API(cuStreamGetCtx, ENTRY_INIT, (CUstream handle, CUcontext *context),
           GIVE(context, (CUcontext)stream->context))
STREAM_API(cuStreamGetCtx_v2, ENTRY_INIT, (CUstream handle, CUcontext *context, CUgreenCtx *green), {
    GIVE_IF(green, stream->context->green);
    GIVE(context, (CUcontext)stream->context->owner)
})

API(cuStreamGetGreenCtx, CUstream handle, CUgreenCtx *green)
{
    ENTER(ENTRY_INIT);
    FIND_STREAM(handle);
    GIVE(green, stream->context->green)
}

/* Associates memory with a stream, which has no effect on the bytes. */
STREAM_API(cuStreamAttachMemAsync, ENTRY_CONTEXT,
           (CUstream handle, CUdeviceptr address, size_t size, unsigned int flags), {
    (void)address, (void)size, (void)flags, (void)stream;
    return CUDA_SUCCESS;
})

/* Records a context's work in an event. NULL: no context. The work of green contexts counts for
 * their primary context. */
static CUresult record(struct context *context, CUevent event_handle)
{
    TRY(context_check(context));
    FAIL_IF(!object_is(event_handle, OBJECT_EVENT), CUDA_ERROR_INVALID_HANDLE);
    struct event *event = (struct event *)event_handle;
    FAIL_IF(event->context != context->owner, CUDA_ERROR_INVALID_HANDLE);
    struct work work = {.kind = WORK_RECORD, .event = event};
    LOCKED(engine_lock);
    TRY(capture_forbids_context(context));
    event_set(event, context->recorder, context_queue(context, &work));
    return CUDA_SUCCESS;
}

FORWARD(cuCtxRecordEvent, (CUcontext handle, CUevent event), ENTRY_INIT,
        record(handle != NULL ? context_from(handle) : NULL, event))

/* SPDX-License-Identifier: Apache-2.0 */
/* The entry points of streams, and the order of whole contexts. */

#include "driver/entry.h"
#include "driver/object.h"
#include "engine/event.h"
#include "stream/capture.h"
#include "stream/submit.h"

CUresult stream_new(struct context *context, unsigned flags, int priority, CUstream *handle)
{
    if (handle == NULL || flags > CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
    struct stream *stream = stream_make(context, flags, priority);
    if (stream == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = (CUstream)stream;
    return CUDA_SUCCESS;
}

API(cuStreamCreate, CUstream *stream, unsigned int flags)
{
    ENTER(ENTRY_CONTEXT);
    return stream_new(context_current(), flags, 0, stream);
}

API(cuStreamCreateWithPriority, CUstream *stream, unsigned int flags, int priority)
{
    ENTER(ENTRY_CONTEXT);
    return stream_new(context_current(), flags, priority, stream);
}

static CUresult destroy(CUstream handle)
{
    if (!object_is(handle, OBJECT_STREAM))
        return CUDA_ERROR_INVALID_HANDLE;
    struct stream *stream = (struct stream *)handle;
    CUresult broken = context_error();
    pthread_mutex_lock(&engine_lock);
    CUresult result = CUDA_SUCCESS;
    if (stream == stream->context->legacy || stream->per_thread)
        result = CUDA_ERROR_INVALID_HANDLE;
    else if (stream->capture != NULL)
        capture_leave(stream);
    if (result == CUDA_SUCCESS)
        stream_close(stream);
    pthread_mutex_unlock(&engine_lock);
    return result == CUDA_SUCCESS ? broken : result;
}

API(cuStreamDestroy, CUstream stream)
{
    ENTER(ENTRY_INIT);
    return destroy(stream);
}

API(cuStreamDestroy_v2, CUstream stream)
{
    ENTER(ENTRY_INIT);
    return destroy(stream);
}

/* What must be done for the stream to be idle: the NULL stream is not while a blocking one is at work. */
static struct position *ends_of(struct stream *stream, size_t *count)
{
    struct position *ends = NULL;
    *count = 0;
    stream_add_position(&ends, count, stream);
    if (stream == stream->context->legacy)
        stream_add_implicit(stream, &ends, count);
    return ends;
}

static CUresult check_free(struct stream *stream)
{
    CUresult result = capture_prohibits();
    pthread_mutex_lock(&engine_lock);
    if (result == CUDA_SUCCESS)
        result = capture_forbids_stream(stream);
    return result;
}

static CUresult query(struct stream *stream)
{
    CUresult result = check_free(stream);
    if (result == CUDA_SUCCESS) {
        size_t count;
        struct position *ends = ends_of(stream, &count);
        positions_drop(ends, count);
        result = count == 0 ? context_check(stream->context) : CUDA_ERROR_NOT_READY;
    }
    pthread_mutex_unlock(&engine_lock);
    return result;
}

static CUresult synchronize(struct stream *stream)
{
    CUresult result = check_free(stream);
    if (result == CUDA_SUCCESS) {
        size_t count;
        struct position *ends = ends_of(stream, &count);
        for (size_t i = 0; i < count; i++)
            stream_wait(ends[i].stream, ends[i].number);
        positions_drop(ends, count);
        result = context_check(stream->context);
    }
    pthread_mutex_unlock(&engine_lock);
    return result;
}

/* What is asked of a stream: FIND puts it into `stream`, in both forms. */
#define STREAM_API(name, needs, parameters, ...)                                         \
    API(name, CUstream handle parameters)                                                \
    {                                                                                    \
        struct stream *stream;                                                           \
        ENTER(needs);                                                                     \
        CUresult result = stream_from(handle, context_current(), &stream);               \
        if (result != CUDA_SUCCESS)                                                      \
            return result;                                                               \
        __VA_ARGS__                                                                      \
    }                                                                                    \
    API(name##_ptsz, CUstream handle parameters)                                         \
    {                                                                                    \
        struct stream *stream;                                                           \
        ENTER(needs);                                                                     \
        CUresult result = stream_from(handle == NULL ? CU_STREAM_PER_THREAD : handle,    \
                                      context_current(), &stream);                       \
        if (result != CUDA_SUCCESS)                                                      \
            return result;                                                               \
        __VA_ARGS__                                                                      \
    }
#define WITH(...) , __VA_ARGS__
#define GIVE(pointer, value)                                                             \
    {                                                                                    \
        if ((pointer) == NULL)                                                           \
            return CUDA_ERROR_INVALID_VALUE;                                             \
        *(pointer) = (value);                                                            \
        return CUDA_SUCCESS;                                                             \
    }

STREAM_API(cuStreamQuery, ENTRY_CALLBACK, , return query(stream);)
STREAM_API(cuStreamSynchronize, ENTRY_INIT, , return synchronize(stream);)
STREAM_API(cuStreamGetPriority, ENTRY_INIT, WITH(int *priority), GIVE(priority, stream->priority))
STREAM_API(cuStreamGetFlags, ENTRY_INIT, WITH(unsigned int *flags), GIVE(flags, stream->flags))
STREAM_API(cuStreamGetId, ENTRY_INIT, WITH(unsigned long long *id), GIVE(id, stream->id))
STREAM_API(cuStreamGetCtx, ENTRY_INIT, WITH(CUcontext *context),
           GIVE(context, (CUcontext)stream->context))
STREAM_API(cuStreamGetDevice, ENTRY_INIT, WITH(CUdevice *device),
           GIVE(device, stream->context->device->ordinal))
STREAM_API(cuStreamGetCtx_v2, ENTRY_INIT, WITH(CUcontext *context, CUgreenCtx *green), {
    if (green != NULL)
        *green = stream->context->green;
    GIVE(context, (CUcontext)stream->context->owner)
})

API(cuStreamGetGreenCtx, CUstream handle, CUgreenCtx *green)
{
    struct stream *stream;
    ENTER(ENTRY_INIT);
    CUresult result = stream_from(handle, context_current(), &stream);
    if (result != CUDA_SUCCESS)
        return result;
    GIVE(green, stream->context->green)
}

/* Memory that a stream is to have for itself: nothing changes for the bytes. */
STREAM_API(cuStreamAttachMemAsync, ENTRY_CONTEXT, WITH(CUdeviceptr address, size_t size, unsigned int flags), {
    (void)address, (void)size, (void)flags, (void)stream;
    return CUDA_SUCCESS;
})

CUresult context_record(struct context *context, CUevent event_handle)
{
    CUresult result = context_check(context);
    if (result != CUDA_SUCCESS)
        return result;
    if (!object_is(event_handle, OBJECT_EVENT))
        return CUDA_ERROR_INVALID_HANDLE;
    struct event *event = (struct event *)event_handle;
    if (event->context != context->owner)
        return CUDA_ERROR_INVALID_HANDLE;
    struct work work = {.kind = WORK_RECORD, .event = event};
    pthread_mutex_lock(&engine_lock);
    result = capture_forbids_context(context);
    if (result == CUDA_SUCCESS) {
        size_t count;
        struct position *positions = context_positions(context, &count);
        event_set(event, context->recorder,
                  stream_queue(context->recorder, &work, 1, positions, count));
        positions_drop(positions, count);
    }
    pthread_mutex_unlock(&engine_lock);
    return result;
}

API(cuCtxRecordEvent, CUcontext handle, CUevent event)
{
    ENTER(ENTRY_INIT);
    return context_record(handle != NULL ? context_from(handle) : NULL, event);
}

static void wait_behind(struct context *context, struct event *event)
{
    struct work work = {.kind = WORK_WAIT_EVENT, .event = event};
    uint64_t number = stream_queue(context->recorder, &work, 1, &event->last, 1);
    if (context->gate.stream != NULL)
        stream_drop(context->gate.stream);
    context->gate = (struct position){context->recorder, number};
    stream_hold(context->recorder);
}

CUresult context_wait_event(struct context *context, CUevent event_handle)
{
    CUresult result = context_check(context);
    if (result != CUDA_SUCCESS)
        return result;
    if (!object_is(event_handle, OBJECT_EVENT))
        return CUDA_ERROR_INVALID_HANDLE;
    struct event *event = (struct event *)event_handle;
    pthread_mutex_lock(&engine_lock);
    result = capture_forbids_context(context);
    bool waits = result == CUDA_SUCCESS && !event_reached(event);
    for (struct context *one = all_contexts; one != NULL && waits; one = one->next)
        if ((one == context || one->owner == context) && atomic_load(&one->alive))
            wait_behind(one, event);
    pthread_mutex_unlock(&engine_lock);
    return result;
}

API(cuCtxWaitEvent, CUcontext handle, CUevent event)
{
    ENTER(ENTRY_INIT);
    return context_wait_event(handle != NULL ? context_from(handle) : NULL, event);
}

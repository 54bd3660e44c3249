/* SPDX-License-Identifier: Apache-2.0 */
/* The entry points of streams, and the order of whole contexts. */
#include <stdlib.h>

#include "capture.h"
#include "current.h"
#include "entry.h"
#include "event.h"
#include "object.h"
#include "stream.h"

CUresult stream_from(CUstream handle, struct context *context, struct stream **stream)
{
    CUresult result = context_check(context);
    if (result != CUDA_SUCCESS)
        return result;
    if (handle == NULL || handle == CU_STREAM_LEGACY)
        *stream = context->legacy;
    else if (handle == CU_STREAM_PER_THREAD)
        *stream = current_stream(context);
    else if (object_is(handle, OBJECT_STREAM))
        *stream = (struct stream *)handle;
    else
        return CUDA_ERROR_INVALID_HANDLE;
    return context_check((*stream)->context);
}

static CUresult create(CUstream *handle, unsigned flags, int priority)
{
    if (handle == NULL || flags > CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
    struct stream *stream = stream_make(context_current(), flags, priority);
    if (stream == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = (CUstream)stream;
    return CUDA_SUCCESS;
}

API(cuStreamCreate, CUstream *stream, unsigned int flags)
{
    ENTER(ENTRY_CONTEXT);
    return create(stream, flags, 0);
}

API(cuStreamCreateWithPriority, CUstream *stream, unsigned int flags, int priority)
{
    ENTER(ENTRY_CONTEXT);
    return create(stream, flags, priority);
}

static CUresult destroy(CUstream handle)
{
    if (!object_is(handle, OBJECT_STREAM))
        return CUDA_ERROR_INVALID_HANDLE;
    struct stream *stream = (struct stream *)handle;
    pthread_mutex_lock(&engine_lock);
    CUresult result = CUDA_SUCCESS;
    if (stream == stream->context->legacy || stream->per_thread)
        result = CUDA_ERROR_INVALID_HANDLE;
    else if (stream->capture != NULL)
        capture_leave(stream);
    if (result == CUDA_SUCCESS)
        stream_close(stream);
    pthread_mutex_unlock(&engine_lock);
    return result;
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

static CUresult query(struct stream *stream)
{
    pthread_mutex_lock(&engine_lock);
    CUresult result = capture_forbids_stream(stream);
    if (result == CUDA_SUCCESS) {
        struct position end = {stream, stream->submitted};
        result = stream_reached(&end) ? context_check(stream->context) : CUDA_ERROR_NOT_READY;
    }
    pthread_mutex_unlock(&engine_lock);
    return result;
}

static CUresult synchronize(struct stream *stream)
{
    pthread_mutex_lock(&engine_lock);
    CUresult result = capture_forbids_stream(stream);
    if (result == CUDA_SUCCESS)
        result = stream_wait(stream, stream->submitted);
    pthread_mutex_unlock(&engine_lock);
    return result;
}

/* What is asked of a stream: FIND puts it into `stream`, in both forms. */
#define STREAM_API(name, parameters, ...)                                                \
    API(name, CUstream handle parameters)                                                \
    {                                                                                    \
        struct stream *stream;                                                           \
        ENTER(ENTRY_CONTEXT);                                                            \
        CUresult result = stream_from(handle, context_current(), &stream);               \
        if (result != CUDA_SUCCESS)                                                      \
            return result;                                                               \
        __VA_ARGS__                                                                      \
    }                                                                                    \
    API(name##_ptsz, CUstream handle parameters)                                         \
    {                                                                                    \
        struct stream *stream;                                                           \
        ENTER(ENTRY_CONTEXT);                                                            \
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

STREAM_API(cuStreamQuery, , return query(stream);)
STREAM_API(cuStreamSynchronize, , return synchronize(stream);)
STREAM_API(cuStreamGetPriority, WITH(int *priority), GIVE(priority, stream->priority))
STREAM_API(cuStreamGetFlags, WITH(unsigned int *flags), GIVE(flags, stream->flags))
STREAM_API(cuStreamGetId, WITH(unsigned long long *id), GIVE(id, stream->id))
STREAM_API(cuStreamGetCtx, WITH(CUcontext *context), GIVE(context, (CUcontext)stream->context))
STREAM_API(cuStreamGetDevice, WITH(CUdevice *device),
           GIVE(device, stream->context->device->ordinal))
STREAM_API(cuStreamGetCtx_v2, WITH(CUcontext *context, CUgreenCtx *green), {
    if (green != NULL)
        *green = NULL;
    GIVE(context, (CUcontext)stream->context)
})

/* Memory that a stream is to have for itself: nothing changes for the bytes. */
STREAM_API(cuStreamAttachMemAsync, WITH(CUdeviceptr address, size_t size, unsigned int flags), {
    (void)address, (void)size, (void)flags, (void)stream;
    return CUDA_SUCCESS;
})

/* All that the context holds by now, as one event. */
API(cuCtxRecordEvent, CUcontext handle, CUevent event_handle)
{
    ENTER(ENTRY_INIT);
    struct context *context = context_from(handle);
    CUresult result = context_check(context);
    if (result != CUDA_SUCCESS)
        return result;
    if (!object_is(event_handle, OBJECT_EVENT))
        return CUDA_ERROR_INVALID_HANDLE;
    struct event *event = (struct event *)event_handle;
    if (event->context != context)
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

/* All later work in the context waits for the event. */
API(cuCtxWaitEvent, CUcontext handle, CUevent event_handle)
{
    ENTER(ENTRY_INIT);
    struct context *context = context_from(handle);
    CUresult result = context_check(context);
    if (result != CUDA_SUCCESS)
        return result;
    if (!object_is(event_handle, OBJECT_EVENT))
        return CUDA_ERROR_INVALID_HANDLE;
    struct event *event = (struct event *)event_handle;
    struct work work = {.kind = WORK_WAIT_EVENT, .event = event};
    pthread_mutex_lock(&engine_lock);
    result = capture_forbids_context(context);
    if (result == CUDA_SUCCESS && !event_reached(event))
        for (struct stream *stream = context->streams; stream != NULL; stream = stream->next)
            if (!stream->destroyed)
                stream_queue(stream, &work, 1, &event->last, 1);
    pthread_mutex_unlock(&engine_lock);
    return result;
}

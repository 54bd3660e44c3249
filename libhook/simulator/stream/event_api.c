/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include "driver/captures.h"
#include "driver/entry.h"
#include "driver/object.h"
#include "engine/stream.h"
#include "stream/capture.h"
#include "stream/submit.h"

OBJECT_FROM(event_from, struct event, CUevent, OBJECT_EVENT)

API(cuEventCreate, CUevent *handle, unsigned int flags)
{
    ENTER(ENTRY_CONTEXT);
    if (handle == NULL || flags > 7
        || ((flags & CU_EVENT_INTERPROCESS) != 0 && (flags & CU_EVENT_DISABLE_TIMING) == 0))
        return CUDA_ERROR_INVALID_VALUE;
    struct event *event = checked(calloc(1, sizeof *event));
    event->context = context_current()->owner;
    event->references = 1;
    event->flags = flags;
    object_add(event, OBJECT_EVENT);
    *handle = (CUevent)event;
    return CUDA_SUCCESS;
}

/* Fails in a broken context, although the handle becomes invalid. */
static CUresult destroy(CUevent handle)
{
    FIND(struct event, event, event_from(handle), CUDA_ERROR_INVALID_HANDLE);
    CUresult result = context_error();
    object_remove(event);
    LOCKED(engine_lock);
    event_drop(event);
    return result;
}

FORWARD_BOTH(cuEventDestroy, _v2, (CUevent handle), ENTRY_INIT, destroy(handle))
static CUresult record(CUevent handle, CUstream stream_handle, unsigned flags)
{
    FIND(struct event, event, event_from(handle), CUDA_ERROR_INVALID_HANDLE);
    FIND_STREAM(stream_handle);
    FAIL_IF(flags > CU_EVENT_RECORD_EXTERNAL, CUDA_ERROR_INVALID_VALUE);
    FAIL_IF(event->context != stream->context->owner, CUDA_ERROR_INVALID_HANDLE);
    struct work work = {.kind = WORK_RECORD, .event = event};
    LOCKED(engine_lock);
    if (stream->capture != NULL) {
        result = flags == CU_EVENT_RECORD_EXTERNAL ? capture_add(stream, &work)
                                                   : capture_record(stream, event);
    } else if (flags == CU_EVENT_RECORD_EXTERNAL) {
        result = CUDA_ERROR_ILLEGAL_STATE;
    } else {
        result = capture_allows(stream);
        if (result == CUDA_SUCCESS)
            event_set(event, stream, stream_queue(stream, &work, 1, NULL, 0));
    }
    return result;
}

API_PTSZ(cuEventRecord, (CUevent event, CUstream stream), return record(event, on, 0);)

API_PTSZ(cuEventRecordWithFlags, (CUevent event, CUstream stream, unsigned int flags),
         return record(event, on, flags);)

static CUresult wait_event(CUstream stream_handle, CUevent handle, unsigned flags)
{
    FIND(struct event, event, event_from(handle), CUDA_ERROR_INVALID_HANDLE);
    FIND_STREAM(stream_handle);
    FAIL_IF(flags > CU_EVENT_WAIT_EXTERNAL, CUDA_ERROR_INVALID_VALUE);
    struct work work = {.kind = WORK_WAIT_EVENT, .event = event};
    LOCKED(engine_lock);
    if (event->capture_id != 0 || stream->capture != NULL) {
        result = flags == CU_EVENT_WAIT_EXTERNAL && stream->capture != NULL
            ? capture_add(stream, &work) : capture_wait(stream, event);
    } else {
        result = capture_allows(stream);
        if (result == CUDA_SUCCESS && !event_reached(event))
            stream_queue(stream, &work, 1, &event->last, 1);
    }
    return result;
}

API_PTSZ(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned int flags),
         return wait_event(on, event, flags);)

/* Querying an event of a capture fails and invalidates the capture. */
static CUresult check_queryable(struct event *event)
{
    FAIL_IF(event == NULL, CUDA_ERROR_INVALID_HANDLE);
    pthread_mutex_lock(&engine_lock);
    bool captured = event->capture_id != 0;
    struct capture *capture = captured ? capture_numbered(event->capture_id) : NULL;
    if (capture != NULL)
        capture->broken = true;
    pthread_mutex_unlock(&engine_lock);
    FAIL_IF(captured, capture != NULL ? CUDA_ERROR_CAPTURED_EVENT : CUDA_ERROR_INVALID_VALUE);
    return capture_prohibits();
}

API(cuEventQuery, CUevent handle)
{
    ENTER(ENTRY_INIT | ENTRY_CALLBACK);
    struct event *event = event_from(handle);
    TRY(check_queryable(event));
    LOCKED(engine_lock);
    CUresult result = context_check(event->context);
    if (result == CUDA_SUCCESS && !event_reached(event))
        result = CUDA_ERROR_NOT_READY;
    return result;
}

API(cuEventSynchronize, CUevent handle)
{
    ENTER(ENTRY_INIT);
    struct event *event = event_from(handle);
    TRY(check_queryable(event));
    LOCKED(engine_lock);
    CUresult result = context_check(event->context);
    if (result == CUDA_ERROR_CONTEXT_IS_DESTROYED) {
        /* The driver has freed the event with its context: its behaviour is undefined. */
        fputs("simulated GPU: an event is waited for that went with its context\n", stderr);
        abort();
    }
    if (result == CUDA_SUCCESS && event->last.stream != NULL)
        result = stream_wait(event->last.stream, event->last.number);
    return result;
}

static CUresult elapsed(float *milliseconds, CUevent from_handle, CUevent to_handle)
{
    struct event *from = event_from(from_handle), *to = event_from(to_handle);
    FAIL_IF(milliseconds == NULL, CUDA_ERROR_INVALID_VALUE);
    FAIL_IF(from == NULL || to == NULL || from->context != to->context, CUDA_ERROR_INVALID_HANDLE);
    FAIL_IF(((from->flags | to->flags) & CU_EVENT_DISABLE_TIMING) != 0, CUDA_ERROR_INVALID_HANDLE);
    LOCKED(engine_lock);
    TRY(context_check(from->context));
    FAIL_IF(from->last.stream == NULL || to->last.stream == NULL, CUDA_ERROR_INVALID_HANDLE);
    FAIL_IF(!event_reached(from) || !event_reached(to), CUDA_ERROR_NOT_READY);
    *milliseconds = (float)((double)(int64_t)(atomic_load(&to->time) - atomic_load(&from->time))
                            / 1e6);
    return CUDA_SUCCESS;
}

FORWARD_BOTH(cuEventElapsedTime, _v2, (float *milliseconds, CUevent from, CUevent to), ENTRY_INIT,
             elapsed(milliseconds, from, to))

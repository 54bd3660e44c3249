/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queries streams with drivers before 12.5, which lack cuCtxRecordEvent; cuCtxSynchronize cannot be
 * interrupted, and an event in the NULL stream would delay later work. The NULL stream stands for
 * all streams that it synchronises with (threads' default streams, too: measured on driver 580).
 * CU_STREAM_NON_BLOCKING streams are listed; a destroyed stream leaves an event behind, because its
 * work goes on. It suffices to see each stream empty once, not all streams at the same time.
 */
#include "flight/streams.h"

#include <stdlib.h>

#include "driver/locked.h"
#include "driver/ops.h"
#include "driver/ring.h"
#include "flight/capture.h"
#include "gate/contexts.h"

struct listed_stream {
    CUstream stream;                 /* NULL: the stream was destroyed */
    CUevent end;                     /* recorded at the destruction; may be NULL */
    bool completed;                  /* without `end`: no work was left at the destruction */
    CUcontext context;
    bool being_destroyed;
    uint64_t emptied;                /* value of `moments` when the stream was last seen empty */
    struct listed_stream *next;
};

/* Protects the list. While locked, streams and events are queried and events destroyed; no other
 * lock is taken. */
static MUTEX(streams_lock);
static struct listed_stream *streams;
static uint64_t moments;

bool streams_add(CUstream stream)
{
    if (streams_need_no_list())
        return true;
    struct listed_stream *listed = malloc(sizeof *listed);
    if (listed == NULL)
        return false;
    *listed = (struct listed_stream){ .stream = stream };
    if (contexts_current(&listed->context) != CUDA_SUCCESS)
        listed->context = NULL;
    LOCKED(streams_lock);
    listed->next = streams;
    streams = listed;
    return true;
}

/* Records an event at the end of a stream. Ends a capture first, which would capture the event. */
static CUevent mark_end(CUstream stream)
{
    CUstreamCaptureStatus status;
    CUgraph graph = NULL;
    CUevent end = NULL;
    if (REAL(cuStreamIsCapturing)(stream, &status) == CUDA_SUCCESS
        && status != CU_STREAM_CAPTURE_STATUS_NONE
        && REAL(cuStreamEndCapture)(stream, &graph) == CUDA_SUCCESS && graph != NULL)
        REAL(cuGraphDestroy)(graph);
    if (REAL(cuEventCreate)(&end, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
        return NULL;
    if (REAL(cuEventRecord)(end, stream) == CUDA_SUCCESS)
        return end;
    REAL(cuEventDestroy_v2)(end);
    return NULL;
}

void streams_destroy(CUstream stream)
{
    struct listed_stream *listed;
    CUcontext same;
    if (streams_need_no_list() || stream == NULL)
        return;
    {
        LOCKED(streams_lock);
        for (listed = streams; listed != NULL && listed->stream != stream; listed = listed->next)
            continue;
        if (listed != NULL)
            listed->being_destroyed = true;
    }
    if (listed == NULL)
        return;
    RELAXED;
    if (REAL(cuCtxPushCurrent_v2)(listed->context) == CUDA_SUCCESS) {
        listed->end = mark_end(stream);
        /* Without the event, now is the last time to ask whether the stream is done. */
        listed->completed = listed->end == NULL && REAL(cuStreamQuery)(stream) == CUDA_SUCCESS;
        REAL(cuCtxPopCurrent_v2)(&same);
    }
    LOCKED(streams_lock);
    listed->stream = NULL;
    listed->being_destroyed = false;
}

void streams_end_with(CUcontext context)
{
    LOCKED(streams_lock);
    EACH_LISTED(struct listed_stream, listed, streams)
        if (listed->context == context) {
            LIST_REMOVE(streams, listed);
            free(listed);            /* its event ends with the context, too */
        }
}

uint64_t streams_moment(void)
{
    LOCKED_TO_READ(streams_lock);
    return moments;
}

static CUresult query_listed(const struct listed_stream *listed)
{
    if (listed->being_destroyed)
        return CUDA_ERROR_NOT_READY; /* another thread is recording `end` */
    if (listed->stream != NULL)
        return REAL(cuStreamQuery)(listed->stream);
    if (listed->completed)
        return CUDA_SUCCESS;
    /* Without an event the end of the stream's work is unknown, and waiting does not mend that. */
    return listed->end == NULL ? CUDA_ERROR_NOT_SUPPORTED : REAL(cuEventQuery)(listed->end);
}

CUresult streams_query(CUcontext context, uint64_t moment)
{
    CUresult result = REAL(cuStreamQuery)(CU_STREAM_LEGACY);
    if (locked_here(&streams_lock))
        return CUDA_ERROR_NOT_READY; /* a tool's callback in the loop below */
    LOCKED(streams_lock);
    EACH_LISTED(struct listed_stream, listed, streams) {
        if (listed->context != context || listed->emptied > moment)
            continue;
        CUresult one = query_listed(listed);
        if (result == CUDA_SUCCESS || (result == CUDA_ERROR_NOT_READY && one != CUDA_SUCCESS))
            result = one;
        if (one == CUDA_SUCCESS && listed->stream == NULL) {
            LIST_REMOVE(streams, listed);
            if (listed->end != NULL)
                REAL(cuEventDestroy_v2)(listed->end);
            free(listed);
        } else if (one == CUDA_SUCCESS) {
            listed->emptied = ++moments;
        }
    }
    return result;
}

uint64_t stream_name(CUstream stream)
{
    unsigned long long id = 0;
    return HAVE_REAL(cuStreamGetId) && REAL(cuStreamGetId)(stream, &id) == CUDA_SUCCESS ? id + 1
                                                                                        : 0;
}

CUresult stream_device(CUstream stream, CUcontext *context, CUdevice *device)
{
    CUcontext current;
    CUresult result = contexts_current(&current);
    if (result != CUDA_SUCCESS || current == NULL)
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_CONTEXT;
    if (REAL(cuStreamGetCtx)(stream, context) != CUDA_SUCCESS)
        *context = current;
    return contexts_describe(*context, context, device);
}

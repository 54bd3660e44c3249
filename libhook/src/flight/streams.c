/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds out whether a context's work is done where the driver cannot be asked for all of it: before
 * 12.5 there is no cuCtxRecordEvent.
 *
 * cuCtxSynchronize waits for all of it, but nothing can cut that short, and work in flight may wait
 * for a call that stands at the gate. An event in the NULL stream would make later work wait for
 * what is in flight. So nothing is put into streams: they are only asked, one by one.
 *
 * The NULL stream answers for all that it waits for, which the threads' own default streams belong
 * to (measured on driver 580). It does not wait for streams that are CU_STREAM_NON_BLOCKING. So
 * streams are listed as the program makes them. One that is destroyed leaves an event behind it,
 * since the work in it goes on.
 *
 * A stream that was empty once is done with all that was submitted before. So the streams need not
 * be empty at the same time; each remembers when that was last.
 */
#include "flight/streams.h"

#include <stdlib.h>

#include "driver/locked.h"
#include "driver/ops.h"
#include "flight/capture.h"
#include "gate/contexts.h"

struct listed_stream {
    CUstream stream;                 /* NULL: destroyed */
    CUevent end;                     /* then; NULL: its work is done, or where it ends is not known */
    bool over;
    CUcontext context;
    bool leaving;
    uint64_t emptied;                /* the moment when it was seen empty */
    struct listed_stream *next;
};

/* Protects the list. Nothing is called while it is held but to ask a stream or an event, or to
 * destroy one of ours; nothing is locked. */
static pthread_mutex_t streams_lock = PTHREAD_MUTEX_INITIALIZER;
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

/* In the stream's context. A capture in it ends with it, and would swallow the event. */
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

struct listed_stream *streams_leave(CUstream stream)
{
    struct listed_stream *listed;
    CUcontext same;
    if (streams_need_no_list() || stream == NULL)
        return NULL;
    pthread_mutex_lock(&streams_lock);
    for (listed = streams; listed != NULL && listed->stream != stream;)
        listed = listed->next;
    if (listed != NULL)
        listed->leaving = true;
    pthread_mutex_unlock(&streams_lock);
    RELAXED;
    if (listed != NULL && REAL(cuCtxPushCurrent_v2)(listed->context) == CUDA_SUCCESS) {
        listed->end = mark_end(stream);
        /* Nobody could ask later. */
        listed->over = listed->end == NULL && REAL(cuStreamQuery)(stream) == CUDA_SUCCESS;
        REAL(cuCtxPopCurrent_v2)(&same);
    }
    return listed;
}

void streams_left(struct listed_stream *listed)
{
    if (listed == NULL)
        return;
    LOCKED(streams_lock);
    listed->stream = NULL;
    listed->leaving = false;
}

void streams_end_with(CUcontext context)
{
    LOCKED(streams_lock);
    for (struct listed_stream **link = &streams, *listed; (listed = *link) != NULL;) {
        if (listed->context != context) {
            link = &listed->next;
            continue;
        }
        *link = listed->next;
        free(listed);                /* an event of it ends with the context too */
    }
}

uint64_t streams_moment(void)
{
    LOCKED(streams_lock);
    return moments;
}

static CUresult look_at(const struct listed_stream *listed)
{
    if (listed->leaving)
        return CUDA_ERROR_NOT_READY; /* and what becomes of it is being written */
    if (listed->stream != NULL)
        return REAL(cuStreamQuery)(listed->stream);
    if (listed->over)
        return CUDA_SUCCESS;
    /* Without an event its end cannot be known: an error that no patience mends, as waiting does. */
    return listed->end == NULL ? CUDA_ERROR_NOT_SUPPORTED : REAL(cuEventQuery)(listed->end);
}

CUresult streams_look(CUcontext context, uint64_t moment)
{
    CUresult result = REAL(cuStreamQuery)(CU_STREAM_LEGACY);
    LOCKED(streams_lock);
    for (struct listed_stream **link = &streams, *listed; (listed = *link) != NULL;) {
        bool asked = listed->context == context && listed->emptied <= moment;
        CUresult one = asked ? look_at(listed) : CUDA_SUCCESS;
        if (result == CUDA_SUCCESS || (result == CUDA_ERROR_NOT_READY && one != CUDA_SUCCESS))
            result = one;
        if (asked && one == CUDA_SUCCESS && listed->stream == NULL) {
            *link = listed->next;
            if (listed->end != NULL)
                REAL(cuEventDestroy_v2)(listed->end);
            free(listed);
            continue;
        }
        if (asked && one == CUDA_SUCCESS)
            listed->emptied = ++moments;
        link = &listed->next;
    }
    return result;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Lists streams (flight/streams.c) and captures in them (flight/capture.c). */
#include "api/wrapper.h"
#include "flight/capture.h"
#include "flight/streams.h"

static CUresult begun(struct capture *capture, CUresult result)
{
    if (result == CUDA_SUCCESS)
        capture_add(capture);
    else
        capture_over(capture);
    return result;
}

#define BEGIN(name, stream_, ends_with_thread, parameters, arguments)              \
    EXPORT CUresult name parameters                                                \
    {                                                                              \
        struct capture *capture = capture_new(stream_, ends_with_thread);          \
        return capture == NULL ? CUDA_ERROR_OUT_OF_MEMORY                          \
                               : begun(capture, REAL(name) arguments);             \
    }
#define BEGIN_PTSZ(name, ends_with_thread, parameters, arguments)                  \
    BEGIN(name, stream, ends_with_thread, parameters, arguments)                   \
    BEGIN(name##_ptsz, PER_THREAD(stream), ends_with_thread, parameters, arguments)

BEGIN_PTSZ(cuStreamBeginCapture, true, (CUstream stream), (stream))
BEGIN_PTSZ(cuStreamBeginCapture_v2, mode != CU_STREAM_CAPTURE_MODE_RELAXED,
    (CUstream stream, CUstreamCaptureMode mode), (stream, mode))
BEGIN_PTSZ(cuStreamBeginCaptureToGraph, false,
    (CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
     const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode),
    (stream, graph, dependencies, edges, count, mode))

BEGIN_PTSZ(cuStreamBeginRecaptureToGraph, false,
    (CUstream stream, CUstreamCaptureMode mode, CUgraph graph, CUgraphRecaptureCallback callback,
     void *data),
    (stream, mode, graph, callback, data))

static CUresult ended(CUstream stream, CUresult result)
{
    CUstreamCaptureStatus status;
    if (stream != NULL && REAL(cuStreamIsCapturing)(stream, &status) == CUDA_SUCCESS
        && status == CU_STREAM_CAPTURE_STATUS_NONE)
        capture_over(capture_take(stream, NULL));
    return result;
}

EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    return ended(stream, REAL(cuStreamEndCapture)(stream, graph));
}

EXPORT CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
    return ended(PER_THREAD(stream), REAL(cuStreamEndCapture_ptsz)(stream, graph));
}

static CUresult made(CUstream stream)
{
    if (streams_add(stream))
        return CUDA_SUCCESS;
    REAL(cuStreamDestroy_v2)(stream);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
    CUresult result = REAL(cuStreamCreate)(stream, flags);
    AGAIN_WITH_ROOM(result, REAL(cuStreamCreate)(stream, flags))
    return result == CUDA_SUCCESS ? made(*stream) : result;
}

EXPORT CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
{
    CUresult result = REAL(cuStreamCreateWithPriority)(stream, flags, priority);
    AGAIN_WITH_ROOM(result, REAL(cuStreamCreateWithPriority)(stream, flags, priority))
    return result == CUDA_SUCCESS ? made(*stream) : result;
}

/* Unlisted before the driver's call, after which a new stream may get the same handle. */
#define DESTROY(name)                                                                 \
    EXPORT CUresult name(CUstream stream)                                             \
    {                                                                                 \
        struct capture *capture = stream == NULL ? NULL : capture_take(stream, NULL); \
        struct listed_stream *listed = streams_destroying(stream);                    \
        stream_ends();                                                                \
        CUresult result = REAL(name)(stream);                                         \
        streams_destroyed(listed);                                                    \
        if (capture != NULL && result != CUDA_SUCCESS)                                \
            capture_add(capture);                                                     \
        else                                                                          \
            capture_over(capture);                                                    \
        return result;                                                                \
    }

DESTROY(cuStreamDestroy)
DESTROY(cuStreamDestroy_v2)

/* SPDX-License-Identifier: Apache-2.0 */
/* Wraps functions of streams and captures, and lists both (flight/streams.c, flight/capture.c). */
#include "api/wrapper.h"
#include "flight/capture.h"
#include "flight/streams.h"

static CUresult record_begin(struct capture *capture, CUresult result)
{
    if (result == CUDA_SUCCESS)
        capture_add(capture);
    else
        capture_over(capture);
    return result;
}

#undef BEGINS_CAPTURE
#define BEGINS_CAPTURE(name, stream, ends_with_thread, parameters)                 \
    SIGNATURE(name, parameters)                                                    \
    {                                                                              \
        struct capture *capture = capture_new(stream, ends_with_thread);           \
        return capture == NULL ? CUDA_ERROR_OUT_OF_MEMORY                          \
                               : record_begin(capture, CALL(name, parameters));    \
    }
#define HOOK(name, parameters)
#include "driver/hooks.def"

static CUresult record_end(CUstream stream, CUresult result)
{
    CUstreamCaptureStatus status;
    if (stream != NULL && REAL(cuStreamIsCapturing)(stream, &status) == CUDA_SUCCESS
        && status == CU_STREAM_CAPTURE_STATUS_NONE)
        capture_over(capture_take(stream, NULL));
    return result;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    return record_end(stream, REAL(cuStreamEndCapture)(stream, graph));
}

CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
    return record_end(PER_THREAD(stream), REAL(cuStreamEndCapture_ptsz)(stream, graph));
}

#define CREATE(name, parameters)                                                   \
    SIGNATURE(name, parameters)                                                    \
    {                                                                              \
        CUresult result = CALL(name, parameters);                                  \
        AGAIN_WITH_ROOM(result, CALL(name, parameters))                            \
        if (result != CUDA_SUCCESS || streams_add(*p1))                            \
            return result;                                                         \
        REAL(cuStreamDestroy_v2)(*p1);                                             \
        return CUDA_ERROR_OUT_OF_MEMORY;                                           \
    }

CREATE(cuStreamCreate, (CUstream *, unsigned int))
CREATE(cuStreamCreateWithPriority, (CUstream *, unsigned int, int))

/* Removes the stream from the list first: after the driver's call its handle may be reused. */
#define DESTROY(name)                                                                 \
    CUresult name(CUstream stream)                                             \
    {                                                                                 \
        struct capture *capture = stream == NULL ? NULL : capture_take(stream, NULL); \
        streams_destroy(stream);                                                      \
        CUresult result = REAL(name)(stream);                                         \
        if (capture != NULL && result != CUDA_SUCCESS)                                \
            capture_add(capture);                                                     \
        else                                                                          \
            capture_over(capture);                                                    \
        return result;                                                                \
    }

DESTROY(cuStreamDestroy)
DESTROY(cuStreamDestroy_v2)

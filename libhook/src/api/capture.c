/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which streams are being captured: told to client.h exactly once at each
 * beginning and each end, since while any capture goes on the library calls
 * nothing that would break it.
 *
 * A capture is remembered under the stream it began in. It is over when that
 * stream is no longer in capture after cuStreamEndCapture, whatever that
 * returned: ended from another thread (error 908) it is over, asked for in a
 * stream that only joined it (903) it is not; or when the stream or its
 * context is destroyed. All as measured on driver 580.
 */
#include "api/counted.h"

#include <pthread.h>
#include <stdlib.h>

#include "client/client.h"
#include "pool/pool.h"

struct capture {
    CUstream stream;
    CUcontext context;
    pthread_t thread;                /* that began it, and whose CU_STREAM_PER_THREAD it is */
    struct capture *next;
};

/* Protects the list. Nothing is called while it is held. */
static pthread_mutex_t captures_lock = PTHREAD_MUTEX_INITIALIZER;
static struct capture *captures;

static void add(struct capture *capture)
{
    pthread_mutex_lock(&captures_lock);
    capture->next = captures;
    captures = capture;
    pthread_mutex_unlock(&captures_lock);
}

static bool is_in(const struct capture *capture, CUstream stream)
{
    return capture->stream == stream
           && (stream != CU_STREAM_PER_THREAD || pthread_equal(capture->thread, pthread_self()));
}

/* Takes out those in `stream` or, if that is NULL, in `context`. */
static struct capture *take(CUstream stream, CUcontext context)
{
    struct capture *taken = NULL;
    pthread_mutex_lock(&captures_lock);
    for (struct capture **link = &captures, *capture; (capture = *link) != NULL;) {
        if (stream != NULL ? !is_in(capture, stream) : capture->context != context) {
            link = &capture->next;
            continue;
        }
        *link = capture->next;
        capture->next = taken;
        taken = capture;
    }
    pthread_mutex_unlock(&captures_lock);
    return taken;
}

static void end(struct capture *taken)
{
    while (taken != NULL) {
        struct capture *next = taken->next;
        free(taken);
        capture_ends();
        taken = next;
    }
}

void captures_end_with(CUcontext context)
{
    end(take(NULL, context));
}

bool capture_is_own(void)
{
    bool own = false;
    pthread_mutex_lock(&captures_lock);
    for (const struct capture *capture = captures; capture != NULL; capture = capture->next)
        own = own || pthread_equal(capture->thread, pthread_self());
    pthread_mutex_unlock(&captures_lock);
    return own;
}

/* NULL if there is no memory. */
static struct capture *begin(CUstream stream)
{
    struct capture *capture = malloc(sizeof *capture);
    if (capture == NULL)
        return NULL;
    *capture = (struct capture){ .stream = stream, .thread = pthread_self() };
    if (REAL(cuStreamGetCtx)(stream, &capture->context) != CUDA_SUCCESS
        && REAL(cuCtxGetCurrent)(&capture->context) != CUDA_SUCCESS)
        capture->context = NULL;
    capture_begins();
    return capture;
}

static CUresult begun(struct capture *capture, CUresult result)
{
    if (result == CUDA_SUCCESS)
        add(capture);
    else
        end((capture->next = NULL, capture));
    return result;
}

#define BEGIN(name, stream_, parameters, arguments)                                \
    EXPORT CUresult name parameters                                                \
    {                                                                              \
        struct capture *capture = begin(stream_);                                  \
        return capture == NULL ? CUDA_ERROR_OUT_OF_MEMORY                          \
                               : begun(capture, REAL(name) arguments);             \
    }
#define BEGIN_PTSZ(name, parameters, arguments)                                    \
    BEGIN(name, stream, parameters, arguments)                                     \
    BEGIN(name##_ptsz, PER_THREAD(stream), parameters, arguments)

BEGIN_PTSZ(cuStreamBeginCapture, (CUstream stream), (stream))
BEGIN_PTSZ(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode), (stream, mode))
BEGIN_PTSZ(cuStreamBeginCaptureToGraph,
    (CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
     const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode),
    (stream, graph, dependencies, edges, count, mode))

static CUresult ended(CUstream stream, CUresult result)
{
    CUstreamCaptureStatus status;
    if (stream != NULL && REAL(cuStreamIsCapturing)(stream, &status) == CUDA_SUCCESS
        && status == CU_STREAM_CAPTURE_STATUS_NONE)
        end(take(stream, NULL));
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

/* Taken out beforehand: a moment after, another thread may have a new stream
 * of the same name. */
#define DESTROY(name)                                                              \
    EXPORT CUresult name(CUstream stream)                                          \
    {                                                                              \
        struct capture *capture = stream == NULL ? NULL : take(stream, NULL);      \
        stream_ends();                                                             \
        CUresult result = REAL(name)(stream);                                      \
        if (capture != NULL && result != CUDA_SUCCESS)                             \
            add(capture);                                                          \
        else                                                                       \
            end(capture);                                                          \
        return result;                                                             \
    }

DESTROY(cuStreamDestroy)
DESTROY(cuStreamDestroy_v2)

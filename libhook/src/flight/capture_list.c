/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists the streams that are being captured, and tells capture.c of each beginning and each end
 * exactly once.
 *
 * A capture is remembered under the stream it began in. After cuStreamEndCapture it is over if that
 * stream is no longer in capture, whatever the call returned: ended from another thread (error 908)
 * it is over, ended in a stream that only joined it (903) it is not. It is also over when the
 * stream or its context is destroyed. All as measured on driver 580.
 */
#include "flight/capture_list.h"

#include <pthread.h>
#include <stdlib.h>

#include "flight/capture.h"

struct capture {
    CUstream stream;
    CUcontext context;
    pthread_t thread;                /* that began it, and whose CU_STREAM_PER_THREAD it is */
    struct capture *next;
};

/* Protects the list. Nothing is called while it is held. */
static pthread_mutex_t captures_lock = PTHREAD_MUTEX_INITIALIZER;
static struct capture *captures;

void capture_add(struct capture *capture)
{
    LOCKED(captures_lock);
    capture->next = captures;
    captures = capture;
}

static bool is_in(const struct capture *capture, CUstream stream)
{
    return capture->stream == stream
           && (stream != CU_STREAM_PER_THREAD || pthread_equal(capture->thread, pthread_self()));
}

struct capture *capture_take(CUstream stream, CUcontext context)
{
    struct capture *taken = NULL;
    LOCKED(captures_lock);
    for (struct capture **link = &captures, *capture; (capture = *link) != NULL;) {
        if (stream != NULL ? !is_in(capture, stream) : capture->context != context) {
            link = &capture->next;
            continue;
        }
        *link = capture->next;
        capture->next = taken;
        taken = capture;
    }
    return taken;
}

void capture_over(struct capture *taken)
{
    while (taken != NULL) {
        struct capture *next = taken->next;
        free(taken);
        capture_ends();
        taken = next;
    }
}

bool capture_is_own(void)
{
    bool own = false;
    LOCKED(captures_lock);
    for (const struct capture *capture = captures; capture != NULL; capture = capture->next)
        own = own || pthread_equal(capture->thread, pthread_self());
    return own;
}

struct capture *capture_new(CUstream stream)
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

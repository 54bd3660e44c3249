/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists the streams that are being captured, and tells capture.c of each beginning and each end
 * exactly once.
 *
 * A capture is remembered under the stream it began in. After cuStreamEndCapture it is over if that
 * stream is no longer in capture, whatever the call returned: ended from another thread (error 908)
 * it is over, ended in a stream that only joined it (903) it is not. It is also over when the
 * stream or its context is destroyed. All as measured on driver 580.
 *
 * Only the thread that began a capture can end it and have the graph, unless it is relaxed. When
 * that thread is gone the capture would go on for ever, and no drain could end. So then it is
 * ended from another thread, which the driver calls an error and does. Not so in a stream that is
 * the thread's own (CU_STREAM_PER_THREAD), which nobody else can name, nor into a graph that the
 * program has already, as the driver destroys it.
 */
#define _GNU_SOURCE
#include "flight/capture_list.h"

#include <pthread.h>
#include <stdlib.h>

#include "driver/glibc.h"
#include "driver/ops.h"
#include "flight/capture.h"
#include "gate/client.h"
#include "gate/contexts.h"

struct capture {
    CUstream stream;
    CUcontext context;
    pthread_t thread;                /* that began it, and whose CU_STREAM_PER_THREAD it is */
    bool gone;                       /* that thread is */
    bool endable;                    /* by us, when nobody else can any more */
    uint64_t began;
    struct capture *next;
};

/* Protects the list. Nothing is called while it is held but the list of contexts and the driver:
 * what it is asked to end must not be destroyed meanwhile. */
static pthread_mutex_t captures_lock = PTHREAD_MUTEX_INITIALIZER;
static struct capture *captures;
static _Atomic bool any_gone;

/* Only to be told of a thread's end; where there is none, nobody is. */
static pthread_key_t key;
static bool has_key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

void capture_add(struct capture *capture)
{
    LOCKED(captures_lock);
    capture->next = captures;
    captures = capture;
}

/* A thread that is gone may have had the name that this one has now. */
static bool is_own(const struct capture *capture)
{
    return !capture->gone && pthread_equal(capture->thread, pthread_self());
}

static bool is_in(const struct capture *capture, CUstream stream)
{
    return capture->stream == stream
           && (stream != CU_STREAM_PER_THREAD || is_own(capture));
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
        own = own || is_own(capture);
    return own;
}

uint64_t capture_oldest(void)
{
    uint64_t now = now_microseconds(), oldest = 0;
    LOCKED(captures_lock);
    for (const struct capture *capture = captures; capture != NULL; capture = capture->next)
        if (now - capture->began > oldest)
            oldest = now - capture->began;
    return oldest;
}

static void thread_ends(void *marked)
{
    (void)marked;
    LOCKED(captures_lock);
    for (struct capture *capture = captures; capture != NULL; capture = capture->next)
        if (is_own(capture))
            any_gone = capture->gone = true;
}

static void make_key(void)
{
    has_key = pthread_key_create(&key, thread_ends) == 0;
}

static struct capture *end_abandoned(void)
{
    struct capture *ended = NULL;
    LOCKED(captures_lock);
    for (struct capture **link = &captures, *capture; (capture = *link) != NULL;) {
        CUgraph none;
        CUcontext same, owner = capture->context; /* a green one may be current elsewhere */
        CUdevice device;
        if (capture->gone)
            contexts_find(capture->context, &owner, &device);
        if (!capture->gone || !capture->endable
            || REAL(cuCtxPushCurrent_v2)(owner) != CUDA_SUCCESS) {
            link = &capture->next;
            continue;
        }
        REAL(cuStreamEndCapture)(capture->stream, &none);
        REAL(cuCtxPopCurrent_v2)(&same);
        *link = capture->next;
        capture->next = ended;
        ended = capture;
    }
    return ended;
}

void captures_end_abandoned(void)
{
    if (atomic_exchange(&any_gone, false))
        capture_over(end_abandoned());
}

struct capture *capture_new(CUstream stream, bool ends_with_thread)
{
    struct capture *capture = malloc(sizeof *capture);
    if (capture == NULL)
        return NULL;
    if (pthread_once != NULL)           /* it is in another library before glibc 2.34; glibc.h */
        pthread_once(&once, make_key);
    if (has_key)
        pthread_setspecific(key, capture);
    *capture = (struct capture){
        .stream = stream, .thread = pthread_self(), .began = now_microseconds(),
        .endable = ends_with_thread && stream != CU_STREAM_PER_THREAD,
    };
    if (REAL(cuStreamGetCtx)(stream, &capture->context) != CUDA_SUCCESS
        && REAL(cuCtxGetCurrent)(&capture->context) != CUDA_SUCCESS)
        capture->context = NULL;
    capture_begins();
    return capture;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists the streams that are being captured, and reports each beginning and end to capture.c
 * exactly once.
 *
 * A capture is listed under the stream in which it began. After cuStreamEndCapture it is over if
 * that stream is no longer capturing, whatever the call returned: ended from another thread (error
 * 908) the capture is over, ended in a stream that only joined it (903) it is not. It is also over
 * when the stream or its context is destroyed. All measured on driver 580.
 *
 * Only the thread that began a capture can end it and get the graph, unless the capture is relaxed.
 * When that thread has ended, the capture would last for ever, and no drain could end. The library
 * then ends the capture from another thread; the driver reports an error and ends it. It does not
 * do so for the thread's own stream (CU_STREAM_PER_THREAD), which no other thread can name, nor for
 * a capture into an existing graph of the program, because the driver would destroy that graph.
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
    pthread_t thread;                /* began it; owner of CU_STREAM_PER_THREAD */
    bool gone;                       /* that thread has ended */
    bool endable;                    /* by the library, once the thread has ended */
    uint64_t began;
    struct capture *next;
};

/* Protects the list. Its holder calls only the list of contexts and the driver: a stream whose
 * capture the driver is asked to end must not be destroyed meanwhile. */
static pthread_mutex_t captures_lock = PTHREAD_MUTEX_INITIALIZER;
static struct capture *captures;
static _Atomic bool any_gone;

/* Its destructor reports a thread's end; without a key no end is reported. */
static pthread_key_t key;
static bool has_key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

void capture_add(struct capture *capture)
{
    LOCKED(captures_lock);
    capture->next = captures;
    captures = capture;
}

/* An ended thread may have had the id that this thread has now. */
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
        CUcontext same, owner = capture->context; /* a green one may be another thread's */
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
    if (pthread_once != NULL)           /* in another library before glibc 2.34; glibc.h */
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

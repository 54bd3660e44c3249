/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tracks whether any stream is being captured, and which calls the driver refuses meanwhile.
 *
 * The driver refuses calls that might wait for captured work, or that take effect now although the
 * program means them for every launch of the graph; it invalidates the captures that they endanger.
 * Which calls depends on the mode of each capture and of the calling thread
 * (cuThreadExchangeStreamCaptureMode). Allocation and freeing are among them, but the mapping and
 * unmapping that the library does instead is not. During a capture the calling thread therefore
 * first makes a driver call of the same kind: a free of nothing. The driver refuses that where it
 * would refuse the program's call, and does nothing otherwise (measured on driver 580, in all
 * modes).
 */
#define _GNU_SOURCE
#include "flight/capture.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "driver/glibc.h"
#include "driver/ops.h"
#include "gate/client.h"
#include "gate/contexts.h"
#include "gate/gate.h"

/*
 * Finds out whether nothing is in flight during a stream capture. No context may be queried then,
 * but an event recorded before may. Right before the first capture, all work of each context is
 * therefore recorded in an event. From then on the gate counts passes that are not captured
 * (GATE_CAPTURING). If there are none, the events cover all work; otherwise the answer is unknown.
 *
 * A thread that passed before the gate began to count may submit after the events were recorded.
 * The recording waits for such threads for a moment; if that is not enough, the answer is unknown,
 * too.
 */

#define EMPTY_POLLS 100
#define EMPTY_POLL_US 10

struct recorded {
    CUcontext context;
    CUevent event;
    struct recorded *next;
};

static struct recorded *recorded;    /* events that are not known to be done */
static bool all_recorded;
static uint64_t submissions;         /* gate_submissions() when the events were recorded */

static bool record(CUcontext context)
{
    CUcontext same;
    struct recorded *one = malloc(sizeof *one);
    if (one == NULL || REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS) {
        free(one);
        return false;
    }
    CUresult result = REAL(cuEventCreate)(&one->event, CU_EVENT_DISABLE_TIMING);
    if (result == CUDA_SUCCESS
        && (result = REAL(cuCtxRecordEvent)(context, one->event)) != CUDA_SUCCESS)
        REAL(cuEventDestroy_v2)(one->event);
    REAL(cuCtxPopCurrent_v2)(&same);
    if (result != CUDA_SUCCESS) {
        free(one);
        return false;
    }
    one->context = context;
    one->next = recorded;
    recorded = one;
    return true;
}

static bool gate_gets_empty(void)
{
    bool empty;
    for (unsigned i = 0; !(empty = gate_empty()) && i < EMPTY_POLLS; i++)
        nanosleep(&(struct timespec){ .tv_nsec = EMPTY_POLL_US * 1000 }, NULL);
    return empty;
}

/* Destroys the first event in the list at `link`, and removes its entry. */
static void destroy(struct recorded **link)
{
    struct recorded *one = *link;
    CUcontext same;
    if (REAL(cuCtxPushCurrent_v2)(one->context) == CUDA_SUCCESS) {
        REAL(cuEventDestroy_v2)(one->event);
        REAL(cuCtxPopCurrent_v2)(&same);
    }
    *link = one->next;
    free(one);
}

/* Protects the variables above, and `going_on`, which may be read without the lock. Held across
 * driver calls that return at once; its holder takes no other locks than those of the lists of
 * streams and contexts. */
static pthread_mutex_t capture_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic unsigned going_on;    /* number of captures in progress */

/* Called before the driver begins a capture; if the driver then fails, call capture_ends(). Waits
 * a few microseconds for threads that forbid captures, and may record for a millisecond. */
static void capture_begins(void)
{
    CUcontext context;
    LOCKED(capture_lock);
    if (going_on == 0 && !client_none() && HAVE_REAL(cuCtxRecordEvent) && contexts_complete()) {
        gate_close(GATE_CAPTURING);
        submissions = gate_submissions();
        all_recorded = gate_gets_empty();
        for (unsigned i = 0; all_recorded && (context = contexts_of(ANY_DEVICE, i)) != NULL; i++)
            all_recorded = record(context);
    }
    going_on++;
}

/* To be called after the driver has ended the capture, with or without an error. */
static void capture_ends(void)
{
    LOCKED(capture_lock);
    if (--going_on > 0)
        return;
    while (recorded != NULL)
        destroy(&recorded);
    all_recorded = false;
    if ((atomic_load(&gate_closed) & GATE_CAPTURING) != 0)
        gate_open(GATE_CAPTURING);
}

bool capture_going_on(void)
{
    return going_on > 0;
}

bool capture_forbid(bool despite_captures)
{
    if (locked_here(&capture_lock))
        return false;                /* the driver has called back: see client_is_called_back() */
    pthread_mutex_lock(&capture_lock);
    if (going_on == 0 || despite_captures)
        return true;
    pthread_mutex_unlock(&capture_lock);
    return false;
}

void capture_allow(void)
{
    pthread_mutex_unlock(&capture_lock);
}

void capture_leave_context(CUcontext context)
{
    LOCKED(capture_lock);
    for (struct recorded **link = &recorded; *link != NULL;) {
        if ((*link)->context == context)
            destroy(link);
        else
            link = &(*link)->next;
    }
}

bool capture_without_work(void)
{
    if (going_on == 0 || locked_here(&capture_lock))
        return false;
    LOCKED(capture_lock);
    if (going_on == 0 || !all_recorded || gate_submissions() != submissions)
        return false;
    while (recorded != NULL && REAL(cuEventQuery)(recorded->event) == CUDA_SUCCESS)
        destroy(&recorded);
    return recorded == NULL;
}

bool capture_refuses(CUresult *result)
{
    if (!capture_going_on())
        return false;
    *result = REAL(cuMemFree_v2)(0);
    return *result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

/*
 * Lists the streams that are being captured. Each beginning and end is counted exactly once.
 *
 * A capture is listed under the stream in which it began. After cuStreamEndCapture it is over if
 * that stream is no longer capturing. The call's result does not tell: after error 908 (called from
 * another thread) the capture is over, after error 903 (called for a stream that only joined the
 * capture) it is not. A capture is also over when its stream or context is destroyed. All measured
 * on driver 580.
 *
 * Only the thread that began a capture can end it and get the graph, unless the capture is relaxed.
 * When that thread has ended, the capture would last for ever, and no drain could end. The library
 * then ends the capture from another thread; the driver reports an error and ends it. The library
 * does not do so for the thread's own stream (CU_STREAM_PER_THREAD), which no other thread can
 * name, nor for a capture into an existing graph of the program, because the driver would destroy
 * that graph.
 */

struct capture {
    CUstream stream;
    CUcontext context;
    pthread_t thread;                /* began it; may own the stream: CU_STREAM_PER_THREAD */
    bool thread_ended;               /* `thread` has ended */
    bool endable;                    /* the library can end it once `thread` has ended */
    uint64_t began;
    struct capture *next;
};

/* Protects the list. Its holder calls only the list of contexts and the driver: a stream whose
 * capture the driver is asked to end must not be destroyed meanwhile. */
static pthread_mutex_t captures_lock = PTHREAD_MUTEX_INITIALIZER;
static struct capture *captures;
static _Atomic bool any_thread_ended;

/* The key's destructor reports a thread's end; without a key no end is reported. */
static pthread_key_t key;
static bool has_key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

void capture_add(struct capture *capture)
{
    LOCKED(captures_lock);
    capture->next = captures;
    captures = capture;
}

/* Whether this thread began the capture. An ended thread may have had this thread's id. */
static bool is_own(const struct capture *capture)
{
    return !capture->thread_ended && pthread_equal(capture->thread, pthread_self());
}

static bool is_in(const struct capture *capture, CUstream stream)
{
    return capture->stream == stream && (stream != CU_STREAM_PER_THREAD || is_own(capture));
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
        /* Another thread may have begun the capture after `now`. */
        if (now > capture->began && now - capture->began > oldest)
            oldest = now - capture->began;
    return oldest;
}

static void thread_ends(void *marked)
{
    (void)marked;
    LOCKED(captures_lock);
    for (struct capture *capture = captures; capture != NULL; capture = capture->next)
        if (is_own(capture))
            any_thread_ended = capture->thread_ended = true;
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
        CUcontext same, owner = capture->context; /* owner: of a green context, its primary one */
        CUdevice device;
        if (capture->thread_ended)
            contexts_find(capture->context, &owner, &device);
        if (!capture->thread_ended || !capture->endable
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
    if (atomic_exchange(&any_thread_ended, false))
        capture_over(end_abandoned());
}

struct capture *capture_new(CUstream stream, bool ends_with_thread)
{
    struct capture *capture = malloc(sizeof *capture);
    if (capture == NULL)
        return NULL;
    if (pthread_once != NULL)           /* NULL: not loaded, before glibc 2.34; glibc.h */
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

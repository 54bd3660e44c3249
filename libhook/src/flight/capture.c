/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tracks whether any stream is being captured. The driver then refuses allocation and freeing,
 * depending on the modes of captures and thread, but not the mapping that the library does instead.
 * The library therefore first frees address 0, which the driver refuses where it would refuse the
 * program's call (capture_refuses(); measured on driver 580, in all modes).
 */
#define _GNU_SOURCE
#include "flight/capture.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/forked.h"
#include "driver/ops.h"
#include "driver/ring.h"
#include "gate/client.h"
#include "gate/contexts.h"
#include "gate/gate.h"

/*
 * Finds whether work is in flight during a capture, when no context may be queried. Before the
 * capture begins, each context's work is recorded in an event, while no thread is inside the gate.
 * Then the gate counts uncaptured passes (GATE_CAPTURING); at count 0 the events cover all.
 */

#define EMPTY_POLLS 200              /* a few us: as long as the calls take that do not wait */

struct recorded {
    CUcontext context;
    CUevent event;
    struct recorded *next;
};

static struct recorded *recorded;    /* events of work that is not known to be done */
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
    *one = (struct recorded){ .context = context, .next = recorded };
    CUresult result = REAL(cuEventCreate)(&one->event, CU_EVENT_DISABLE_TIMING);
    if (result == CUDA_SUCCESS
        && (result = REAL(cuCtxRecordEvent)(context, one->event)) != CUDA_SUCCESS)
        REAL(cuEventDestroy_v2)(one->event);
    REAL(cuCtxPopCurrent_v2)(&same);
    if (result == CUDA_SUCCESS)
        recorded = one;
    else
        free(one);
    return result == CUDA_SUCCESS;
}

static bool gate_gets_empty(void)
{
    static _Atomic unsigned polls;   /* a locked addition as the pause between two polls */
    bool empty;
    for (unsigned i = 0; !(empty = gate_empty()) && i < EMPTY_POLLS; i++)
        atomic_fetch_add(&polls, 1);
    return empty;
}

void event_destroy(CUcontext context, CUevent event)
{
    CUcontext same;
    if (REAL(cuCtxPushCurrent_v2)(context) == CUDA_SUCCESS) {
        REAL(cuEventDestroy_v2)(event);
        REAL(cuCtxPopCurrent_v2)(&same);
    }
}

/* Unlisted first: a tool's callback in the driver's calls may end the context. */
static void destroy(struct recorded *one)
{
    LIST_REMOVE(recorded, one);
    event_destroy(one->context, one->event);
    free(one);
}

/* Protects the variables above and writes of `going_on`. */
static MUTEX(capture_lock);
static _Atomic unsigned going_on;    /* number of captures in progress */
/* A tool's callback (client_is_called_back()) has begun or ended a capture, without capture_lock,
 * which it or a thread that waits for it may hold. */
static _Atomic bool changed_within;

static void forget_recorded(void)
{
    while (recorded != NULL)
        destroy(recorded);
    all_recorded = changed_within = false;
    if ((atomic_load(&gate_closed) & GATE_CAPTURING) != 0)
        gate_open(GATE_CAPTURING);
}

/* Called before the driver begins a capture; if the driver then fails, call capture_ends(). */
static void capture_begins(void)
{
    CUcontext context;
    if (client_is_called_back()) {
        going_on++;
        changed_within = true;
        return;
    }
    LOCKED(capture_lock);
    if (going_on == 0)
        forget_recorded();           /* what a callback has left */
    if (going_on == 0 && clients_count() > 0 && HAVE_REAL(cuCtxRecordEvent)) {
        gate_close(GATE_CAPTURING);
        submissions = gate_submissions();
        all_recorded = gate_gets_empty();
        for (unsigned i = 0; all_recorded && (context = contexts_of(ANY_DEVICE, i)) != NULL; i++)
            all_recorded = record(context);
        all_recorded = all_recorded && !changed_within;
    }
    going_on++;
}

/* To be called after the driver has ended the capture, with or without an error. */
static void capture_ends(bool called_back)
{
    if (called_back) {
        changed_within = true;
        going_on--;
        return;
    }
    LOCKED(capture_lock);
    if (--going_on == 0)
        forget_recorded();
}

bool capture_going_on(void)
{
    return going_on > 0;
}

bool capture_forbid(bool despite_captures)
{
    if (locked_here(&capture_lock))
        return false;                /* the driver has called back: see client_is_called_back() */
    mutex_lock(&capture_lock);
    if (going_on == 0 && changed_within)
        forget_recorded();
    if (going_on == 0 || despite_captures)
        return true;
    mutex_unlock(&capture_lock);
    return false;
}

void capture_allow(void)
{
    mutex_unlock(&capture_lock);
}

void capture_leave_context(CUcontext context)
{
    LOCKED(capture_lock);
    for (struct recorded *one = recorded, *next; one != NULL; one = next) {
        next = one->next;
        if (one->context == context) {
            destroy(one);
            next = recorded;         /* the list may have changed */
        }
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
        destroy(recorded);
    return recorded == NULL;
}

void capture_restore(void *unused, uint64_t mode)
{
    CUstreamCaptureMode before = (CUstreamCaptureMode)mode;
    (void)unused;
    if (!leave_is_thread_end())
        capture_exchange(&before);
}

bool capture_refuses(CUresult *result)
{
    if (!capture_going_on())
        return false;
    *result = REAL(cuMemFree_v2)(0);
    return *result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

/*
 * Captures in progress, listed by the stream in which they began. A capture is over if that stream
 * is no longer capturing, whatever cuStreamEndCapture returned: after error 908 it is over, after
 * error 903 it is not (measured on driver 580). It is also over when its stream or context is
 * destroyed.
 *
 * Only the thread that began a capture can end it, unless the capture is relaxed. When that thread
 * has ended, no drain could end any more, so the library ends the capture, unless its stream is
 * CU_STREAM_PER_THREAD (impossible) or it extends an existing graph (which would be destroyed).
 */

struct capture {
    CUstream stream;
    CUcontext context;
    pid_t thread;                    /* thread_id() of the thread that began the capture */
    bool endable;                    /* the library can end it once `thread` has ended */
    uint64_t began;                  /* us: begin of the capture */
    struct capture *next;
};

/* Protects the list, and keeps a stream from destruction while the library ends its capture. A
 * thread that locks it delays fork() (UNFORKED). */
static MUTEX(captures_lock);
static struct capture *captures;

void capture_add(struct capture *capture)
{
    LOCKED(captures_lock);
    capture->next = captures;
    captures = capture;
}

static bool is_own(const struct capture *capture)
{
    return capture->thread == thread_id();
}

struct capture *capture_take(CUstream stream, CUcontext context)
{
    struct capture *taken = NULL;
    LOCKED(captures_lock);
    EACH_LISTED(struct capture, capture, captures)
        if (stream == NULL
                ? capture->context == context
                : capture->stream == stream
                  && (stream != CU_STREAM_PER_THREAD || is_own(capture))) {
            LIST_REMOVE(captures, capture);
            capture->next = taken;
            taken = capture;
        }
    return taken;
}

static void over(struct capture *taken, bool called_back)
{
    EACH_LISTED(struct capture, capture, taken) {
        free(capture);
        capture_ends(called_back);
    }
}

void capture_over(struct capture *taken)
{
    over(taken, client_is_called_back());
}

bool capture_is_own(void)
{
    bool own = false;
    LOCKED_TO_READ(captures_lock);
    for (const struct capture *capture = captures; capture != NULL; capture = capture->next)
        own = own || is_own(capture);
    return own;
}

uint64_t capture_oldest(void)
{
    uint64_t now = now_microseconds(), oldest = 0;
    LOCKED_TO_READ(captures_lock);
    for (const struct capture *capture = captures; capture != NULL; capture = capture->next)
        /* Another thread may have begun the capture after `now`. */
        if (now > capture->began && now - capture->began > oldest)
            oldest = now - capture->began;
    return oldest;
}

/* The main thread stays a zombie, which signals still reach, until all other threads have ended. */
static bool is_zombie(pid_t thread)
{
    char path[64], text[64] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)thread);
    UNFORKED;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? -1 : read(file, text, sizeof text - 1);
    if (file >= 0)
        close(file);
    /* "PID (NAME) STATE ...": the name has at most 15 bytes, and may contain brackets. */
    const char *end = length < 0 ? NULL : strrchr(text, ')');
    return end != NULL && strncmp(end, ") Z", 3) == 0;
}

static bool has_ended(pid_t thread)
{
    pid_t main_thread = getpid();
    return (syscall(SYS_tgkill, main_thread, thread, 0) != 0 && errno == ESRCH)
        || (thread == main_thread && is_zombie(thread));
}

static struct capture *end_abandoned(void)
{
    struct capture *ended = NULL;
    if (locked_here(&captures_lock))
        return NULL;                 /* a tool's callback in the loop below */
    LOCKED(captures_lock);
    EACH_LISTED(struct capture, capture, captures) {
        CUgraph none;
        CUcontext same, owner = capture->context; /* owner of a green context: the primary */
        CUdevice device;
        if (!capture->endable || !has_ended(capture->thread))
            continue;
        contexts_find(capture->context, &owner, &device);
        if (REAL(cuCtxPushCurrent_v2)(owner) != CUDA_SUCCESS)
            continue;
        REAL(cuStreamEndCapture)(capture->stream, &none);
        REAL(cuCtxPopCurrent_v2)(&same);
        LIST_REMOVE(captures, capture);
        capture->next = ended;
        ended = capture;
    }
    return ended;
}

void captures_end_abandoned(void)
{
    if (capture_going_on())
        over(end_abandoned(), false);
}

struct capture *capture_new(CUstream stream, bool ends_with_thread)
{
    struct capture *capture = malloc(sizeof *capture);
    if (capture == NULL)
        return NULL;
    *capture = (struct capture){
        .stream = stream, .thread = thread_id(), .began = now_microseconds(),
        .endable = ends_with_thread && stream != CU_STREAM_PER_THREAD,
    };
    if (REAL(cuStreamGetCtx)(stream, &capture->context) != CUDA_SUCCESS
        && REAL(cuCtxGetCurrent)(&capture->context) != CUDA_SUCCESS)
        capture->context = NULL;
    capture_begins();
    return capture;
}

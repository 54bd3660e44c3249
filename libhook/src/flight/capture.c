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
#include "flight/capture.h"

#include <stdlib.h>
#include <time.h>

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

#define INSIDE_LOOKS 100
#define INSIDE_LOOK_US 10

struct recorded {
    CUcontext context;
    CUevent event;
    struct recorded *next;
};

static struct recorded *all;         /* events that are not known to be done */
static bool known;
static uint64_t submissions;         /* the gate's count at the recording */

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
    one->next = all;
    all = one;
    return true;
}

static bool gate_gets_empty(void)
{
    bool empty;
    for (unsigned i = 0; !(empty = gate_empty()) && i < INSIDE_LOOKS; i++)
        nanosleep(&(struct timespec){ .tv_nsec = INSIDE_LOOK_US * 1000 }, NULL);
    return empty;
}

/* Called before the first capture begins. May take a millisecond. */
static void before_capture_record(void)
{
    CUcontext context;
    if (client_none() || !HAVE_REAL(cuCtxRecordEvent) || !contexts_complete())
        return;
    gate_close(GATE_CAPTURING);
    submissions = gate_submissions();
    known = gate_gets_empty();
    for (unsigned i = 0; known && (context = contexts_of(ANY_DEVICE, i)) != NULL; i++)
        known = record(context);
}

/* Removes the first entry at `link`. */
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

/* The last capture has ended. */
static void before_capture_drop(void)
{
    while (all != NULL)
        destroy(&all);
    known = false;
    if ((atomic_load(&gate_closed) & GATE_CAPTURING) != 0)
        gate_open(GATE_CAPTURING);
}

/* a context that ends */
static void before_capture_forget(CUcontext context)
{
    for (struct recorded **link = &all; *link != NULL;) {
        if ((*link)->context == context)
            destroy(link);
        else
            link = &(*link)->next;
    }
}

/* Whether nothing is in flight: the recorded work is done, and none was submitted since. False:
 * work is in flight, or it is not known. */
static bool before_capture_is_over(void)
{
    if (!known || gate_submissions() != submissions)
        return false;
    while (all != NULL && REAL(cuEventQuery)(all->event) == CUDA_SUCCESS)
        destroy(&all);
    return all == NULL;
}

/* Protects `captures`, which may be read without it, and everything above. Held across driver calls
 * that return at once; its holder takes no other locks than those of the lists of streams and
 * contexts. */
static pthread_mutex_t capture_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic unsigned captures;

void capture_begins(void)
{
    LOCKED(capture_lock);
    if (captures == 0)
        before_capture_record();
    captures++;
}

void capture_ends(void)
{
    LOCKED(capture_lock);
    if (--captures == 0)
        before_capture_drop();
}

bool capture_going_on(void)
{
    return captures > 0;
}

bool capture_forbid(bool whatever)
{
    if (locked_here(&capture_lock))
        return false;                /* the driver has called back: see client_is_called_back() */
    pthread_mutex_lock(&capture_lock);
    if (captures == 0 || whatever)
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
    before_capture_forget(context);
}

bool capture_alone(void)
{
    if (captures == 0 || locked_here(&capture_lock))
        return false;
    LOCKED(capture_lock);
    return captures > 0 && before_capture_is_over();
}

bool capture_refuses(CUresult *result)
{
    if (!capture_going_on())
        return false;
    *result = REAL(cuMemFree_v2)(0);
    return *result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

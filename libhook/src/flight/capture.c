/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Knows whether any stream is being captured, and what the driver refuses meanwhile.
 *
 * The driver refuses calls that might wait for captured work, or that take effect now although the
 * program means them for every launch of the graph; and it breaks the captures that they endanger.
 * Which calls depends on the mode of each capture and of the calling thread
 * (cuThreadExchangeStreamCaptureMode). Allocating and freeing are among them, but the mapping and
 * unmapping that we do instead are not. So while a capture goes on, the calling thread first asks
 * the driver with a call of the same kind: to free nothing. The driver refuses that where it would
 * refuse the program's call, and does nothing otherwise (measured on driver 580, in all modes).
 */
#include "flight/capture.h"

#include <stdlib.h>
#include <time.h>

#include "driver/ops.h"
#include "gate/client.h"
#include "gate/contexts.h"
#include "gate/gate.h"

/*
 * Tells that nothing is in flight while a stream is being captured. Then no context may be asked for
 * its work, but an event may that was recorded before. So right before the first capture all work of
 * each context is recorded in an event. From then on the gate counts what passes and is not captured
 * (GATE_CAPTURING). If that is nothing, the events tell of all work; else nobody knows.
 *
 * A thread that passed before the gate counted may submit after the events were recorded. So it is
 * waited for, for a moment; where that is not enough, nobody knows either.
 */

#define INSIDE_LOOKS 100
#define INSIDE_LOOK_US 10

struct recorded {
    CUcontext context;
    CUevent event;
    struct recorded *next;
};

static struct recorded *all;         /* of those, the ones that are not known to be done */
static bool known;
static uint64_t submissions;         /* counted by the gate, then */

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

/* No capture goes on, and one is about to begin. May take a millisecond. */
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

/* Takes out the first at `link`. */
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

/* None goes on any more. */
static void before_capture_drop(void)
{
    while (all != NULL)
        destroy(&all);
    known = false;
    if ((atomic_load(&gate_closed) & GATE_CAPTURING) != 0)
        gate_open(GATE_CAPTURING);
}

/* which ends */
static void before_capture_forget(CUcontext context)
{
    for (struct recorded **link = &all; *link != NULL;) {
        if ((*link)->context == context)
            destroy(link);
        else
            link = &(*link)->next;
    }
}

/* Nothing is in flight: what was in flight then is done, and nothing was submitted since. False:
 * something is, or that is not known. */
static bool before_capture_is_over(void)
{
    if (!known || gate_submissions() != submissions)
        return false;
    while (all != NULL && REAL(cuEventQuery)(all->event) == CUDA_SUCCESS)
        destroy(&all);
    return all == NULL;
}

/* Protects `captures`, which may be read without, and all of the above. Held across driver calls
 * that return at once; nothing else is locked by its holder but the lists of streams and contexts. */
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

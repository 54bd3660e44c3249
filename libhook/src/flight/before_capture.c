/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tells that nothing is in flight while a stream is being captured. Then no context may be asked for
 * its work, but an event may that was recorded before. So right before the first capture all work of
 * each context is recorded in an event. From then on the gate counts what passes and is not captured
 * (GATE_CAPTURING). If that is nothing, the events tell of all work; else nobody knows.
 *
 * A thread that passed before the gate counted may submit after the events were recorded. So it is
 * waited for, for a moment; where that is not enough, nobody knows either.
 */
#include "flight/before_capture.h"

#include <stdlib.h>
#include <time.h>

#include "driver/ops.h"
#include "gate/client.h"
#include "gate/contexts.h"
#include "gate/gate.h"

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

void before_capture_record(void)
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

void before_capture_drop(void)
{
    while (all != NULL)
        destroy(&all);
    known = false;
    if ((atomic_load(&gate_closed) & GATE_CAPTURING) != 0)
        gate_open(GATE_CAPTURING);
}

void before_capture_forget(CUcontext context)
{
    for (struct recorded **link = &all; *link != NULL;) {
        if ((*link)->context == context)
            destroy(link);
        else
            link = &(*link)->next;
    }
}

bool before_capture_is_over(void)
{
    if (!known || gate_submissions() != submissions)
        return false;
    while (all != NULL && REAL(cuEventQuery)(all->event) == CUDA_SUCCESS)
        destroy(&all);
    return all == NULL;
}

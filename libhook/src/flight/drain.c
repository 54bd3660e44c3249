/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waits until nothing is in flight, and never breaks a stream capture by it. The gate is the
 * process's, and so is the drain.
 *
 * Synchronising a context, or recording all its work in an event (cuCtxRecordEvent), invalidates
 * any capture in it. So both happen only while no capture goes on and none may begin
 * (capture_forbid()). Recording takes less than a microsecond; afterwards captures may begin, and
 * the event is polled. A driver without cuCtxRecordEvent (before 12.5) synchronises there instead.
 *
 * A context that is about to be destroyed is drained in any case: a capture in it ends with it, and
 * captures in other contexts, which may last, are not disturbed.
 *
 * Otherwise a drain waits for the end of a capture. A capture submits nothing, so it takes as long
 * as the program does. But a captured copy needs its memory to be there and stands at the gate
 * (copies.c), so then patience is short.
 */
#include "flight/drain.h"

#include <time.h>

#include "client/gate.h"
#include "flight/capture.h"
#include "interpose/log.h"

#define CAPTURE_PATIENCE_US 50000

/* `whatever`: also while a capture goes on. */
static bool drain_one(CUcontext context, bool whatever, CUresult *result)
{
    *result = REAL(cuCtxPushCurrent_v2)(context);
    if (*result != CUDA_SUCCESS)
        return true;
    /* Another thread's capture may begin while we wait: as a relaxed thread we
     * do not disturb it. */
    RELAXED;
    CUevent event = NULL;
    bool allowed = false;
    if (HAVE_REAL(cuCtxRecordEvent))
        *result = REAL(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC);
    if (*result == CUDA_SUCCESS && (allowed = capture_forbid(whatever))) {
        *result = event != NULL ? REAL(cuCtxRecordEvent)(context, event)
                                : REAL(cuCtxSynchronize)();
        capture_allow();
    }
    if (event != NULL) {
        if (allowed && *result == CUDA_SUCCESS)
            *result = REAL(cuEventSynchronize)(event);
        REAL(cuEventDestroy_v2)(event);
    }
    CUcontext same;
    REAL(cuCtxPopCurrent_v2)(&same);
    return allowed || *result != CUDA_SUCCESS;
}

bool drain_context(CUcontext context, CUresult *result)
{
    return drain_one(context, false, result);
}

bool drain_ending(CUcontext context)
{
    CUresult result;
    return drain_one(context, true, &result) && result == CUDA_SUCCESS;
}

static void nap(uint64_t waited)
{
    /* Short drains are noticed at once, long ones cost no processor. */
    long microseconds = waited < 200 ? 10 : waited < 5000 ? 50 : 500;
    nanosleep(&(struct timespec){ .tv_nsec = microseconds * 1000 }, NULL);
}

/* False while a capture is going on. A context that has failed for good runs
 * nothing any more: it counts as drained. */
static bool start(CUcontext context, CUevent *event)
{
    *event = NULL;
    if (REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS)
        return true;
    bool started = false;
    if (HAVE_REAL(cuCtxRecordEvent))
        REAL(cuEventCreate)(event, CU_EVENT_DISABLE_TIMING);
    if (capture_forbid(false)) {
        CUresult result = *event != NULL ? REAL(cuCtxRecordEvent)(context, *event)
                                         : REAL(cuCtxSynchronize)();
        if (result != CUDA_SUCCESS)
            debug("a context cannot be drained any more: error %d", (int)result);
        capture_allow();
        started = true;
    }
    if (!started && *event != NULL) {
        REAL(cuEventDestroy_v2)(*event);
        *event = NULL;
    }
    CUcontext same;
    REAL(cuCtxPopCurrent_v2)(&same);
    return started;
}

static bool finished(CUcontext context, CUevent *event)
{
    if (*event == NULL)
        return true;
    if (REAL(cuEventQuery)(*event) == CUDA_ERROR_NOT_READY)
        return false;
    if (REAL(cuCtxPushCurrent_v2)(context) == CUDA_SUCCESS) {
        CUcontext same;
        REAL(cuEventDestroy_v2)(*event);
        REAL(cuCtxPopCurrent_v2)(&same);
    }
    *event = NULL;
    return true;
}

static unsigned contexts_ended(void)
{
    unsigned ended = 0;
    for (unsigned i = 0; i < CLIENTS_MAX; i++)
        if (clients[i] != NULL)
            ended += clients[i]->contexts_ended;
    return ended;
}

/* Of all devices: a kernel or a copy of another one's may reach this one's memory. */
void drain_begin(struct drain *drain)
{
    drain->count = 0;
    LOCKED(memory_lock);
    drain->contexts_ended = contexts_ended();
    for (unsigned i = 0; i < CLIENTS_MAX; i++)
        for (unsigned c = 0; clients[i] != NULL && c < clients[i]->context_count; c++)
            drain->part[drain->count++] = (struct drain_part){
                .context = clients[i]->contexts[c],
            };
}

/* Only under service_lock, which also covers a context's end. */
static bool still_valid(const struct drain *drain)
{
    return drain->contexts_ended == contexts_ended();
}

bool drain_step(struct drain *drain)
{
    if (!still_valid(drain))
        drain_begin(drain);
    bool all = true;
    for (unsigned i = 0; i < drain->count; i++) {
        struct drain_part *part = &drain->part[i];
        if (!part->started)
            part->started = start(part->context, &part->event);
        if (!part->started || !finished(part->context, &part->event))
            all = false;
    }
    return all;
}

void drain_abandon(struct drain *drain)
{
    for (unsigned i = 0; i < drain->count && still_valid(drain); i++) {
        CUcontext same;
        if (drain->part[i].event == NULL
            || REAL(cuCtxPushCurrent_v2)(drain->part[i].context) != CUDA_SUCCESS)
            continue;
        REAL(cuEventDestroy_v2)(drain->part[i].event);
        REAL(cuCtxPopCurrent_v2)(&same);
    }
    drain->count = 0;
}

bool drain_all(uint64_t patience, bool outlasts)
{
    uint64_t began = now_microseconds();
    struct drain drain;
    while (!gate_empty(1000))
        if (gate_has_waiters() && now_microseconds() - began > patience)
            return false;
    drain_begin(&drain);
    while (!drain_step(&drain)) {
        uint64_t waited = now_microseconds() - began;
        /* Who stands at the gate, or waits here, may be just the thread that captures. */
        bool capturing = capture_going_on();
        uint64_t limit = capturing ? CAPTURE_PATIENCE_US : patience;
        if (waited > limit && (gate_has_waiters() || (capturing && !outlasts))) {
            drain_abandon(&drain);
            return false;
        }
        nap(waited);
    }
    return true;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waits until nothing is in flight. Recording a context's work in an event (cuCtxRecordEvent; with
 * drivers before 12.5 streams.c queries instead) invalidates captures in the context, so it happens
 * only while no capture may begin (capture_forbid()); then the event is polled.
 *
 * During a capture, a drain is over when the work before the capture is done and no work has been
 * submitted since (capture.c). Otherwise the drain waits for the capture's end, but not for long,
 * as a captured copy waits at the closed gate for its memory. A failed call says nothing about the
 * work: only a context that stays broken counts as drained.
 */
#include "flight/drain.h"

#include <stdlib.h>

#include "driver/bell.h"
#include "driver/log.h"
#include "driver/ops.h"
#include "flight/capture.h"
#include "flight/streams.h"
#include "gate/contexts.h"
#include "gate/gate.h"

#define CAPTURE_PATIENCE_US 50000
#define CAPTURE_LONGEST_US 30000000    /* a capture that lasts longer counts as endless */
#define STREAMS_PATIENCE_US 30000000   /* limit of a wait for streams that threads keep busy */

/* Records the context's work in *event, or finds the work done and leaves *event NULL. NOT_READY: a
 * capture forbids the recording (unless `despite_captures`), or streams are busy. `moment`: as in
 * streams_query(). */
static CUresult record(CUcontext context, bool despite_captures, unsigned flags, uint64_t moment,
                       CUevent *event)
{
    *event = NULL;
    CUresult result = REAL(cuCtxPushCurrent_v2)(context);
    if (result != CUDA_SUCCESS)
        return result;
    if (streams_need_no_list())
        result = REAL(cuEventCreate)(event, CU_EVENT_DISABLE_TIMING | flags);
    if (result == CUDA_SUCCESS && !capture_forbid(despite_captures)) {
        result = CUDA_ERROR_NOT_READY;
    } else if (result == CUDA_SUCCESS) {
        result = *event != NULL ? REAL(cuCtxRecordEvent)(context, *event)
                                : streams_query(context, moment);
        capture_allow();
    }
    if (result != CUDA_SUCCESS && *event != NULL) {
        REAL(cuEventDestroy_v2)(*event);
        *event = NULL;
    }
    CUcontext same;
    REAL(cuCtxPopCurrent_v2)(&same);
    return result;
}

static void forget(CUcontext context, CUevent *event)
{
    if (*event != NULL)
        event_destroy(context, *event);
    *event = NULL;
}

/* After these errors a context runs no work any more. UNKNOWN: the card has fallen off the bus. */
static const CUresult FOR_GOOD[] = {
    CUDA_ERROR_DEINITIALIZED, CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_ECC_UNCORRECTABLE,
    CUDA_ERROR_NVLINK_UNCORRECTABLE, CUDA_ERROR_CONTAINED, CUDA_ERROR_ILLEGAL_ADDRESS,
    CUDA_ERROR_LAUNCH_TIMEOUT, CUDA_ERROR_CONTEXT_IS_DESTROYED, CUDA_ERROR_ASSERT,
    CUDA_ERROR_HARDWARE_STACK_ERROR, CUDA_ERROR_ILLEGAL_INSTRUCTION,
    CUDA_ERROR_MISALIGNED_ADDRESS, CUDA_ERROR_INVALID_ADDRESS_SPACE, CUDA_ERROR_INVALID_PC,
    CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_TENSOR_MEMORY_LEAK, CUDA_ERROR_MPS_CLIENT_TERMINATED,
    CUDA_ERROR_EXTERNAL_DEVICE, CUDA_ERROR_UNKNOWN,
    CUDA_ERROR_OPERATING_SYSTEM,     /* stubs_lose() */
};

/* Asks the driver a second time after an error, because a single call may fail by chance. */
CUresult context_error(CUcontext context)
{
    CUresult error = CUDA_ERROR_UNKNOWN;
    for (unsigned i = 0; i < 2 && error != CUDA_SUCCESS; i++) {
        size_t unused, total;
        CUcontext same;
        if ((error = REAL(cuCtxPushCurrent_v2)(context)) != CUDA_SUCCESS)
            continue;
        error = REAL(cuMemGetInfo_v2)(&unused, &total);
        REAL(cuCtxPopCurrent_v2)(&same);
    }
    for (size_t i = 0; i < sizeof FOR_GOOD / sizeof FOR_GOOD[0]; i++)
        if (error == FOR_GOOD[i])
            return error;
    return CUDA_SUCCESS;
}

static bool is_over(CUcontext context, CUresult result)
{
    return result == CUDA_SUCCESS
        || (result != CUDA_ERROR_NOT_READY && context_error(context) != CUDA_SUCCESS);
}

/* us to the next poll after `waited` us: a short drain ends at once, a long one uses little CPU. */
static uint64_t nap_us(uint64_t waited)
{
    return waited < 200 ? 10 : waited < 5000 ? 50 : 500;
}

static void nap(uint64_t waited)
{
    bell_nap(nap_us(waited));
}

/* Waits for the event, at most `most` us (UINT64_MAX: no limit). */
static CUresult await(CUevent event, uint64_t most)
{
    if (most == UINT64_MAX)
        return REAL(cuEventSynchronize)(event);
    CUresult result;
    uint64_t began = now_microseconds(), waited = 0;
    while ((result = REAL(cuEventQuery)(event)) == CUDA_ERROR_NOT_READY && waited < most) {
        nap(waited);
        waited = now_microseconds() - began;
    }
    return result;
}

static bool drain_one(CUcontext context, bool despite_captures, uint64_t most, CUresult *result)
{
    RELAXED;                         /* another thread's capture may begin during the wait */
    CUevent event;
    uint64_t moment = streams_moment(), began = now_microseconds(), waited = 0;
    while ((*result = record(context, despite_captures, CU_EVENT_BLOCKING_SYNC, moment, &event))
               == CUDA_ERROR_NOT_READY
           && !streams_need_no_list()
           && waited < most
           && (despite_captures || (!capture_going_on() && waited < STREAMS_PATIENCE_US))) {
        nap(waited);
        waited = now_microseconds() - began;
    }
    if (event != NULL)
        *result = await(event, most);
    forget(context, &event);
    return is_over(context, *result);
}

bool drain_context(CUcontext context, uint64_t most, CUresult *result)
{
    return drain_one(context, false, most, result);
}

bool drain_ending(CUcontext context)
{
    CUresult result;
    uint64_t began = now_microseconds(), waited = 0;
    while (!drain_one(context, true, UINT64_MAX, &result) && result != CUDA_ERROR_NOT_READY
           && waited < DRAIN_PATIENCE_US) {
        nap(waited);
        waited = now_microseconds() - began;
    }
    return result == CUDA_SUCCESS;
}

static void add(struct drain *drain, CUcontext context)
{
    if (drain->count == drain->room) {
        drain->part = realloc(drain->part, ++drain->room * sizeof *drain->part);
        if (drain->part == NULL)
            fatal("no memory to wait for the work of a GPU context");
    }
    drain->part[drain->count++] = (struct drain_part){ .context = context };
}

static _Atomic unsigned callbacks;   /* host functions that run now */
static _Atomic uint64_t callbacks_since;           /* us: since when at least one runs */

void drain_callback_begins(void)
{
    if (atomic_load(&callbacks) == 0)
        atomic_store(&callbacks_since, now_microseconds());
    atomic_fetch_add(&callbacks, 1);
}

void drain_callback_ends(void)
{
    atomic_fetch_sub(&callbacks, 1);
}

static uint64_t patience(const struct drain_terms *terms)
{
    uint64_t us = terms->callback_patience;
    bool lasts = us > 0 && atomic_load(&callbacks) > 0
        && now_microseconds() - atomic_load(&callbacks_since) > us;
    return lasts ? us : terms->patience;
}

/* Destroys the drain's events; events of ended contexts were destroyed with their contexts. */
static void forget_all(struct drain *drain)
{
    for (unsigned i = 0; i < drain->count; i++)
        if (contexts_lasts(drain->part[i].context, drain->contexts_ended))
            forget(drain->part[i].context, &drain->part[i].event);
    drain->count = 0;
}

/* Covers all devices: work on another device, shared or not, may access this device's memory. */
void drain_begin(struct drain *drain)
{
    CUcontext context;
    captures_end_abandoned();
    forget_all(drain);
    drain->failing = false;
    drain->contexts_ended = contexts_ended();
    drain->moment = streams_moment();
    while ((context = contexts_of(ANY_DEVICE, drain->count)) != NULL)
        add(drain, context);
}

static CUresult part_step(struct drain_part *part, uint64_t moment)
{
    CUresult result = CUDA_SUCCESS;
    if (!part->started)
        result = record(part->context, false, 0, moment, &part->event);
    if (result == CUDA_ERROR_NOT_READY && part->event == NULL && capture_without_work())
        result = CUDA_SUCCESS;
    if (result == CUDA_SUCCESS && part->event != NULL)
        result = REAL(cuEventQuery)(part->event);
    bool over = is_over(part->context, result);
    part->started = over || part->event != NULL;
    if (!over)
        return result;
    forget(part->context, &part->event);
    return CUDA_SUCCESS;
}

bool drain_step(struct drain *drain)
{
    /* No context ends during the step: ending one takes service_lock, which is held. */
    if (drain->contexts_ended != contexts_ended())
        drain_begin(drain);
    bool all = true, failing = false;
    for (unsigned i = 0; i < drain->count; i++) {
        CUresult result = part_step(&drain->part[i], drain->moment);
        if (result != CUDA_SUCCESS)
            all = false;
        if (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY)
            continue;
        if (!drain->failing && !failing)
            debug("a context cannot be drained for now: error %d", (int)result);
        failing = true;
    }
    drain->failing = failing;
    return all;
}

void drain_abandon(struct drain *drain)
{
    forget_all(drain);
    free(drain->part);
    *drain = (struct drain){ .count = 0 };
}

/* us for which threads have been blocked. *none: us, the last time without a blocked thread. */
static uint64_t blocked(uint64_t *none)
{
    uint64_t now = now_microseconds();
    if (!gate_has_blocked())
        *none = now;
    return now - *none;
}

enum drained drain_all(const struct drain_terms *terms)
{
    uint64_t began = now_microseconds(), none = began, waited = 0;
    struct drain drain = { .count = 0 };
    while (!gate_empty()) {
        if (blocked(&none) > patience(terms))
            return UNDRAINED;
        terms->rest(terms->argument, nap_us(waited));
        waited = now_microseconds() - began;
    }
    drain_begin(&drain);
    while (!drain_step(&drain)) {
        waited = now_microseconds() - began;
        /* A capture shortens the patience: the blocked thread may be the capturing thread. */
        bool capturing = capture_going_on();
        bool endless = capturing && capture_oldest() > CAPTURE_LONGEST_US;
        bool soon = capturing && !endless;
        bool alone = drain.failing || endless || (soon && !terms->outlasts);
        uint64_t limit = soon ? CAPTURE_PATIENCE_US : patience(terms);
        if (blocked(&none) > limit || (alone && waited > limit)) {
            drain_abandon(&drain);
            return soon ? CAPTURING : UNDRAINED;
        }
        terms->rest(terms->argument, nap_us(waited));
    }
    drain_abandon(&drain);
    return DRAINED;
}

bool drain_is_needless(void)
{
    struct drain drain = { .count = 0 };
    drain_begin(&drain);
    bool done = gate_empty() && drain_step(&drain);
    drain_abandon(&drain);
    return done;
}

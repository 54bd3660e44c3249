/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting until nothing is in flight. All of it with service_lock held, except drain_context(),
 * drain_ending() and context_error().
 */
#pragma once

#include "driver/driver.h"
#include "gate/client.h"

#define DRAIN_PATIENCE_US 2000000

enum drained {
    DRAINED,
    UNDRAINED,                       /* gave up: see below */
    CAPTURING,                       /* gave up for a capture, which says nothing of the work */
};

/* How long a drain lasts at most, and what its caller does between two looks. */
struct drain_terms {
    uint64_t patience;               /* us for which a thread of the program is blocked, or calls fail */
    bool outlasts;                   /* it waits for the end of a capture, too */
    /* Passes about so many microseconds, without service_lock: no thread of the program may wait
     * for the work in flight because it wants that lock, or an answer of the daemon's. */
    void (*rest)(void *argument, uint64_t us);
    void *argument;
};

/* With the gate closed, waits until nothing is in flight in any context of the process. It gives
 * up when threads of the program have been blocked in this library (gate_has_blocked()) for as long
 * as the terms say, or calls have failed, or a capture has not ended, for as long; and soon, if a
 * capture goes on and threads are blocked or it does not `outlast` captures. */
enum drained drain_all(const struct drain_terms *terms);

/* The same in steps, to find out whether a client is idle. */
struct drain {
    unsigned contexts_ended;         /* at the beginning */
    uint64_t moment;                 /* of that, where streams are asked */
    unsigned count, room;
    bool whole;                      /* `part` has all contexts */
    bool failing;                    /* the last step's calls, but no context for good */
    struct drain_part {
        CUcontext context;
        uint64_t moment;
        CUevent event;
        bool started;
    } *part;
};
void drain_begin(struct drain *drain);             /* one of zeros, or a former one */
bool drain_step(struct drain *drain);              /* true: everything submitted before it began is done */
void drain_abandon(struct drain *drain);           /* at the end, too: leaves zeros */

/* Waits for all work of one context, `most` us long or, if that is UINT64_MAX, as long as it takes;
 * any thread. False: *result, which is NOT_READY where that is over or a capture forbids it. */
bool drain_context(CUcontext context, uint64_t most, CUresult *result);
/* Of one that is about to be destroyed; as long as it takes, as the driver waits, too. False: a
 * capture in it forbids that, or it has failed. */
bool drain_ending(CUcontext context);
/* What a context has ended or failed with for good, or success. */
CUresult context_error(CUcontext context);

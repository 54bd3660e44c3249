/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting until nothing is in flight. All of it on the service thread with service_lock held,
 * except drain_context(), drain_ending() and context_error().
 */
#pragma once

#include "client/client.h"
#include "interpose/driver.h"

#define DRAIN_PATIENCE_US 2000000

enum drained {
    DRAINED,
    UNDRAINED,                       /* gave up: see below */
    CAPTURING,                       /* gave up for a capture, which says nothing of the work */
};

/* With the gate closed, waits until nothing is in flight in any context of the process. It gives
 * up when threads have stood at the gate for `patience` microseconds, or calls have failed, or a
 * capture has not ended, for as long; and soon, if a capture goes on and threads stand at the gate
 * or it does not `outlast` captures. */
enum drained drain_all(uint64_t patience, bool outlasts);

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

/* Waits for all work of one context; any thread. False: *result, which is NOT_READY
 * where a capture is going on and forbids it. */
bool drain_context(CUcontext context, CUresult *result);
/* Of one that is about to be destroyed. False: a capture in it forbids that, or it has failed. */
bool drain_ending(CUcontext context);
/* What a context has ended or failed with for good, or success. */
CUresult context_error(CUcontext context);

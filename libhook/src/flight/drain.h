/* SPDX-License-Identifier: Apache-2.0 */
/* Waits until no work is in flight. With service_lock held, unless stated otherwise. */
#pragma once

#include "gate/client.h"

#define DRAIN_PATIENCE_US 2000000

enum drained {
    DRAINED,
    UNDRAINED,                       /* the drain gave up; see drain_all() */
    CAPTURING,                       /* gave up because of a capture: work may still be in flight */
};

/* The limits of a drain, and the caller's function for the time between two polls. */
struct drain_terms {
    uint64_t patience;               /* us for which threads may be blocked, or calls may fail */
    uint64_t callback_patience;      /* the same, us, while a host function runs as long; 0: none */
    bool outlasts;                   /* the drain also waits for the end of a capture */
    /* Waits about `us` microseconds without service_lock: work in flight may wait for a thread that
     * needs that lock or an answer of the daemon. */
    void (*rest)(void *argument, uint64_t us);
    void *argument;
};

/* With the gate closed, waits until nothing is in flight in any context. Gives up when threads have
 * been blocked (gate_has_blocked()), calls have failed or a capture has not ended for `patience`;
 * during a capture much sooner, if threads are blocked, calls fail or `outlasts` is false. */
enum drained drain_all(const struct drain_terms *terms);

/* Around a host function that a stream calls; any thread, without a lock. */
void drain_callback_begins(void);
void drain_callback_ends(void);

/* Whether no work is in flight now, without waiting. True is only certain while the gate is closed
 * and no thread is inside. */
bool drain_is_needless(void);

/* A drain in steps, to find out whether work is done. */
struct drain {
    unsigned contexts_ended;         /* contexts_ended() at drain_begin() */
    uint64_t moment;                 /* streams_moment() at drain_begin() */
    unsigned count, room;
    bool failing;                    /* the last step could not query a context that still works */
    struct drain_part {
        CUcontext context;
        CUevent event;
        bool started;                /* the work is recorded in `event`, or known to be done */
    } *part;
};
void drain_begin(struct drain *drain);             /* `drain`: all zero, or used before */
bool drain_step(struct drain *drain);              /* true: work before drain_begin() is done */
void drain_abandon(struct drain *drain);           /* allowed at any time; sets `drain` to 0 */

/* Waits for all work of one context, at most `most` us (UINT64_MAX: no limit); any thread. False:
 * *result is the error; NOT_READY: `most` has passed, or a capture forbids the wait. */
bool drain_context(CUcontext context, uint64_t most, CUresult *result);
/* Drains a context that is about to be destroyed; any thread. False: a capture in it forbids that,
 * or the context has failed. */
bool drain_ending(CUcontext context);
/* The error of a context that has ended or runs no more work; else success. Any thread. */
CUresult context_error(CUcontext context);

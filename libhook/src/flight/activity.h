/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Samples a client's work in flight; activity.c. For the service thread, with service_lock held.
 */
#pragma once

#include "flight/drain.h"

enum activity_question {
    ACTIVITY_IDLE = 1,               /* since when nothing has been in flight */
    ACTIVITY_GAPS = 2,               /* the part of a second without work in flight (for BUSY) */
    ACTIVITY_BURST = 4,              /* when the work that inflight.c publishes is done */
};

struct activity {
    struct drain marker;             /* after all work submitted before its recording */
    enum { NO_MARKER, MARKER_PENDING, MARKER_DONE } state;
    uint64_t marker_passes;          /* gate_passes() at the marker's recording, */
    uint64_t passes;                 /* and at the last sample */
    bool quiet;                      /* no thread passed the gate between the last two samples */
    bool empty;                      /* nothing was in flight at the last sample, */
    uint64_t empty_since;            /* since then at least */
    bool prompt;                     /* and a marker was done too soon to have waited for work */

    struct {
        bool asked, counts;
        uint64_t since, counted;     /* until `counted` the pause is part of client->idled */
    } idle;
    struct {
        uint64_t turn;               /* client->turns for the figures below */
        enum { BUSY_UNKNOWN, BUSY_ALWAYS, BUSY_GAPS } reported;
        bool asked;
        uint64_t sampled, rests_until;
        uint64_t open_us, gaps_us;   /* of the current window */
    } gaps;
    struct {
        bool asked;
        bool armed;                  /* passes since the marker's recording count */
        uint64_t began, since;
    } burst;
};

/* Takes a sample for these questions, a bit each. Returns the us until the next is due. */
int64_t activity_sample(struct client *client, struct activity *activity, unsigned questions);
/* us for which nothing has been in flight, as far as is known; 0: work may be in flight. */
uint64_t activity_idle(const struct activity *activity);
/* The daemon does not ask for BUSY any more. */
bool activity_released(const struct activity *activity);
/* The program's turn is over when the work in flight is done. Any thread. */
void activity_release(void);
/* A turn of one of the process's clients begins: an earlier release counts no more. */
void activity_begin_turn(void);
/* The daemon asks for BUSY no more. */
void activity_forget_gaps(struct activity *activity);

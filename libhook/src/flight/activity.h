/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Samples a client's work in flight; activity.c. On the service thread with service_lock held.
 */
#pragma once

#include "flight/drain.h"

enum activity_question {
    ACTIVITY_IDLE = 1,               /* since when nothing has been in flight */
    ACTIVITY_GAPS = 2,               /* what part of a second nothing is; the daemon hears it (BUSY) */
    ACTIVITY_BURST = 4,              /* when the work that telling.c announced is done */
};

struct activity {
    struct drain marker;             /* behind all work that was submitted before it */
    enum { NO_MARKER, MARKER_PENDING, MARKER_DONE } state;
    uint64_t marker_passes;          /* gate_passes() when the marker was recorded, */
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
        uint64_t turn;               /* client->turns, to which the rest belongs */
        enum { BUSY_UNKNOWN, BUSY_ALWAYS, BUSY_GAPS } reported;
        bool asked;
        uint64_t sampled, rests_until;
        uint64_t open_us, gaps_us;   /* of the present window */
    } gaps;
    struct {
        bool asked;
        bool armed;                  /* whoever passes now counts, since before the marker */
        uint64_t began, since;
    } burst;
};

/* Takes a sample for these questions, a bit each. Returns in how many us the next is due. */
int64_t activity_sample(struct client *client, struct activity *activity, unsigned questions);
/* For how many us nothing has been in flight, as far as it is known; 0: something may be. */
uint64_t activity_idle(const struct activity *activity);
/* The program has released its turn, and nothing had passed the gate since at the last sample. */
bool activity_released(const struct activity *activity);
/* The program's turn is over when the work in flight is done. Any thread. */
void activity_release(void);
/* The daemon asks for BUSY no more. */
void activity_forget_gaps(struct activity *activity);

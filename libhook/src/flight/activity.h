/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Samples a client's work in flight; activity.c. For the service thread, with service_lock held.
 */
#pragma once

#include "flight/drain.h"

enum activity_purpose {
    ACTIVITY_IDLE = 1,               /* the time since which no work has been in flight */
    ACTIVITY_GAPS = 2,               /* the part of a second without work in flight, for BUSY */
    ACTIVITY_BURST = 4,              /* the end of the work that inflight.c publishes */
};

struct activity {
    struct drain marker;             /* recorded after all work submitted before */
    enum { NO_MARKER, MARKER_PENDING, MARKER_DONE } state;
    uint64_t marker_passes;          /* gate_passes() when the marker was recorded */
    uint64_t passes;                 /* gate_passes() at the last sample */
    bool quiet;                      /* no thread passed the gate between the last two samples */
    bool empty;                      /* nothing was in flight at the last sample */
    uint64_t empty_since;            /* us: time since which nothing has been in flight, at least */
    bool prompt;                     /* a marker was done too soon to have waited for work */

    struct {
        bool active, counts;
        uint64_t since, counted;     /* client->idled contains the pause up to `counted` */
    } idle;
    struct {
        uint64_t turn;               /* client->turns for the figures below */
        enum { BUSY_UNKNOWN, BUSY_ALWAYS, BUSY_GAPS } reported;
        bool active;
        uint64_t sampled, rests_until;       /* us: time of the last sample; of the next one */
        uint64_t open_us, gaps_us;   /* us of the current window: gate open; of these, no work */
    } gaps;
    struct {
        bool active;
        bool armed;                  /* passing threads count since the marker was recorded */
        uint64_t began, since;       /* us: begin of the burst; last time with work or passes */
    } burst;
};

/* Takes a sample for a set of activity_purpose. Returns the us until the next is due. */
int64_t activity_sample(struct client *client, struct activity *activity, unsigned purposes);
/* us for which no work has been in flight, as far as known; 0: work may be in flight. */
uint64_t activity_idle(const struct activity *activity);
/* Whether activity_release() was called and no thread had passed the gate since, at the last
 * sample. */
bool activity_released(const struct activity *activity);
/* Lets the program's turn end when the work in flight is done. Any thread. */
void activity_release(void);
/* Voids an earlier release, as a turn of one of the process's clients begins. */
void activity_begin_turn(void);
/* Called while the daemon does not request BUSY: drops its figures. */
void activity_forget_gaps(struct activity *activity);

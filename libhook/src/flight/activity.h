/* SPDX-License-Identifier: Apache-2.0 */
/* Samples a client's work in flight. For the service thread, with service_lock held. */
#pragma once

#include "flight/drain.h"

enum activity_purpose {
    ACTIVITY_IDLE = 1,               /* find how long no work has been in flight */
    ACTIVITY_GAPS = 2,               /* find gaps between work in flight, for the BUSY report */
    ACTIVITY_BURST = 4,              /* find the end of the work that inflight.c publishes */
};

#define ACTIVITY_PAUSE_FIRST_US 50000    /* `idle.longest` of a new program */

struct activity {
    struct drain marker;             /* events after all work submitted before the recording */
    enum { NO_MARKER, MARKER_PENDING, MARKER_DONE } state;
    uint64_t marker_passes;          /* gate_passes() when the marker was recorded */
    uint64_t passes;                 /* gate_passes() at the last sample */
    bool quiet;                      /* no thread passed the gate between the last two samples */
    bool empty;                      /* nothing was in flight at the last sample */
    uint64_t empty_since;            /* us: if `empty`, no work has been in flight since then */
    bool prompt;                     /* no event of the last sample took longer than SOON_US */

    struct {
        bool active, counts;         /* idle time is sampled; a pause is in progress */
        bool computes;               /* a thread used the processor before the last sample */
        uint64_t since, counted;     /* us: begin of the pause; time up to which `idled` has it */
        uint64_t outlasting;         /* us: begin of a pause that the turn's end cut; 0: none */
        uint64_t processor;          /* us of processor time of the process at the last sample */
        /* us: the longest pause after which work soon went on, since the last long pause and in
         * the stretch of work before that */
        uint64_t longest, longest_before;
    } idle;
    struct {
        uint64_t turn;               /* the figures below are of this turn: client->turns */
        enum { BUSY_UNKNOWN, BUSY_ALWAYS, BUSY_GAPS } reported;
        bool active;
        uint64_t sampled, rests_until;       /* us: last sample; earliest time of the next */
        uint64_t open_us, gaps_us;   /* us of the current window; part of it in gaps */
    } gaps;
    struct {
        bool active;
        bool armed;                  /* inflight_arm() was called, then the marker recorded */
        uint64_t began, since;       /* us: begin of the burst; last sample with work or passes */
    } burst;
};

/* Takes a sample for a set of activity_purpose. Returns the us until the next sample is due. */
int64_t activity_sample(struct client *client, struct activity *activity, unsigned purposes);
/* us for which surely no work has been in flight; 0: work may be in flight. */
uint64_t activity_idle(const struct activity *activity);
/* us of a pause after which the program will probably not go on soon, at most `most`. */
uint64_t activity_idle_window(const struct activity *activity, uint64_t most);
/* Whether the program had released its turn at the last sample and not passed the gate since. */
bool activity_released(const struct activity *activity);
/* Lets the program's turn end when the work in flight is done. For any thread. */
void activity_release(void);
/* Voids an earlier release: called when a turn of one of the process's clients begins. */
void activity_begin_turn(void);
void activity_forget_gaps(struct activity *activity);

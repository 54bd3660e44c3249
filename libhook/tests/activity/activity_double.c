/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulated environment for activity.c: a clock, a GPU, a gate and one client. The program
 * submits a piece of work, waits for its end, pauses, and repeats this.
 */
#include "gate/client.h"
#include "gate/gate.h"
#include "flight/activity.h"
#include "flight/capture.h"
#include "flight/drain.h"

#define CALL_US 2                    /* us that a driver call takes */

static uint64_t clock_us = 1000000, ends_at, passes, gap_us, work_us;
static struct client one;
static struct activity activity = { .idle.longest = ACTIVITY_PAUSE_FIRST_US };

SEEN int capturing, several, waits;
SEEN unsigned sent;                  /* number of BUSY reports */
SEEN int gaps = -1;                  /* whether the last BUSY report says gaps; -1: not sent */
SEEN uint64_t sent_at;               /* us from the begin of the last turn to the last report */
SEEN uint64_t questions;             /* number of driver calls */
SEEN int computes;                   /* a thread uses the processor all the time */
static uint64_t began;

/* Submits all the work that the program would have submitted by now. */
static void proceed(void)
{
    while (one.running && work_us > 0 && clock_us >= ends_at + gap_us) {
        ends_at = (ends_at > began ? ends_at + gap_us : clock_us) + work_us;
        passes++;
    }
}

uint64_t now_microseconds(void) { return clock_us; }
uint64_t processor_microseconds(void) { return computes ? clock_us : 0; }
unsigned clients_count(void) { return several ? 2 : 1; }
bool capture_going_on(void) { return capturing; }

uint64_t gate_passes(void)
{
    proceed();
    return passes;
}

bool gate_has_waiters(void) { return waits; }

void client_send(struct client *client, struct nvshare_report report)
{
    (void)client;
    sent += report.type == NVSHARE_BUSY;
    gaps = (report.flags & NVSHARE_GAPS) != 0;
    sent_at = clock_us - began;
}

void drain_begin(struct drain *drain)
{
    proceed();
    drain->moment = ends_at;
}

bool drain_step(struct drain *drain)
{
    questions++;
    clock_us += CALL_US;
    return clock_us >= drain->moment;
}

void drain_abandon(struct drain *drain) { drain->moment = 0; }

/* Begins a turn; the program waits at the gate. */
SEEN void turn(void)
{
    one.running = true;
    one.turns++;
    began = clock_us;
    proceed();
}

/* Ends the turn; the gate is closed for `microseconds`. */
SEEN void stop(uint64_t microseconds)
{
    one.running = false;
    activity_sample(&one, &activity, 0);
    clock_us = (ends_at > clock_us ? ends_at : clock_us) + microseconds;
}

/* The program submits work that ends at once, then rests. Samples are 5 ms apart. */
static void rest(uint64_t microseconds)
{
    passes++;
    ends_at = clock_us;
    for (uint64_t until = clock_us + microseconds; clock_us < until; clock_us += 5000)
        activity_sample(&one, &activity, ACTIVITY_IDLE);
}

/* A pause of the program within its turn. */
SEEN void pause_of(uint64_t microseconds)
{
    rest(microseconds);
    passes++;
    activity_sample(&one, &activity, ACTIVITY_IDLE);
}

/* A pause in which the turn ends, until a thread waits for the next turn. */
SEEN void pause_beyond_turn(uint64_t in_turn, uint64_t later)
{
    rest(in_turn);
    stop(later);
    one.wanted = clock_us;
    clock_us += 1000000;             /* the other client's turn */
    turn();
    activity_sample(&one, &activity, ACTIVITY_IDLE);
}

SEEN uint64_t window(uint64_t most) { return activity_idle_window(&activity, most); }

SEEN void forget(void) { activity_forget_gaps(&activity); }

/* For `duration` the program works for `work` us and pauses for `gap` us in turn. The service
 * thread samples when a sample is due, or `late` us later. */
SEEN void run(uint64_t work, uint64_t gap, uint64_t duration, uint64_t late)
{
    uint64_t until = clock_us + duration;
    work_us = work;
    gap_us = gap;
    while (clock_us < until) {
        clock_us += (uint64_t)activity_sample(&one, &activity, ACTIVITY_GAPS) + late;
        proceed();
    }
}

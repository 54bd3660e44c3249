/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What activity.c stands on, in figures alone: a clock, a card, a gate, one client. The program
 * submits a piece of work, waits for its end, does something else for a while, and goes on.
 */
#include "gate/client.h"
#include "gate/gate.h"
#include "flight/activity.h"
#include "flight/capture.h"
#include "flight/drain.h"

#define SEEN __attribute__((visibility("default")))
#define CALL_US 2                    /* what a question to the driver takes */

static uint64_t clock_us = 1000000, ends_at, passes, gap_us, work_us;
static struct client one;
static struct activity activity;

SEEN int capturing, several, waits;
SEEN unsigned sent;                  /* records, */
SEEN int gaps = -1;                  /* and what the last one said */
SEEN uint64_t sent_at;               /* us since the last turn began */
SEEN uint64_t questions;             /* to the driver */
static uint64_t began;

/* The program goes as far as it can until now. */
static void proceed(void)
{
    while (one.running && work_us > 0 && clock_us >= ends_at + gap_us) {
        ends_at = (ends_at > began ? ends_at + gap_us : clock_us) + work_us;
        passes++;
    }
}

uint64_t now_microseconds(void)
{
    return clock_us;
}

unsigned clients_count(void)
{
    return several ? 2 : 1;
}

bool capture_going_on(void)
{
    return capturing;
}

uint64_t gate_passes(void)
{
    proceed();
    return passes;
}

bool gate_has_waiters(void)
{
    return waits;
}

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

void drain_abandon(struct drain *drain)
{
    drain->moment = 0;
}

/* A turn begins with the program at the gate. */
SEEN void turn(void)
{
    one.running = true;
    one.turns++;
    began = clock_us;
    proceed();
}

/* Its gate is shut until the next; for so long. */
SEEN void stop(uint64_t microseconds)
{
    one.running = false;
    activity_sample(&one, &activity, 0);
    clock_us = (ends_at > clock_us ? ends_at : clock_us) + microseconds;
}

SEEN void forget(void)
{
    activity_forget_gaps(&activity);
}

/* For so long it works and pauses by turns; the thread comes to look when it is due, or later. */
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

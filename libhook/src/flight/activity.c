/* SPDX-License-Identifier: Apache-2.0 */
/* A marker is an event recorded after all work submitted so far: while it is pending, work is in
 * flight. When it is done, and no thread has passed since the recording, nothing is in flight. */
#include "flight/activity.h"

#include <string.h>

#include "driver/forked.h"
#include "flight/capture.h"
#include "gate/client.h"
#include "gate/gate.h"
#include "gate/inflight.h"

/*
 * Finds gaps, in which no work is in flight: from gaps the daemon decides whether programs that fit
 * the card together take turns (scheduler/turns.py). A marker: events after all submitted work. A
 * sample that finds the previous marker done records a new marker. If the new marker is done within
 * SOON_US, nothing was in flight, and the time since the last sample counts as a gap, at most
 * GAPS_SAMPLED_MOST_US as this thread may be late. A program is busy if gaps are at most
 * 1/GAPS_PART of WINDOW_US; a larger part is reported at once, then no sample is taken for REST_US.
 */
#define GAPS_SAMPLE_US 5000
#define GAPS_SAMPLED_MOST_US 10000
#define SOON_US 50
#define WINDOW_US 1000000
#define GAPS_PART 16
#define GAP_LONGEST_US 10000
#define REST_US 1000000

/* A pause below MOMENT_US ends no burst. Samples are 1/BURST_SAMPLES of a burst's length apart. */
#define MOMENT_US 50
#define BURST_SAMPLE_LEAST_US 50
#define BURST_SAMPLE_MOST_US 500
#define BURST_SAMPLES 32

/*
 * The idle window is learned from the program's own pauses. While a hand-over costs at most half a
 * second, a pause of LONG_PAUSE_US was worth a hand-over at its begin, and a shorter pause was not.
 * The window is twice the longest pause of the second kind in the last two stretches of work, which
 * long pauses end, so that pauses of the program's start are forgotten. A thread that uses the
 * processor for 1/COMPUTES_PART of the time probably prepares the next launch: then the window is
 * five times as long. The least window is two samples (service.c).
 */
#define LONG_PAUSE_US 500000
#define WINDOW_LEAST_US 10000
#define WINDOW_ASLEEP 2
#define WINDOW_COMPUTES 10
#define COMPUTES_PART 4

/* gate_passes() when the program last released its turn; a later pass or turn voids the release. */
static KEPT_IN_CHILD _Atomic uint64_t released_passes = UINT64_MAX;

void activity_release(void)
{
    released_passes = gate_passes();
}

static void record(struct activity *activity, uint64_t spin_us)
{
    uint64_t began = now_microseconds(), took;
    bool done;
    activity->marker_passes = activity->passes;
    drain_begin(&activity->marker);
    do {
        done = drain_step(&activity->marker);
        took = now_microseconds() - began;
    } while (!done && took < spin_us);
    activity->state = done ? MARKER_DONE : MARKER_PENDING;
    activity->prompt = took < SOON_US;
}

/* `between`: record a marker even if threads have passed the gate since the last sample. */
static void sample(struct activity *activity, bool between, uint64_t now)
{
    uint64_t passes = gate_passes();
    activity->quiet = passes == activity->passes || passes == released_passes;
    activity->passes = passes;
    bool fresh = activity->state == MARKER_DONE && activity->marker_passes == passes;
    activity->prompt = true;
    if (!fresh)
        activity->empty_since = now;
    if (activity->state == MARKER_PENDING && drain_step(&activity->marker))
        activity->state = MARKER_DONE;
    if (activity->state != MARKER_PENDING && (activity->quiet || between)
        && (activity->state == NO_MARKER || activity->marker_passes != passes))
        record(activity, between ? SOON_US : 0);
    activity->empty = activity->state == MARKER_DONE && activity->marker_passes == passes;
}

/* The program has submitted work, or waited at the gate to do so, after a pause. */
static void learn_pause(struct activity *activity, uint64_t pause)
{
    if (pause >= LONG_PAUSE_US) {
        activity->idle.longest_before = activity->idle.longest;
        activity->idle.longest = 0;
    } else if (pause > activity->idle.longest) {
        activity->idle.longest = pause;
    }
}

uint64_t activity_idle_window(const struct activity *activity, uint64_t most)
{
    uint64_t longest = activity->idle.longest, before = activity->idle.longest_before;
    uint64_t window = (longest > before ? longest : before)
        * (activity->idle.computes ? WINDOW_COMPUTES : WINDOW_ASLEEP);
    if (window < WINDOW_LEAST_US)
        window = WINDOW_LEAST_US;
    return window < most ? window : most;
}

/* Called at the first sample of a turn: a pause that the end of the last turn has cut lasted until
 * a thread waited at the gate. */
static void end_outlasting_pause(struct client *client, struct activity *activity)
{
    uint64_t since = activity->idle.outlasting;
    activity->idle.outlasting = 0;
    LOCKED(memory_lock);
    if (since != 0 && client->wanted > since)
        learn_pause(activity, client->wanted - since);
}

/* Adds up all pauses, however short: idle time is not charged to the tenant. */
static void update_idle(struct client *client, struct activity *activity, uint64_t now)
{
    if (!activity->idle.active)
        end_outlasting_pause(client, activity);
    uint64_t processor = processor_microseconds();
    activity->idle.computes = activity->idle.active
        && processor - activity->idle.processor > (now - activity->idle.counted) / COMPUTES_PART;
    activity->idle.processor = processor;
    bool waits = gate_has_waiters();
    bool pause = activity->idle.active && activity->quiet && activity->empty && !waits;
    if (pause && activity->idle.counts) {
        LOCKED(memory_lock);
        client->idled += now - activity->idle.counted;
    }
    if (!pause && activity->idle.counts)
        learn_pause(activity, activity->idle.counted - activity->idle.since);
    if (!pause)
        activity->idle.since = now;
    activity->idle.active = true;
    activity->idle.counts = pause;   /* counts from now on: the work may have ended just now */
    activity->idle.counted = now;
}

uint64_t activity_idle(const struct activity *activity)
{
    return activity->idle.counts ? activity->idle.counted - activity->idle.since : 0;
}

void activity_begin_turn(void)
{
    released_passes = UINT64_MAX;
}

bool activity_released(const struct activity *activity)
{
    return activity->passes == released_passes;
}

/* With several clients the gate also closes for another GPU, which would look like a gap. */
static bool gaps_are_known(const struct client *client)
{
    return clients_count() == 1 && !capture_going_on() && client->undrained == 0
        && client->pin_reason == NVSHARE_PIN_NONE;
}

static void report_gaps(struct client *client, struct activity *activity, bool gaps)
{
    bool known = activity->gaps.reported == (gaps ? BUSY_GAPS : BUSY_ALWAYS);
    activity->gaps.reported = gaps ? BUSY_GAPS : BUSY_ALWAYS;
    activity->gaps.open_us = activity->gaps.gaps_us = 0;
    if (known)
        return;
    LOCKED(memory_lock);
    client_send(client, (struct nvshare_report){
        .type = NVSHARE_BUSY, .flags = gaps ? NVSHARE_GAPS : 0,
    });
}

static void update_gaps(struct client *client, struct activity *activity, uint64_t now)
{
    if (!activity->gaps.active)
        activity->gaps.sampled = activity->empty_since = now;
    activity->gaps.active = true;
    bool known = gaps_are_known(client);
    if (!known)
        activity->empty_since = now;
    /* While a thread waits at the gate, the library itself keeps the card from having work. */
    bool gap = !known || (activity->empty && activity->prompt && !gate_has_waiters());
    uint64_t passed = now - activity->gaps.sampled;
    activity->gaps.sampled = now;
    activity->gaps.open_us += passed;
    if (gap)
        activity->gaps.gaps_us += passed < GAPS_SAMPLED_MOST_US ? passed : GAPS_SAMPLED_MOST_US;
    if ((gap && now - activity->empty_since >= GAP_LONGEST_US)
        || activity->gaps.gaps_us > WINDOW_US / GAPS_PART) {
        report_gaps(client, activity, true);
        activity->gaps.active = false;
        activity->gaps.rests_until = now + REST_US;
    } else if (activity->gaps.open_us >= WINDOW_US) {
        report_gaps(client, activity, false);
    }
}

void activity_forget_gaps(struct activity *activity)
{
    memset(&activity->gaps, 0, sizeof activity->gaps);
}

/* Called if no thread has passed the gate between the last two samples. */
static bool burst_is_over(struct client *client, struct activity *activity, uint64_t now)
{
    if (!activity->empty) {
        activity->burst.since = now; /* a burst is over MOMENT_US after its work has ended */
        return false;
    }
    if (!activity->burst.armed) {
        if (now - activity->burst.since < MOMENT_US || !inflight_arm(client, activity->passes))
            return false;
        /* A thread that was inside the gate when the last marker was recorded may have submitted
         * work after that marker. */
        activity->burst.armed = true;
        record(activity, 0);
        if (activity->state != MARKER_DONE)
            return false;
    }
    return inflight_clear(client);
}

static int64_t update_burst(struct client *client, struct activity *activity, uint64_t now)
{
    bool began = !activity->burst.active;
    activity->burst.active = true;
    if (began)
        activity->burst.began = now;
    if (began || !activity->quiet) {
        inflight_extend(client);
        activity->burst.armed = false;
        activity->burst.since = now;
    } else if (burst_is_over(client, activity, now)) {
        activity->burst.active = false;
        return NEVER;
    }
    int64_t next = (int64_t)(now - activity->burst.began) / BURST_SAMPLES;
    return next < BURST_SAMPLE_LEAST_US ? BURST_SAMPLE_LEAST_US
        : next > BURST_SAMPLE_MOST_US ? BURST_SAMPLE_MOST_US : next;
}

int64_t activity_sample(struct client *client, struct activity *activity, unsigned purposes)
{
    uint64_t now = now_microseconds();
    bool gaps = (purposes & ACTIVITY_GAPS) != 0;
    bool new_turn = activity->gaps.turn != client->turns;
    if (new_turn || !gaps) {
        activity->gaps.active = false;
        activity->gaps.rests_until = 0;
    }
    if (new_turn)
        activity->gaps.reported = BUSY_UNKNOWN;
    activity->gaps.turn = client->turns;
    bool samples_gaps = gaps && now >= activity->gaps.rests_until;
    bool burst = (purposes & ACTIVITY_BURST) != 0 && inflight_busy(client);
    if (samples_gaps || burst || (purposes & ACTIVITY_IDLE) != 0) {
        sample(activity, samples_gaps && gaps_are_known(client), now);
    } else {
        drain_abandon(&activity->marker);
        activity->state = NO_MARKER;
    }
    if ((purposes & ACTIVITY_IDLE) != 0) {
        update_idle(client, activity, now);
    } else {
        if (activity->idle.counts)
            activity->idle.outlasting = activity->idle.since;
        activity->idle.active = activity->idle.counts = false;
    }
    if (samples_gaps)
        update_gaps(client, activity, now);
    int64_t next = burst ? update_burst(client, activity, now) : NEVER;
    activity->burst.active &= burst;
    if (!gaps)
        return next;
    int64_t rest = (int64_t)(activity->gaps.rests_until - now);
    if (activity->gaps.rests_until <= now || rest < GAPS_SAMPLE_US)
        rest = GAPS_SAMPLE_US;
    return rest < next ? rest : next;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulated environment for pace.c: a GPU, a clock and a gate. The test decides what is submitted
 * and how much time passes.
 *
 * The GPU processes one queue. A drain covers the queue's content at its beginning, and is over
 * when the GPU has processed that content. The program has one thread, which never waits: before
 * each launch, the test asks whether the gate would let the launch pass.
 */
#include "gate/client.h"
#include "gate/gate.h"
#include "gate/inflight.h"
#include "flight/capture.h"
#include "flight/drain.h"
#include "flight/pace.h"
#include "driver/real.h"

#define QUEUE 4000000
#define CALL_US 5                    /* us that a launch takes in the program */
#define LOOK_US 2000                 /* us between two steps of the service thread */
#define LOOK_URGENT_US 100           /* the same in the background, with a late timer */
#define WAKE_US 40                   /* us until a woken thread runs */

static uint64_t clock_us;
static struct {
    uint64_t length;                 /* us */
    uint64_t needs;                  /* the work ends only after this number of submissions */
} work[QUEUE];
static uint64_t submitted, finished, ends_at, left;
static bool capturing, wants;
static struct client one;

static CUresult nothing(void) { return CUDA_SUCCESS; }
void *real_find(enum real_index index) { return (void *)nothing; }
uint64_t now_microseconds(void) { return clock_us; }

static bool urgent, urgent_works;

bool inflight_urgent(void) { return urgent_works; }
bool inflight_is_watching(void) { return urgent; }
bool capture_going_on(void) { return capturing; }

_Atomic uint64_t gate_taken, gate_goal;
void (*gate_on_taken)(uint64_t number);
bool (*gate_on_paced)(uint64_t *since);
static uint64_t closed;

bool gate_has_waiters(void) { return wants; }
void gate_close(uint64_t reason) { closed |= reason; }
void gate_open(uint64_t reason) { closed &= ~reason; }
void gate_allow(uint64_t goal) { gate_goal = goal; }

SEEN uint64_t markers;

void drain_begin(struct drain *drain)
{
    markers++;
    drain->count = (unsigned)submitted;
}

bool drain_step(struct drain *drain) { return finished >= drain->count; }
void drain_abandon(struct drain *drain) { drain->count = 0; }

/* Results for the test: us, us, a count, us. */
SEEN uint64_t idle, longest_drain, submissions, most_in_steps;

static void begin_next(void)
{
    ends_at = finished < submitted ? clock_us + work[finished].length : 0;
}

/* Lets the GPU work for `microseconds`. */
SEEN void skip(uint64_t microseconds)
{
    uint64_t until = clock_us + microseconds;
    while (finished < submitted && work[finished].needs <= submitted && ends_at <= until) {
        clock_us = ends_at > clock_us ? ends_at : clock_us;
        left -= work[finished++].length;
        begin_next();
    }
    if (finished == submitted)
        idle += until - clock_us;
    clock_us = until;
}

/* False: the gate would not let the program pass. */
static bool submit(uint64_t length, uint64_t needs)
{
    if (one.steps && left > most_in_steps)
        most_in_steps = left;
    wants = closed != 0 && gate_taken >= gate_goal;
    if (wants || submitted == QUEUE)
        return false;
    if (closed != 0)
        gate_on_taken(++gate_taken);
    work[submitted].length = length;
    work[submitted].needs = submitted + 1 + needs;
    left += length;
    if (submitted++ == finished)
        begin_next();
    submissions++;
    return true;
}

/* Whether the client is in the background of an urgent client. */
SEEN void background(bool on) { urgent = on; }

/* Whether the urgent client has work in flight. */
SEEN void others_work(bool on) { urgent_works = on; }

/* Whether the client steps: one pass in flight, `pause` us after the end of the previous one. */
SEEN void step(bool on, uint64_t pause)
{
    one.steps = on;
    one.step_pause = pause;
}

SEEN void capture(bool on) { capturing = on; }

/* One step of the service thread. Returns pace_pressing(). */
SEEN bool look(bool others_wait)
{
    LOCKED(service_lock);
    if (others_wait)
        pace_step(&one);
    else
        pace_end(&one);
    return pace_pressing(&one);
}

/*
 * For `duration` the program submits work of these lengths in turn whenever the gate lets it pass.
 * No work ends before `needs` more pieces have been submitted.
 */
SEEN void run(const uint64_t *lengths, uint64_t count, uint64_t duration, bool others_wait,
              uint64_t needs)
{
    uint64_t until = clock_us + duration, look_at = clock_us, since = 0;
    for (uint64_t next = 0; clock_us < until;) {
        if (look_at <= clock_us) {
            look_at = clock_us + (urgent ? LOOK_URGENT_US : LOOK_US);
            look(others_wait);
        }
        bool passed = submit(lengths[next % count], needs);
        next += passed;
        if (left > longest_drain)
            longest_drain = left;
        if (passed)
            since = 0;
        bool looks = !passed && urgent && gate_on_paced(&since);
        skip(passed || looks ? CALL_US : urgent ? WAKE_US : LOOK_US);
    }
}

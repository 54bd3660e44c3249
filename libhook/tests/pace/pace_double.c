/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What pace.c stands on, in figures alone: a card, a clock, a gate. A test says
 * what is submitted and lets time pass.
 *
 * The card works through one queue. A drain covers what was in the queue when it
 * began, and is over when the card has come so far. The program is one thread,
 * which never waits: it is asked beforehand whether the gate would let it pass.
 */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#include "gate/client.h"
#include "gate/gate.h"
#include "gate/inflight.h"
#include "flight/capture.h"
#include "flight/drain.h"
#include "flight/pace.h"
#include "driver/real.h"

#define SEEN __attribute__((visibility("default")))
#define QUEUE 4000000
#define CALL_US 5                    /* what a call takes the program */
#define LOOK_US 2000                 /* how often the service thread looks, */
#define LOOK_URGENT_US 100           /* and in the background, a late timer included */
#define WAKE_US 40                   /* until a thread that was woken runs */

static uint64_t clock_us;
static struct {
    uint64_t length;                 /* us */
    uint64_t needs;                  /* does not end until so many have been submitted */
} work[QUEUE];
static uint64_t submitted, finished, ends_at, left;
static bool capturing, wants;
static struct client one;


static CUresult nothing(void)
{
    return CUDA_SUCCESS;
}

void *real_find(enum real_index index) { return (void *)nothing; }

uint64_t now_microseconds(void)
{
    return clock_us;
}

static bool urgent, urgent_works;

bool inflight_urgent(void)
{
    return urgent_works;
}

bool inflight_is_watching(void)
{
    return urgent;
}

bool capture_going_on(void)
{
    return capturing;
}

_Atomic uint64_t gate_taken, gate_goal;
void (*gate_on_taken)(uint64_t number);
bool (*gate_on_paced)(uint64_t *since);
static uint64_t closed;

bool gate_has_waiters(void)
{
    return wants;
}

void gate_close(uint64_t reason)
{
    closed |= reason;
}

void gate_open(uint64_t reason)
{
    closed &= ~reason;
}

void gate_allow(uint64_t goal)
{
    gate_goal = goal;
}

SEEN uint64_t markers;

void drain_begin(struct drain *drain)
{
    markers++;
    drain->count = (unsigned)submitted;
}

bool drain_step(struct drain *drain)
{
    return finished >= drain->count;
}

void drain_abandon(struct drain *drain)
{
    drain->count = 0;
}

/* What a test reads: us, and a count. */
SEEN uint64_t idle, longest_drain, submissions, most_in_steps;

static void begin_next(void)
{
    ends_at = finished < submitted ? clock_us + work[finished].length : 0;
}

/* The card works for so long. */
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

/* False: the program has to wait. */
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

/* Somebody of higher priority is there. */
SEEN void background(bool on)
{
    urgent = on;
}

/* And has work under way. */
SEEN void others_work(bool on)
{
    urgent_works = on;
}

/* After so many pieces of work it waits until all are done. 0: never. */
static uint64_t unit;

SEEN void synchronise(uint64_t each)
{
    unit = each;
}

static bool waits_for_all(void)
{
    return unit > 0 && submitted % unit == 0 && finished < submitted;
}

/* It may have one in flight, so long after the one before. */
SEEN void step(bool on, uint64_t pause)
{
    one.steps = on;
    one.step_pause = pause;
}

SEEN void capture(bool on)
{
    capturing = on;
}

/* The service thread's turn to look, with others waiting or not. */
SEEN bool look(bool others_wait)
{
    pthread_mutex_lock(&service_lock);
    if (others_wait)
        pace_step(&one);
    else
        pace_end(&one);
    bool pressing = pace_pressing(&one);
    pthread_mutex_unlock(&service_lock);
    return pressing;
}

/*
 * For so long the program submits work of these lengths, again and again and
 * whenever it may. None of it ends before `needs` more have been submitted.
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
        if (waits_for_all()) {
            skip(CALL_US);
            continue;
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

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bounds a program's work in flight while other clients wait, so that a drain lasts about
 * `target`. A marker is an event recorded after all work submitted so far: it completes after the
 * time that a drain would have taken. The gate lets passes through up to the passes known to be
 * done, plus `limit`, which a slow marker lowers and a fast one raises. As passes differ (a copy of
 * a few bytes, a graph of a second), at most LEAST may be in flight while the oldest marker is
 * older than the target. Work in flight may wait for work that is still to be submitted: if nothing
 * completes for long, a few more passes are let through, repeatedly. During a capture, which
 * submits nothing and which markers would invalidate, all threads pass.
 *
 * Beside an urgent client that does not wait for a turn (gate/inflight.c), the target is much
 * shorter, and the limit follows the most expensive recent passes: a limit that grows during small
 * passes would be too high for large passes. Kernels may end before a thread could be woken to
 * launch the next, so a thread that must wait polls before it sleeps, and records markers itself.
 */
#include "flight/pace.h"

#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include "driver/forked.h"
#include "driver/ops.h"
#include "driver/setting.h"
#include "flight/capture.h"
#include "flight/drain.h"
#include "gate/client.h"
#include "gate/gate.h"
#include "gate/inflight.h"

#define DEFAULT_TARGET_MS 50
#define TARGET_MOST_MS 60000
#define BACKGROUND_TARGET_US 300
#define SPIN_US BACKGROUND_TARGET_US /* us that a background thread polls before it sleeps */
#define SPIN_COLLECT_US 4            /* us between two such polls */
#define COST_WINDOW_US 100000        /* `limit` follows the highest cost of a pass in two windows */
#define MARKERS 16
#define MARKS_PER_TARGET 8
/* Markers recorded per `limit` passes: each covers half of the limit, so that the limit grows even
 * if the program launches no faster than the card works. */
#define MARKS_PER_LIMIT 2
#define LEAST 2                      /* least `limit`: the pass that runs, and the next */
#define BACKGROUND_LEAST 1
#define FIRST 8
#define MOST (1u << 20)
#define PATIENCE_LEAST_US 500000
#define PATIENCE_MOST_US 2000000
#define LET_THROUGH_US 20000           /* a thread that is to pass may be scheduled late */
#define PATIENCE_PART 3              /* the patience is the last marker's latency times this */

struct marker {
    struct drain drain;
    uint64_t passes;                 /* value of gate_taken that the marker covers */
    uint64_t ahead;                  /* part of `passes` not known to be done at the recording */
    uint64_t at;                     /* us: time of the recording */
};

/* Protected by service_lock. */
static uint64_t usual_target;        /* us; 0: the library limits no passes */
static uint64_t target;              /* us; usual_target, or BACKGROUND_TARGET_US */
static struct client *owner;         /* the client that is paced; NULL: no client is paced */
static struct marker markers[MARKERS];
static unsigned first, count;
static uint64_t done;                /* passes done */
static KEPT_IN_CHILD uint64_t limit = FIRST; /* most in flight, kept for the next turn */
static uint64_t extra;               /* passes allowed beyond `limit` since a marker completed */
static uint64_t latency;             /* us from recording to completion of the last marker */
static uint64_t marked_at, progress; /* us: time of the last recording; of the last completion */
/* For a background client. ns: the highest cost of a pass in this window, and in the previous
 * window. us: begin of this window, and last time at which the urgent client had work. */
static uint64_t highest_cost, highest_cost_before, highest_cost_since, contested;

/* The number of the pass whose thread records the next marker. */
static _Atomic uint64_t next_mark;
static _Atomic uint64_t last_collected;      /* us: last poll by a thread that spins */

static struct marker *oldest(void)
{
    return &markers[first];
}

static bool in_background(void)
{
    return target == BACKGROUND_TARGET_US;
}

static uint64_t least(void)
{
    return in_background() ? BACKGROUND_LEAST : LEAST;
}

static uint64_t clamped(uint64_t value, uint64_t from, uint64_t to)
{
    return value < from ? from : value > to ? to : value;
}

/* Ignores markers recorded while the urgent client had work, and fast markers of few passes. */
static void adapt_to_cost(const struct marker *marker, uint64_t now)
{
    bool few = marker->ahead < limit / 2 && latency < target / 2;
    if (marker->at <= contested || few)
        return;
    if (now - highest_cost_since >= COST_WINDOW_US) {
        highest_cost_before = now - highest_cost_since < 2 * COST_WINDOW_US ? highest_cost : 0;
        highest_cost = 0;
        highest_cost_since = now;
    }
    uint64_t cost = latency * 1000 / marker->ahead;
    if (cost > highest_cost)
        highest_cost = cost;
    uint64_t most = highest_cost > highest_cost_before ? highest_cost : highest_cost_before;
    limit = clamped(target * 1000 / (most > 0 ? most : 1), least(), MOST);
}

static void marker_completed(const struct marker *marker, uint64_t now)
{
    latency = now - marker->at;
    progress = now;
    done = marker->passes;
    extra = 0;
    if (marker->ahead == 0)
        return;                      /* the marker covers no new pass, so shows no cost */
    if (in_background()) {
        adapt_to_cost(marker, now);
        return;
    }
    uint64_t fitting = marker->ahead * target / (latency > 0 ? latency : 1);
    if (latency > target)
        limit = clamped(fitting, LEAST, limit);
    else if (latency < target / 2 && marker->ahead >= limit / 2 && fitting > limit)
        limit = fitting < 2 * limit ? fitting : 2 * limit < MOST ? 2 * limit : MOST;
}

static void collect_markers(uint64_t now)
{
    if (in_background() && inflight_urgent())
        contested = now;
    while (count > 0 && drain_step(&oldest()->drain)) {
        marker_completed(oldest(), now);
        first = (first + 1) % MARKERS;
        count--;
    }
}

static void record_marker(uint64_t passes, uint64_t now)
{
    if (count == MARKERS || capture_going_on())
        return;
    struct marker *marker = &markers[(first + count) % MARKERS];
    marker->passes = passes;
    marker->ahead = passes - done;
    marker->at = marked_at = now;
    drain_begin(&marker->drain);
    count++;
    uint64_t apart = (limit + MARKS_PER_LIMIT - 1) / MARKS_PER_LIMIT;
    atomic_store(&next_mark, owner->steps ? UINT64_MAX : passes + apart + 1);
    collect_markers(now);
}

static void set_goal(uint64_t now)
{
    uint64_t taken = atomic_load(&gate_taken), ahead = limit;
    if (count > 0 && now - oldest()->at > target)
        ahead = least();
    if (owner->steps)
        ahead = count == 0 && now - progress >= owner->step_pause ? 1 : 0;
    uint64_t goal = done + ahead + extra;
    uint64_t patience = clamped(latency * PATIENCE_PART, PATIENCE_LEAST_US, PATIENCE_MOST_US);
    if (goal <= taken && gate_has_waiters() && now - progress > patience) {
        extra += taken + LEAST - goal;
        goal = taken + LEAST;
        progress = now;
    }
    gate_allow(capture_going_on() ? UINT64_MAX : goal);
}

/* Records the marker due before pass `number`. `number` 0: the calling thread waits to pass. */
static void mark(uint64_t number, uint64_t now)
{
    bool rested = count == 0;
    collect_markers(now);
    uint64_t covered = number > 0 ? number - 1 : atomic_load(&gate_taken);
    bool due = number > 0 ? number >= atomic_load(&next_mark) : count == 0 && covered != done;
    if (due)
        record_marker(covered, now);
    set_goal(now);
    if (due && rested && in_background())
        client_wake(owner);          /* the owner's service thread polls rarely while idle */
}

/* As mark(), under service_lock; does nothing if another thread has locked it. Called by a thread
 * of the program, which may hold other locks. */
static void mark_locked(uint64_t number)
{
    DEFERRED;
    /* The lock's holder may be waiting for this thread to leave the gate. */
    bool locked = pthread_mutex_trylock(&service_lock) == 0;
    if (locked && owner != NULL) {
        RELAXED;
        mark(number, now_microseconds());
    }
    if (locked)
        pthread_mutex_unlock(&service_lock);
}

/* The gate's gate_on_taken hook. `number`: gate_taken, which includes this pass. */
static void pass_taken(uint64_t number)
{
    if (number >= atomic_load(&next_mark))
        mark_locked(number);
}

/* The gate's gate_on_paced hook. Pauses between polls let the service thread lock service_lock. */
static bool pass_waits(uint64_t *since)
{
    uint64_t now = now_microseconds();
    if (*since == 0)
        *since = now;
    if (now - *since >= SPIN_US || !inflight_is_watching())
        return false;
    if (now - atomic_load(&last_collected) >= SPIN_COLLECT_US) {
        atomic_store(&last_collected, now);
        mark_locked(0);
    }
    return true;
}

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void prepare(void)
{
    unsigned long milliseconds = setting_milliseconds("NVSHARE_DRAIN_TARGET_MS", DEFAULT_TARGET_MS,
                                                      TARGET_MOST_MS);
    usual_target = HAVE_REAL(cuCtxRecordEvent) ? milliseconds * 1000 : 0;
    /* Set before the gate is first closed by GATE_PACED: threads read both without a lock. */
    gate_on_taken = pass_taken;
    gate_on_paced = pass_waits;
}

static void begin(struct client *client, uint64_t now)
{
    owner = client;
    done = atomic_load(&gate_taken);
    extra = 0;
    progress = now;
    record_marker(done, now);                 /* covers the work submitted before pacing */
    set_goal(now);
    gate_close(GATE_PACED);
}

void pace_step(struct client *client)
{
    pthread_once(&once, prepare);
    if (usual_target == 0 || (owner != NULL && owner != client))
        return;
    target = inflight_is_watching() ? BACKGROUND_TARGET_US : usual_target;
    uint64_t now = now_microseconds();
    if (owner == NULL) {
        begin(client, now);
        return;
    }
    collect_markers(now);
    uint64_t taken = atomic_load(&gate_taken);
    uint64_t covered = count == 0 ? done : markers[(first + count - 1) % MARKERS].passes;
    if (taken != covered
        && (count == 0 || owner->steps || now - marked_at >= target / MARKS_PER_TARGET))
        record_marker(taken, now);
    set_goal(now);
}

void pace_let_through(struct client *client, uint64_t passes)
{
    pthread_once(&once, prepare);
    gate_close(GATE_PACED);
    uint64_t before = atomic_load(&gate_taken), began = now_microseconds();
    gate_allow(before + passes);
    gate_open(GATE_STOPPED(client));
    while (atomic_load(&gate_taken) < before + passes
           && now_microseconds() - began < LET_THROUGH_US)
        nanosleep(&(struct timespec){ .tv_nsec = 20000 }, NULL);
    gate_close(GATE_STOPPED(client));
    if (owner == NULL)
        gate_open(GATE_PACED);
}

void pace_end(const struct client *client)
{
    if (owner != client)
        return;
    gate_open(GATE_PACED);
    for (; count > 0; count--) {
        drain_abandon(&oldest()->drain);
        first = (first + 1) % MARKERS;
    }
    owner = NULL;
}

bool pace_pressing(const struct client *client)
{
    return owner == client && count > 0;
}

bool pace_stalled(const struct client *client)
{
    return pace_pressing(client) && now_microseconds() - oldest()->at > PATIENCE_MOST_US;
}

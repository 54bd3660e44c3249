/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds out whether a program has work in flight at all times, and tells the daemon (BUSY).
 * Programs that all do may take turns: nvshared/scheduler/busy.py. The daemon asks only while
 * several programs hold the card, or take such turns.
 *
 * The service thread looks every few milliseconds. A marker is an event behind all work submitted
 * before it. While it is not done, something is in flight; that costs one question to the driver.
 * When it is done, another is recorded. If that one is done within SOON_US, nothing was in flight.
 * So short gaps are met by chance, in proportion to the time that they take. If nobody has passed
 * the gate since a marker that is done, nothing has been in flight since the look that saw it.
 *
 * A gap counts as the time since the last look, or as long as looks usually lie apart, if that is
 * less: on a busy machine this thread may have been kept waiting. WINDOW_US with less than a
 * GAPS_PART of gaps make a program busy: one that synchronises and goes on within a moment is. More
 * than that, or nothing in flight for GAP_LONGEST_US, is said at once, and then it is left alone
 * for REST_US.
 *
 * Beside other programs a marker may have to wait for the card, and hide a gap of a millisecond or
 * two. In a turn of its own none is hidden.
 *
 * Only time in its turns counts, as the wait for a turn is no gap. What was told is forgotten with
 * each turn. Where nothing can be known the program counts as one with gaps: during a capture, if
 * its work did not end when it was to drain, and if it uses several GPUs, as its gate shuts them all.
 */
#include "flight/busyness.h"

#include "client/client.h"
#include "client/gate.h"
#include "flight/capture.h"

#define LOOK_US 5000
#define LOOKED_MOST_US 10000
#define SOON_US 50
#define WINDOW_US 1000000
#define GAPS_PART 16
#define GAP_LONGEST_US 10000
#define REST_US 1000000

static bool is_known(const struct client *client)
{
    return client_alone() && !capture_going_on() && client->undrained == 0
        && client->stays == NVSHARE_STAYS_NOT;
}

/* A marker behind all work that was submitted until now. */
static void mark(struct busyness *busy, uint64_t passes)
{
    uint64_t began = now_microseconds(), took;
    bool done;
    drain_begin(&busy->marker);
    busy->passes = passes;
    do {
        done = drain_step(&busy->marker);
        took = now_microseconds() - began;
    } while (!done && took < SOON_US);
    busy->state = !done ? MARKED : took < SOON_US ? MARK_DONE : UNMARKED;
}

/* Whether nothing is in flight, as far as it shows; and since when. */
static bool is_empty(const struct client *client, struct busyness *busy, uint64_t now)
{
    uint64_t passes = gate_passes();
    if (!is_known(client)) {
        busy->state = UNMARKED;
        busy->empty_since = now;
        return true;
    }
    if (gate_has_waiters())
        return false;                /* what keeps the card from having work is ours */
    if (busy->state == MARK_DONE && passes == busy->passes)
        return true;
    if (busy->state == MARKED && !drain_step(&busy->marker))
        return false;
    busy->empty_since = now;
    if (busy->state == MARKED && passes == busy->passes)
        busy->state = MARK_DONE;
    else
        mark(busy, passes);
    return busy->state == MARK_DONE;
}

static void tell(struct client *client, struct busyness *busy, bool gaps)
{
    bool known = busy->told == (gaps ? BUSY_GAPS : BUSY_ALWAYS);
    busy->told = gaps ? BUSY_GAPS : BUSY_ALWAYS;
    busy->open = busy->gaps = 0;
    if (known)
        return;
    LOCKED(memory_lock);
    client_send(client, (struct nvshare_report){
        .type = NVSHARE_BUSY, .flags = gaps ? NVSHARE_GAPS : 0,
    });
}

void busyness_look(struct client *client, struct busyness *busy)
{
    uint64_t now = now_microseconds();
    if (busy->turn != client->turns) {
        busyness_pause(busy);
        busy->turn = client->turns;
        busy->told = BUSY_UNKNOWN;
    }
    if (now < busy->rests_until)
        return;
    if (!busy->looks)
        busy->looked = now;
    busy->looks = true;
    bool empty = is_empty(client, busy, now);
    uint64_t passed = now - busy->looked;
    busy->looked = now;
    busy->open += passed;
    if (empty)
        busy->gaps += passed < LOOKED_MOST_US ? passed : LOOKED_MOST_US;
    bool long_gap = empty && now - busy->empty_since >= GAP_LONGEST_US;
    if (long_gap || busy->gaps > WINDOW_US / GAPS_PART) {
        tell(client, busy, true);
        busyness_pause(busy);
        busy->rests_until = now + REST_US;
    } else if (busy->open >= WINDOW_US) {
        tell(client, busy, false);
    }
}

void busyness_pause(struct busyness *busy)
{
    busy->rests_until = 0;
    drain_abandon(&busy->marker);
    busy->looks = false;
    busy->state = UNMARKED;
}

void busyness_forget(struct busyness *busy)
{
    busyness_pause(busy);
    *busy = (struct busyness){ .told = BUSY_UNKNOWN };
}

int busyness_due(const struct busyness *busy)
{
    if (!busy->looks && busy->rests_until == 0)
        return -1;
    uint64_t now = now_microseconds();
    uint64_t rest = busy->rests_until > now ? busy->rests_until - now : 0;
    return (int)((rest > LOOK_US ? rest : LOOK_US) / 1000);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reports when the program's own copies load the bus, so that the daemon's speculative moves leave
 * the bus to these copies. Each direction is reported separately (COPIES), while the daemon asks
 * for it; nvshared/scheduler/ahead.py says how the daemon uses the reports.
 *
 * Only copies of at least BUS_COPY_LEAST count. Smaller copies (parameters, scalars) end before the
 * daemon could stop a move. A larger copy costs a read of one word while the daemon does not ask.
 * While the daemon asks, it also costs a lock held for a few instructions, little beside the 20 us
 * that a MiB takes.
 *
 * Load begins when HEAVY bytes have been submitted within WINDOW_US, 3 to 6 % of what the bus could
 * carry. The service thread is woken and reports it. Load ends when nothing has been copied for
 * LINGER_US, which the service thread finds at its next step, a few milliseconds later. Load does
 * not begin again within SPACING_US, so there are at most 40 reports a second.
 *
 * A synchronous copy lasts as long as its call. For asynchronous copies only the submission time is
 * known, because the library records no events in the program's streams. The library assumes that
 * such copies begin at once, follow one another in each direction, and run at the speed of its own
 * fastest move. That is wrong
 *
 *   - if a copy waits in its stream for other work: its end is reported before it has begun. The
 *     pace (pace.c) bounds that to the drain target while other clients wait;
 *   - if a copy is slower than the library's moves (pageable memory, another node's memory,
 *     another program on the bus): its end is reported too early by the difference. Most copies
 *     of pageable memory keep the call until they are nearly done, which counts in full;
 *   - while no move has been measured: SPEED_FIRST, the speed of a slow bus, is assumed, and the
 *     end is reported too late.
 *
 * A prefetch counts as a copy of its whole range, although some pages may be there already.
 *
 * Not seen: copies in graphs, managed memory that migrates, batches of 3D copies (rare), and
 * kernels that access host memory. During a capture, copies in streams do not count.
 */
#include "flight/bus_sharing.h"

#include "flight/capture.h"
#include "gate/client.h"

#define HEAVY ((uint64_t)8 << 20)
#define WINDOW_US 5000
#define LINGER_US 5000
#define SPACING_US 25000
#define SPEED_FIRST 12000            /* bytes per us */
#define SPEED_MOST 1000000
#define MEASURED_LEAST ((uint64_t)64 << 20)

struct flow {
    unsigned inside;                 /* calls of the program that are copying now */
    uint64_t until;                  /* us: when the copies so far end, or are expected to */
    uint64_t window, bytes;          /* us: begin of the window; bytes submitted since */
    bool heavy;                      /* load has begun: HEAVY bytes in one window; not ended */
    bool reported;
    uint64_t reported_at;            /* us: last report that load has begun */
};

/* Protects the following variables; while it is held, no other lock is taken and nothing is
 * called. */
static pthread_mutex_t sharing_lock = PTHREAD_MUTEX_INITIALIZER;
static struct flow flows[CLIENTS_MAX][BUS_DIRECTIONS];
static unsigned periods[CLIENTS_MAX]; /* counts calls of bus_sharing_watch() */
static uint64_t speeds[BUS_DIRECTIONS] = { SPEED_FIRST, SPEED_FIRST };

_Atomic uint32_t bus_sharing_watched;

static bool is_watched(const struct client *client)
{
    return (atomic_load(&bus_sharing_watched) >> client->index & 1) != 0;
}

void bus_copy_begins(struct bus_copy *copy, enum bus_direction direction, uint64_t bytes,
                     bool waits)
{
    copy->client = NULL;
    struct client *client = direction == BUS_NONE ? NULL : client_current();
    if (client == NULL || !is_watched(client) || (!waits && capture_going_on()))
        return;
    uint64_t now = now_microseconds();
    UNCANCELLED;
    pthread_mutex_lock(&sharing_lock);
    struct flow *flow = &flows[client->index][direction];
    *copy = (struct bus_copy){ client, direction, periods[client->index] };
    /* Another thread may have begun the window after `now`. */
    if (now > flow->window && now - flow->window > WINDOW_US) {
        flow->window = now;
        flow->bytes = 0;
    }
    flow->bytes += bytes;
    flow->inside++;
    if (!waits)
        flow->until = (flow->until > now ? flow->until : now) + bytes / speeds[direction];
    bool begins = flow->bytes >= HEAVY && !flow->heavy;
    flow->heavy |= begins;
    pthread_mutex_unlock(&sharing_lock);
    if (begins)
        client_wake(client);
}

void bus_copy_ends(const struct bus_copy *copy)
{
    if (copy->client == NULL)
        return;
    uint64_t now = now_microseconds();
    LOCKED(sharing_lock);
    struct flow *flow = &flows[copy->client->index][copy->direction];
    if (copy->period == periods[copy->client->index]) {
        flow->inside--;
        if (flow->until < now)
            flow->until = now;
    }
}

void bus_sharing_watch(const struct client *client, bool watched)
{
    if (is_watched(client) == watched)
        return;
    pthread_mutex_lock(&sharing_lock);
    periods[client->index]++;
    for (int direction = 0; direction < BUS_DIRECTIONS; direction++)
        flows[client->index][direction] = (struct flow){ .inside = 0 };
    pthread_mutex_unlock(&sharing_lock);
    if (watched)
        atomic_fetch_or(&bus_sharing_watched, (uint32_t)1 << client->index);
    else
        atomic_fetch_and(&bus_sharing_watched, ~((uint32_t)1 << client->index));
}

/* True: the load has changed and is to be reported. */
static bool update_flow(struct flow *flow, uint64_t now)
{
    if (!flow->heavy)
        return false;
    bool over = flow->inside == 0 && now >= flow->until + LINGER_US;
    if (over) {
        bool was_reported = flow->reported;
        flow->heavy = flow->reported = false;
        flow->bytes = 0;
        return was_reported;
    }
    if (flow->reported || now - flow->reported_at < SPACING_US)
        return false;
    flow->reported = true;
    flow->reported_at = now;
    return true;
}

bool bus_sharing_step(struct client *client)
{
    if (!is_watched(client))
        return false;
    uint64_t now = now_microseconds();
    struct flow *flow = flows[client->index];
    pthread_mutex_lock(&sharing_lock);
    bool in = update_flow(&flow[BUS_IN], now), out = update_flow(&flow[BUS_OUT], now);
    unsigned flags = (flow[BUS_IN].reported ? NVSHARE_INWARD : 0)
                     | (flow[BUS_OUT].reported ? NVSHARE_OUTWARD : 0);
    pthread_mutex_unlock(&sharing_lock);
    if (in || out) {
        LOCKED(memory_lock);
        client_send(client, (struct nvshare_report){ .type = NVSHARE_COPIES, .flags = flags });
    }
    return true;
}

void bus_sharing_measured(enum bus_direction direction, uint64_t bytes, uint64_t microseconds)
{
    if (bytes < MEASURED_LEAST || microseconds == 0)
        return;
    uint64_t speed = bytes / microseconds;
    LOCKED(sharing_lock);
    if (speed > speeds[direction] && speed <= SPEED_MOST)
        speeds[direction] = speed;
}

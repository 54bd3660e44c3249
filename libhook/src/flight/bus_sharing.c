/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reports when the program's own copies load the bus in a direction (COPIES), so that the daemon's
 * speculative moves leave the bus to them (nvshared/scheduler/ahead.py). Load begins when HEAVY
 * bytes have been submitted within WINDOW_US, 3 to 6 % of what the bus could carry, and ends when
 * nothing has been copied for LINGER_US.
 *
 * Asynchronous copies are assumed to begin when they are submitted and to run at the speed of the
 * library's own fastest move: the end of a slower copy is reported too early. A prefetch of
 * resident memory copies nothing, so at most BACKLOG_MOST_US of earlier copies are assumed to be
 * left. The library does not see copies in graphs or captures, batches of 3D copies, and accesses
 * of kernels to host memory.
 */
#include "flight/bus_sharing.h"

#include "driver/forked.h"
#include "flight/capture.h"
#include "gate/client.h"

#define HEAVY ((uint64_t)8 << 20)
#define WINDOW_US 5000
#define LINGER_US 5000
#define STEP_US 5000
#define SPACING_US 25000             /* at most 40 reports a second */
#define BACKLOG_MOST_US 2000000
#define SPEED_FIRST 12000            /* bytes per us, until a move was measured */
#define SPEED_MOST 1000000
#define MEASURED_LEAST ((uint64_t)64 << 20)

struct flow {
    unsigned inside;                 /* number of the program's calls that are copying now */
    uint64_t until;                  /* us: when all copies so far end, by their expected speed */
    uint64_t window, bytes;          /* us: begin of the window; bytes submitted from then on */
    bool heavy;                      /* load has begun (HEAVY bytes in a window) and not ended */
    bool reported;                   /* the last COPIES says that load is in progress */
    uint64_t reported_at;            /* us: last report that load has begun */
};

/* Protects the following variables. While locked, no other lock is taken. */
static MUTEX(sharing_lock);
static struct flow flows[CLIENTS_MAX][BUS_DIRECTIONS];
static KEPT_IN_CHILD uint64_t speeds[BUS_DIRECTIONS] = { SPEED_FIRST, SPEED_FIRST };

_Atomic uint32_t bus_sharing_watched;

static bool is_watched(const struct client *client)
{
    return (atomic_load(&bus_sharing_watched) >> client->index & 1) != 0;
}

/* The copy that this thread makes. It may leave the call by a jump. */
static __thread struct {
    struct flow *flow;
    uintptr_t frame;                 /* deeper than that of the call */
} copying __attribute__((tls_model("initial-exec")));

static void leave_copy(uintptr_t stack)
{
    if (copying.flow != NULL && copying.frame < stack && !leave_is_forked())
        bus_copy_ends(copying.flow);
}

struct flow *bus_copy_begins(enum bus_direction direction, uint64_t bytes, bool waits)
{
    struct client *client = direction == BUS_NONE ? NULL : client_current();
    if (client == NULL || !is_watched(client) || (!waits && capture_going_on()))
        return NULL;
    uint64_t now = now_microseconds();
    mutex_lock(&sharing_lock);
    struct flow *flow = &flows[client->index][direction];
    /* Another thread may have begun the window after `now`. */
    if (now > flow->window && now - flow->window > WINDOW_US) {
        flow->window = now;
        flow->bytes = 0;
    }
    flow->bytes += bytes;
    flow->inside++;
    uint64_t left = flow->until > now ? flow->until - now : 0;
    uint64_t until = now + bytes / speeds[direction]
                     + (left < BACKLOG_MOST_US ? left : BACKLOG_MOST_US);
    if (!waits && until > flow->until)
        flow->until = until;
    bool begins = flow->bytes >= HEAVY && !flow->heavy;
    flow->heavy |= begins;
    copying.frame = (uintptr_t)__builtin_frame_address(0);
    copying.flow = flow;
    leave_calls(leave_copy);
    mutex_unlock(&sharing_lock);
    if (begins)
        client_wake(client);
    return flow;
}

void bus_copy_ends(struct flow *flow)
{
    uint64_t now = now_microseconds();
    LOCKED(sharing_lock);
    copying.flow = NULL;
    if (flow->inside > 0)            /* 0: bus_sharing_watch() has forgotten the copy */
        flow->inside--;
    if (flow->until < now)
        flow->until = now;
}

void bus_sharing_watch(const struct client *client, bool watched)
{
    if (is_watched(client) == watched)
        return;
    mutex_lock(&sharing_lock);
    for (int direction = 0; direction < BUS_DIRECTIONS; direction++)
        flows[client->index][direction] = (struct flow){ .inside = 0 };
    mutex_unlock(&sharing_lock);
    if (watched)
        atomic_fetch_or(&bus_sharing_watched, (uint32_t)1 << client->index);
    else
        atomic_fetch_and(&bus_sharing_watched, ~((uint32_t)1 << client->index));
}

/* Updates `heavy` and `reported`. True: the caller must send COPIES. */
static bool update_flow(struct flow *flow, uint64_t now)
{
    bool reported = flow->reported;
    if (flow->heavy && flow->inside == 0 && now >= flow->until + LINGER_US) {
        flow->heavy = flow->reported = false;
        flow->bytes = 0;
    } else if (flow->heavy && !reported && now - flow->reported_at >= SPACING_US) {
        flow->reported = true;
        flow->reported_at = now;
    }
    return flow->reported != reported;
}

int64_t bus_sharing_step(struct client *client)
{
    if (!is_watched(client))
        return NEVER;
    uint64_t now = now_microseconds();
    struct flow *flow = flows[client->index];
    mutex_lock(&sharing_lock);
    bool in = update_flow(&flow[BUS_IN], now), out = update_flow(&flow[BUS_OUT], now);
    unsigned flags = (flow[BUS_IN].reported ? NVSHARE_INWARD : 0)
                     | (flow[BUS_OUT].reported ? NVSHARE_OUTWARD : 0);
    mutex_unlock(&sharing_lock);
    if (in || out) {
        LOCKED(memory_lock);
        client_send(client, (struct nvshare_report){ .type = NVSHARE_COPIES, .flags = flags });
    }
    return STEP_US;
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

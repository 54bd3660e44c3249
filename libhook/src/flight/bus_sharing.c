/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reports when the program's own copies load the bus, so that the daemon's moves ahead of time
 * leave it to them. Each direction is reported by itself (COPIES), while the daemon asks for
 * it; nvshared/scheduler/ahead.py says what follows.
 *
 * Only copies of BUS_COPY_LEAST and more count. Smaller ones, parameters and scalars, are over
 * before any move could stop. A larger copy costs a look at one word while nobody asks. While
 * somebody does it costs a lock of our own, held for a few instructions; that is nothing next to
 * the 20 us that a MiB takes.
 *
 * Load begins when HEAVY bytes have been submitted within WINDOW_US, 3 to 6 % of what the bus
 * could carry meanwhile. The service thread is woken and reports it. Load ends when nothing has
 * been copied for LINGER_US, which the service thread sees at its next look, a few milliseconds
 * later. It does not begin again within SPACING_US, so there are 40 reports a second at most.
 *
 * A copy for which the program waits lasts as long as the call. For asynchronous copies we know
 * only the submission time, as we put no events of ours into the program's streams. We assume
 * that they begin at once, follow each other in each direction, and go at the speed of the
 * fastest of our own moves. That is wrong
 *
 *   - if a copy waits in its stream for other work: we report its end before it has begun. The
 *     pace (pace.c) bounds that to the drain target while others wait;
 *   - if a copy is slower than our moves (pageable memory, another node's, another program on
 *     the bus): we report its end too early by as much. Most copies of pageable memory keep the
 *     call until they are nearly done, which counts in full;
 *   - while no move has been measured: we assume SPEED_FIRST, a slow bus's, and report the end
 *     too late.
 *
 * A prefetch counts as a copy of all that it names, although some of that may be there already.
 *
 * We do not see copies in graphs, of managed memory that migrates, of batches of 3D copies (which
 * hardly any program makes), and of kernels that access host memory. While anything is being
 * captured, copies in streams do not count.
 */
#include "flight/bus_sharing.h"

#include "flight/capture.h"
#include "gate/client.h"

#define HEAVY ((uint64_t)8 << 20)
#define WINDOW_US 5000
#define LINGER_US 5000
#define SPACING_US 25000
#define SPEED_FIRST 12000            /* bytes in a us */
#define SPEED_MOST 1000000
#define MEASURED_LEAST ((uint64_t)64 << 20)

struct flow {
    unsigned inside;                 /* calls under way */
    uint64_t until;                  /* when the bytes of those that returned have been copied */
    uint64_t window, bytes;          /* when it began, and what came since */
    bool heavy;                      /* not only now and then, since it last was quiet */
    bool reported;
    uint64_t reported_at;             /* that it began */
};

/* Protects all that follows; nothing is locked or called by its holder. */
static pthread_mutex_t sharing_lock = PTHREAD_MUTEX_INITIALIZER;
static struct flow flows[CLIENTS_MAX][BUS_WAYS];
static unsigned periods[CLIENTS_MAX]; /* counts calls of bus_sharing_watch() */
static uint64_t speeds[BUS_WAYS] = { SPEED_FIRST, SPEED_FIRST };

_Atomic uint32_t bus_sharing_watched;

static bool is_watched(const struct client *client)
{
    return (atomic_load(&bus_sharing_watched) >> client->index & 1) != 0;
}

void bus_copy_begins(struct bus_copy *copy, enum bus_way way, uint64_t bytes, bool waits)
{
    copy->client = NULL;
    struct client *client = way == BUS_NONE ? NULL : client_current();
    if (client == NULL || !is_watched(client) || (!waits && capture_going_on()))
        return;
    uint64_t now = now_microseconds();
    UNCANCELLED;
    pthread_mutex_lock(&sharing_lock);
    struct flow *flow = &flows[client->index][way];
    *copy = (struct bus_copy){ client, way, periods[client->index] };
    if (now - flow->window > WINDOW_US) {
        flow->window = now;
        flow->bytes = 0;
    }
    flow->bytes += bytes;
    flow->inside++;
    if (!waits)
        flow->until = (flow->until > now ? flow->until : now) + bytes / speeds[way];
    bool news = flow->bytes >= HEAVY && !flow->heavy;
    flow->heavy |= news;
    pthread_mutex_unlock(&sharing_lock);
    if (news)
        client_wake(client);
}

void bus_copy_ends(const struct bus_copy *copy)
{
    if (copy->client == NULL)
        return;
    uint64_t now = now_microseconds();
    LOCKED(sharing_lock);
    struct flow *flow = &flows[copy->client->index][copy->way];
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
    for (int way = 0; way < BUS_WAYS; way++)
        flows[client->index][way] = (struct flow){ .inside = 0 };
    pthread_mutex_unlock(&sharing_lock);
    if (watched)
        atomic_fetch_or(&bus_sharing_watched, (uint32_t)1 << client->index);
    else
        atomic_fetch_and(&bus_sharing_watched, ~((uint32_t)1 << client->index));
}

/* True: that is news. */
static bool look(struct flow *flow, uint64_t now)
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
    bool in = look(&flow[BUS_IN], now), out = look(&flow[BUS_OUT], now);
    unsigned flags = (flow[BUS_IN].reported ? NVSHARE_INWARD : 0)
                     | (flow[BUS_OUT].reported ? NVSHARE_OUTWARD : 0);
    pthread_mutex_unlock(&sharing_lock);
    if (in || out) {
        LOCKED(memory_lock);
        client_send(client, (struct nvshare_report){ .type = NVSHARE_COPIES, .flags = flags });
    }
    return true;
}

void bus_sharing_measured(enum bus_way way, uint64_t bytes, uint64_t microseconds)
{
    if (bytes < MEASURED_LEAST || microseconds == 0)
        return;
    uint64_t speed = bytes / microseconds;
    LOCKED(sharing_lock);
    if (speed > speeds[way] && speed <= SPEED_MOST)
        speeds[way] = speed;
}

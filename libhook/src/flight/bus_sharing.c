/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When the program's own copies load the bus.
 *
 * What the daemon has moved ahead of time shares the bus with them, and shall
 * not: so a client that runs while others wait says when they begin and when they
 * have ended (COPIES), each direction by itself; nvshared/scheduler/bus_sharing.py
 * has what follows. Only copies of BUS_COPY_LEAST and more are looked at: what is
 * smaller, parameters and scalars, is over before anybody could give way. The rest
 * cost a look at one word while nobody asks, and a lock of our own, held for a few
 * instructions, while somebody does; that is nothing next to the 20 us that a MiB takes.
 *
 * It begins when HEAVY bytes have been submitted within WINDOW_US, 3 to 6 % of what the
 * bus could carry meanwhile. The service thread is woken for it and tells. It is over
 * when nothing has been copied for LINGER_US, which the service thread sees at its
 * next look; while others wait it looks every few milliseconds anyway. It
 * does not begin again within SPACING_US, so 40 times a second at most.
 *
 * A copy for which the program waits is under way as long as the call is. Of others
 * is known only when they were submitted. No event of ours is put into the
 * program's streams for that; they are taken to be carried out at once, one after
 * the other in each direction, at the speed at which the fastest of our own moves went.
 * That errs
 *
 *   - where a copy waits in its stream for other work: we say that it is over before it
 *     has begun. The pace (pace.c) bounds that to the drain target while others wait;
 *   - where it is slower than the bus (pageable memory, another node's, another
 *     program on the bus): as much too early as it takes longer. Most copies of pageable
 *     memory keep the call until they are all but done, which counts in full;
 *   - while no move has been measured, speed is taken to be SPEED_FIRST, which is a slow
 *     bus's: then we say too late that it is over.
 *
 * A prefetch counts as a copy of all that it names, although some of that may be there
 * already.
 *
 * Not seen are the copies in graphs, of managed memory that migrates, of batches of 3D
 * copies, which hardly any program makes, and of kernels that reach for the host's memory.
 * While anything is being captured, copies in streams are not counted.
 */
#include "flight/bus_sharing.h"

#include <pthread.h>

#include "client/client.h"
#include "flight/capture.h"

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
    bool told;
    uint64_t told_at;                /* that it began */
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
    int cancel;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
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
    pthread_setcancelstate(cancel, NULL);
}

void bus_copy_ends(const struct bus_copy *copy)
{
    if (copy->client == NULL)
        return;
    uint64_t now = now_microseconds();
    pthread_mutex_lock(&sharing_lock);
    struct flow *flow = &flows[copy->client->index][copy->way];
    if (copy->period == periods[copy->client->index]) {
        flow->inside--;
        if (flow->until < now)
            flow->until = now;
    }
    pthread_mutex_unlock(&sharing_lock);
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
        bool was_told = flow->told;
        flow->heavy = flow->told = false;
        flow->bytes = 0;
        return was_told;
    }
    if (flow->told || now - flow->told_at < SPACING_US)
        return false;
    flow->told = true;
    flow->told_at = now;
    return true;
}

void bus_sharing_step(struct client *client)
{
    if (!is_watched(client))
        return;
    uint64_t now = now_microseconds();
    struct flow *flow = flows[client->index];
    pthread_mutex_lock(&sharing_lock);
    bool in = look(&flow[BUS_IN], now), out = look(&flow[BUS_OUT], now);
    unsigned flags = (flow[BUS_IN].told ? NVSHARE_INWARD : 0)
                     | (flow[BUS_OUT].told ? NVSHARE_OUTWARD : 0);
    pthread_mutex_unlock(&sharing_lock);
    if (!in && !out)
        return;
    pthread_mutex_lock(&memory_lock);
    client_send(client, (struct nvshare_report){ .type = NVSHARE_COPIES, .flags = flags });
    pthread_mutex_unlock(&memory_lock);
}

void bus_sharing_measured(enum bus_way way, uint64_t bytes, uint64_t microseconds)
{
    if (bytes < MEASURED_LEAST || microseconds == 0)
        return;
    uint64_t speed = bytes / microseconds;
    pthread_mutex_lock(&sharing_lock);
    if (speed > speeds[way] && speed <= SPEED_MOST)
        speeds[way] = speed;
    pthread_mutex_unlock(&sharing_lock);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's orders, each carried out as it says and answered. Nothing is
 * decided here.
 */
#include "daemon/orders.h"

#include "block/in.h"
#include "block/out.h"
#include "block/pipeline.h"
#include "daemon/caches.h"
#include "daemon/service.h"
#include "daemon/waiting.h"
#include "driver/bell.h"
#include "driver/log.h"
#include "flight/bus_sharing.h"
#include "flight/drain.h"
#include "flight/pace.h"
#include "gate/client.h"
#include "gate/commit.h"
#include "gate/gate.h"
#include "gate/stay.h"
#include "gate/telling.h"
#include "pool/driver_pools.h"
#include "pool/graph_memory.h"
#include "pool/pool.h"
#include "tier/host_threads.h"

#define DRAIN_PATIENCE_MOST_US 8000000
#define DRAIN_TRIES 4
#define PARTS_PATIENCE_US 100000

/* From here on its memory may change. */
static void begin_turn(struct client *client)
{
    client->granted = true;
    client->turns++;
}

static void run(struct client *client, const struct nvshare_order *order)
{
    /* Before its gate opens: the program might be far ahead by the time that this thread looks. */
    client->steps = (order->flags & NVSHARE_STEP) != 0;
    client->step_pause = order->quantum;
    if ((order->flags & NVSHARE_PACE) != 0 && (client->undrained == 0 || client->steps))
        pace_step(client);
    LOCKED(memory_lock);
    client->paced = (order->flags & NVSHARE_PACE) != 0;
    client->reports_busy = (order->flags & NVSHARE_REPORT_BUSY) != 0;
    client->squeezed = client->paced && !client->reports_busy;
    client->reports_idle = (order->flags & NVSHARE_REPORT_IDLE) != 0;
    bus_sharing_watch(client, (order->flags & NVSHARE_REPORT_COPIES) != 0);
    if (order->idle_window != 0)
        client->idle_window = order->idle_window;
    if (!client->granted) {
        begin_turn(client);
        client->opened = now_microseconds();
        client->idled = 0;
        client->drained = false;
        client->want_sent = false;
        gate_open(GATE_STOPPED(client));
    }
    client_update(client);
}

/* What is in flight may wait for what a thread is about to submit to another GPU: a part of a
 * collective operation. Where this process has several, as many passes as there may be parts are
 * let through, and later again. */
static enum drained drain_parts(struct client *client, uint64_t patience)
{
    struct drain_terms terms = {
        .patience = PARTS_PATIENCE_US, .outlasts = true, .rest = service_rest, .argument = client,
    };
    uint64_t began = now_microseconds();
    for (; !client_alone(); terms.patience *= 2) {
        enum drained drained = drain_all(&terms);
        if (drained != UNDRAINED || now_microseconds() - began > patience)
            return drained;
        pace_let_through(client, clients_count());
    }
    terms.patience = patience;
    return drain_all(&terms);
}

/* Each time longer than before, as the work may only take long. After a few times in vain the
 * program is not held up for it any more. */
static bool drain(struct client *client)
{
    uint64_t patience = (uint64_t)DRAIN_PATIENCE_US << client->undrained;
    if (patience > DRAIN_PATIENCE_MOST_US)
        patience = DRAIN_PATIENCE_MOST_US;
    enum drained drained = drain_parts(client, patience);
    if (drained == DRAINED)
        client->undrained = 0;
    else if (drained == UNDRAINED && ++client->undrained == DRAIN_TRIES)
        client_stay(client, NVSHARE_STAYS_UNDRAINED);
    return drained == DRAINED;
}

static void stop(struct client *client)
{
    uint64_t began = now_microseconds();
    pthread_mutex_lock(&memory_lock);
    client->stopping = true;
    client->granted = false;
    client->lack_reported = false;
    bool stays = client->stays != NVSHARE_STAYS_NOT;
    bus_sharing_watch(client, false);
    pthread_mutex_unlock(&memory_lock);
    gate_close(GATE_STOPPED(client));
    /* Where nothing leaves, nobody waits for what is in flight. */
    bool drained = !stays && drain(client);
    uint64_t took = now_microseconds() - began;
    /* A drain is when the driver's pools let go of what the program has freed. */
    if (drained && swap_enter_context(client)) {
        pools_recount();
        graph_memory_trim(client->device);
    }

    LOCKED(memory_lock);
    client->stopping = false;
    reclaim(client, RECLAIM_ALL, 0); /* before the daemon reads how much is to leave */
    if (drained || client->stays != NVSHARE_STAYS_NOT) {
        client->drained = drained;
        caches_turn_ended(client);
        client->want_sent = gate_has_waiters();
        client_send(client, (struct nvshare_report){
            .type = NVSHARE_STOPPED, .flags = client->want_sent ? NVSHARE_WANTS : 0,
            .used = drained ? began + took - client->opened - client->idled : 0, .took = took,
        });
    } else {
        begin_turn(client);
        gate_open(GATE_STOPPED(client));
        client_send(client, (struct nvshare_report){ .type = NVSHARE_REOPENED });
    }
    client_update(client);
}

/* Before memory is copied out, what is cheaper to give. */
static void yield_spare_memory(struct client *client, const struct nvshare_order *order)
{
    LOCKED(memory_lock);
    reclaim(client, RECLAIM_ALL, 0);
    if (!client->granted) {
        caches_room_ordered(client, order->room);
        pools_yield(client);
    }
}

static void evict(struct client *client, const struct nvshare_order *order)
{
    uint64_t began = now_microseconds(), moved;
    bool keeps = (order->flags & NVSHARE_KEEP) != 0;
    unsigned flags = 0;
    if (keeps) {
        moved = swap_presave(client, order, &flags);
    } else {
        yield_spare_memory(client, order);
        moved = swap_out(client, order, &flags);
    }
    LOCKED(memory_lock);
    client->lack_reported &= keeps;
    client_send(client, (struct nvshare_report){
        .type = NVSHARE_MOVED, .flags = flags, .number = order->number,
        .moved = moved, .took = now_microseconds() - began,
    });
    client_update(client);
}

static void new_limits(struct client *client, const struct nvshare_order *order)
{
    LOCKED(memory_lock);
    client->limits = order->limits;
    if (!client_may_keep_freed(client))
        reclaim(client, RECLAIM_ALL, 0);
    /* An answer to a question that nobody asked must not pass for the next ones'. */
    if (order->number > client->answered && order->number <= client->question)
        client_hears(client, order->number, &order->limits);
    bell_ring(&client->heard);
}

void service_obey(struct client *client, const struct nvshare_order *order, int descriptor)
{
    pthread_mutex_lock(&memory_lock);
    if (order->type == NVSHARE_PROVIDE)
        host_preallocate(client, order->host);
    else if (order->type == NVSHARE_EVICT || order->type == NVSHARE_LOAD)
        host_preallocated(client, order->host);
    pthread_mutex_unlock(&memory_lock);
    switch (order->type) {
    case NVSHARE_LIMITS:
        new_limits(client, order);
        break;
    case NVSHARE_REASON:
        pthread_mutex_lock(&memory_lock);
        client_hears_reason(client, order->text, sizeof order->text);
        pthread_mutex_unlock(&memory_lock);
        break;
    case NVSHARE_RUN:
        run(client, order);
        break;
    case NVSHARE_STOP:
        stop(client);
        break;
    case NVSHARE_EVICT:
        evict(client, order);
        break;
    case NVSHARE_LOAD:
        swap_in(client, order);
        break;
    case NVSHARE_PROVIDE:
        break;                       /* above */
    case NVSHARE_YIELD:
        break;                       /* what it would have ended is answered already */
    case NVSHARE_QUEUED:
        waiting_for(client, order);
        break;
    case NVSHARE_TELL:
        telling_keep(client, descriptor);
        break;
    case NVSHARE_HEED:
        telling_heed(client, order->number, descriptor);
        break;
    case NVSHARE_INTRODUCE:
        telling_forget(client);
        pthread_mutex_lock(&memory_lock);
        service_introduce(client, order->number);
        pthread_mutex_unlock(&memory_lock);
        break;
    case NVSHARE_REFUSED:
        /* Too late to run unshared: our memory may lie on the host. */
        debug("nvshared refuses this client (reason %u); trying again", order->refusal);
        service_disconnect(client);
        break;
    default:
        complain("nvshared sent a record of unknown type %u; leaving it", order->type);
        service_disconnect(client);
    }
}

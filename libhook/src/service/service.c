/* SPDX-License-Identifier: Apache-2.0 */
/* The service thread of a client carries out the daemon's orders one after the other and answers
 * them. Without a daemon it tries to connect ten times a second; a client keeps its turn
 * meanwhile, or goes on waiting. */
#include "service/service.h"

#include <sys/prctl.h>

#include "block/store.h"
#include "block/swap.h"
#include "driver/bell.h"
#include "driver/log.h"
#include "driver/own_file.h"
#include "driver/own_thread.h"
#include "flight/activity.h"
#include "flight/bus_sharing.h"
#include "flight/capture.h"
#include "flight/drain.h"
#include "flight/pace.h"
#include "gate/client.h"
#include "gate/gate.h"
#include "gate/inflight.h"
#include "memory/allocation.h"
#include "pool/driver_pools.h"
#include "pool/pool.h"
#include "service/caches.h"
#include "service/park.h"
#include "service/waiting.h"
#include "tier/tier.h"

#define REPORT_INTERVAL_US 5000
#define SAMPLE_US 5000
#define RELEASE_SAMPLE_US 200            /* after nvshare_release(), until no work is in flight */
#define IDLE_SAMPLES 100                 /* samples in the shortest pause that is reported */
/* A window that is at least this long only tells whether the program is to be billed. A shorter one,
 * while other clients wait, is what a hand-over costs. */
#define LONG_WINDOW_US 1000000
#define LONG_SAMPLES 16
#define PACE_US 2000
#define BACKGROUND_US 50
#define TIMER_SLACK_NS 1000              /* Linux's default of 50000 ns is too coarse */
#define RECONNECT_FIRST_US 20000
#define RECONNECT_US 100000
#define COMPLAIN_AFTER_US 5000000        /* longer than a restart of the daemon takes */
#define DRAIN_PATIENCE_MOST_US 8000000
#define DRAIN_TRIES 4
#define PARTS_PATIENCE_US 100000
#define CALLBACK_PATIENCE_US 20000
#define TRIM_INTERVAL_US 100000

/* Indexed by client->index; used by the client's service thread only. */
static struct service {
    struct activity activity;
    bool connected;                  /* a daemon was connected at the last keep_connection() */
    bool received;                   /* an order has arrived on this connection */
    bool complained;                 /* a message on stderr says that no order has arrived */
    bool idle_reported;
    bool idle_asked;                 /* report again whether the program is idle: the window changed */
    /* us: next attempt to connect; when `received` was last true; next report (0: none); next
     * attempt to release host memory */
    uint64_t retry_at, received_at, report_at, trim_at;
} services[CLIENTS_MAX];

/* Called when the connection has ended, and after a record that cannot be obeyed. */
static void disconnect(struct client *client)
{
    LOCKED(memory_lock);
    own_file_close(client->socket);
    client->socket = -1;
    reclaim(client, RECLAIM_ALL, 0);
    client->postponed_count = 0;
    tiers_order(client, NULL);
    bus_sharing_watch(client, false);
    bell_ring(&client->commit_bell);
}

/* Sends HELLO, as the answer to INTRODUCE `number` (0: unasked). memory_lock is held. */
static void introduce(struct client *client, uint64_t number)
{
    client->want_sent = gate_has_waiters();
    client->starved_reported = false;
    client_void_commits(client);
    tiers_order(client, NULL);
    swap_report_again(client);
    store_forget_order(client);
    client->reports_idle = client->reports_busy = false;    /* until a RUN requests them */
    bus_sharing_watch(client, false);
    client_send(client, (struct nvshare_report){
        .type = NVSHARE_HELLO, .number = number, .commit = client->limits.commit,
        .flags = (client->running ? NVSHARE_RUNNING : 0) | (client->want_sent ? NVSHARE_WANTS : 0),
    });
    client_update(client);
}

int nvshare_release(void)
{
    int count = 0;
    activity_release();
    if (client_none())
        return 0;
    EACH_CLIENT(client) {
        client_wake(client);
        count++;
    }
    return count;
}

/* Orders that are carried out even during a drain: they move no memory, and a thread may wait for
 * their effect while the work being drained waits for that thread. */
static bool overtakes_drain(const struct nvshare_order *order)
{
    switch (order->type) {
    case NVSHARE_LIMITS:
    case NVSHARE_REASON:
    case NVSHARE_QUEUED:
    case NVSHARE_PUBLISH:
    case NVSHARE_WATCH:
    case NVSHARE_STORE:              /* if postponed, STORE would lose its descriptor */
        return true;
    default:
        return false;
    }
}

/* During a drain, returns borrowed memory beyond an EVICT's loan, as far as no copy is needed:
 * clients of the lending GPU may wait for that memory. */
static void return_copies(struct client *client, const struct nvshare_order *order)
{
    if (order->type != NVSHARE_EVICT || (order->flags & NVSHARE_KEEP) != 0)
        return;
    LOCKED(memory_lock);
    const struct tier_use *lent = tier_use(client, tier_lent());
    uint64_t before = lent->bytes;
    swap_forget_borrowed(client, order);
    if (lent->bytes < before)
        client_send(client, (struct nvshare_report){ .type = NVSHARE_MEMORY });
}

static void carry_out(struct client *client, const struct nvshare_order *order, int descriptor);

/* Waits for the next order, at most `timeout_us`, and carries it out. `drains`: a drain goes on, so
 * orders are postponed unless overtakes_drain(). */
static void await_order(struct client *client, int64_t timeout_us, bool drains)
{
    struct nvshare_order order;
    int connection = -1, descriptor = -1, got = 0;
    bool postponed = !drains && client_next_postponed(client, &order);
    if (drains && client->postponed_count == POSTPONED_MOST)
        usleep((useconds_t)timeout_us);
    else if (!postponed)
        connection = client_wait(client, timeout_us);
    if (connection >= 0)
        got = connection_receive(connection, &order, &descriptor, 0);
    services[client->index].received |= got == 1;
    if (postponed || got == 1) {
        LOCKED(service_lock);
        if (!drains || overtakes_drain(&order)) {
            carry_out(client, &order, own_file_descriptor(descriptor));
        } else {
            return_copies(client, &order);
            client_postpone(client, &order);
        }
    } else if (got < 0) {
        disconnect(client);
    }
    own_file_close(descriptor);
}

/* The function `rest` of drain_terms: carries out orders between two polls of a drain. */
static void await_order_in_drain(void *client, uint64_t us)
{
    pthread_mutex_unlock(&service_lock);
    await_order(client, (int64_t)us, true);
    pthread_mutex_lock(&service_lock);
}

/* Called before the gate opens: from then on the program may write to its memory. */
static void begin_turn(struct client *client)
{
    client->running = true;
    client->turns++;
    activity_begin_turn();
}

static void run(struct client *client, const struct nvshare_order *order)
{
    /* Set before the gate opens: the program may submit much work before this thread goes on. */
    client->step_pause = order->step_pause;
    client->steps = (order->flags & NVSHARE_STEP) != 0;
    if ((order->flags & NVSHARE_PACE) != 0 && (client->undrained == 0 || client->steps))
        pace_step(client);
    LOCKED(memory_lock);
    client->paced = (order->flags & NVSHARE_PACE) != 0;
    client->reports_busy = (order->flags & NVSHARE_REPORT_BUSY) != 0;
    client->squeezed = client->paced && !client->reports_busy;
    client->reports_idle = (order->flags & NVSHARE_REPORT_IDLE) != 0;
    bus_sharing_watch(client, (order->flags & NVSHARE_REPORT_COPIES) != 0);
    if (order->idle_window != 0 && order->idle_window != client->idle_window) {
        client->idle_window = order->idle_window;
        services[client->index].idle_asked = services[client->index].idle_reported;
    }
    if (!client->running) {
        begin_turn(client);
        client->opened = now_microseconds();
        client->idled = 0;
        client->drained = false;
        client->want_sent = false;
        gate_open(GATE_STOPPED(client));
    }
    client_update(client);
}

/* Work in flight may be a part of a collective operation and wait for a part that a thread at the
 * gate is about to submit to another GPU. It may also be a host function that waits for a lock, such
 * as Python's, of a thread at the gate. After each failed drain of a process with N clients, and
 * while a host function runs, the closed gate therefore lets N launches through. */
static enum drained drain_parts(struct client *client, uint64_t patience)
{
    struct drain_terms terms = {
        .patience = clients_count() == 1 ? patience : PARTS_PATIENCE_US,
        .callback_patience = CALLBACK_PATIENCE_US, .outlasts = true,
        .rest = await_order_in_drain, .argument = client,
    };
    uint64_t began = now_microseconds();
    for (;;) {
        enum drained drained = drain_all(&terms);
        if (drained != UNDRAINED || now_microseconds() - began > patience)
            return drained;
        pace_let_through(client, clients_count());
        terms.callback_patience *= 2;
        if (terms.patience < patience)
            terms.patience *= 2;
    }
}

/* The patience doubles after each STOP with a failed drain, as the work may just take long.
 * After DRAIN_TRIES failures the client becomes pinned. */
static bool drain(struct client *client)
{
    uint64_t patience = (uint64_t)DRAIN_PATIENCE_US << client->undrained;
    if (patience > DRAIN_PATIENCE_MOST_US)
        patience = DRAIN_PATIENCE_MOST_US;
    enum drained drained = drain_parts(client, patience);
    if (drained == DRAINED)
        client->undrained = 0;
    else if (drained == UNDRAINED && ++client->undrained == DRAIN_TRIES)
        client_pin(client, NVSHARE_PIN_UNDRAINED);
    return drained == DRAINED;
}

static void stop(struct client *client)
{
    uint64_t began = now_microseconds();
    pthread_mutex_lock(&memory_lock);
    client->stopping = true;
    client->running = false;
    client->starved_reported = false;
    bool pinned = client->pin_reason != NVSHARE_PIN_NONE;
    bus_sharing_watch(client, false);
    pthread_mutex_unlock(&memory_lock);
    gate_close(GATE_STOPPED(client));
    gate_recheck();                  /* exclusive.c waits at the gate only until a STOP */
    /* A pinned client is not evicted, so a drain is useless. */
    bool drained = !pinned && drain(client);
    uint64_t took = now_microseconds() - began;
    /* The driver's pools can release freed memory after a drain. */
    if (drained && swap_enter_context(client)) {
        pools_recount();
        graph_memory_trim(client->device);
    }

    LOCKED(memory_lock);
    client->stopping = false;
    reclaim(client, RECLAIM_ALL, 0); /* else memory that the program has freed would be evicted */
    if (drained || client->pin_reason != NVSHARE_PIN_NONE) {
        client->drained = drained;
        caches_turn_ended(client);
        client->want_sent = gate_has_waiters();
        client->wanted = client->want_sent ? now_microseconds() : client->wanted;
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

static void release_spare_memory(struct client *client, const struct nvshare_order *order)
{
    LOCKED(memory_lock);
    reclaim(client, RECLAIM_ALL, 0);
    if (!client->running) {
        caches_room_ordered(client, order->room);
        pools_yield(client);
    }
}

/* Carries out an EVICT and those that follow it, so that threads go on making host memory from one
 * to the next. Otherwise they end before the answer, which reports what the client then holds. */
static void evict(struct client *client, const struct nvshare_order *first)
{
    struct nvshare_order order = *first, next;
    for (bool follows = true; follows; order = next) {
        uint64_t began = now_microseconds(), moved;
        bool keeps = (order.flags & NVSHARE_KEEP) != 0;
        unsigned flags = 0, returned = 0;
        if (keeps) {
            moved = swap_write_back(client, &order, &flags);
        } else {
            swap_return(client, &order, &returned);
            release_spare_memory(client, &order);
            moved = swap_out(client, &order, &flags);
        }
        LOCKED(memory_lock);
        follows = client_next(client, NVSHARE_EVICT, &next);
        if (follows)
            tiers_order(client, &next);
        else
            tiers_expect(client, 0);
        client->starved_reported &= keeps;
        client_send(client, (struct nvshare_report){
            .type = NVSHARE_MOVED, .flags = flags | returned, .number = order.number,
            .moved = moved, .took = now_microseconds() - began,
        });
        client_update(client);
    }
}

/* Carries out an order. service_lock is held; a drain releases it. `descriptor`: the file
 * descriptor that came with the order, or -1; the caller closes it. */
static void carry_out(struct client *client, const struct nvshare_order *order, int descriptor)
{
    pthread_mutex_lock(&memory_lock);
    tiers_order(client, order);
    if (order->type == NVSHARE_LOAD || order->type == NVSHARE_RUN || order->type == NVSHARE_PARK)
        store_cancel(client);
    if (order->type == NVSHARE_STORE)
        store_order(client, order, descriptor);
    pthread_mutex_unlock(&memory_lock);
    switch (order->type) {
    case NVSHARE_LIMITS:
        client_set_limits(client, order);
        break;
    case NVSHARE_REASON:
        pthread_mutex_lock(&memory_lock);
        client_append_refusal(client, order->text, sizeof order->text);
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
    case NVSHARE_PREALLOCATE:        /* carried out before this switch */
    case NVSHARE_STORE:              /* carried out before this switch */
    case NVSHARE_YIELD:              /* the order that should yield is answered already */
    case NVSHARE_UNPARK:             /* the client is not parked: park.c receives UNPARK */
        break;
    case NVSHARE_QUEUED:
        waiting_for(client, order);
        break;
    case NVSHARE_PUBLISH:
        inflight_publish(client, descriptor);
        break;
    case NVSHARE_WATCH:
        inflight_watch(client, order->number, descriptor);
        break;
    case NVSHARE_INTRODUCE:
        inflight_forget(client);
        pthread_mutex_lock(&memory_lock);
        introduce(client, order->number);
        pthread_mutex_unlock(&memory_lock);
        break;
    case NVSHARE_PARK:
        park(client, order);
        break;
    case NVSHARE_REFUSED:
        /* Memory may be swapped, so the program cannot run unshared any more. */
        debug("nvshared refuses this client (reason %llu); trying again",
              (unsigned long long)order->refusal);
        disconnect(client);
        break;
    default:
        complain("nvshared sent a record of unknown type %u; leaving it", order->type);
        disconnect(client);
    }
}

/* Reconnects. A program that waits for a daemon looks as if it hung, so a message is printed once.
 * A service manager may accept connections for a daemon that cannot start: only an order proves
 * that the daemon is alive. */
static int64_t keep_connection(struct client *client)
{
    struct service *service = &services[client->index];
    uint64_t now = now_microseconds();
    pthread_mutex_lock(&memory_lock);
    bool connected = client->socket >= 0;
    /* A thread may wait for the answer to a COMMIT while the gate is open. */
    bool commit_is_open = client->answered_commit < client->last_commit;
    pthread_mutex_unlock(&memory_lock);
    if (!connected && service->connected) {
        if (!service->received)
            connection_try_other_version();
        service->received = false;
        service->retry_at = now + RECONNECT_FIRST_US;
    }
    if (!connected && now >= service->retry_at) {
        int socket = connection_open();
        connected = socket >= 0;
        service->retry_at = now + RECONNECT_US;
        if (connected) {
            LOCKED(memory_lock);
            client->socket = socket;
            introduce(client, 0);
        }
    }
    service->connected = connected;
    if (service->received) {
        service->received_at = now;
        service->complained = false;
    } else if (!service->complained && now - service->received_at >= COMPLAIN_AFTER_US
               && (commit_is_open || gate_has_waiters())) {
        service->complained = true;
        complain("nvshared is not running, and this program waits for it: its work on the GPU "
                 "goes on when nvshared is started again");
    }
    return !connected ? (int64_t)(service->retry_at - now)
        : service->received ? NEVER : RECONNECT_US;
}

/* Releases host memory that the program's frees have left unused. The driver unregisters memory
 * only when no work is in flight, and until then lets no other call into the context: work in
 * flight may wait for a thread that makes such a call. In a turn the gate is therefore closed for a
 * moment in which no work is in flight. */
static int64_t trim(struct client *client)
{
    struct service *service = &services[client->index];
    uint64_t now = now_microseconds();
    pthread_mutex_lock(&memory_lock);
    uint64_t host = client->memory.host, useful = tiers_useful(client);
    bool surplus = tiers_have_spare(client) && host > useful, drained = client->drained;
    bool pauses = surplus && client->running;
    pthread_mutex_unlock(&memory_lock);
    if (!surplus || now < service->trim_at)
        return surplus ? (int64_t)(service->trim_at - now) : NEVER;
    service->trim_at = now + TRIM_INTERVAL_US;
    pauses = pauses && drain_is_needless();
    if (pauses)
        gate_close(GATE_STOPPED(client));
    bool idle = pauses ? drain_is_needless() : drained;
    if (idle)
        swap_enter_context(client);
    {
        LOCKED(memory_lock);
        client->drained = idle;
        tiers_trim(client, pauses && useful < host - 1 ? host - 1 : useful);  /* one slab a pause */
        client->drained = drained;
        if (client->memory.host != host)
            client_changed(client);
    }
    if (pauses)
        gate_open(GATE_STOPPED(client));
    return TRIM_INTERVAL_US;
}

/* Reports changed figures. */
static int64_t report(struct client *client)
{
    struct service *service = &services[client->index];
    uint64_t now = now_microseconds();
    pthread_mutex_lock(&memory_lock);
    bool changed = !client->reported && client->socket >= 0;
    pthread_mutex_unlock(&memory_lock);
    if (!changed)
        service->report_at = 0;
    else if (service->report_at == 0)
        service->report_at = now + REPORT_INTERVAL_US;
    if (!changed || now < service->report_at)
        return changed ? (int64_t)(service->report_at - now) : NEVER;
    service->report_at = 0;
    LOCKED(memory_lock);
    client_send(client, (struct nvshare_report){
        .type = NVSHARE_MEMORY,
        .flags = gate_has_waiters() && !client->running ? NVSHARE_WANTS : 0,
    });
    return NEVER;
}

static int64_t give_up_memory(struct client *client)
{
    LOCKED(memory_lock);
    int64_t spares = spares_expire(client), grants = client_expire_grants(client);
    return spares < grants ? spares : grants;
}

static int64_t sample_activity(struct client *client)
{
    struct service *service = &services[client->index];
    pthread_mutex_lock(&memory_lock);
    bool connected = client->socket >= 0, busy = connected && client->reports_busy;
    bool runs = connected && client->running && !client->starved;
    bool idle = runs && client->reports_idle;
    pthread_mutex_unlock(&memory_lock);
    if (!busy)
        activity_forget_gaps(&service->activity);
    int64_t next = activity_sample(client, &service->activity,
                                   ACTIVITY_BURST | (idle ? ACTIVITY_IDLE : 0)
                                       | (busy && runs ? ACTIVITY_GAPS : 0));
    if (!idle) {
        service->idle_reported = service->idle_asked = false;
        return next;
    }
    uint64_t pause = activity_idle(&service->activity);
    bool released = activity_released(&service->activity);
    uint64_t window = client->idle_window;
    if (client->paced && window < LONG_WINDOW_US)
        window = activity_idle_window(&service->activity, window);
    /* A pause that was reported goes on, even if a thread uses the processor again. */
    bool goes_on = service->idle_reported && !service->idle_asked && pause > 0;
    bool over = goes_on || pause >= (released ? 1 : window);
    if (over != service->idle_reported || service->idle_asked) {
        LOCKED(memory_lock);
        client_send(client, (struct nvshare_report){
            .type = NVSHARE_IDLE, .flags = over ? 0 : NVSHARE_WANTS });
    }
    service->idle_reported = over;
    service->idle_asked = false;
    if (released && !over)
        next = RELEASE_SAMPLE_US < next ? RELEASE_SAMPLE_US : next;
    if (client->paced && pause >= window / 2)
        caches_ask(client, CACHES_IDLE);
    /* While no client waits, only a long pause ends the turn, so samples may be rare. */
    int64_t rarely = client->paced ? 0 : (int64_t)client->idle_window
        / (client->idle_window < LONG_WINDOW_US ? IDLE_SAMPLES : LONG_SAMPLES);
    rarely = rarely > SAMPLE_US ? rarely : SAMPLE_US;
    return rarely < next ? rarely : next;
}

static int64_t store(struct client *client)
{
    LOCKED(memory_lock);
    return store_step(client);
}

/* Bounds the work in flight while the client runs and other clients wait, or while it watches
 * urgent clients (inflight.c). A client that could not be drained is paced only after RUN with
 * STEP: its work may wait for work that it is about to submit. */
static int64_t pace(struct client *client)
{
    bool held_back = client->socket >= 0 && client->running
        && (client->undrained == 0 || client->steps);
    bool others_wait = held_back && client->paced, watches = inflight_is_watching();
    if (held_back && (others_wait || watches))
        pace_step(client);
    else
        pace_end(client);
    if (others_wait && client->squeezed)
        caches_ask(client, CACHES_TURN);
    else
        caches_rest(client);
    bool pressing = pace_pressing(client);
    return (others_wait && client->steps) || (pressing && watches) ? BACKGROUND_US
        : pressing ? PACE_US
        : held_back && (others_wait || watches) ? SAMPLE_US : NEVER;
}

static int64_t poll_urgent(struct client *client)
{
    if (client->socket < 0)
        inflight_forget(client);     /* without a daemon no page is watched */
    uint64_t next = inflight_poll(now_microseconds(),
                                 client->undrained > 0 || pace_stalled(client));
    return next == 0 ? NEVER : (int64_t)next;
}

/* Each step returns the us until it must run again. All steps run after each order and wake-up,
 * and when one of them is due. */
static const struct step {
    int64_t (*run)(struct client *client);
    bool locked;                     /* run() is called with service_lock held */
} STEPS[] = {
    { keep_connection, false }, { trim, true }, { report, true }, { waiting_step, false },
    { give_up_memory, false }, { pace, true }, { sample_activity, true }, { poll_urgent, true },
    { bus_sharing_step, true }, { store, true },
};

static int64_t run_steps(struct client *client)
{
    int64_t first = NEVER;
    for (size_t i = 0; i < sizeof STEPS / sizeof *STEPS; i++) {
        if (STEPS[i].locked)
            pthread_mutex_lock(&service_lock);
        int64_t due = STEPS[i].run(client);
        if (STEPS[i].locked)
            pthread_mutex_unlock(&service_lock);
        first = due < first ? due : first;
    }
    return first;
}

void *service_run(void *argument)
{
    struct client *client = argument;
    own_thread_begins("nvshare");
    pthread_mutex_lock(&memory_lock);   /* waits until clients[] contains the client */
    pthread_mutex_unlock(&memory_lock);
    client_thread_is_ours();
    /* So that this thread's calls invalidate no capture of the program. */
    capture_relax();
    prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS);
    services[client->index] = (struct service){
        .activity.idle.longest = ACTIVITY_PAUSE_FIRST_US,
        .connected = true, .received = true, .received_at = now_microseconds(),
    };
    for (;;)
        await_order(client, run_steps(client), false);
}

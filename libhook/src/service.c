/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The service thread, one per client: reads the daemon's orders and carries
 * them out one after the other. It decides nothing.
 *
 * Without a daemon it tries to find one again, twice a second at least; a
 * program that holds the GPU goes on meanwhile, one that waits goes on waiting.
 */
#include <pthread.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bell.h"
#include "block.h"
#include "client_state.h"
#include "counted.h"
#include "log.h"
#include "pace.h"
#include "traffic.h"

#define REPORT_INTERVAL_US 5000
#define IDLE_LOOK_US 5000
#define PACE_LOOK_US 2000
#define RECONNECT_FIRST_MS 20
#define RECONNECT_LAST_MS 500

/* Watching a contended holder for idleness. */
struct idleness {
    bool watching;                   /* nothing was submitted since `since`, at count `passes` */
    bool draining;
    bool told;
    uint64_t passes;
    uint64_t since;
    struct drain drain;
};

static void forget_idleness(struct idleness *idle)
{
    if (idle->draining)
        drain_abandon(&idle->drain);
    *idle = (struct idleness){ .watching = false };
}

/* Called every few milliseconds while others wait. */
static void look_idle(struct client *client, struct idleness *idle)
{
    uint64_t passes = gate_passes(), now = now_microseconds();
    if (!idle->watching || idle->passes != passes || gate_has_waiters()) {
        forget_idleness(idle);
        idle->watching = true;
        idle->passes = passes;
        idle->since = now;
        return;
    }
    if (idle->told)
        return;
    if (!idle->draining) {
        drain_begin(&idle->drain);
        idle->draining = true;
    }
    if (!drain_step(&idle->drain)) {
        /* The window counts from the end of the work. */
        idle->since = now;
        return;
    }
    if (now - idle->since >= client->idle_window / 2)
        caches_ask(client, CACHES_IDLE);
    if (now - idle->since < client->idle_window)
        return;
    idle->told = true;
    pthread_mutex_lock(&memory_lock);
    client_send(client, NVSHARE_IDLE, 0, 0, 0, 0);
    pthread_mutex_unlock(&memory_lock);
}

/* From here on its memory may change. */
static void begin_turn(struct client *client)
{
    client->granted = true;
    client->turns++;
}

static void order_run(struct client *client, const struct nvshare_record *order)
{
    pthread_mutex_lock(&memory_lock);
    client->contended = (order->flags & NVSHARE_CONTENDED) != 0;
    traffic_watch(client, (order->flags & NVSHARE_WATCHED) != 0);
    if (order->microseconds != 0)
        client->idle_window = order->microseconds;
    if (!client->granted) {
        begin_turn(client);
        client->drained = false;
        client->want_sent = false;
        gate_open(GATE_STOPPED(client));
    }
    client_update(client);
    pthread_mutex_unlock(&memory_lock);
}

static void order_stop(struct client *client)
{
    uint64_t began = now_microseconds();
    pthread_mutex_lock(&memory_lock);
    client->stopping = true;
    client->granted = false;
    client->room_asked = false;
    traffic_watch(client, false);
    pthread_mutex_unlock(&memory_lock);
    gate_close(GATE_STOPPED(client));
    bool drained = drain_all(client->drain_patience, true);
    /* A drain is when the driver's pools let go of what the program has freed. */
    if (drained && swap_enter_context(client))
        pools_recount();

    pthread_mutex_lock(&memory_lock);
    client->stopping = false;
    spares_drop(client, SPARES_ALL); /* before the daemon reads how much is to leave */
    if (drained) {
        client->drained = true;
        caches_turn_ended(client);
        client->drain_patience = DRAIN_PATIENCE_US;
        client->want_sent = gate_has_waiters();
        client_send(client, NVSHARE_STOPPED, client->want_sent ? NVSHARE_WANTS : 0, 0,
                    now_microseconds() - began, 0);
    } else {
        begin_turn(client);
        client->drain_patience *= 2;
        gate_open(GATE_STOPPED(client));
        client_send(client, NVSHARE_REOPENED, 0, 0, now_microseconds() - began, 0);
    }
    client_update(client);
    pthread_mutex_unlock(&memory_lock);
}

static void order_evict(struct client *client, const struct nvshare_record *order)
{
    uint64_t began = now_microseconds();
    unsigned flags = 0;
    pthread_mutex_lock(&memory_lock);
    spares_drop(client, SPARES_ALL);
    if (!client->granted) {
        caches_room_ordered(client, order->bytes);
        pools_yield(client, false);  /* cheaper than a copy */
    }
    pthread_mutex_unlock(&memory_lock);
    uint64_t bytes = swap_out(client, order, &flags);
    pthread_mutex_lock(&memory_lock);
    client->room_asked = false;
    client_send(client, NVSHARE_EVICTED, flags, order->number, bytes, now_microseconds() - began);
    client_update(client);
    pthread_mutex_unlock(&memory_lock);
}

static void new_limits(struct client *client, const struct nvshare_record *record)
{
    pthread_mutex_lock(&memory_lock);
    client->limits = record->limits;
    if (!spares_may_stay(client))
        spares_drop(client, SPARES_ALL);
    /* An answer to a question that nobody asked must not pass for the next ones'. */
    if (record->number > client->answered && record->number <= client->question) {
        client->answered = record->number;
        client->answer = record->limits;
    }
    bell_ring(&client->heard);
    pthread_mutex_unlock(&memory_lock);
}

static void disconnect(struct client *client)
{
    pthread_mutex_lock(&memory_lock);
    if (client->socket >= 0)
        close(client->socket);
    client->socket = -1;
    spares_drop(client, SPARES_ALL);
    client->postponed.type = 0;
    traffic_watch(client, false);
    bell_ring(&client->heard);
    pthread_mutex_unlock(&memory_lock);
}

/* Everything that a daemon which knows nothing of us must know. memory_lock is held. */
static void say_hello(struct client *client, uint64_t number)
{
    client->want_sent = gate_has_waiters();
    client->room_asked = false;
    client->answered = client->question;
    client->introduced++;
    traffic_watch(client, false);
    client_send(client, NVSHARE_HELLO,
                (client->granted ? NVSHARE_RUNNING : 0) | (client->want_sent ? NVSHARE_WANTS : 0),
                number, client->limits.commit, 0);
    client_update(client);
    bell_ring(&client->heard);
}

/* An EVICT may be followed by another one before its YIELD; that one is kept for later. */
bool service_yields(struct client *client, const struct nvshare_record *order)
{
    struct nvshare_record yield;
    if ((order->flags & NVSHARE_AHEAD) == 0)
        return false;
    if (client->postponed.type == 0)
        connection_next(client->socket, NVSHARE_EVICT, &client->postponed);
    return connection_next(client->socket, NVSHARE_YIELD, &yield);
}

static void obey(struct client *client, const struct nvshare_record *record)
{
    pthread_mutex_lock(&service_lock);
    switch (record->type) {
    case NVSHARE_WELCOME:
    case NVSHARE_LIMITS:
        new_limits(client, record);
        break;
    case NVSHARE_RUN:
        order_run(client, record);
        break;
    case NVSHARE_STOP:
        order_stop(client);
        break;
    case NVSHARE_EVICT:
        order_evict(client, record);
        break;
    case NVSHARE_LOAD:
        swap_in(client, record);
        break;
    case NVSHARE_YIELD:
        break;                       /* what it would have ended is answered already */
    case NVSHARE_INTRODUCE:
        pthread_mutex_lock(&memory_lock);
        say_hello(client, record->number);
        pthread_mutex_unlock(&memory_lock);
        break;
    case NVSHARE_REFUSED:
        /* Too late to run unshared: our memory may lie on the host. */
        debug("nvshared refuses this client (reason %u); trying again", record->flags);
        disconnect(client);
        break;
    default:
        complain("nvshared sent a record of unknown type %u; leaving it", record->type);
        disconnect(client);
    }
    pthread_mutex_unlock(&service_lock);
}

static bool reconnect(struct client *client)
{
    int socket = connection_open();
    if (socket < 0)
        return false;
    pthread_mutex_lock(&memory_lock);
    client->socket = socket;
    say_hello(client, 0);
    pthread_mutex_unlock(&memory_lock);
    return true;
}

/* Tells the daemon of changed figures, and gives host memory back that the
 * program's freeing has left over. */
static void report(struct client *client)
{
    pthread_mutex_lock(&service_lock);
    pthread_mutex_lock(&memory_lock);
    bool surplus = client->memory.host > host_useful(client);
    pthread_mutex_unlock(&memory_lock);
    surplus = surplus && swap_enter_context(client);
    pthread_mutex_lock(&memory_lock);
    if (surplus)
        host_trim(client, host_useful(client));
    client_send(client, NVSHARE_MEMORY, gate_has_waiters() && !client->granted ? NVSHARE_WANTS : 0,
                0, 0, 0);
    pthread_mutex_unlock(&memory_lock);
    pthread_mutex_unlock(&service_lock);
}

/* Waits for a record, a wake-up or the time to do something. */
static int wait_for(struct client *client, int timeout_ms)
{
    pthread_mutex_lock(&memory_lock);
    struct pollfd fds[2] = {
        { .fd = client->wake, .events = POLLIN },
        { .fd = client->socket, .events = POLLIN },
    };
    pthread_mutex_unlock(&memory_lock);
    poll(fds, 2, timeout_ms);
    uint64_t count;
    if (fds[0].revents != 0 && read(client->wake, &count, sizeof count) < 0)
        debug("a wake-up was taken by nobody");
    return fds[1].revents != 0 ? fds[1].fd : -1;
}

/* It runs and others wait. service_lock is held. */
static bool competes(struct client *client)
{
    pthread_mutex_lock(&memory_lock);
    bool competes = client->socket >= 0 && client->granted && client->contended;
    pthread_mutex_unlock(&memory_lock);
    return competes;
}

void *service_run(void *argument)
{
    struct client *client = argument;
    /* This thread never disturbs a capture of the program's threads. */
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);

    struct idleness idle = { .watching = false };
    int retry_ms = RECONNECT_FIRST_MS;
    uint64_t reported = 0;
    bool pressing = false;
    for (;;) {
        pthread_mutex_lock(&memory_lock);
        bool connected = client->socket >= 0, changed = !client->reported;
        bool watch = connected && client->granted && client->contended && !client->starved;
        int due = spares_due(client);
        pthread_mutex_unlock(&memory_lock);

        int timeout = -1;
        if (!connected) {
            timeout = retry_ms;
        } else if (watch) {
            timeout = (pressing ? PACE_LOOK_US : IDLE_LOOK_US) / 1000;
        } else if (changed) {
            timeout = REPORT_INTERVAL_US / 1000;
        }
        if (due >= 0 && (timeout < 0 || due < timeout))
            timeout = due;
        struct nvshare_record record = client->postponed;
        bool postponed = record.type != 0;
        client->postponed.type = 0;
        int socket = postponed ? -1 : wait_for(client, timeout), got = 0;
        if (postponed)
            obey(client, &record);
        else if (socket >= 0 && (got = connection_receive(socket, &record, 0)) == 1)
            obey(client, &record);
        else if (got < 0)
            disconnect(client);

        if (!connected) {
            retry_ms = reconnect(client) ? RECONNECT_FIRST_MS
                : retry_ms * 2 < RECONNECT_LAST_MS ? retry_ms * 2 : RECONNECT_LAST_MS;
        } else if (changed && now_microseconds() - reported >= REPORT_INTERVAL_US) {
            report(client);
            reported = now_microseconds();
        }
        pthread_mutex_lock(&memory_lock);
        spares_expire(client);
        pthread_mutex_unlock(&memory_lock);
        pthread_mutex_lock(&service_lock);
        if (watch)
            look_idle(client, &idle);
        else
            forget_idleness(&idle);
        if (competes(client)) {
            pace_step(client);
            caches_ask(client, CACHES_TURN);
        } else {
            pace_end(client);
            caches_rest(client);
        }
        pressing = pace_pressing(client);
        traffic_step(client);
        pthread_mutex_unlock(&service_lock);
    }
}

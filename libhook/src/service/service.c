/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The service thread, one per client: reads the daemon's orders and has them
 * carried out one after the other (orders.c). It decides nothing.
 *
 * Without a daemon it tries to find one again, twice a second at least; a
 * program that holds the GPU goes on meanwhile, one that waits goes on waiting.
 */
#include "service/service.h"

#include <poll.h>
#include <unistd.h>

#include "block/host_slabs.h"
#include "client/client.h"
#include "client/commit.h"
#include "client/connection.h"
#include "client/gate.h"
#include "flight/bus_sharing.h"
#include "flight/capture.h"
#include "flight/pace.h"
#include "interpose/bell.h"
#include "interpose/log.h"
#include "memory/spare.h"
#include "service/caches.h"
#include "service/idleness.h"
#include "service/orders.h"
#include "service/waiting.h"
#include "swap/pipeline.h"

#define REPORT_INTERVAL_US 5000
#define IDLE_LOOK_US 5000
#define PACE_LOOK_US 2000
#define RECONNECT_FIRST_MS 20
#define RECONNECT_LAST_MS 500
#define TELL_AFTER_US 5000000            /* longer than a restart of the daemon takes */

void service_disconnect(struct client *client)
{
    LOCKED(memory_lock);
    if (client->socket >= 0)
        close(client->socket);
    client->socket = -1;
    reclaim(client, RECLAIM_ALL, false);
    client->postponed.type = 0;
    bus_sharing_watch(client, false);
    bell_ring(&client->heard);
}

void service_introduce(struct client *client, uint64_t number)
{
    client->want_sent = gate_has_waiters();
    client->lack_reported = false;
    client_hears(client, client->question, NULL);
    client->introduced++;
    bus_sharing_watch(client, false);
    client_send(client, (struct nvshare_report){
        .type = NVSHARE_HELLO, .number = number, .commit = client->limits.commit,
        .flags = (client->granted ? NVSHARE_RUNNING : 0) | (client->want_sent ? NVSHARE_WANTS : 0),
    });
    client_update(client);
    bell_ring(&client->heard);
}

static bool reconnect(struct client *client)
{
    int socket = connection_open();
    if (socket < 0)
        return false;
    LOCKED(memory_lock);
    client->socket = socket;
    service_introduce(client, 0);
    return true;
}

/* A program that waits while there is no daemon looks as if it hung: its user is told, once. */
static bool tell_waiters(uint64_t heard_last)
{
    if (now_microseconds() - heard_last < TELL_AFTER_US || !gate_has_waiters())
        return false;
    complain("nvshared is not running, and this program waits for it: its work on the GPU goes on "
             "when nvshared is started again");
    return true;
}

/* Tells the daemon of changed figures, and gives host memory back that the
 * program's freeing has left over. */
static void report(struct client *client)
{
    LOCKED(service_lock);
    pthread_mutex_lock(&memory_lock);
    bool surplus = client->memory.host > host_useful(client);
    pthread_mutex_unlock(&memory_lock);
    bool entered = surplus && swap_enter_context(client);
    LOCKED(memory_lock);
    /* Where no context is, the driver knows nothing of that memory. */
    if (surplus && (entered || client->copy_context == NULL))
        host_trim(client, host_useful(client));
    client_send(client, (struct nvshare_report){
        .type = NVSHARE_MEMORY,
        .flags = gate_has_waiters() && !client->granted ? NVSHARE_WANTS : 0,
    });
}

/* Waits for an order, a wake-up or the time to do something. */
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

/* It runs and others wait. Who could not be drained is not held back: what it has in flight may
 * wait for what it is about to submit. service_lock is held. */
static bool competes(struct client *client)
{
    LOCKED(memory_lock);
    return client->socket >= 0 && client->granted && client->paced && client->undrained == 0;
}

/* Of two times to wait, of which either may be -1: for ever. */
static int sooner(int one, int other)
{
    return one < 0 || (other >= 0 && other < one) ? other : one;
}

void *service_run(void *argument)
{
    struct client *client = argument;
    /* This thread never disturbs a capture of the program's threads. */
    capture_relax();

    struct idleness idle = { .watching = false };
    int retry_ms = RECONNECT_FIRST_MS;
    uint64_t reported = 0;
    /* Of a daemon that answers: a service manager may hold the socket of one that cannot start. */
    uint64_t heard_last = 0;
    bool heard = true, told = false;
    bool pressing = false;
    for (;;) {
        int tell = waiting_step(client);
        pthread_mutex_lock(&memory_lock);
        int due = sooner(sooner(spares_due(client), client_give_up(client)), tell);
        bool connected = client->socket >= 0, changed = !client->reported;
        bool watch = connected && client->granted && client->watched && !client->starved;
        bool idles = watch && client->reports_idle;
        pthread_mutex_unlock(&memory_lock);

        if (heard)
            heard_last = now_microseconds(), told = false;
        int timeout = heard ? -1 : RECONNECT_LAST_MS;
        if (!connected) {
            timeout = retry_ms;
        } else if (watch) {
            timeout = (pressing ? PACE_LOOK_US : IDLE_LOOK_US) / 1000;
        } else if (changed) {
            timeout = REPORT_INTERVAL_US / 1000;
        }
        timeout = sooner(timeout, due);
        struct nvshare_order order = client->postponed;
        bool postponed = order.type != 0;
        client->postponed.type = 0;
        int socket = postponed ? -1 : wait_for(client, timeout), got = 0;
        if (postponed)
            service_obey(client, &order);
        else if (socket >= 0 && (got = connection_receive(socket, &order, 0)) == 1)
            service_obey(client, &order);
        else if (got < 0)
            service_disconnect(client);

        heard = (connected && heard) || got == 1;
        if (!heard)
            told = told || tell_waiters(heard_last);
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
        if (idles)
            idleness_look(client, &idle);
        else
            idleness_forget(&idle);
        if (competes(client)) {
            pace_step(client);
            caches_ask(client, CACHES_TURN);
        } else {
            pace_end(client);
            caches_rest(client);
        }
        pressing = pace_pressing(client);
        bus_sharing_step(client);
        pthread_mutex_unlock(&service_lock);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The service thread, one per client: reads the daemon's orders and has them
 * carried out one after the other (orders.c). It decides nothing.
 *
 * Without a daemon it tries to find one again, twice a second at least; a
 * program that holds the GPU goes on meanwhile, one that waits goes on waiting.
 */
#define _GNU_SOURCE
#include "service/service.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include "block/host_early.h"
#include "block/host_slabs.h"
#include "client/client.h"
#include "client/commit.h"
#include "client/connection.h"
#include "client/gate.h"
#include "client/telling.h"
#include "flight/bus_sharing.h"
#include "flight/busyness.h"
#include "flight/capture.h"
#include "flight/pace.h"
#include "interpose/bell.h"
#include "interpose/forked.h"
#include "interpose/log.h"
#include "interpose/own_file.h"
#include "interpose/own_thread.h"
#include "memory/spare.h"
#include "service/caches.h"
#include "service/idleness.h"
#include "service/orders.h"
#include "service/settling.h"
#include "service/waiting.h"
#include "swap/pipeline.h"

#define REPORT_INTERVAL_US 5000
#define IDLE_LOOK_US 5000
#define IDLE_LOOKS 100                   /* during a long pause that is to be said */
#define PACE_LOOK_US 2000
#define BACKGROUND_LOOK_US 50
#define TIMER_SLACK_NS 1000              /* the kernel's own 50 us are as long as such a look */
#define STEP_LOOK_US 50
#define RECONNECT_FIRST_MS 20
#define RECONNECT_LAST_MS 500
#define TELL_AFTER_US 5000000            /* longer than a restart of the daemon takes */

void service_disconnect(struct client *client)
{
    LOCKED(memory_lock);
    own_file_close(client->socket);
    client->socket = -1;
    reclaim(client, RECLAIM_ALL, 0);
    client->postponed_count = 0;
    host_provided_early(client, client->host_most);
    bus_sharing_watch(client, false);
    bell_ring(&client->heard);
}

void service_introduce(struct client *client, uint64_t number)
{
    client->want_sent = gate_has_waiters();
    client->lack_reported = false;
    client_hears(client, client->question, NULL);
    host_provided_early(client, client->host_most);
    client->introduced++;
    client->reports_busy = false;
    bus_sharing_watch(client, false);
    client_send(client, (struct nvshare_report){
        .type = NVSHARE_HELLO, .number = number, .commit = client->limits.commit,
        .flags = (client->granted ? NVSHARE_RUNNING : 0) | (client->want_sent ? NVSHARE_WANTS : 0),
    });
    client_update(client);
    bell_ring(&client->heard);
}

bool service_make_wake(struct client *client)
{
    int pair[2];
    UNFORKED;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return false;
    if (client->wake < 0) {
        client->wakes = own_file_add(pair[0]);
        client->wake = own_file_add(pair[1]);
    } else {
        own_file_replace(client->wakes, pair[0]);
        own_file_replace(client->wake, pair[1]);
    }
    return client->wakes >= 0 && client->wake >= 0;
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
static bool tell_waiters(const struct client *client, uint64_t heard_last)
{
    if (now_microseconds() - heard_last < TELL_AFTER_US)
        return false;
    pthread_mutex_lock(&memory_lock);
    bool asks = client->answered < client->question;    /* for memory, not at the gate */
    pthread_mutex_unlock(&memory_lock);
    if (!asks && !gate_has_waiters())
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
static int wait_for(struct client *client, int64_t timeout_us)
{
    pthread_mutex_lock(&memory_lock);
    int connection = client->socket;
    struct pollfd fds[2] = {
        { .fd = own_file_descriptor(client->wake), .events = POLLIN },
        { .fd = own_file_descriptor(connection), .events = POLLIN },
    };
    pthread_mutex_unlock(&memory_lock);
    /* The program may have closed them. What has happened meanwhile is looked at first. */
    if ((fds[0].fd < 0 || own_file_descriptor(client->wakes) < 0) && service_make_wake(client))
        return -1;
    if (connection >= 0 && fds[1].fd < 0)
        return connection;
    struct timespec timeout = {
        .tv_sec = timeout_us / 1000000, .tv_nsec = timeout_us % 1000000 * 1000,
    };
    ppoll(fds, 2, timeout_us < 0 ? NULL : &timeout, NULL);
    char bytes[64];
    while (fds[0].revents != 0
           && recv(own_file_descriptor(client->wake), bytes, sizeof bytes, MSG_DONTWAIT)
                  == sizeof bytes)
        continue;
    return fds[1].revents != 0 ? connection : -1;
}

/* Threads of this program or of another wait for what these bring, and the work that is drained may
 * wait for those threads. They move nothing. */
static bool overtakes_drain(const struct nvshare_order *order)
{
    switch (order->type) {
    case NVSHARE_LIMITS:
    case NVSHARE_REASON:
    case NVSHARE_QUEUED:
    case NVSHARE_TELL:
    case NVSHARE_HEED:
        return true;
    default:
        return false;
    }
}

void service_rest(void *argument, uint64_t us)
{
    struct client *client = argument;
    struct nvshare_order order;
    int connection = -1, descriptor = -1, got = 0;
    pthread_mutex_unlock(&service_lock);
    if (client->postponed_count < POSTPONED_MOST)
        connection = wait_for(client, (int64_t)us);
    else
        usleep((useconds_t)us);
    if (connection >= 0)
        got = connection_receive(connection, &order, &descriptor, 0);
    pthread_mutex_lock(&service_lock);
    if (got == 1 && overtakes_drain(&order))
        service_obey(client, &order, own_file_descriptor(descriptor));
    else if (got == 1)
        client_postpone(client, &order);
    else if (got < 0)
        service_disconnect(client);
    own_file_close(descriptor);
}

/* It runs, and others wait or are to be heeded. Who could not be drained is not held back: what it
 * has in flight may wait for what it is about to submit. service_lock is held. */
static bool competes(struct client *client, bool *others_wait)
{
    LOCKED(memory_lock);
    bool held_back = client->socket >= 0 && client->granted
        && (client->undrained == 0 || client->steps);
    *others_wait = held_back && client->paced;
    return held_back && (client->paced || telling_heeds());
}

/* Work of this program that others ask for, or of others for which it waits. Returns after how many
 * us to look again, or -1. service_lock is held. */
static int64_t tell_and_heed(struct client *client, struct settling *settling)
{
    if (client->socket < 0)
        telling_forget(client);      /* nobody says any more whose word counts */
    uint64_t settled = settling_look(client, settling);
    bool stalled = client->undrained > 0 || pace_stalled(client);
    uint64_t free = telling_look(now_microseconds(), stalled);
    uint64_t next = settled == 0 || (free != 0 && free < settled) ? free : settled;
    return next == 0 ? -1 : (int64_t)next;
}

/* service_lock is held. */
static void look_for_gaps(struct client *client, struct busyness *busy)
{
    pthread_mutex_lock(&memory_lock);
    bool asked = client->reports_busy && client->socket >= 0;
    bool runs = client->granted && !client->starved;
    pthread_mutex_unlock(&memory_lock);
    if (!asked)
        busyness_forget(busy);
    else if (!runs)
        busyness_pause(busy);
    else
        busyness_look(client, busy);
}

/* Of two times to wait, of which either may be -1: for ever. */
static int64_t sooner(int64_t one, int64_t other)
{
    return one < 0 || (other >= 0 && other < one) ? other : one;
}

void *service_run(void *argument)
{
    struct client *client = argument;
    own_thread_begins("nvshare");
    pthread_mutex_lock(&memory_lock);   /* until clients[] has it */
    pthread_mutex_unlock(&memory_lock);
    client_thread_is_ours();
    /* This thread never disturbs a capture of the program's threads. */
    capture_relax();
    prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS);

    struct idleness idle = { .watching = false };
    struct settling settling = { .watching = false };
    struct busyness busy = { .looks = false };
    int retry_ms = RECONNECT_FIRST_MS;
    uint64_t reported = 0;
    /* Of a daemon that answers: a service manager may hold the socket of one that cannot start. */
    uint64_t heard_last = 0;
    bool heard = true, told = false;
    bool pressing = false;
    int64_t look = -1;                   /* us, for what others are told, and tell */
    for (;;) {
        int tell = waiting_step(client);
        pthread_mutex_lock(&memory_lock);
        int due = sooner(sooner(spares_due(client), client_give_up(client)), tell);
        bool connected = client->socket >= 0, changed = !client->reported;
        bool runs = connected && client->granted && !client->starved;
        bool watch = runs && client->watched, idles = watch && client->reports_idle;
        /* Where nothing but a long pause is of interest, it need not be met at once. */
        int64_t sparse = (int64_t)(client->idle_window / IDLE_LOOKS);
        bool calm = idles && !client->paced && !bus_sharing_is_watched() && sparse > IDLE_LOOK_US;
        pthread_mutex_unlock(&memory_lock);

        if (heard)
            heard_last = now_microseconds(), told = false;
        int64_t timeout = heard ? -1 : RECONNECT_LAST_MS;
        if (!connected) {
            timeout = retry_ms;
        } else if (watch || (runs && telling_heeds())) {
            timeout = (pressing ? PACE_LOOK_US : calm ? sparse : IDLE_LOOK_US) / 1000;
        } else if (changed) {
            timeout = REPORT_INTERVAL_US / 1000;
        }
        timeout = sooner(timeout, sooner(due, busyness_due(&busy)));
        timeout = sooner(look, timeout < 0 ? -1 : timeout * 1000);
        struct nvshare_order order;
        bool postponed = client_next_postponed(client, &order);
        int connection = postponed ? -1 : wait_for(client, timeout), got = 0, descriptor = -1;
        if (postponed
            || (connection >= 0
                && (got = connection_receive(connection, &order, &descriptor, 0)) == 1)) {
            LOCKED(service_lock);
            service_obey(client, &order, own_file_descriptor(descriptor));
        } else if (got < 0) {
            service_disconnect(client);
        }
        own_file_close(descriptor);

        heard = (connected && heard) || got == 1;
        if (!heard)
            told = told || tell_waiters(client, heard_last);
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
        bool others_wait;
        if (competes(client, &others_wait))
            pace_step(client);
        else
            pace_end(client);
        if (others_wait && client->squeezed)
            caches_ask(client, CACHES_TURN);
        else
            caches_rest(client);
        look_for_gaps(client, &busy);
        pressing = pace_pressing(client);
        look = tell_and_heed(client, &settling);
        if (pressing && telling_heeds())
            look = sooner(look, BACKGROUND_LOOK_US);
        if (others_wait && client->steps)
            look = sooner(look, STEP_LOOK_US);
        bus_sharing_step(client);
        pthread_mutex_unlock(&service_lock);
    }
}

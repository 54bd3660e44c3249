/* SPDX-License-Identifier: Apache-2.0 */
/* A client's reports to the daemon, its bits of the gate, and the growth of its memory. */
#define _GNU_SOURCE                  /* ppoll() */
#include "gate/client.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "driver/bell.h"
#include "driver/forked.h"
#include "driver/log.h"
#include "driver/ops.h"
#include "driver/own_file.h"
#include "driver/setting.h"
#include "driver/stubs.h"
#include "gate/gate.h"
#include "gate/packet.h"

MUTEX(memory_lock);
pthread_cond_t memory_changed = PTHREAD_COND_INITIALIZER;
static _Atomic uint32_t memory_bell;
MUTEX(service_lock);
struct client *clients[CLIENTS_MAX];
static _Atomic unsigned client_count;

static __thread bool thread_is_ours __attribute__((tls_model("initial-exec")));

void client_thread_is_ours(void)
{
    thread_is_ours = true;
}

bool client_is_called_back(void)
{
    return thread_is_ours || locked_here(&memory_lock) || locked_here(&service_lock)
        || leave_holds_lock();
}

/* In a callback, memory_lock may come too late in the order of locks.def, unless it is locked. */
bool client_may_lock_memory(void)
{
    return locked_here(&memory_lock) || !client_is_called_back();
}

bool client_none(void)
{
    return client_count == 0 || client_is_called_back();
}

unsigned clients_count(void)
{
    return client_count;
}

void client_enter(struct client *client)
{
    __atomic_store_n(&clients[client->index], client, __ATOMIC_RELEASE);
    client_count++;
}

/* Called in a forked child. The child's only thread may sleep on commit_bell, if a signal handler
 * called fork() in that thread. */
static void abandon(void)
{
    EACH_CLIENT(client) {
        client->socket = -1;
        bell_ring(&client->commit_bell);
    }
}

void clients_watch_forks(void)
{
    forks_watch(abandon, gate_recheck);
}

void memory_notify(void)
{
    pthread_cond_broadcast(&memory_changed);
    bell_ring(&memory_bell);
}

void memory_wait(void)
{
    uint32_t before = atomic_load(&memory_bell);
    mutex_unlock(&memory_lock);
    bell_wait(&memory_bell, before, NULL);
    mutex_lock(&memory_lock);
}

static uint64_t microseconds(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

uint64_t now_microseconds(void)
{
    return microseconds(CLOCK_MONOTONIC);
}

uint64_t processor_microseconds(void)
{
    return microseconds(CLOCK_PROCESS_CPUTIME_ID);
}

struct client *client_current(void)
{
    return client_none() ? NULL : client_here();
}

struct client *client_on(CUdevice device)
{
    return device >= 0 && device < CLIENTS_MAX
        ? __atomic_load_n(&clients[device], __ATOMIC_ACQUIRE) : NULL;
}

struct client *client_here(void)
{
    CUdevice device;
    return client_count == 0 || REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS
        ? NULL : client_on(device);
}

uint64_t client_need(const struct client *client)
{
    return client->memory.allocated + client->memory.pinned + client->memory.pending;
}

static uint64_t filled_room(const struct client *client)
{
    return client->memory.resident + client->memory.pinned + client->memory.pending;
}

uint64_t client_free_room(const struct client *client)
{
    uint64_t filled = filled_room(client);
    return client->memory.room > filled ? client->memory.room - filled : 0;
}

bool client_may_keep_freed(const struct client *client)
{
    return client->running && !client->squeezed && !client->starved && client->socket >= 0
        && client_need(client) <= client->limits.most;
}

void client_wake(struct client *client)
{
    DEFERRED;
    int saved_errno = errno;         /* a program's call must not change errno */
    /* Fails only if unread wake-ups fill the socket, or the program closed it (client_wait()). */
    send(own_file_descriptor(client->wakes), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    errno = saved_errno;
}

bool client_make_wake(struct client *client)
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

int client_wait(struct client *client, int64_t timeout_us)
{
    struct pollfd fds[2] = {
        { .fd = own_file_descriptor(client->wake), .events = POLLIN },
        { .fd = own_file_descriptor(client->socket), .events = POLLIN },
    };
    /* The program may have closed these sockets, and a wake-up may be lost with the old pair: the
     * caller therefore runs all steps (service.c) before it waits again. */
    if ((fds[0].fd < 0 || own_file_descriptor(client->wakes) < 0) && client_make_wake(client))
        return -1;
    if (client->socket >= 0 && fds[1].fd < 0)
        return client->socket;
    struct timespec timeout = {
        .tv_sec = timeout_us / 1000000, .tv_nsec = timeout_us % 1000000 * 1000,
    };
    /* A sandbox may refuse ppoll(), but not poll(). */
    if (ppoll(fds, 2, timeout_us == NEVER ? NULL : &timeout, NULL) < 0 && errno != EINTR)
        poll(fds, 2, timeout_us == NEVER ? -1 : (int)(timeout_us / 1000 + 1));
    char bytes[64];
    while (fds[0].revents != 0
           && recv(own_file_descriptor(client->wake), bytes, sizeof bytes, MSG_DONTWAIT)
                  == sizeof bytes)
        continue;
    return fds[1].revents != 0 ? client->socket : -1;
}

bool client_postpone(struct client *client, const struct nvshare_order *order)
{
    if (client->postponed_count == POSTPONED_MOST)
        return false;
    client->postponed[client->postponed_count++] = *order;
    return true;
}

bool client_next_postponed(struct client *client, struct nvshare_order *order)
{
    if (client->postponed_count == 0)
        return false;
    *order = client->postponed[0];
    memmove(client->postponed, client->postponed + 1, --client->postponed_count * sizeof *order);
    return true;
}

bool client_next(struct client *client, unsigned type, struct nvshare_order *order)
{
    if (client->postponed_count == 0)
        return connection_next(client->socket, type, order);
    return client->postponed[0].type == type && client_next_postponed(client, order);
}

/* A daemon answers requests of the program, and orders further moves, before it sends a YIELD. */
static bool may_precede_yield(unsigned type)
{
    return type == NVSHARE_EVICT || type == NVSHARE_LOAD || type == NVSHARE_LIMITS
        || type == NVSHARE_REASON || type == NVSHARE_QUEUED || type == NVSHARE_PREALLOCATE;
}

static bool yield_is_next(struct client *client)
{
    struct nvshare_order order;
    while (client->postponed_count < POSTPONED_MOST && connection_peek(client->socket, &order)
           && may_precede_yield(order.type)
           && connection_receive(client->socket, &order, NULL, 0) == 1)
        client_postpone(client, &order);
    return connection_peek(client->socket, &order) && order.type == NVSHARE_YIELD;
}

bool client_take_yield(struct client *client)
{
    struct nvshare_order order;
    return yield_is_next(client) && connection_receive(client->socket, &order, NULL, 0) == 1;
}

bool client_load_follows(struct client *client)
{
    yield_is_next(client);           /* postpones what has arrived */
    for (unsigned i = 0; i < client->postponed_count; i++)
        if (client->postponed[i].type == NVSHARE_LOAD)
            return true;
    return false;
}

bool client_must_yield(struct client *client)
{
    return client->speculates && yield_is_next(client);
}

CUresult device_uuid(CUdevice device, CUuuid *uuid)
{
    return HAVE_REAL(cuDeviceGetUuid_v2) ? REAL(cuDeviceGetUuid_v2)(uuid, device)
                                         : REAL(cuDeviceGetUuid)(uuid, device);
}

/* A connection to the daemon is a handle of own_file.h. */

static const struct timeval SEND_PATIENCE = { .tv_sec = 2 }; /* limit of a wait in send() */

int connection_open(void)
{
    const char *path = setting("NVSHARE_SOCKET");
    if (path == NULL || *path == '\0')
        path = NVSHARE_DEFAULT_SOCKET;
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    if (strlen(path) >= sizeof address.sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    strcpy(address.sun_path, path);
    int connection = own_file_socket(0), fd = own_file_descriptor(connection);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &SEND_PATIENCE, sizeof SEND_PATIENCE);
    int failed;
    {
        UNLESS_LEFT(own_file_left, NULL, (uint64_t)connection);
        failed = connect(fd, (const struct sockaddr *)&address, sizeof address);
        defer_begin();
    }
    if (failed != 0) {
        own_file_close(connection);
        connection = -1;
    }
    defer_end();
    return connection;
}

/* Whether this process speaks version 2 to the daemon. */
static _Atomic bool speaks_oldest;

void connection_try_other_version(void)
{
    atomic_store(&speaks_oldest, !atomic_load(&speaks_oldest));
}

bool connection_send(int connection, const struct nvshare_report *report)
{
    int socket = own_file_descriptor(connection);
    char packet[NVSHARE_PACKET_LONGEST];
    size_t size = packet_write(&packet_reports, report, atomic_load(&speaks_oldest)
                               ? NVSHARE_PROTOCOL_OLDEST : NVSHARE_PROTOCOL_VERSION, packet);
    ssize_t sent;
    do
        sent = send(socket, packet, size, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)size;
}

int connection_receive(int connection, struct nvshare_order *order, int *descriptor, int timeout_ms)
{
    struct pollfd ready = { .fd = own_file_descriptor(connection), .events = POLLIN };
    if (descriptor != NULL)
        *descriptor = -1;
    if (ready.fd < 0)
        return -1;
    int count = poll(&ready, 1, timeout_ms);
    if (count == 0 || (count < 0 && errno == EINTR))
        return 0;
    int came;
    char packet[NVSHARE_PACKET_LONGEST];
    ssize_t length = own_file_receive(connection, packet, sizeof packet, &came);
    if (descriptor != NULL)
        *descriptor = came;
    else
        own_file_close(came);
    if (length < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (length <= 0)
        return -1;
    if (!packet_read(&packet_orders, packet, (size_t)length, order, sizeof *order)) {
        complain("nvshared sent a record of the wrong length %zd; leaving it", length);
        return -1;
    }
    if (order->version < NVSHARE_PROTOCOL_OLDEST || order->version > NVSHARE_PROTOCOL_VERSION) {
        complain("nvshared speaks protocol %u, this library %u; leaving it",
                 order->version, NVSHARE_PROTOCOL_VERSION);
        return -1;
    }
    return 1;
}

bool connection_peek(int connection, struct nvshare_order *order)
{
    char packet[NVSHARE_PACKET_LONGEST];
    ssize_t length = recv(own_file_descriptor(connection), packet, sizeof packet,
                          MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT);
    return length > 0
           && packet_read(&packet_orders, packet, (size_t)length, order, sizeof *order);
}

bool connection_next(int connection, unsigned type, struct nvshare_order *order)
{
    struct nvshare_order next;
    return connection_peek(connection, &next) && next.type == type
           && connection_receive(connection, order, NULL, 0) == 1;
}

static bool send_text(int socket, uint16_t type, const char *text)
{
    struct nvshare_report report = { .type = type };
    memcpy(report.text, text, sizeof report.text);
    return text[0] == '\0' || connection_send(socket, &report);
}

static bool send_terms(const struct client *client, int socket)
{
    static const struct nvshare_terms none;
    struct nvshare_report report = {
        .type = NVSHARE_GANG, .terms = client->terms,
    };
    return memcmp(&client->terms, &none, sizeof none) == 0 || connection_send(socket, &report);
}

static bool send_names(const struct client *client, int socket)
{
    return send_text(socket, NVSHARE_NAME, client->name)
        && send_text(socket, NVSHARE_GANG, client->gang) && send_terms(client, socket);
}

bool client_introduce(const struct client *client, int socket, const struct nvshare_report *stored,
                      const struct nvshare_report *hello)
{
    return send_names(client, socket)
        && (stored->moved == 0 || connection_send(socket, stored))
        && connection_send(socket, hello);
}

struct nvshare_report client_report(const struct client *client, struct nvshare_report report)
{
    report.memory = client->memory;
    report.memory.host += client->uncounted;
    report.pin_reason = client->pin_reason;
    if (client->pin_reason != NVSHARE_PIN_NONE) {
        report.memory.pinned += client->memory.resident;
        report.memory.allocated -= client->memory.resident;
        report.memory.resident = 0;
    }
    if (report.type == NVSHARE_HELLO)
        memcpy(report.uuid, client->uuid, sizeof report.uuid);
    report.answered = client->answered_commit;
    report.to_pin = client_to_pin(client);
    return report;
}

static KEPT_IN_CHILD preceding_report *const *preceding =
    (preceding_report *const[]){ NULL };

void client_reports_begin_with(preceding_report *const *all)
{
    preceding = all;
}

/* Sends the figures of rooms above that have changed. */
static bool send_preceding(struct client *client)
{
    struct nvshare_report report;
    bool sent = true;
    for (preceding_report *const *next = preceding; sent && *next != NULL; next++)
        if ((*next)(client, &report)) {
            report = client_report(client, report);
            sent = connection_send(client->socket, &report);
        }
    return sent;
}

void client_send(struct client *client, struct nvshare_report report)
{
    if (client->socket < 0)
        return;
    report = client_report(client, report);
    client->reported = true;
    /* The socket is not closed here: the service thread may be receiving on it. */
    if ((report.type == NVSHARE_HELLO && !send_names(client, client->socket))
        || !send_preceding(client) || !connection_send(client->socket, &report))
        shutdown(own_file_descriptor(client->socket), SHUT_RDWR);
}

void client_changed(struct client *client)
{
    if (!client->reported)
        return;
    client->reported = false;
    client_wake(client);
}

static KEPT_IN_CHILD reclaimer *const *reclaimers = (reclaimer *const[]){ NULL };

void reclaim_from(reclaimer *const *all)
{
    reclaimers = all;
}

bool reclaim(struct client *client, uint64_t bytes, uint64_t until)
{
    for (reclaimer *const *one = reclaimers; *one != NULL; one++)
        if ((*one)(client, bytes, until))
            return true;
    return false;
}

bool client_is_whole(const struct client *client)
{
    return client->absent == 0 && filled_room(client) <= client->memory.room;
}

static bool must_wait(const struct client *client)
{
    return client->remapping || !client_is_whole(client);
}

void client_update(struct client *client)
{
    bool starved = must_wait(client);
    if ((starved || !client_may_keep_freed(client)) && reclaim(client, RECLAIM_ALL, 0))
        starved = must_wait(client);
    if (starved != client->starved) {
        client->starved = starved;
        client->starved_reported = false;
        if (starved)
            gate_close(GATE_STARVED(client));
        else
            gate_open(GATE_STARVED(client));
    }
    if (starved && !client->remapping && client->running && !client->starved_reported
        && client->socket >= 0) {
        client->starved_reported = true;
        client_send(client, (struct nvshare_report){ .type = NVSHARE_MEMORY });
    } else {
        client_changed(client);
    }
}

bool clients_stopping(void)
{
    EACH_CLIENT(client)
        if (client->stopping)
            return true;
    return false;
}

void clients_want(void)
{
    LOCKED(memory_lock);
    EACH_CLIENT(client) {
        if (client->prints_waits)
            client_wake(client);
        if (client->running || client->stopping || client->want_sent)
            continue;
        client->want_sent = true;
        client->wanted = now_microseconds();
        client_send(client, (struct nvshare_report){ .type = NVSHARE_MEMORY,
                                                     .flags = NVSHARE_WANTS });
    }
}

/* COMMIT asks the daemon how far the client's memory may grow, resident and swapped together. The
 * daemon grants more than was requested, so most allocations need no message. Memory to be pinned
 * needs a COMMIT each time, and the daemon counts the grant besides memory.pinned until a report
 * says that the answer has been read (`answered`) and the bytes are pinned (`to_pin`).
 * memory.pinned alone cannot show that, as another thread may have freed pinned memory. Because the
 * thread that got a grant may end, or leave its call by siglongjmp(), a grant unused for
 * GRANT_UNUSED_MOST_US is given up. */

#define GRANT_UNUSED_MOST_US 60000000
#define ANSWER_EXPECTED_US 100000    /* an answer is later only if other clients must act first */
/* Longest wait in us for work that uses freed memory: that work may wait for the same thread. */
#define RECLAIM_US 2000000

/* This thread's last COMMIT for memory to be pinned. */
static __thread struct latest {
    struct client *client;
    struct open_commit *entry;
    uint64_t number;
} latest;

/* The entry of this thread's last COMMIT; NULL: that COMMIT is closed. */
static struct open_commit *own_entry(void)
{
    return latest.entry != NULL && latest.entry->number == latest.number ? latest.entry : NULL;
}

static void close_entry(struct client *client, struct open_commit *entry)
{
    *entry = (struct open_commit){ .number = 0 };
    if (client->waits_for_entry)
        bell_ring(&client->commit_bell);
    client->waits_for_entry = false;
    client_changed(client);
}

void client_settle(void)
{
    struct open_commit *entry = own_entry();
    if (entry != NULL)
        close_entry(latest.client, entry);
}

/* Whether a LIMITS grants what a COMMIT asked for; `beyond`: if `wanted` is 0. */
static bool grants(const struct nvshare_order *answer, uint64_t wanted, uint64_t beyond)
{
    if (wanted != 0 ? answer->limits.commit < wanted : answer->limits.beyond < beyond)
        return false;
    return answer->version == NVSHARE_PROTOCOL_OLDEST || (answer->flags & NVSHARE_GRANTED) != 0;
}

void client_commit_answered(struct client *client, uint64_t number,
                            const struct nvshare_order *answer)
{
    client->answered_commit = number;
    if (!client->reason_begun)
        client->reason[0] = '\0';
    client->reason_begun = false;
    if (answer != NULL)
        client->commit_answer = *answer;
    for (size_t i = 0; i < OPEN_COMMITS_MAX; i++) {
        struct open_commit *entry = &client->open_commits[i];
        if (entry->number == 0 || entry->number > number || entry->granted != 0)
            continue;
        if (answer != NULL && entry->number == number
            && grants(answer, entry->wanted, 0))
            entry->granted = now_microseconds();
        else
            close_entry(client, entry);
    }
}

void client_void_commits(struct client *client)
{
    client_commit_answered(client, client->last_commit, NULL);
    client->introduced++;
    bell_ring(&client->commit_bell);
}

void client_set_limits(struct client *client, const struct nvshare_order *order)
{
    LOCKED(memory_lock);
    client->limits = order->limits;
    if (!client_may_keep_freed(client))
        reclaim(client, RECLAIM_ALL, 0);
    /* LIMITS that answers no open COMMIT must not count as the answer to a later COMMIT. */
    if (order->number > client->answered_commit && order->number <= client->last_commit)
        client_commit_answered(client, order->number, order);
    bell_ring(&client->commit_bell);
}

void client_append_refusal(struct client *client, const char *text, size_t size)
{
    if (!client->reason_begun)
        client->reason[0] = '\0';
    client->reason_begun = true;
    size_t left = sizeof client->reason - 1 - strlen(client->reason);
    strncat(client->reason, text, size < left ? size : left);
}

/* Prints client->reason unless it was printed last, with memory_lock released: stderr may block. */
static void print_refusal(struct client *client)
{
    if (client->reason[0] == '\0' || strcmp(client->reason, client->printed_reason) == 0)
        return;
    memcpy(client->printed_reason, client->reason, sizeof client->printed_reason);
    char reason[REASON_LONGEST];
    memcpy(reason, client->reason, sizeof reason);
    mutex_unlock(&memory_lock);
    complain("out of GPU memory, as %s", reason);
    mutex_lock(&memory_lock);
}

uint64_t client_to_pin(const struct client *client)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < OPEN_COMMITS_MAX; i++)
        if (client->open_commits[i].granted != 0)
            bytes += client->open_commits[i].pins;
    return bytes;
}

int64_t client_expire_grants(struct client *client)
{
    uint64_t now = now_microseconds();
    int64_t left = NEVER;
    for (size_t i = 0; i < OPEN_COMMITS_MAX; i++) {
        struct open_commit *entry = &client->open_commits[i];
        if (entry->granted == 0)
            continue;
        uint64_t end = entry->granted + GRANT_UNUSED_MOST_US;
        if (end <= now)
            close_entry(client, entry);
        else if ((int64_t)(end - now) < left)
            left = (int64_t)(end - now);
    }
    return left;
}

/* Waits for a change of commit_bell until `until` (NULL: for ever), with memory_lock released. */
static void wait_for_answer(struct client *client, const struct timespec *until)
{
    BLOCKED;
    uint32_t before = atomic_load(&client->commit_bell);
    mutex_unlock(&memory_lock);
    bell_wait(&client->commit_bell, before, until);
    mutex_lock(&memory_lock);
}

/* Claims an entry for this thread's next COMMIT. False: no entry was free; the thread has waited
 * for a change. A thread with an entry never waits here, so entries become free. */
static bool take_entry(struct client *client, uint64_t wanted, uint64_t pins)
{
    struct open_commit *entry = own_entry();
    for (size_t i = 0; i < OPEN_COMMITS_MAX && entry == NULL; i++)
        if (client->open_commits[i].number == 0)
            entry = &client->open_commits[i];
    if (entry == NULL) {
        client->waits_for_entry = true;
        wait_for_answer(client, NULL);
        return false;
    }
    latest = (struct latest){ client, entry, client->last_commit + 1 };
    *entry = (struct open_commit){ latest.number, wanted, pins, 0 };
    return true;
}

bool client_commit(struct client *client, uint64_t size)
{
    return client_commit_pinned(client, size, 0, client_patience_ends());
}

uint64_t client_patience_ends(void)
{
    return now_microseconds() + RECLAIM_US;
}

/* Sends a COMMIT and waits, memory_lock released. True: client->commit_answer is the answer. */
static bool request_commit(struct client *client, uint64_t wanted, uint64_t pins)
{
    uint64_t number = ++client->last_commit;
    unsigned introduced = client->introduced;
    client_send(client, (struct nvshare_report){ .type = NVSHARE_COMMIT, .number = number,
                                                 .wanted = wanted, .pins = pins });
    uint64_t end = now_microseconds() + ANSWER_EXPECTED_US;
    const struct timespec until = { (time_t)(end / 1000000), (long)(end % 1000000 * 1000) };
    bool late = false;
    while (client->socket >= 0 && client->introduced == introduced
           && client->answered_commit < number) {
        if (late)
            client_wake(client);     /* waiting.c may print why the program waits */
        wait_for_answer(client, late ? NULL : &until);
        late = true;
    }
    return client->socket >= 0 && client->introduced == introduced
           && client->answered_commit == number;
}

static void give_back_beyond(void *client, uint64_t bytes)
{
    LOCKED(memory_lock);
    ((struct client *)client)->memory.beyond -= bytes;
    client_update(client);
}

bool client_go_beyond(struct client *client, uint64_t bytes)
{
    while (bytes <= client->limits.beyond
           && client->memory.beyond <= client->limits.beyond - bytes) {
        /* Added now, so that the COMMIT and reports sent meanwhile include `bytes`. */
        uint64_t wanted = client->memory.beyond += bytes;
        if (client->socket < 0)
            return true;             /* no daemon is connected: the last limits apply */
        bool answered;
        {
            UNLESS_LEFT(give_back_beyond, client, bytes);
            answered = request_commit(client, 0, 0);
        }
        if (answered && grants(&client->commit_answer, 0, wanted))
            return true;
        client->memory.beyond -= bytes;
        if (answered) {
            print_refusal(client);
            return false;
        }
    }
    return false;
}

static void settle_own(void *unused, uint64_t zero)
{
    (void)unused, (void)zero;
    LOCKED(memory_lock);
    client_settle();
}

bool client_commit_pinned(struct client *client, uint64_t size, uint64_t pins, uint64_t until)
{
    bool granted, allowed = pins == 0;
    UNLESS_LEFT(settle_own, NULL, 0);
    for (;;) {
        uint64_t wanted = client_need(client) + size;
        granted = allowed && wanted <= client->limits.commit;
        if (granted)
            break;
        uint64_t most = pins == 0 ? client->limits.commit : 0;
        if (wanted > most && reclaim(client, wanted - most, 0))
            continue;
        if (client->socket < 0) {
            /* While no daemon is connected, the limits received last apply. */
            granted = wanted <= client->limits.most;
            if (!granted && reclaim(client, RECLAIM_ALL, until))
                continue;
            break;
        }
        if (pins > 0 && !take_entry(client, wanted, pins))
            continue;
        bool ours = request_commit(client, wanted, pins);
        /* A refusal is final unless threads have freed memory meanwhile or reclaim() frees some. */
        if (ours && !grants(&client->commit_answer, wanted, 0)
            && client_need(client) + size >= wanted && !reclaim(client, RECLAIM_ALL, until)) {
            print_refusal(client);
            break;
        }
        /* The grant stays valid even if later LIMITS grant less. */
        const struct open_commit *own = own_entry();
        allowed = pins == 0 || (own != NULL && own->granted != 0);
    }
    if (pins > 0 && !granted)
        client_settle();
    return granted;
}

/* A client is pinned if its work never ends or bypasses the gate, or if a device accesses its
 * memory by itself. Its memory is not evicted, and it runs at the same time as other clients. Its
 * resident memory is reported as pinned (client_report()) until the client ends, because the
 * library cannot detect when the reason for the pin ends. */

static const char *const PIN_REASONS[] = {
    [NVSHARE_PIN_UNDRAINED] = "its work does not end, or cannot be waited for",
    [NVSHARE_PIN_UNSEEN] = "it may submit work that libnvshare.so does not see",
    [NVSHARE_PIN_GIVEN] = "it gave memory to a device or library that may use it at any time",
};

void client_pin(struct client *client, enum nvshare_pin_reason reason)
{
    bool first;
    {
        LOCKED(memory_lock);
        first = client->pin_reason == NVSHARE_PIN_NONE;
        if (first) {
            client->pin_reason = reason;
            client_update(client);
        }
    }
    if (first)
        complain("this program stays on GPU %d from now on: %s. Other programs get what is left.",
                 (int)client->device, PIN_REASONS[reason]);
}

static _Atomic enum nvshare_pin_reason process_pin_reason;

void clients_pin(enum nvshare_pin_reason reason)
{
    enum nvshare_pin_reason none = NVSHARE_PIN_NONE;
    atomic_compare_exchange_strong(&process_pin_reason, &none, reason);
    EACH_CLIENT(client)
        client_pin(client, reason);
}

enum nvshare_pin_reason clients_pin_reason(void)
{
    return atomic_load(&process_pin_reason);
}

/* Keeps exit() from destroying the driver's objects while a library thread is inside the driver,
 * which would crash the program. cuInit registers a function with atexit() after which each driver
 * call fails at once (drivers 535, 550 and 555); later the driver's static objects are destroyed.
 * at_exit(), registered right before cuInit, runs in between, and waits until the service threads
 * have returned from their current calls. */

/* Longest wait in us for both locks: the exiting thread may have locked one before exit(). */
#define PATIENCE_US 5000000

static void await_lock(pthread_mutex_t *lock, uint64_t until)
{
    while (pthread_mutex_trylock(lock) != 0) {
        if (now_microseconds() > until) {
            debug("the process exits while its memory is being moved");
            return;
        }
        bell_nap(100);
    }
    pthread_mutex_unlock(lock);
}

static void at_exit(void)
{
    stubs_await();                   /* while the process is parked, the driver must not end */
    uint64_t until = now_microseconds() + PATIENCE_US;
    await_lock(&service_lock, until);
    await_lock(&memory_lock, until);
}

void process_end_watch(void)
{
    static _Atomic bool watched;
    if (!atomic_exchange(&watched, true) && atexit(at_exit) != 0)
        debug("the end of the process cannot be watched");
}

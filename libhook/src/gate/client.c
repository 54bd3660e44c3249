/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sends a client's reports to the daemon, and opens or closes its gate by the memory figures.
 */
#include "gate/client.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "driver/bell.h"
#include "driver/forked.h"
#include "driver/log.h"
#include "driver/ops.h"
#include "driver/own_file.h"
#include "driver/stubs.h"
#include "gate/commit.h"
#include "gate/connection.h"
#include "gate/gate.h"

pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t memory_changed = PTHREAD_COND_INITIALIZER;
pthread_mutex_t service_lock = PTHREAD_MUTEX_INITIALIZER;
struct client *clients[CLIENTS_MAX];
static _Atomic unsigned client_count;

static __thread bool thread_is_ours __attribute__((tls_model("initial-exec")));

void client_thread_is_ours(void)
{
    thread_is_ours = true;
}

bool client_is_called_back(void)
{
    return thread_is_ours || locked_here(&memory_lock);
}

bool client_none(void)
{
    return client_count == 0 || locked_here(&memory_lock);
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

static void abandon(void)
{
    EACH_CLIENT(client) {
        client->socket = -1;
        bell_ring(&client->commit_bell);   /* wakes a thread whose signal handler has forked */
    }
}

void clients_watch_forks(void)
{
    forks_watch(abandon, gate_abandon);
}

uint64_t now_microseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

struct client *client_current(void)
{
    return client_count == 0 || client_is_called_back() ? NULL : client_here();
}

struct client *client_here(void)
{
    CUdevice device;
    if (client_count == 0 || REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS
        || device < 0 || device >= CLIENTS_MAX)
        return NULL;
    return __atomic_load_n(&clients[device], __ATOMIC_ACQUIRE);
}

uint64_t client_need(const struct client *client)
{
    return client->memory.allocated + client->memory.pinned + client->memory.pending;
}

uint64_t client_free_room(const struct client *client)
{
    uint64_t filled = client->memory.resident + client->memory.pinned + client->memory.pending;
    return client->memory.room > filled ? client->memory.room - filled : 0;
}

bool client_may_keep_freed(const struct client *client)
{
    return client->granted && !client->squeezed && !client->starved && client->socket >= 0
        && client_need(client) <= client->limits.most;
}

void client_wake(struct client *client)
{
    UNCANCELLED;
    /* Fails only if the socket is full of wake-ups, or if the program has closed it (service.c). */
    send(own_file_descriptor(client->wakes), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
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
    memmove(client->postponed, client->postponed + 1,
            --client->postponed_count * sizeof *order);
    return true;
}

CUresult device_uuid(CUdevice device, CUuuid *uuid)
{
    return HAVE_REAL(cuDeviceGetUuid_v2) ? REAL(cuDeviceGetUuid_v2)(uuid, device)
                                         : REAL(cuDeviceGetUuid)(uuid, device);
}

static bool send_text(int socket, uint16_t type, const char *text)
{
    struct nvshare_report report = { .type = type, .version = NVSHARE_PROTOCOL_VERSION };
    memcpy(report.text, text, sizeof report.text);
    return text[0] == '\0' || connection_send(socket, &report);
}

static bool send_names(const struct client *client, int socket)
{
    return send_text(socket, NVSHARE_NAME, client->name)
        && send_text(socket, NVSHARE_GANG, client->gang);
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
    report.version = NVSHARE_PROTOCOL_VERSION;
    if (report.type == NVSHARE_STORED) {
        report.number = client->store_number;
        report.moved = client->stored;
        report.took = (uint64_t)client->store_error;
    }
    report.memory = client->memory;
    report.memory.host += client->returning;
    report.pin_reason = (uint16_t)client->pin_reason;
    if (client->pin_reason != NVSHARE_PIN_NONE) {
        report.memory.pinned += client->memory.resident;
        report.memory.allocated -= client->memory.resident;
        report.memory.resident = 0;
    }
    if (report.type == NVSHARE_HELLO) {
        memcpy(report.uuid, client->uuid, sizeof report.uuid);
    } else if (report.type == NVSHARE_BORROWED) {
        memcpy(report.uuid, client->lender_uuid, sizeof report.uuid);
        report.moved = client->borrowed;
        report.dirty = client->dirty;
    } else {
        report.answered = client->answered_commit;
        report.to_pin = client_to_pin(client);
    }
    return report;
}

static bool send_figures(const struct client *client, struct nvshare_report report)
{
    report = client_report(client, report);
    return connection_send(client->socket, &report);
}

static bool send_borrowed(struct client *client)
{
    if (client->borrowed == client->borrowed_reported && client->dirty == client->dirty_reported)
        return true;
    client->borrowed_reported = client->borrowed;
    client->dirty_reported = client->dirty;
    return send_figures(client, (struct nvshare_report){ .type = NVSHARE_BORROWED });
}

static bool send_stored(struct client *client)
{
    if (!client->store_news)
        return true;
    client->store_news = false;
    return send_figures(client, (struct nvshare_report){ .type = NVSHARE_STORED });
}

void client_send(struct client *client, struct nvshare_report report)
{
    if (client->socket < 0)
        return;
    report = client_report(client, report);
    client->reported = true;
    UNCANCELLED;
    /* Only the service thread closes the connection; it may be waiting on it now. */
    if ((report.type == NVSHARE_HELLO && !send_names(client, client->socket))
        || !send_borrowed(client) || !send_stored(client)
        || !connection_send(client->socket, &report))
        shutdown(own_file_descriptor(client->socket), SHUT_RDWR);
}

void client_changed(struct client *client)
{
    if (!client->reported)
        return;
    client->reported = false;
    client_wake(client);
}

static reclaimer *const no_reclaimer = NULL;
static reclaimer *const *reclaimers = &no_reclaimer;

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
    const struct nvshare_memory *memory = &client->memory;
    return client->absent == 0
        && memory->resident + memory->pinned + memory->pending <= memory->room;
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
        client->lack_reported = false;
        if (starved)
            gate_close(GATE_STARVED(client));
        else
            gate_open(GATE_STARVED(client));
    }
    if (starved && !client->remapping && client->granted && !client->lack_reported
        && client->socket >= 0) {
        client->lack_reported = true;
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
        if (client->granted || client->stopping || client->want_sent)
            continue;
        client->want_sent = true;
        client_send(client, (struct nvshare_report){ .type = NVSHARE_MEMORY,
                                                     .flags = NVSHARE_WANTS });
    }
}

/*
 * Programs whose memory stays on the card. Some cannot be stopped, or only seem to stop: their work
 * never ends, or bypasses the gate, or a device accesses their memory by itself.
 *
 * To move the memory of such a program would break it, and to wait for it would block all others.
 * From the moment the reason is known, none of its memory is evicted. The program runs beside every
 * holder, and the others share the rest of the card. Its resident memory is reported as pinned
 * (client_send()), and the daemon grants its later allocations as it grants pinned memory.
 *
 * This is permanent, because the end of the reason cannot be detected.
 */

static const char *pin_reason_text(enum nvshare_pin_reason reason)
{
    switch (reason) {
    case NVSHARE_PIN_UNSEEN:
        return "it may submit work that libnvshare.so does not see";
    case NVSHARE_PIN_GIVEN:
        return "it gave memory to a device or library that may use it at any time";
    default:
        return "its work does not end, or cannot be waited for";
    }
}

void client_pin(struct client *client, enum nvshare_pin_reason reason)
{
    pthread_mutex_lock(&memory_lock);
    bool first = client->pin_reason == NVSHARE_PIN_NONE;
    if (first) {
        client->pin_reason = reason;
        client_update(client);
    }
    pthread_mutex_unlock(&memory_lock);
    if (first)
        complain("this program stays on GPU %d from now on: %s. Other programs get what is left.",
                 (int)client->device, pin_reason_text(reason));
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

/*
 * Keeps exit() from going on while a thread of the library is inside the driver. Otherwise a
 * program that ends while its memory moves would crash at its very end.
 *
 * The driver ends in two steps. Its first cuInit registers a function with atexit(); once exit()
 * has called that, each driver call fails at once. Later the driver's static objects are destroyed,
 * and a call that has not returned by then accesses destroyed objects. Such functions run in the
 * reverse order of their registration. A function registered right before cuInit therefore runs
 * between the two steps. It waits until the service threads have returned from their current calls;
 * later calls are harmless.
 *
 * (Drivers 535, 550 and 555 work this way: the function that cuInit registers only marks the driver
 * as ended.)
 */

/* A call takes milliseconds. But a signal handler may call exit() in a thread that holds the
 * lock. */
#define PATIENCE_US 5000000

static void await_lock(pthread_mutex_t *lock, uint64_t until)
{
    while (pthread_mutex_trylock(lock) != 0) {
        if (now_microseconds() > until) {
            debug("the process exits while its memory is being moved");
            return;
        }
        nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
    }
    pthread_mutex_unlock(lock);
}

static void at_exit(void)
{
    stubs_await();                   /* the driver cannot be taken apart while it is checkpointed */
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

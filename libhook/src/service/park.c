/* SPDX-License-Identifier: Apache-2.0 */
/* Parks a program: the daemon lets the driver checkpoint its process, contexts included, until a
 * thread of the program calls the driver.
 *
 * First all stubs are closed (driver/stubs.h), so no further thread enters the driver. No thread is
 * left in the driver when all threads of the process sleep in the kernel, none in an ioctl(), which
 * the driver uses, and none for storage: the driver reads modules and writes its cache of compiled
 * code. This must hold at two checks in a row, with the same system calls, as a thread may have
 * slept for a lock of the driver. No thread waits in the driver for the card, as no work is in
 * flight.
 *
 * A thread that waits at a stub may hold any lock of the library. While parked, the service
 * thread therefore takes no lock and calls no driver function: it sends WAKE when a thread calls
 * the driver, and waits for UNPARK. HELLO tells a new daemon that the client is parked. If the
 * driver cannot restore the process, the stubs stay closed, and each call returns an error.
 *
 * CRIU does not dump a process with a connection to another one. So LEAVE closes it, until the
 * process has another start time, which tells that CRIU has restored it. A clock would not do, as
 * it may have been set back by the restart of the machine. */
#define _GNU_SOURCE
#include "service/park.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "block/store.h"
#include "driver/driver.h"
#include "driver/forked.h"
#include "driver/log.h"
#include "driver/own_file.h"
#include "driver/stubs.h"
#include "gate/client.h"
#include "gate/gate.h"
#include "nvshare/protocol.h"
#include "tier/tier.h"

#define REST_PATIENCE_US 1000000
#define POLL_NS 1000000
#define RECONNECT_NS 100000000
#define AWAY_PAUSES 100              /* of RECONNECT_NS each: longest time for CRIU to begin */

/* The client that is parked, if any: a process with several clients is not parked. */
static struct client *_Atomic parked;

static void wake_service(void)
{
    client_wake(atomic_load(&parked));
}

enum thread_state { RESTS, RUNS, GONE, UNSEEN };

/* Reads /proc/self/task/TID/NAME. RESTS: it is in `text`, as a string. */
static enum thread_state read_thread_file(long thread, const char *name, char *text, size_t size)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%ld/%s", thread, name);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return errno == ENOENT ? GONE : UNSEEN;
    ssize_t length = read(file, text, size - 1);
    int error = errno;
    close(file);
    if (length <= 0)
        return length < 0 && error != ESRCH ? UNSEEN : GONE;
    text[length] = '\0';
    return RESTS;
}

/* Whether a system call reads or writes a file on a file system, which may be a remote one. */
static bool uses_file(long call, int descriptor)
{
    switch (call) {
    case SYS_read: case SYS_pread64: case SYS_readv: case SYS_preadv:
    case SYS_write: case SYS_pwrite64: case SYS_writev: case SYS_pwritev:
    case SYS_fsync: case SYS_fdatasync: case SYS_ftruncate: case SYS_fallocate:
        break;
    default:
        return false;
    }
    struct stat status;
    /* No fstat(): glibc has it since 2.33 only. */
    return syscall(SYS_fstat, descriptor, &status) == 0 && S_ISREG(status.st_mode);
}

/* If the thread sleeps, adds /proc/self/task/TID/syscall to the hash: the system call, its
 * arguments and the stack pointer. State D: the kernel waits for storage, or for a child of
 * vfork(2) that has not called execve(2) yet. */
static enum thread_state read_thread_state(long thread, uint64_t *hash)
{
    char text[256], status[512], *end;
    enum thread_state state = read_thread_file(thread, "syscall", text, sizeof text);
    if (state != RESTS)
        return state;
    long call = strtol(text, &end, 10);
    if (end == text || call < 0 || call == SYS_ioctl
        || uses_file(call, (int)strtoul(end, NULL, 16)))
        return RUNS;
    if ((state = read_thread_file(thread, "stat", status, sizeof status)) != RESTS)
        return state;
    const char *name_end = strrchr(status, ')');
    if (name_end == NULL || name_end[1] == '\0' || name_end[2] == 'D')
        return RUNS;
    for (const char *at = text; *at != '\0'; at++)
        *hash = (*hash ^ (uint64_t)(unsigned char)*at) * 1099511628211ull;
    return RESTS;
}

struct entry {                       /* result of getdents64(2): readdir() would allocate memory */
    uint64_t inode, offset;
    unsigned short size;
    unsigned char type;
    char name[];
};

/* The state of the first other thread that does not sleep. RESTS: all sleep; *hash is then set. */
static enum thread_state read_thread_states(uint64_t *hash)
{
    _Alignas(struct entry) char entries[4096];
    long self = syscall(SYS_gettid), size;
    enum thread_state worst = RESTS;
    int tasks = open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (tasks < 0)
        return UNSEEN;
    *hash = 14695981039346656037ull;
    while (worst == RESTS && (size = syscall(SYS_getdents64, tasks, entries, sizeof entries)) > 0)
        for (long at = 0; at < size && worst == RESTS;) {
            const struct entry *entry = (const struct entry *)(entries + at);
            long thread = strtol(entry->name, NULL, 10);
            at += entry->size;
            enum thread_state state = thread == 0 || thread == self
                ? GONE : read_thread_state(thread, hash);
            if (state != GONE)
                worst = state;
        }
    close(tasks);
    return worst;
}

/* Whether a thread waits for the answer to a COMMIT. A thread that holds memory_lock may itself wait
 * for the driver, so the lock is not waited for. */
static bool has_open_commit(const struct client *client)
{
    if (pthread_mutex_trylock(&memory_lock) != 0)
        return false;
    bool open = client->answered_commit < client->last_commit;
    pthread_mutex_unlock(&memory_lock);
    return open;
}

static bool wanted(const struct client *client)
{
    return stubs_called() || gate_has_waiters() || has_open_commit(client);
}

/* Waits, with the stubs closed, until all other threads sleep. Returns PARK_DONE or a failure. */
static enum nvshare_park await_threads_asleep(const struct client *client, bool ahead)
{
    uint64_t until = now_microseconds() + REST_PATIENCE_US, before = 0;
    do {
        uint64_t hash = 0;
        enum thread_state state = read_thread_states(&hash);
        if (ahead && wanted(client))
            return NVSHARE_PARK_CALLED;
        if (state == UNSEEN)
            return NVSHARE_PARK_UNSEEN;
        if (state == RESTS && hash == before)
            return NVSHARE_PARK_DONE;
        before = state == RESTS ? hash : 0;
        nanosleep(&(struct timespec){ .tv_nsec = POLL_NS }, NULL);
    } while (now_microseconds() < until);
    return NVSHARE_PARK_BUSY;
}

/* PARK_DONE, or the reason why the client may not be parked. memory_lock is held. */
static enum nvshare_park may_park(const struct client *client, bool ahead)
{
    if (clients_count() != 1)
        return NVSHARE_PARK_SEVERAL;
    if (client->running
        || (ahead && (gate_has_waiters() || client->answered_commit < client->last_commit)))
        return NVSHARE_PARK_CALLED;
    bool holds = client->pin_reason != NVSHARE_PIN_NONE || client->memory.resident != 0
                 || tiers_hold_driver_memory(client) || !client->drained;
    return holds ? NVSHARE_PARK_HOLDS : NVSHARE_PARK_DONE;
}

/* Closes a descriptor. The handle stays: the program's threads may be using it. */
static void close_descriptor(int handle)
{
    UNFORKED;
    int descriptor = own_file_descriptor(handle);
    if (descriptor >= 0)
        close(descriptor);
}

/* The process's start time in /proc/self/stat, in ticks since the boot of the machine; 0: unknown. */
static unsigned long long start_time(void)
{
    char text[1024];
    int file = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? -1 : read(file, text, sizeof text - 1);
    if (file >= 0)
        close(file);
    text[length > 0 ? length : 0] = '\0';
    /* Field 22. The name, field 2, may contain blanks and parentheses. */
    const char *rest = strrchr(text, ')');
    for (int field = 2; rest != NULL && field < 22; field++)
        rest = strchr(rest + 1, ' ');
    return rest == NULL ? 0 : strtoull(rest, NULL, 10);
}

/* Carries out LEAVE, unless the client has a file: the threads that write to it have a descriptor
 * table of their own, which CRIU does not restore. The pauses are counted, as they do not go on while CRIU has frozen the
 * process. */
static void stay_away(const struct client *client)
{
    if (store_has_file(client))
        return;
    unsigned long long started = start_time();
    close_descriptor(client->socket);
    close_descriptor(client->wakes);     /* client_wait() makes others */
    close_descriptor(client->wake);
    for (int pause = 0; pause < AWAY_PAUSES && start_time() == started; pause++)
        nanosleep(&(struct timespec){ .tv_nsec = RECONNECT_NS }, NULL);
}

/* Sends `hello`, the reports HELLO and STORED. True: HELLO was sent with the flag WANTS, because a
 * thread waits to call the driver. */
static bool introduce(const struct client *client, const struct nvshare_report *hello,
                      uint64_t number)
{
    struct nvshare_report report = *hello;
    report.number = number;
    report.flags |= wanted(client) ? NVSHARE_WANTS : 0;
    return client_introduce(client, client->socket, hello + 1, &report)
           && (report.flags & NVSHARE_WANTS) != 0;
}

/* Connects anew under the same handle. Returns the result of introduce(). */
static bool reconnect(const struct client *client, const struct nvshare_report *hello)
{
    int next = connection_open();
    if (next < 0)
        return false;
    {
        UNFORKED;
        own_file_replace(client->socket,
                         fcntl(own_file_descriptor(next), F_DUPFD_CLOEXEC, 0));
    }
    own_file_close(next);
    return introduce(client, hello, 0);
}

/* Returns when UNPARK is in *order. `hello`, `wake`: reports made when the program was parked. True:
 * HELLO was sent meanwhile. */
static bool stay_parked(struct client *client, const struct nvshare_report *hello,
                        const struct nvshare_report *wake, struct nvshare_order *order)
{
    bool wake_sent = false, received = true, introduced = false;
    for (;;) {
        if (own_file_descriptor(client->socket) < 0) {
            if (!received)
                connection_try_other_version();
            wake_sent = reconnect(client, hello);
            introduced = true;
            received = own_file_descriptor(client->socket) < 0;
            if (own_file_descriptor(client->socket) < 0)
                nanosleep(&(struct timespec){ .tv_nsec = RECONNECT_NS }, NULL);
            continue;                /* a thread may have called the driver meanwhile */
        }
        if (!wake_sent && wanted(client))
            wake_sent = connection_send(client->socket, wake);
        int connection = client_wait(client, NEVER);
        int got = connection < 0 ? 0 : connection_receive(connection, order, NULL, 0);
        received |= got == 1;
        if (got == 1 && order->type == NVSHARE_UNPARK)
            return introduced;
        introduced |= got == 1 && order->type == NVSHARE_INTRODUCE;
        if (got == 1 && order->type == NVSHARE_INTRODUCE)
            wake_sent = introduce(client, hello, order->number);
        else if (got == 1 && order->type == NVSHARE_LEAVE)
            stay_away(client);
        else if (got == 1)
            complain("nvshared sent a record of type %u to a parked program; leaving it",
                     order->type);
        if (got < 0 || (got == 1 && order->type != NVSHARE_INTRODUCE
                        && order->type != NVSHARE_LEAVE))
            close_descriptor(client->socket);
    }
}

void park(struct client *client, const struct nvshare_order *order)
{
    bool ahead = (order->flags & NVSHARE_AHEAD) != 0;
    pthread_mutex_lock(&memory_lock);
    struct nvshare_report report = client_report(client, (struct nvshare_report){
        .type = NVSHARE_PARKED, .number = order->number, .park = may_park(client, ahead) });
    struct nvshare_report hello[] = {
        client_report(client, (struct nvshare_report){
            .type = NVSHARE_HELLO, .commit = client->limits.commit, .context = order->host,
            .flags = NVSHARE_IS_PARKED }),
        client_report(client, store_figures(client)),
    };
    pthread_mutex_unlock(&memory_lock);
    pthread_mutex_unlock(&service_lock);
    bool introduced = false;
    struct nvshare_order end = { .type = NVSHARE_UNPARK };
    memcpy(end.gpu, client->uuid, sizeof end.gpu);
    if (report.park == NVSHARE_PARK_DONE) {
        atomic_store(&parked, client);
        report.park = stubs_close(wake_service) ? await_threads_asleep(client, ahead) : NVSHARE_PARK_UNSEEN;
        report.flags = wanted(client) ? NVSHARE_WANTS : 0;
        struct nvshare_report wake = report;
        wake.type = NVSHARE_WAKE;
        if (report.park == NVSHARE_PARK_DONE && connection_send(client->socket, &report))
            introduced = stay_parked(client, hello, &wake, &end);
        if ((end.flags & NVSHARE_DRIVER_ERROR) != 0) {
            complain("the driver cannot restore what this program had on GPU %d: each of its CUDA "
                     "calls fails from now on. End it, and start it again.", (int)client->device);
            stubs_lose();
        } else {
            stubs_open();
        }
    }
    pthread_mutex_lock(&service_lock);
    LOCKED(memory_lock);
    memcpy(client->uuid, end.gpu, sizeof client->uuid);
    if (introduced)
        client_void_commits(client);
    if (report.park == NVSHARE_PARK_DONE) {
        tiers_attach(client);
        client_changed(client);
    } else {
        client_send(client, report);
    }
}

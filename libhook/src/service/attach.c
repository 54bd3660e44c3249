/* SPDX-License-Identifier: Apache-2.0 */
/* Attaches to the daemon when a program creates its first context on a GPU. If that fails, the
 * program runs unshared, and the library prints the reason; with NVSHARE_REQUIRED=1 it waits and
 * tries again, whatever has failed. One thread attaches, without a lock, as it may wait for long;
 * if it leaves, by a jump or cancelled, the next thread begins anew. */
#define _GNU_SOURCE
#include "service/attach.h"

#include <errno.h>
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "block/store.h"
#include "block/swap.h"
#include "driver/bell.h"
#include "driver/glibc.h"
#include "driver/log.h"
#include "driver/ops.h"
#include "driver/own_file.h"
#include "driver/own_thread.h"
#include "driver/rebind.h"
#include "driver/setting.h"
#include "flight/capture.h"
#include "flight/drain.h"
#include "gate/client.h"
#include "gate/contexts.h"
#include "gate/gate.h"
#include "ipc/ipc_import.h"
#include "memory/allocation.h"
#include "memory/managed.h"
#include "memory/pinned.h"
#include "pool/pool.h"
#include "service/service.h"
#include "service/terms.h"
#include "tier/tier.h"

/* Longest time in us that a program waits for a daemon that is being started. */
#define CONNECT_PATIENCE_US 1000000
/* ms to wait for the answer to HELLO: long, as a program that runs unshared uses memory promised to
 * other clients. systemd's watchdog replaces a daemon that hangs within half of this time. */
#define WELCOME_PATIENCE_MS 60000
#define WELCOME_SILENT_MS 5000
#define BUSY_PATIENCE_US (WELCOME_PATIENCE_MS * 1000)
#define DEFAULT_IDLE_WINDOW_US 50000
#define CONTEXT_RETRY_MS 50
#define RETRY_MS 250
#define UNSHARED_INSTEAD "NVSHARE_REQUIRED=0 would run this program unshared."
#define CONTEXT_TRIES 1200
#define DEVICES 128

static reclaimer *const RECLAIMERS[] = {
    spares_reclaim, pools_reclaim, deferred_frees_reclaim, NULL,
};
static preceding_report *const TIER_REPORTS[] = { swap_report, store_report, NULL };

static MUTEX(attach_lock);
/* Protected by attach_lock. The thread that attaches a client, 0: none; where on its stack. */
static pid_t attaching_thread;
static const char *attaching_frame;
static _Atomic uint32_t attach_bell;               /* rung when a thread no longer attaches */

/* The variables below are used by the attaching thread only. */

static struct client *attached;      /* the client that is being attached; NULL: none yet */
static bool waits_for_daemon;        /* a message has said so */

static bool is_required(void)
{
    return setting_is_on("NVSHARE_REQUIRED");
}

static void print_wait(const char *problem, const char *consequence)
{
    if (!waits_for_daemon)
        complain("waits for nvshared, which %s. %s", problem, consequence);
    waits_for_daemon = true;
}

/* Prints why the GPU cannot be shared, and what follows; once, while the reason is the same. */
__attribute__((format(printf, 1, 2))) static void print_refusal(const char *format, ...)
{
    static char last[256];
    char reason[sizeof last];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    if (!is_required()) {
        complain("%s The GPU is used unshared.", reason);
    } else if (strcmp(reason, last) != 0) {
        memcpy(last, reason, sizeof last);
        complain("%s This program waits until that changes. " UNSHARED_INSTEAD, reason);
    }
}

static void retry_pause(void)
{
    nanosleep(&(struct timespec){ .tv_nsec = RETRY_MS * 1000000L }, NULL);
}

/* `problem` is like "does not answer". True: NVSHARE_REQUIRED is set, so the program waits for a
 * daemon instead of running unshared, and RETRY_MS have passed. */
static bool must_retry(const char *problem)
{
    if (!is_required())
        return false;
    print_wait(problem, UNSHARED_INSTEAD);
    retry_pause();
    return true;
}

static int open_patiently(void)
{
    uint64_t began = now_microseconds();
    for (;;) {
        int fd = connection_open();
        /* ECONNREFUSED: the daemon is being restarted. EAGAIN: the daemon is so busy that the
         * queue of connections was full for SEND_PATIENCE. EINTR: until a signal came. */
        bool refused = errno == ECONNREFUSED, busy = errno == EAGAIN || errno == EINTR;
        uint64_t patience = busy ? BUSY_PATIENCE_US : CONNECT_PATIENCE_US;
        if (fd >= 0 || errno == ENAMETOOLONG)
            return fd;
        if ((refused || busy) && now_microseconds() - began <= patience)
            nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
        else if (!must_retry("is not running"))
            return fd;
    }
}

static const char *refusal_text(unsigned reason)
{
    return reason == NVSHARE_REFUSED_VERSION
        ? "refuses this program: it speaks another version of the protocol; update nvshared and "
          "libnvshare together"
        : reason == NVSHARE_REFUSED_NO_SUCH_GPU
        ? "refuses this program: it does not manage this GPU"
        : reason == NVSHARE_REFUSED_TOO_MANY_CLIENTS
        ? "refuses this program: it has too many clients"
        : "refuses this program for a reason this library does not know";
}

/* Sends HELLO, reads the answer. Returns why the client is not admitted; NULL: it is admitted.
 * *ended: the daemon has ended the connection without an answer. */
static const char *introduce(struct client *client, bool *ended)
{
    client_send(client, (struct nvshare_report){ .type = NVSHARE_HELLO });
    struct nvshare_order answer;
    uint64_t began = now_microseconds();
    int got = 0;
    while (client->socket >= 0 && got == 0
           && now_microseconds() - began < WELCOME_PATIENCE_MS * 1000) {
        got = connection_receive(client->socket, &answer, NULL, WELCOME_SILENT_MS);
        /* Signals end the wait earlier. */
        if (got == 0 && now_microseconds() - began >= WELCOME_SILENT_MS * 1000)
            print_wait("does not answer", is_required()
                 ? UNSHARED_INSTEAD : "After a minute the GPU is used unshared.");
        if (got == 1 && answer.type == NVSHARE_INTRODUCE) {
            /* INTRODUCE: the daemon was replaced before it could answer HELLO. */
            client_send(client, (struct nvshare_report){ .type = NVSHARE_HELLO,
                                                         .number = answer.number });
            got = 0;
        }
    }
    *ended = got < 0;
    if (got == 1 && answer.type == NVSHARE_LIMITS) {
        client->limits = answer.limits;
        return NULL;
    }
    return got == 1 && answer.type == NVSHARE_REFUSED ? refusal_text(answer.refusal)
                                                      : "does not answer";
}

/* True: the daemon has admitted the client. */
static bool introduce_patiently(struct client *client)
{
    const char *problem;
    bool ended, has_tried_other = false;
    while ((problem = introduce(client, &ended)) != NULL) {
        if (ended)
            connection_try_other_version();
        if ((!ended || has_tried_other) && !must_retry(problem))
            break;
        has_tried_other = ended;
        {
            DEFERRED;
            own_file_close(client->socket);
            client->socket = -1;
        }
        client->socket = open_patiently();
    }
    if (problem != NULL)
        complain("nvshared %s. The GPU is used unshared.", problem);
    else if (waits_for_daemon)
        complain("goes on, as nvshared is there");
    waits_for_daemon = waits_for_daemon && problem != NULL;
    return problem == NULL;
}

/* memory_lock makes the new thread wait for the entry in clients[]. */
static bool start_service(struct client *client)
{
    LOCKED(memory_lock);
    int error = own_thread_start(&client->thread, service_run, client);
    if (error != 0)
        print_refusal("no thread for sharing: %s.", error_text(error));
    else
        client_enter(client);
    return error == 0;
}

static void discard(void)
{
    DEFERRED;
    struct client *client = attached;
    attached = NULL;
    if (client == NULL)
        return;
    own_file_close(client->socket);
    own_file_close(client->wakes);
    own_file_close(client->wake);
    free(client);
}

/* Programs under a profiler or checker stay unshared. The tool takes the library's calls for the
 * program's: it misses errors in small allocations, which share a page that it takes as valid; it
 * saves and restores the card's memory around each kernel with calls that pass no gate; and it
 * measures the work of other programs. The driver loads the library that CUDA_INJECTION64_PATH
 * names (compute-sanitizer, nsys, CUPTI); ncu preloads its library. */

static const char *const TRACERS[] = { "libcuda-injection.so", "libsanitizer-collection.so" };

/* Not basename(), which the program may define otherwise. */
static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

static int find_tracer(struct dl_phdr_info *object, size_t size, void *data)
{
    const char **found = data;
    (void)size;
    for (size_t i = 0; i < sizeof TRACERS / sizeof TRACERS[0]; i++)
        if (object->dlpi_name != NULL && strcmp(last_part(object->dlpi_name), TRACERS[i]) == 0)
            *found = TRACERS[i];
    return *found != NULL;
}

/* The tool that watches this program; NULL: no tool does. */
static const char *tracer(void)
{
    const char *path = setting("CUDA_INJECTION64_PATH"), *tool = NULL;
    if (setting_is_on("NVSHARE_PROFILED"))
        return NULL;
    if (path != NULL && *path != '\0')
        return last_part(path);
    dl_iterate_phdr(find_tracer, &tool);
    return tool;
}

static _Atomic(const char *) unknown;

void unknown_entry(const char *name)
{
    const char *none = NULL;
    if (atomic_compare_exchange_strong(&unknown, &none, name) && !client_none())
        complain("this driver has a newer %s than this libnvshare.so knows: the program's work "
                 "may pass it by. Update nvshare.", name);
}

/* False: the process must use this GPU unshared. Prints why, once if it concerns all GPUs. */
static bool may_share(CUdevice device)
{
    static bool reported;
    int maps = 0;
    const char *newer = client_none() ? atomic_load(&unknown) : NULL, *tool = tracer();
    bool has_threads = pthread_create != NULL;     /* NULL before glibc 2.34 without libpthread */
    if (reported && !is_required())
        return false;
    reported = newer != NULL || tool != NULL || !has_threads;
    if (newer != NULL)
        print_refusal("this driver has a newer %s than this libnvshare.so knows: update nvshare.",
                      newer);
    else if (tool != NULL)
        print_refusal("%s watches this program and would take libnvshare.so's calls for the "
                      "program's; NVSHARE_PROFILED=1 shares the GPU all the same.", tool);
    else if (!has_threads)
        print_refusal("this program was started without libpthread: link it with -pthread.");
    else if (REAL(cuDeviceGetAttribute)(&maps,
                 CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device) != CUDA_SUCCESS
             || maps == 0)
        print_refusal("this GPU or its driver has no virtual memory management.");
    return maps != 0;
}

static struct client *new_client(CUdevice device)
{
    DEFERRED;
    struct client *client = attached = calloc(1, sizeof *client);
    if (client == NULL)
        return NULL;
    client->device = device;
    client->index = (unsigned)device;
    client->drained = true;
    client->turns = 1;
    client->idle_window = DEFAULT_IDLE_WINDOW_US;
    client->socket = client->wakes = client->wake = -1;
    client->prints_waits = setting_is_on("NVSHARE_VERBOSE");
    const char *name = setting("NVSHARE_NAME");
    strncpy(client->name, name != NULL ? name : "", sizeof client->name - 1);
    /* If the gang's name ends with a colon, torchrun's number of processes is appended. */
    const char *gang = setting("NVSHARE_GANG"), *ranks = setting("LOCAL_WORLD_SIZE");
    size_t length = gang != NULL ? strlen(gang) : 0;
    bool open = length > 0 && gang[length - 1] == ':' && ranks != NULL;
    snprintf(client->gang, sizeof client->gang, "%s%s", gang != NULL ? gang : "",
             open ? ranks : "");
    terms_read(device, &client->terms);
    tiers_attach(client);
    spares_prepare(client);
    return client;
}

/* Connects to the daemon. False: the GPU cannot be shared; the reason has been printed. */
static bool connect_client(struct client *client)
{
    CUuuid uuid;
    bool may;
    if (device_uuid(client->device, &uuid) != CUDA_SUCCESS) {
        print_refusal("the driver does not name GPU %d.", (int)client->device);
        return false;
    }
    memcpy(client->uuid, &uuid, sizeof client->uuid);
    client->socket = open_patiently();
    if (client->socket < 0 && errno == ENAMETOOLONG)
        print_refusal("NVSHARE_SOCKET=%s is longer than a socket's path can be.",
                      setting("NVSHARE_SOCKET"));
    else if (client->socket < 0)
        debug("no nvshared here (%s): the GPU is used unshared", error_text(errno));
    if (client->socket < 0)
        return false;
    {
        DEFERRED;                    /* the dynamic linker's lock is taken */
        /* Prints why the GPU is not shared, and so runs once a daemon is connected. */
        may = may_share(client->device);
    }
    if (!may)
        return false;
    if (!client_make_wake(client)) {
        print_refusal("no descriptors for sharing: %s.", error_text(errno));
        return false;
    }
    return introduce_patiently(client);
}

/* Starts to share. From then on, `attached` is a client of the process. */
static bool enter_client(struct client *client)
{
    static bool prepared;
    DEFERRED;
    if (!prepared) {
        rebind_driver();
        reclaim_from(RECLAIMERS);
        client_reports_begin_with(TIER_REPORTS);
        clients_watch_forks();
        prepared = true;
    }
    gate_close(GATE_STOPPED(client));
    bool started = start_service(client);
    if (started)
        attached = NULL;
    else
        gate_open(GATE_STOPPED(client));       /* the client has no memory yet */
    return started;
}

/* True: the GPU is shared. */
static bool attach(CUdevice device)
{
    BLOCKED;                         /* while another device's client drains */
    if (device >= CLIENTS_MAX) {
        print_refusal("GPU %d is beyond those that a process can share.", (int)device);
        return false;
    }
    struct client *client = new_client(device);
    if (client == NULL)
        print_refusal("no memory for sharing.");
    if (client == NULL || !connect_client(client) || !enter_client(client)) {
        discard();
        return false;
    }
    if (clients_pin_reason() != NVSHARE_PIN_NONE)
        client_pin(client, clients_pin_reason());
    return true;
}

static void end_attaching(void *unused, uint64_t zero)
{
    (void)unused, (void)zero;
    discard();
    LOCKED(attach_lock);
    attaching_thread = 0;
    bell_ring(&attach_bell);
}

static bool tried[DEVICES];          /* a client was attached or refused; protected by attach_lock */

/* True: this thread is to attach the client, and is within defer_begin(). */
static bool begin_attaching(CUdevice device)
{
    const char *here = __builtin_frame_address(0);
    BLOCKED;
    LOCKED(attach_lock);
    while (!tried[device]) {
        uint32_t before = atomic_load(&attach_bell);
        if (attaching_thread == thread_id()) {
            if (here < attaching_frame)
                return false;        /* in a tool's callback */
            end_attaching(NULL, 0);  /* an exception has left the call */
        }
        if (attaching_thread == 0) {
            attaching_thread = thread_id();
            attaching_frame = here;
            defer_begin();
            return true;
        }
        mutex_unlock(&attach_lock);
        bell_wait(&attach_bell, before, NULL);
        mutex_lock(&attach_lock);
    }
    return false;
}

void client_attach(CUdevice device, CUcontext context)
{
    if (context != NULL)
        contexts_add(context, device, context);
    if (device < 0 || device >= DEVICES || client_is_called_back() || !begin_attaching(device))
        return;
    {
        UNLESS_LEFT(end_attaching, NULL, 0);
        defer_end();
        while (!attach(device) && is_required())
            retry_pause();
        defer_begin();
    }
    mutex_lock(&attach_lock);
    tried[device] = true;
    end_attaching(NULL, 0);
    mutex_unlock(&attach_lock);
    defer_end();
}

bool client_awaits_context(CUdevice device, unsigned *tries)
{
    struct timespec left = { .tv_nsec = CONTEXT_RETRY_MS * 1000000L };
    if (*tries == 0)
        client_attach(device, NULL);
    if (client_is_called_back() || device < 0 || device >= CLIENTS_MAX || clients[device] == NULL
        || ++*tries == CONTEXT_TRIES) /* a minute in all, longer than a default turn */
        return false;
    mutex_lock(&memory_lock);
    bool room = reclaim(clients[device], RECLAIM_ALL, 0);
    mutex_unlock(&memory_lock);
    while (!room && nanosleep(&left, &left) != 0 && errno == EINTR)
        continue;
    return true;
}

static void drop_context(CUcontext context, bool drained)
{
    LOCKED(memory_lock);
    deferred_frees_context_end(context);
    ipc_import_context_ends(context);
    managed_context_ends(context);
    pinned_context_ends(context);
    pending_frees_context_ends(context);
    contexts_remove(context);
    EACH_CLIENT(client) {
        allocations_context_ends(client, context);
        swap_leave_context(client, context, drained);
        client_update(client);
    }
}

void context_ends(CUcontext context)
{
    if (client_none()) {
        contexts_remove(context);
        return;
    }
    bool drained = drain_ending(context);
    mutex_lock_patiently(&service_lock);
    drop_context(context, drained);
    capture_leave_context(context);  /* no capture that begins now finds the context */
    mutex_unlock(&service_lock);
}

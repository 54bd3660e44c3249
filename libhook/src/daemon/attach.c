/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attaches to the daemon when a program creates its first context on a GPU. If that fails, the
 * program runs unshared, and the library prints the reason.
 */
#define _GNU_SOURCE
#include "daemon/attach.h"

#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "block/swap.h"
#include "daemon/service.h"
#include "daemon/waiting.h"
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
#include "tier/host.h"

/* us for which a program waits for a daemon that is being started */
#define CONNECT_PATIENCE_US 1000000
/* How long a program waits for the answer to HELLO before it runs unshared: long, because it would
 * then use memory promised to other clients. systemd's watchdog replaces a daemon that hangs within
 * half of this time. */
#define WELCOME_PATIENCE_MS 60000
#define WELCOME_SILENT_MS 5000
#define BUSY_PATIENCE_US (WELCOME_PATIENCE_MS * 1000)
#define DEFAULT_IDLE_WINDOW_US 50000
#define CONTEXT_RETRY_MS 50
#define CONTEXT_TRIES 1200

static reclaimer *const RECLAIMERS[] = {
    spares_reclaim, pools_reclaim, deferred_frees_reclaim, NULL,
};

/* One thread attaches at a time. memory_lock may be taken while it is held. */
static pthread_mutex_t attach_lock = PTHREAD_MUTEX_INITIALIZER;

static int open_patiently(void)
{
    uint64_t began = now_microseconds();
    for (;;) {
        int fd = connection_open();
        /* ECONNREFUSED: no process listens on the socket, as the daemon is being restarted. EAGAIN:
         * the daemon is so busy that the queue of connections was full for SEND_PATIENCE. */
        uint64_t patience = errno == EAGAIN ? BUSY_PATIENCE_US : CONNECT_PATIENCE_US;
        if (fd >= 0 || errno == ENAMETOOLONG)
            return fd;
        if ((errno == ECONNREFUSED || errno == EAGAIN) && now_microseconds() - began <= patience)
            nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
        else if (!waiting_for_daemon("is not running"))
            return fd;
    }
}

static const char *refusal_text(unsigned reason)
{
    switch (reason) {
    case NVSHARE_REFUSED_VERSION:
        return "refuses this program: it speaks another version of the protocol; update nvshared "
               "and libnvshare together";
    case NVSHARE_REFUSED_NO_SUCH_GPU:
        return "refuses this program: it does not manage this GPU";
    case NVSHARE_REFUSED_TOO_MANY_CLIENTS:
        return "refuses this program: it has too many clients";
    default:
        return "refuses this program for a reason this library does not know";
    }
}

/* Sends HELLO and reads the answer, before there is a service thread. Returns NULL, or the reason
 * why the client is not admitted, as text to be printed. */
static const char *introduce(struct client *client)
{
    client_send(client, (struct nvshare_report){ .type = NVSHARE_HELLO });
    struct nvshare_order answer;
    uint64_t began = now_microseconds();
    int got = 0;
    while (client->socket >= 0 && got == 0
           && now_microseconds() - began < WELCOME_PATIENCE_MS * 1000) {
        got = connection_receive(client->socket, &answer, NULL, WELCOME_SILENT_MS);
        if (got == 0)
            waiting_for_answer();
        if (got == 1 && answer.type == NVSHARE_INTRODUCE) {
            /* The daemon was replaced before it could answer. */
            client_send(client, (struct nvshare_report){ .type = NVSHARE_HELLO,
                                                         .number = answer.number });
            got = 0;
        }
    }
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
    while ((problem = introduce(client)) != NULL && waiting_for_daemon(problem)) {
        own_file_close(client->socket);
        client->socket = open_patiently();
    }
    if (problem != NULL)
        complain("nvshared %s. The GPU is used unshared.", problem);
    else
        waiting_for_daemon_ends();
    return problem == NULL;
}

/* Starts the service thread and enters the client in clients[]. memory_lock makes the thread wait
 * for the entry. */
static bool start_service(struct client *client)
{
    LOCKED(memory_lock);
    int error = own_thread_start(&client->thread, service_run, client);
    if (error != 0)
        complain("no thread for sharing: %s. The GPU is used unshared.", error_text(error));
    else
        client_enter(client);
    return error == 0;
}

static void discard(struct client *client)
{
    own_file_close(client->socket);
    own_file_close(client->wakes);
    own_file_close(client->wake);
    free(client);
}

/*
 * Detects profilers and checkers: programs that such a tool watches stay unshared. The tool stands
 * between the library and the driver, and takes the library's calls for the program's:
 *
 *   - small allocations share a page, all of which is valid to the tool, so it misses the errors
 *     that it is run for;
 *   - the tool saves and restores the card's memory around each kernel that it measures, with calls
 *     that pass no gate and memory that is not counted;
 *   - the tool's measurements include the work of other programs.
 *
 * The driver loads the library that CUDA_INJECTION64_PATH names (compute-sanitizer, nsys, and other
 * users of CUPTI); ncu preloads its library instead.
 */

static const char *const TRACERS[] = { "libcuda-injection.so", "libsanitizer-collection.so" };

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

static int find_tracer(struct dl_phdr_info *object, size_t size, void *data)
{
    const char **found = data;
    (void)size;
    for (size_t i = 0; i < sizeof TRACERS / sizeof TRACERS[0]; i++)
        if (object->dlpi_name != NULL && strcmp(base_name(object->dlpi_name), TRACERS[i]) == 0)
            *found = TRACERS[i];
    return *found != NULL;
}

static bool is_traced(void)
{
    static bool reported;
    const char *wanted = setting("NVSHARE_PROFILED");
    if (wanted != NULL && strcmp(wanted, "1") == 0)
        return false;
    const char *path = setting("CUDA_INJECTION64_PATH"), *tool = NULL;
    if (path != NULL && *path != '\0')
        tool = base_name(path);
    else
        dl_iterate_phdr(find_tracer, &tool);
    if (tool != NULL && !reported)
        complain("%s watches this program and would take libnvshare.so's calls for the program's. "
                 "The GPU is used unshared; NVSHARE_PROFILED=1 shares it all the same.", tool);
    reported |= tool != NULL;
    return tool != NULL;
}

static _Atomic(const char *) unknown;              /* the first function given to unknown_entry() */

void unknown_entry(const char *name)
{
    const char *none = NULL;
    if (atomic_compare_exchange_strong(&unknown, &none, name) && !client_none())
        complain("this driver has a newer %s than this libnvshare.so knows: the program's work "
                 "may pass it by. Update nvshare.", name);
}

/* Whether the program may submit work past the gate, through a function of a newer driver. */
static bool has_unknown_entry(void)
{
    static bool reported;
    const char *name = atomic_load(&unknown);
    bool has = name != NULL && client_none();
    if (has && !reported)
        complain("this driver has a newer %s than this libnvshare.so knows. The GPU is used "
                 "unshared. Update nvshare.", name);
    reported |= has;
    return has;
}

/* Before glibc 2.34 a program may run without libpthread; see glibc.h. */
static bool can_start_threads(void)
{
    if (pthread_create != NULL)
        return true;
    complain("this program was started without libpthread. The GPU is used unshared; link it "
             "with -pthread.");
    return false;
}

/* Whether memory can be mapped again at the same address. */
static bool can_map(CUdevice device)
{
    int supported = 0;
    if (REAL(cuDeviceGetAttribute)(&supported,
            CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device) == CUDA_SUCCESS
        && supported)
        return true;
    complain("this GPU or its driver has no virtual memory management. It is used unshared.");
    return false;
}

/* Sets the gang from NVSHARE_GANG. If the name ends with a colon, appends LOCAL_WORLD_SIZE, in
 * which torchrun says how many processes it has started. */
static void name_gang(struct client *client)
{
    const char *name = setting("NVSHARE_GANG"), *ranks = setting("LOCAL_WORLD_SIZE");
    size_t length = name != NULL ? strlen(name) : 0;
    bool open = length > 0 && name[length - 1] == ':' && ranks != NULL;
    snprintf(client->gang, sizeof client->gang, "%s%s", name != NULL ? name : "",
             open ? ranks : "");
}

static struct client *new_client(CUdevice device)
{
    struct client *client = calloc(1, sizeof *client);
    if (client == NULL)
        return NULL;
    client->device = device;
    client->node = host_nearest_node(device);
    client->index = (unsigned)device;
    client->drained = true;
    client->turns = 1;
    client->idle_window = DEFAULT_IDLE_WINDOW_US;
    client->wakes = client->wake = -1;
    client->lender = CU_DEVICE_INVALID;
    client->prints_waits = waiting_is_printed();
    const char *name = setting("NVSHARE_NAME");
    strncpy(client->name, name != NULL ? name : "", sizeof client->name - 1);
    name_gang(client);
    spares_prepare(client);
    CUuuid uuid;
    CUresult result = device_uuid(device, &uuid);
    client->socket = result == CUDA_SUCCESS ? open_patiently() : -1;
    if (client->socket < 0) {
        debug("no nvshared here (%s): the GPU is used unshared", error_text(errno));
        free(client);
        return NULL;
    }
    /* These checks print why the GPU is used unshared, so they are made only if a daemon is
     * there. */
    if (has_unknown_entry() || is_traced() || !can_start_threads() || !can_map(device)) {
        discard(client);
        return NULL;
    }
    memcpy(client->uuid, &uuid, sizeof client->uuid);
    return client;
}

static void attach(CUdevice device)
{
    static bool prepared;
    struct client *client = new_client(device);
    if (client == NULL)
        return;
    if (!service_make_wake(client) || !introduce_patiently(client)) {
        discard(client);
        return;
    }
    if (!prepared) {
        rebind_driver();
        reclaim_from(RECLAIMERS);
        clients_watch_forks();
        prepared = true;
    }
    gate_close(GATE_STOPPED(client));
    if (!start_service(client)) {
        /* This bit of gate_closed belongs to no client, and the client has no memory yet. */
        gate_open(GATE_STOPPED(client));
        discard(client);
    } else if (clients_pin_reason() != NVSHARE_PIN_NONE) {
        client_pin(client, clients_pin_reason());
    }
}

void client_attach(CUdevice device, CUcontext context)
{
    static uint32_t tried;           /* a bit for each device; each is tried once */
    if (context != NULL)
        contexts_add(context, device, context);
    if (device < 0 || device >= CLIENTS_MAX || locked_here(&attach_lock))
        return;                      /* locked_here(): called from a tool's callback in attach() */
    LOCKED(attach_lock);
    if (clients[device] == NULL && (tried >> device & 1) == 0) {
        BLOCKED;                     /* meanwhile the client of another device may drain */
        tried |= (uint32_t)1 << device;
        attach(device);
    }
}

bool client_awaits_context(CUdevice device, unsigned *tries)
{
    if (*tries == 0)
        client_attach(device, NULL);
    if (device < 0 || device >= CLIENTS_MAX || clients[device] == NULL
        || ++*tries == CONTEXT_TRIES) /* a minute in all, longer than a default turn */
        return false;
    pthread_mutex_lock(&memory_lock);
    bool room = reclaim(clients[device], RECLAIM_ALL, 0);
    pthread_mutex_unlock(&memory_lock);
    if (!room)
        nanosleep(&(struct timespec){ .tv_nsec = CONTEXT_RETRY_MS * 1000000L }, NULL);
    return true;
}

/*
 * Drops everything that ends with a context: all memory allocated in it, and the service thread's
 * objects there.
 */

void context_ends(CUcontext context)
{
    if (client_none()) {
        contexts_remove(context);
        return;
    }
    UNCANCELLED;
    bool drained = drain_ending(context);
    LOCKED(service_lock);
    LOCKED(memory_lock);
    deferred_frees_context_end(context);
    ipc_import_context_ends(context);
    managed_context_ends(context);
    pinned_context_ends(context);
    pending_frees_context_ends(context);
    contexts_remove(context);
    capture_leave_context(context);
    EACH_CLIENT(client) {
        allocations_context_ends(client, context);
        swap_leave_context(client, context, drained);
        client_update(client);
    }
}

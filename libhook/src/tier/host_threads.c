/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocating host memory takes two to ten times as long as copying into it. Several threads
 * therefore make slabs, in two cases.
 *
 * During an eviction (host_allocate()). While blocks are copied into existing slabs, the threads
 * make the next slabs and register them with the driver; piece by piece, so that all of them work
 * on the slab that is needed first. First they register preallocated slabs, as far as these are
 * needed.
 *
 * While the program runs (host_preallocate()). The daemon knows in advance that programs will not
 * fit together (nvshared/scheduler/ahead.py). The program must not be disturbed: these threads are
 * few and have a low priority. They call no driver function, in order not to interfere with its
 * locks, contexts and captures; a slab is registered at the next eviction, which takes a fraction
 * of the time. They take the process's mmap lock for one page at a time. No thread waits for these
 * low-priority threads: a slab that they have begun is counted, and is used or released once it is
 * complete, however late; host.c waits for it last.
 */
#define _GNU_SOURCE
#include "tier/host_threads.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "driver/log.h"
#include "driver/ops.h"
#include "driver/own_thread.h"
#include "flight/capture.h"
#include "tier/host_memory.h"
#include "tier/host_slabs.h"
#include "tier/tier.h"

#define PIECE ((uint64_t)16 << 20)   /* populated by one thread at a time */
#define REGISTERED_AHEAD ((uint64_t)256 << 20)  /* for the next order */
#define REGISTRARS 4                 /* the driver may admit one at a time */
#define ALLOCATORS_MOST 8
#define PREALLOCATORS_MOST 4
#define PREALLOCATORS_PART 4         /* of the processors that the process may use */
#define NICER 10

/* Protected by memory_lock; `threads` belongs to the service thread. */
static struct work {
    struct client *client;
    bool early;                      /* while the program runs */
    struct host_slab *slab;          /* with pieces still to be populated; NULL: none is begun */
    uint64_t target;                 /* bytes of host memory in all; if early, host_most counts */
    uint64_t wanted;                 /* bytes to be evicted that have no place yet */
    bool expects, begun;
    CUcontext context;
    char *memory;                    /* mapped for slabs; `mapped` bytes of it are unused */
    uint64_t mapped;
    unsigned count;
    pthread_t threads[ALLOCATORS_MOST];
} allocating[CLIENTS_MAX], preallocating[CLIENTS_MAX];

static unsigned *running(const struct work *work)
{
    return work->early ? &work->client->preallocators : &work->client->allocators;
}

/* Creates the slab on which the threads work next, in the common mapping while it has unused bytes.
 * NULL: there are enough slabs, or the machine has no more memory. memory_lock is held. If early,
 * it is released while the kernel maps the slab: the program may need it. */
static struct host_slab *begin(struct work *work)
{
    struct client *client = work->client;
    uint64_t target = work->target;
    if (work->early)
        target = !client->preallocates ? 0
            : host_useful(client) < client->host_most ? host_useful(client) : client->host_most;
    uint64_t size = host_slab_size(client, PAGE, target);
    if (size == 0)
        return NULL;
    char *memory = NULL;
    if (work->mapped >= size) {
        work->mapped -= size;
        memory = work->memory + work->mapped;
    }
    client->memory.host += size;
    if (work->early)
        pthread_mutex_unlock(&memory_lock);
    struct host_slab *slab = host_slab_new(client, memory, size);
    if (work->early)
        pthread_mutex_lock(&memory_lock);
    if (slab == NULL)
        client->memory.host -= size;
    return slab;
}

/* Adds a populated slab to the client. False: no more slabs can be made. memory_lock is held, and
 * may be released meanwhile. */
static bool finish(const struct work *work, struct host_slab *slab)
{
    struct client *client = work->client;
    if (!work->early)
        return host_slab_enlist(client, slab);
    if (client->memory.host <= client->host_most) {
        host_slab_add(client, slab);
    } else {
        client->memory.host -= slab->size;
        host_memory_unmap(slab->memory, slab->size);
        free(slab);
    }
    client_changed(client);
    return true;
}

static bool prepare(const struct work *work)
{
    client_thread_is_ours();
    if (!work->early) {
        capture_relax();
        return REAL(cuCtxSetCurrent)(work->context) == CUDA_SUCCESS;
    }
    errno = 0;
    if (nice(NICER) == -1 && errno != 0)
        debug("host memory is made as if it were urgent: %s", error_text(errno));
    return true;
}

static void *make(void *argument)
{
    struct work *work = argument;
    own_thread_begins(work->early ? "nvshare-early" : "nvshare-host");
    bool more = prepare(work);
    LOCKED(memory_lock);
    while (more && !work->early
           && host_register_next(work->client, work->wanted + REGISTERED_AHEAD))
        continue;
    struct host_slab *slab;
    while ((slab = work->slab != NULL ? work->slab : more ? begin(work) : NULL) != NULL) {
        char *piece = slab->memory + slab->begun;
        uint64_t left = slab->size - slab->begun;
        uint64_t size = left < PIECE || work->early ? left : PIECE;
        uint64_t step = work->early ? PAGE : size;
        slab->begun += size;
        work->slab = size < left ? slab : NULL;
        pthread_mutex_unlock(&memory_lock);
        for (uint64_t filled = 0; filled < size; filled += step)
            host_memory_fill(piece + filled, step);
        pthread_mutex_lock(&memory_lock);
        slab->filled += size;
        if (slab->filled == slab->size)
            more &= finish(work, slab);
    }
    --*running(work);
    pthread_cond_broadcast(&memory_changed);
    return NULL;
}

static unsigned threads_most(bool early)
{
    cpu_set_t usable;
    long online = sysconf(_SC_NPROCESSORS_ONLN), most = ALLOCATORS_MOST;
    if (early) {
        online = sched_getaffinity(0, sizeof usable, &usable) == 0
            ? CPU_COUNT(&usable) / PREALLOCATORS_PART : 1;
        most = PREALLOCATORS_MOST;
    }
    return (unsigned)(online < 1 ? 1 : online > most ? most : online);
}

void host_expect(struct client *client, uint64_t bytes)
{
    allocating[client->index] = (struct work){ .client = client, .expects = true, .wanted = bytes };
}

static void begin_to_allocate(struct client *client, struct work *work, uint64_t allowance)
{
    uint64_t useful = host_useful(client), target = allowance < useful ? allowance : useful;
    if (host_free(client) >= work->wanted)
        target = client->memory.host;
    uint64_t lacking = target > client->memory.host ? target - client->memory.host : 0;
    uint64_t jobs = (lacking + PIECE - 1) / PIECE;
    if (host_registrable(client, work->wanted + REGISTERED_AHEAD) != NULL)
        jobs += REGISTRARS;
    work->begun = true;
    work->context = client->copy_context;
    work->target = target;
    lacking = lacking / PAGE * PAGE;
    if (lacking > 0)
        work->memory = host_memory_map(lacking, client->node);
    if (work->memory != NULL)
        work->mapped = lacking;
    unsigned most = threads_most(false);
    while (work->count < jobs && work->count < most
           && own_thread_start(&work->threads[work->count], make, work) == 0) {
        work->count++;
        client->allocators++;
    }
}

void host_allocate(struct client *client, uint64_t allowance)
{
    struct work *work = &allocating[client->index];
    if (work->expects && !work->begun)
        begin_to_allocate(client, work, allowance);
}

void host_placed(struct client *client, uint64_t size)
{
    struct work *work = &allocating[client->index];
    work->wanted -= size < work->wanted ? size : work->wanted;
}

void host_allocated(struct client *client)
{
    struct work *work = &allocating[client->index];
    pthread_mutex_unlock(&memory_lock);
    for (unsigned i = 0; i < work->count; i++)
        pthread_join(work->threads[i], NULL);
    if (work->mapped > 0)
        host_memory_unmap(work->memory, work->mapped);
    pthread_mutex_lock(&memory_lock);
    *work = (struct work){ .client = client };
}

void host_preallocate(struct client *client, uint64_t most)
{
    struct work *work = &preallocating[client->index];
    if (client->preallocators == 0)          /* threads read it before they take the lock */
        *work = (struct work){ .client = client, .early = true };
    client->preallocates = true;
    client->host_most = most;
    pthread_t thread;
    while (client->preallocators < threads_most(true)
           && own_thread_start(&thread, make, work) == 0) {
        pthread_detach(thread);
        client->preallocators++;
    }
}

void host_preallocated(struct client *client, uint64_t most)
{
    client->preallocates = false;
    client->host_most = most;
}

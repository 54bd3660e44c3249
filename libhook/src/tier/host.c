/* SPDX-License-Identifier: Apache-2.0 */
/* The tier of page-locked host memory. A place keeps the bytes of a loaded block: if unchanged, the
 * block is evicted again without a copy. The memory is in slabs of some 100 MiB, of huge pages
 * of the NUMA node nearest to the GPU (copies to a far node cross the slower link between
 * sockets), populated and registered with the driver once, and kept. It is private: children do
 * not inherit it, core dumps leave it out.
 *
 * mmap(), madvise() and munmap() take the process's mmap lock exclusively; threads that populate
 * or register pages share it. With slabs mapped by each of eight threads, a first eviction on an
 * H200 ran at 4 to 6 GB/s. The addresses of all slabs are therefore mapped at once beforehand.
 *
 * A registration ends with its context, the memory does not. Before a context ends its slabs are
 * unregistered, and each is registered again before its next copy. An unregistered slab can be
 * released without the driver.
 *
 * Making host memory takes two to ten times as long as copying into it, so several threads make it.
 * They populate a slab together, piece by piece, so that the slab needed first is complete first.
 * During evictions (expect()) they also register it, and go on from one EVICT to the next. While
 * the program runs (PREALLOCATE; nvshared/scheduler/ahead.py) they must not disturb it: they are
 * few, have a low priority and call no driver function. One thread later registers what they made,
 * shortly before blocks need it: the driver starts no copy while it registers memory, and lets one
 * thread that registers slab after slab keep others waiting. memory.host counts a slab once it is
 * begun; a begun slab is always completed. Only a `patient` take() waits for threads of low
 * priority. */
#define _GNU_SOURCE
#include "tier/host.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "driver/log.h"
#include "driver/ops.h"
#include "driver/own_thread.h"
#include "driver/ring.h"
#include "flight/capture.h"
#include "tier/ranges.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23       /* Linux 5.14; the headers may be older than the kernel */
#endif

#define NODES_MAX 1024               /* the most NUMA nodes that Linux can have */
#define BITS (8 * (int)sizeof(unsigned long))
#define DEFAULT_SLAB ((uint64_t)128 << 20)
#define LARGEST_SLAB ((uint64_t)1 << 30)
#define PIECE ((uint64_t)16 << 20)   /* bytes of a slab that one thread populates at a time */
#define REGISTERED_AHEAD ((uint64_t)256 << 20)  /* bytes registered before blocks need them */
#define ALLOCATORS_MOST 8            /* 16 threads made it slower on an H200 with 16 processors */
#define PREALLOCATORS_MOST 4
#define PREALLOCATORS_PART 4         /* usable processors for each preallocating thread */
#define NICER 10
#define YIELD_POLL_NS 500000

struct slab {
    char *memory;
    uint64_t size;
    uint64_t used;
    struct ranges space;             /* the slab's free addresses */
    uint64_t number;                 /* rises with each slab of the client */
    struct slab *next;
    uint64_t begun, filled;          /* bytes with population begun; bytes populated */
    enum {
        UNREGISTERED,
        REGISTERING,                 /* a thread is registering the slab */
        REGISTERED,                  /* registered in client->copy_context */
        REFUSED,                     /* the driver refuses to register it: copies are slower */
    } state;
};

/* By client index. */
static struct host {
    struct slab *slabs;              /* all slabs, the newest first */
    struct slab *room;               /* first slab with free pages; NULL: all are full */
    uint64_t made;                   /* number of slabs made so far */
    unsigned empty;                  /* number of slabs without any block */
    int node;                        /* NUMA node near the client's GPU; -1: any */

    /* The threads that make slabs: */
    unsigned allocators;             /* threads that make slabs for evictions, */
    unsigned preallocators;          /* and while the program runs; */
    unsigned registrars;             /* threads that register slabs made before; at most 1 */
    uint64_t most;                   /* bytes: `host` of the last EVICT, LOAD or PREALLOCATE */
    bool preallocates;               /* preallocators may begin another slab */
    bool expects;                    /* an eviction is announced that has taken no place yet */
    bool lacks;                      /* evictions lack host memory: allocators may begin slabs */
    uint64_t wanted;                 /* bytes to be evicted that have no place yet */
    CUcontext context;               /* in which allocators register slabs */
    struct slab *begun;              /* the slab with pieces that no thread populates yet; or NULL */
    char *memory;                    /* addresses for slabs; the first `mapped` bytes are unused */
    uint64_t mapped;
} hosts[CLIENTS_MAX];

static struct host *host_of(const struct client *client)
{
    return &hosts[client->index];
}

static void attach(struct client *client)
{
    struct host *host = host_of(client);
    if (REAL(cuDeviceGetAttribute)(&host->node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, client->device)
        != CUDA_SUCCESS)
        host->node = -1;
}

static void prefer(void *memory, size_t size, int node)
{
    unsigned long nodes[NODES_MAX / (8 * sizeof(unsigned long))] = { 0 };
    if (node < 0 || node >= NODES_MAX)
        return;
    nodes[node / BITS] = 1UL << node % BITS;
    /* The kernel reads one bit less than the given number. Containers may forbid the call. */
    if (syscall(SYS_mbind, memory, size, MPOL_PREFERRED, nodes, NODES_MAX + 1UL, 0) != 0)
        debug("host memory may come from any node: %s", error_text(errno));
}

/* Maps `size` bytes (whole pages); no page is populated yet. NULL: the kernel refuses. */
static char *map_memory(size_t size, int node)
{
    char *memory = mmap(NULL, size + PAGE, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    /* Where the program locks all later memory (mlockall(2)), the kernel would populate it at once,
     * beyond what the daemon allows. It cannot populate what nothing may access. */
    munlock(memory, size + PAGE);
    if (mprotect(memory, size + PAGE, PROT_READ | PROT_WRITE) != 0) {
        munmap(memory, size + PAGE);
        return NULL;
    }
    size_t before = (PAGE - (uintptr_t)memory % PAGE) % PAGE;    /* huge pages are aligned */
    if (before > 0)
        munmap(memory, before);
    if (before < PAGE)
        munmap(memory + before + size, PAGE - before);
    memory += before;
    madvise(memory, size, MADV_HUGEPAGE);
    madvise(memory, size, MADV_DONTFORK);
    madvise(memory, size, MADV_DONTDUMP);
    prefer(memory, size, node);
    return memory;
}

/* Populates whole pages. The page fault takes the lock of the mapping, where the kernel has these
 * (Linux 6.4): madvise() alone holds the mmap lock while the page is cleared, and several threads
 * that call it kept the program's mmap() and the driver waiting for 8 ms each time (H200). madvise()
 * then populates the rest, if the kernel has no huge page. */
static void populate(char *memory, size_t size)
{
    for (char *page = memory; page < memory + size; page += PAGE) {
        *(volatile char *)page = 0;
        if (madvise(page, PAGE, MADV_POPULATE_WRITE) == 0)
            continue;
        /* Older kernels: touch each page. No other thread uses the memory yet. */
        for (size_t offset = 0; offset < PAGE; offset += 4096)
            ((volatile char *)page)[offset] = 0;
    }
}

static CUresult register_memory(char *memory, size_t size)
{
    CUresult result = REAL(cuMemHostRegister_v2)(memory, size, CU_MEMHOSTREGISTER_PORTABLE);
    if (result != CUDA_SUCCESS)
        debug("registering %zu bytes of host memory failed: error %d", size, (int)result);
    return result;
}

/* False: the memory may still be registered, and must stay mapped: the driver would take memory
 * that is mapped later at the same address for registered. */
static bool unregister_memory(char *memory)
{
    CUresult result = REAL(cuMemHostUnregister)(memory);
    if (result != CUDA_SUCCESS)
        debug("unregistering host memory failed: error %d", (int)result);
    return result == CUDA_SUCCESS || result == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

/* Creates a slab, not populated, at the addresses `memory` or, if NULL, at new addresses. NULL:
 * memory is exhausted. The lock need not be held. */
static struct slab *new_slab(const struct client *client, char *memory, uint64_t size)
{
    struct slab *slab = calloc(1, sizeof *slab);
    if (memory == NULL)
        memory = map_memory(size, host_of(client)->node);
    if (slab == NULL || memory == NULL
        || !ranges_give(&slab->space, (uintptr_t)memory, size, 0, UINT64_MAX)) {
        if (memory != NULL)
            munmap(memory, size);
        free(slab);
        return NULL;
    }
    slab->memory = memory;
    slab->size = size;
    return slab;
}

static void free_slab(struct slab *slab)
{
    ranges_clear(&slab->space);
    free(slab);
}

static bool place_in_slab(struct slab *slab, struct client *client, size_t size,
                          struct place *place)
{
    CUdeviceptr address;
    if (!ranges_take(&slab->space, size, UINT64_MAX, &address))
        return false;
    host_of(client)->empty -= slab->used == 0;
    slab->used += size;
    place->record = slab;
    place->memory = (char *)(uintptr_t)address;
    return true;
}

/* Skips full slabs at the head also for later calls: `room` then begins behind such slabs. */
bool host_place(struct client *client, size_t size, struct place *place)
{
    struct slab **first = &host_of(client)->room;
    while (*first != NULL && (*first)->used == (*first)->size)
        *first = (*first)->next;
    for (struct slab *slab = *first; slab != NULL; slab = slab->next)
        if (place_in_slab(slab, client, size, place))
            return true;
    return false;
}

static void note_free_pages(struct client *client, struct slab *slab)
{
    struct host *host = host_of(client);
    host->empty += slab->used == 0;
    if (host->room == NULL || host->room->number < slab->number)
        host->room = slab;
}

void host_unplace(struct client *client, size_t size, struct place *place)
{
    struct slab *slab = place->record;
    ranges_give(&slab->space, (uintptr_t)place->memory, size, 0, UINT64_MAX);
    slab->used -= size;
    note_free_pages(client, slab);
}

/* The size of the next slab, at least `block_size`; 0: `allowance` permits no slab. The daemon
 * may set another usual size (limits.host_slab). */
static uint64_t slab_size(const struct client *client, uint64_t block_size, uint64_t allowance)
{
    uint64_t size = client->limits.host_slab != 0 ? client->limits.host_slab : DEFAULT_SLAB;
    if (size > LARGEST_SLAB)
        size = LARGEST_SLAB;
    uint64_t left = allowance > client->memory.host ? allowance - client->memory.host : 0;
    if (size > left)
        size = left;
    size = size / PAGE * PAGE;
    uint64_t least = block_size > BLOCK_SIZE ? block_size : BLOCK_SIZE;
    if (size < least && block_size <= left)
        size = least <= left ? least : block_size;
    return size >= block_size ? size : 0;
}

static void add_slab(struct client *client, struct slab *slab)
{
    struct host *host = host_of(client);
    slab->number = ++host->made;
    slab->next = host->slabs;
    host->slabs = slab;
    note_free_pages(client, slab);
    pthread_cond_broadcast(&memory_changed);
}

/* Frees a slab that is in no list yet, but counted in memory.host. Releases the lock, because
 * unmapping populated memory takes long. */
static void discard(struct client *client, struct slab *slab)
{
    pthread_mutex_unlock(&memory_lock);
    munmap(slab->memory, slab->size);
    pthread_mutex_lock(&memory_lock);
    client->memory.host -= slab->size;
    free_slab(slab);
}

/* Registers a populated slab, counted in memory.host, and adds it to the client's list; discards it
 * if the driver refuses. Releases the lock. */
static bool enlist(struct client *client, struct slab *slab)
{
    pthread_mutex_unlock(&memory_lock);
    bool usable = register_memory(slab->memory, slab->size) == CUDA_SUCCESS;
    pthread_mutex_lock(&memory_lock);
    if (usable) {
        slab->state = REGISTERED;
        add_slab(client, slab);
    } else {
        discard(client, slab);
    }
    return usable;
}

/* A speculative order makes the least possible slab, as a YIELD must not wait long for it. */
bool host_grow(struct client *client, uint64_t block_size, uint64_t allowance)
{
    uint64_t size = slab_size(client, block_size, allowance);
    uint64_t least = block_size > BLOCK_SIZE ? block_size : BLOCK_SIZE;
    if (client->speculates && size > least)
        size = least;
    if (size == 0)
        return false;
    uint64_t filled = 0, step = client->speculates ? PAGE : size;
    client->memory.host += size;
    pthread_mutex_unlock(&memory_lock);
    struct slab *slab = new_slab(client, NULL, size);
    for (; slab != NULL && filled < size && !client_must_yield(client); filled += step)
        populate(slab->memory + filled, step);
    pthread_mutex_lock(&memory_lock);
    if (slab == NULL)
        client->memory.host -= size;
    else if (filled < size)
        discard(client, slab);
    return filled >= size && enlist(client, slab);
}

static void register_again(struct slab *slab)
{
    slab->state = REGISTERING;
    pthread_mutex_unlock(&memory_lock);
    CUresult result = register_memory(slab->memory, slab->size);
    pthread_mutex_lock(&memory_lock);
    /* Already registered: an earlier registration could not be ended. */
    slab->state = result == CUDA_SUCCESS || result == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
        ? REGISTERED : REFUSED;
    pthread_cond_broadcast(&memory_changed);
}

bool host_register(const struct place *place)
{
    struct slab *slab = place->record;
    while (slab->state == REGISTERING)
        pthread_cond_wait(&memory_changed, &memory_lock);
    if (slab->state == UNREGISTERED)
        register_again(slab);
    return slab->state == REGISTERED;
}

static uint64_t free_bytes(const struct client *client)
{
    uint64_t free = 0;
    for (const struct slab *slab = host_of(client)->slabs; slab != NULL; slab = slab->next)
        free += slab->size - slab->used;
    return free;
}

/* The next slab to register so that registered slabs have places for `wanted` bytes. */
static struct slab *next_to_register(const struct client *client, uint64_t wanted)
{
    struct slab *first = NULL;
    uint64_t known = 0;
    for (struct slab *slab = host_of(client)->slabs; slab != NULL; slab = slab->next) {
        if (slab->state != UNREGISTERED)
            known += slab->size - slab->used;
        else if (first == NULL && slab->used < slab->size)
            first = slab;
    }
    return known < wanted ? first : NULL;
}

static void leave_context(struct client *client, bool drained)
{
    struct slab *first = host_of(client)->slabs;   /* slabs listed later are not registered */
    if (first == NULL)
        return;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUcontext same;
    /* Unregistering may wait for work in flight, which may wait for a thread at the gate: a
     * deadlock, as the gate opens only under service_lock, which this thread holds. Unless the
     * context is drained, the driver therefore unregisters the slabs when the context ends. */
    pthread_mutex_unlock(&memory_lock);
    bool entered = drained && REAL(cuCtxPushCurrent_v2)(client->copy_context) == CUDA_SUCCESS;
    if (entered)
        REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    for (struct slab *slab = first; slab != NULL; slab = slab->next) {
        if (entered && slab->state == REGISTERED)
            unregister_memory(slab->memory);
        slab->state = UNREGISTERED;
    }
    if (entered) {
        REAL(cuThreadExchangeStreamCaptureMode)(&mode);
        REAL(cuCtxPopCurrent_v2)(&same);
    }
    pthread_mutex_lock(&memory_lock);
}

/* Releases an empty slab; releases memory_lock meanwhile, and no other thread removes slabs
 * then. False: the driver keeps the memory, so it stays counted. While work is in flight no slab is
 * unregistered (waits.def). */
static bool release_slab(struct client *client, struct slab *slab)
{
    if (slab->state == REGISTERING || (slab->state == REGISTERED && !client->drained))
        return false;
    bool registered = slab->state == REGISTERED;
    slab->state = REGISTERING;       /* so that no registrar begins with it meanwhile */
    pthread_mutex_unlock(&memory_lock);
    bool free_of_driver = !registered || unregister_memory(slab->memory);
    if (free_of_driver)
        munmap(slab->memory, slab->size);
    pthread_mutex_lock(&memory_lock);
    if (!free_of_driver) {
        slab->state = REGISTERED;
        pthread_cond_broadcast(&memory_changed);
        return false;
    }
    struct host *host = host_of(client);
    LIST_REMOVE(host->slabs, slab);
    if (host->room == slab)
        host->room = slab->next;
    host->empty--;
    client->memory.host -= slab->size;
    free_slab(slab);
    return true;
}

static bool has_spare(const struct client *client)
{
    return host_of(client)->empty > 0;
}

static void trim(struct client *client, uint64_t allowance)
{
    struct slab *slab = host_of(client)->slabs;
    while (slab != NULL && has_spare(client) && client->memory.host > allowance)
        slab = slab->used == 0 && release_slab(client, slab) ? host_of(client)->slabs : slab->next;
}

/* Begins a slab, unless host->begun is one, as far as `most` and tiers_useful() allow. */
static void begin_slab(struct client *client, bool early)
{
    struct host *host = host_of(client);
    uint64_t useful = tiers_useful(client);
    uint64_t size = host->begun != NULL || !(early ? host->preallocates : host->lacks) ? 0
        : slab_size(client, PAGE, useful < host->most ? useful : host->most);
    if (size == 0)
        return;
    char *memory = NULL;
    if (host->mapped >= size) {
        host->mapped -= size;
        memory = host->memory + host->mapped;
    }
    host->begun = new_slab(client, memory, size);
    client->memory.host += host->begun == NULL ? 0 : size;
}

/* Populates the next piece of `slab`. Whether the slab is complete now. Releases the lock. */
static bool populate_piece(struct host *host, struct slab *slab)
{
    char *piece = slab->memory + slab->begun;
    uint64_t left = slab->size - slab->begun, size = left < PIECE ? left : PIECE;
    slab->begun += size;
    if (size == left)
        host->begun = NULL;
    pthread_mutex_unlock(&memory_lock);
    populate(piece, size);
    pthread_mutex_lock(&memory_lock);
    slab->filled += size;
    return slab->filled == slab->size;
}

/* Makes slabs until enough are there. `early`: calls no driver function. Releases the lock. */
static void make_slabs(struct client *client, bool early)
{
    struct host *host = host_of(client);
    bool usable = true;              /* the driver has registered this thread's slabs */
    /* Once allocators are there, they complete what threads of low priority have begun. */
    while (!early || host->preallocates || host->allocators == 0) {
        if (usable)
            begin_slab(client, early);
        struct slab *slab = host->begun;
        if (slab == NULL)
            return;
        if (!populate_piece(host, slab))
            continue;
        if (!early)
            usable = enlist(client, slab);
        else if (client->memory.host <= host->most)
            add_slab(client, slab);
        else
            discard(client, slab);
        if (early)
            client_changed(client);
    }
}

static void *allocate_slabs(void *argument)
{
    struct client *client = argument;
    struct host *host = host_of(client);
    own_thread_begins("nvshare-host");
    client_thread_is_ours();
    capture_relax();
    LOCKED(memory_lock);
    REAL(cuCtxSetCurrent)(host->context);        /* if it fails, so does registering */
    make_slabs(client, false);
    host->allocators--;
    pthread_cond_broadcast(&memory_changed);
    return NULL;
}

/* Registers slabs while blocks are taking places in them. */
static void *register_slabs(void *argument)
{
    struct client *client = argument;
    struct host *host = host_of(client);
    own_thread_begins("nvshare-host");
    client_thread_is_ours();
    capture_relax();
    LOCKED(memory_lock);
    bool usable = REAL(cuCtxSetCurrent)(host->context) == CUDA_SUCCESS;
    while (usable && host->wanted > 0 && next_to_register(client, UINT64_MAX) != NULL) {
        struct slab *slab = next_to_register(client, REGISTERED_AHEAD);
        if (slab != NULL)
            register_again(slab);
        else
            pthread_cond_wait(&memory_changed, &memory_lock);
    }
    host->registrars--;
    pthread_cond_broadcast(&memory_changed);
    return NULL;
}

static void *preallocate_slabs(void *argument)
{
    struct client *client = argument;
    own_thread_begins("nvshare-early");
    client_thread_is_ours();
    errno = 0;
    if (nice(NICER) == -1 && errno != 0)
        debug("host memory is made as if it were urgent: %s", error_text(errno));
    LOCKED(memory_lock);
    make_slabs(client, true);
    host_of(client)->preallocators--;
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

/* Maps addresses for all slabs that the client may still need. */
static void map_ahead(struct client *client)
{
    struct host *host = host_of(client);
    uint64_t useful = tiers_useful(client), held = client->memory.host;
    uint64_t size = useful > held ? WHOLE_PAGES(useful - held) : 0;
    if (host->mapped >= size)
        return;
    if (host->mapped > 0)
        munmap(host->memory, host->mapped);
    host->memory = map_memory(size, host->node);
    host->mapped = host->memory == NULL ? 0 : size;
}

/* Starts threads until `*count`, the number of those that run `run`, is `most`. */
static void start_threads(struct client *client, void *(*run)(void *), unsigned *count,
                          unsigned most)
{
    pthread_t thread;
    while (*count < most && own_thread_start(&thread, run, client) == 0) {
        pthread_detach(thread);
        ++*count;
    }
}

/* Called when the first block of an EVICT needs a place. If the client's host memory does not
 * suffice, allocators make more, until memory.host is `most` bytes or tiers_useful(), also during
 * the next EVICTs: what one makes beyond its need, the next uses. */
static void begin_to_allocate(struct client *client)
{
    struct host *host = host_of(client);
    uint64_t useful = tiers_useful(client), target = host->most < useful ? host->most : useful;
    host->expects = false;
    host->lacks = host->lacks || free_bytes(client) < host->wanted;
    host->context = client->copy_context;
    if (next_to_register(client, host->wanted + REGISTERED_AHEAD) != NULL)
        start_threads(client, register_slabs, &host->registrars, 1);
    if (!host->lacks || target <= client->memory.host)
        return;
    uint64_t pieces = (target - client->memory.host + PIECE - 1) / PIECE;
    unsigned most = threads_most(false);
    map_ahead(client);
    start_threads(client, allocate_slabs, &host->allocators,
                  pieces < most ? (unsigned)pieces : most);
}

static void placed(struct client *client, size_t size)
{
    struct host *host = host_of(client);
    host->wanted -= size < host->wanted ? size : host->wanted;
}

/* PREALLOCATE begins, and EVICT, LOAD or a lost connection ends the making of host memory while the
 * program runs. A slab begun then is kept if memory.host is at most `most` at its end. */
static void obey(struct client *client, const struct nvshare_order *order)
{
    struct host *host = host_of(client);
    bool begins = order != NULL && order->type == NVSHARE_PREALLOCATE;
    if (order == NULL || begins || order->type == NVSHARE_EVICT || order->type == NVSHARE_LOAD)
        host->preallocates = begins;
    if (begins || (order != NULL && (order->type == NVSHARE_EVICT || order->type == NVSHARE_LOAD)))
        host->most = order->host;
    if (begins) {
        map_ahead(client);
        start_threads(client, preallocate_slabs, &host->preallocators, threads_most(true));
    }
}

bool host_is_made(const struct client *client)
{
    return host_of(client)->allocators > 0;
}

static void expect(struct client *client, uint64_t bytes)
{
    struct host *host = host_of(client);
    host->expects = bytes > 0;
    host->wanted = bytes;
    if (bytes > 0)
        return;
    host->lacks = false;
    pthread_cond_broadcast(&memory_changed);
    while (host->allocators > 0 || host->registrars > 0)
        pthread_cond_wait(&memory_changed, &memory_lock);
    uint64_t unused = host->mapped;
    host->mapped = 0;
    pthread_mutex_unlock(&memory_lock);
    if (unused > 0)
        munmap(host->memory, unused);
    pthread_mutex_lock(&memory_lock);
}

/* Waits until a thread has made memory, perhaps. False: the client's order must yield. */
static bool await_memory(struct client *client)
{
    if (!client->speculates) {
        pthread_cond_wait(&memory_changed, &memory_lock);
        return true;
    }
    pthread_mutex_unlock(&memory_lock);
    nanosleep(&(struct timespec){ .tv_nsec = YIELD_POLL_NS }, NULL);
    pthread_mutex_lock(&memory_lock);
    return !client_must_yield(client);
}

static bool take(struct client *client, size_t size, uint64_t allowance, bool patient,
                 struct place *place)
{
    struct host *host = host_of(client);
    if (host->expects)
        begin_to_allocate(client);
    bool found, waits = true;
    while (!(found = host_place(client, size, place)) && waits
           && (host_is_made(client) || (patient && host->preallocators > 0)))
        waits = await_memory(client);
    if (!found && waits)
        found = host_grow(client, size, allowance) && host_place(client, size, place);
    return found;
}

/* If the slab is not registered, the driver may wait for the bus: memory_lock is released. */
static CUresult copy(struct place *place, bool out, CUdeviceptr address, size_t offset, size_t size,
                     CUstream stream)
{
    bool waits = !host_register(place);
    char *memory = place->memory + offset;
    if (waits)
        pthread_mutex_unlock(&memory_lock);
    CUresult result = out ? REAL(cuMemcpyDtoHAsync_v2)(memory, address + offset, size, stream)
                          : REAL(cuMemcpyHtoDAsync_v2)(address + offset, memory, size, stream);
    if (waits)
        pthread_mutex_lock(&memory_lock);
    return result;
}

const struct tier tier_host = {
    .take = take, .give = host_unplace, .copy = copy, .pieces = true, .keeps = true,
    .over_bus = true, .readable = true, .cost = COSTS_MEMORY, .attach = attach, .order = obey,
    .expect = expect, .placed = placed, .trim = trim, .has_spare = has_spare,
    .leave_context = leave_context,
};

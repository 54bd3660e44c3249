/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store of most memory: mapped on the card, and copied to the host. Host memory comes in
 * slabs of a hundred MiB or so, taken with huge
 * pages, registered with the driver once and kept (host_memory.c). Taking memory is
 * slower than the bus, so several threads do it, and they work ahead: while blocks
 * are copied into what there is, the next slabs are made, as far as the
 * daemon's allowance goes.
 *
 * A registration lives in a context and goes with it, the memory does not: it may hold
 * what outlives that context, and other contexts have use for it. So slabs are taken
 * from the driver before it drops them, and are registered anew, one by one, when
 * something is next copied to or from them. One that is not registered can be
 * given back without the driver, when no context is left, too.
 */
#include "block/store_host.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "block/block.h"
#include "block/host_memory.h"
#include "block/mapped.h"
#include "block/region.h"
#include "block/store.h"
#include "client/client.h"
#include "interpose/real.h"

#define DEFAULT_SLAB ((uint64_t)128 << 20)
#define LARGEST_SLAB ((uint64_t)1 << 30)
#define PIECE ((uint64_t)16 << 20)   /* that one thread fills at a time */

struct host_slab {
    char *memory;
    uint64_t size;
    uint64_t used;
    uint64_t pages;
    struct host_slab *next;
    uint64_t begun, filled;          /* while it is being made by several threads */
    enum {
        UNREGISTERED,
        REGISTERED,                  /* in client->copy_context */
        REFUSED,                     /* there, where it is not tried again: copies are slower */
    } state;
    bool taken[];                    /* one per page of 2 MiB */
};

/* Of which nothing is filled. `memory`: addresses mapped for it, or NULL. NULL: no memory. */
static struct host_slab *new_slab(const struct client *client, char *memory, uint64_t size)
{
    struct host_slab *slab = calloc(1, sizeof *slab + size / PAGE);
    if (memory == NULL)
        memory = host_memory_map(size, client->node);
    if (slab == NULL || memory == NULL) {
        if (memory != NULL)
            host_memory_unmap(memory, size);
        free(slab);
        return NULL;
    }
    slab->memory = memory;
    slab->size = size;
    slab->pages = size / PAGE;
    return slab;
}

static bool place(struct host_slab *slab, struct block *block)
{
    uint64_t wanted = block->size / PAGE, run = 0;
    if (slab->size - slab->used < block->size)
        return false;
    for (uint64_t page = 0; page < slab->pages; page++) {
        run = slab->taken[page] ? 0 : run + 1;
        if (run < wanted)
            continue;
        memset(&slab->taken[page + 1 - wanted], true, wanted);
        slab->used += block->size;
        block->place.host.slab = slab;
        block->place.host.address = slab->memory + (page + 1 - wanted) * PAGE;
        return true;
    }
    return false;
}

/* The daemon may know better than we how coarse to be; never finer than a block. */
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

/* One that has been filled is registered, and can be used. It counts already, and does
 * not any more where the driver refuses. Lock held, released meanwhile. */
static bool enlist(struct client *client, struct host_slab *slab)
{
    pthread_mutex_unlock(&memory_lock);
    bool usable = host_memory_register(slab->memory, slab->size);
    if (!usable)
        host_memory_unmap(slab->memory, slab->size);
    pthread_mutex_lock(&memory_lock);
    if (!usable) {
        client->memory.host -= slab->size;
        free(slab);
        return false;
    }
    slab->state = REGISTERED;
    slab->next = client->host_slabs;
    client->host_slabs = slab;
    pthread_cond_broadcast(&memory_changed);
    return true;
}

/* One slab, counted as held from the moment it is begun. Lock held, released
 * meanwhile. False: not allowed, or the machine has no more. */
static bool grow(struct client *client, uint64_t block_size, uint64_t allowance)
{
    uint64_t size = slab_size(client, block_size, allowance);
    if (size == 0)
        return false;
    client->memory.host += size;
    pthread_mutex_unlock(&memory_lock);
    struct host_slab *slab = new_slab(client, NULL, size);
    if (slab != NULL)
        host_memory_fill(slab->memory, size);
    pthread_mutex_lock(&memory_lock);
    if (slab == NULL) {
        client->memory.host -= size;
        return false;
    }
    return enlist(client, slab);
}

/* The slab to which the threads turn next, of what was mapped for all of them as long as
 * there is any left. NULL: there are enough, or the machine has no more. Lock held. */
static struct host_slab *begin(struct host_provision *provision)
{
    struct client *client = provision->client;
    uint64_t size = slab_size(client, PAGE, provision->target);
    if (size == 0)
        return NULL;
    char *memory = NULL;
    if (provision->mapped >= size) {
        provision->mapped -= size;
        memory = provision->memory + provision->mapped;
    }
    struct host_slab *slab = new_slab(client, memory, size);
    if (slab != NULL)
        client->memory.host += size;
    return slab;
}

/* Piece by piece, so that all of them work on the slab that is needed first. */
static void *provide(void *argument)
{
    struct host_provision *provision = argument;
    struct client *client = provision->client;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    bool ready = REAL(cuCtxSetCurrent)(provision->context) == CUDA_SUCCESS;
    pthread_mutex_lock(&memory_lock);
    while (ready) {
        struct host_slab *slab = provision->slab != NULL ? provision->slab : begin(provision);
        if (slab == NULL)
            break;
        char *piece = slab->memory + slab->begun;
        uint64_t left = slab->size - slab->begun, size = left < PIECE ? left : PIECE;
        slab->begun += size;
        provision->slab = size < left ? slab : NULL;
        pthread_mutex_unlock(&memory_lock);
        host_memory_fill(piece, size);
        pthread_mutex_lock(&memory_lock);
        slab->filled += size;
        if (slab->filled == slab->size)
            ready = enlist(client, slab);
    }
    client->providers--;
    pthread_cond_broadcast(&memory_changed);
    pthread_mutex_unlock(&memory_lock);
    return NULL;
}

uint64_t host_useful(const struct client *client)
{
    return client->slab_use + client->managed_away;
}

void host_provide(struct client *client, uint64_t allowance, struct host_provision *provision)
{
    uint64_t useful = host_useful(client), target = allowance < useful ? allowance : useful;
    uint64_t lacking = target > client->memory.host ? target - client->memory.host : 0;
    uint64_t pieces = (lacking + PIECE - 1) / PIECE;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    unsigned most = online < 2 ? 1 : online > PROVIDERS_MAX ? PROVIDERS_MAX : (unsigned)online;
    *provision = (struct host_provision){
        .client = client, .context = client->copy_context, .target = target,
    };
    lacking = lacking / PAGE * PAGE;
    if (lacking > 0)
        provision->memory = host_memory_map(lacking, client->node);
    if (provision->memory != NULL)
        provision->mapped = lacking;
    while (provision->count < pieces && provision->count < most
           && pthread_create(&provision->threads[provision->count], NULL, provide, provision) == 0) {
        provision->count++;
        client->providers++;
    }
}

void host_provided(struct host_provision *provision)
{
    for (unsigned i = 0; i < provision->count; i++)
        pthread_join(provision->threads[i], NULL);
    if (provision->mapped > 0)
        host_memory_unmap(provision->memory, provision->mapped);
}

static bool place_anywhere(struct client *client, struct block *block)
{
    for (struct host_slab *slab = client->host_slabs; slab != NULL; slab = slab->next)
        if (place(slab, block))
            return true;
    return false;
}

static bool take(struct block *block, uint64_t allowance, struct host_provision *provision)
{
    struct client *client = block->client;
    /* One that left before has its place. */
    if (provision != NULL && provision->client == NULL)
        host_provide(client, allowance, provision);
    if (place_anywhere(client, block))
        return true;
    while (client->providers > 0) {
        pthread_cond_wait(&memory_changed, &memory_lock);
        if (place_anywhere(client, block))
            return true;
    }
    if (grow(client, block->size, allowance) && place_anywhere(client, block))
        return true;
    /* The oldest leave last, so they miss the slots they keep the least. */
    for (struct block *kept = client->blocks; kept != NULL; kept = kept->younger) {
        if (kept->state != BLOCK_RESIDENT || !kept->stored || !kept->store->slabs
            || (block->presaving && block_presaved(kept)))
            continue;                /* nothing is won by saving one instead of another */
        store_give(kept);
        if (place_anywhere(client, block))
            return true;
    }
    return false;
}

static void give(struct block *block)
{
    struct host_slab *slab = block->place.host.slab;
    memset(&slab->taken[(block->place.host.address - slab->memory) / (ptrdiff_t)PAGE], false,
           block->size / PAGE);
    slab->used -= block->size;
}

/* Whether copies to and from this slab go straight over the bus, for which it is registered
 * anew where that is needed; if not, the calls that start them may take as long as the
 * copies. May release and retake memory_lock. */
static bool registered(struct host_slab *slab)
{
    if (slab->state == UNREGISTERED) {
        pthread_mutex_unlock(&memory_lock);
        bool done = host_memory_register_again(slab->memory, slab->size);
        pthread_mutex_lock(&memory_lock);
        slab->state = done ? REGISTERED : REFUSED;
    }
    return slab->state == REGISTERED;
}

static CUresult out(struct block *block, size_t offset, size_t size, CUstream stream)
{
    bool waits = !registered(block->place.host.slab);
    if (waits)
        pthread_mutex_unlock(&memory_lock);
    CUresult result = REAL(cuMemcpyDtoHAsync_v2)(block->place.host.address + offset,
                                                 block->address + offset, size, stream);
    if (waits)
        pthread_mutex_lock(&memory_lock);
    return result;
}

static CUresult in(struct block *block, size_t offset, size_t size, CUstream stream)
{
    bool waits = !registered(block->place.host.slab);
    if (waits)
        pthread_mutex_unlock(&memory_lock);
    CUresult result = REAL(cuMemcpyHtoDAsync_v2)(block->address + offset,
                                                 block->place.host.address + offset, size, stream);
    if (waits)
        pthread_mutex_lock(&memory_lock);
    return result;
}

static CUresult settle(struct block *block, CUresult result)
{
    (void)block;
    return result;
}

const struct store store_host = {
    .map = mapped_map, .unmap = mapped_unmap, .open = mapped_open,
    .take = take, .give = give, .out = out, .in = in, .settle = settle,
    .looks = true, .pieces = true, .keeps = true, .slabs = true,
};

void host_leave_context(struct client *client, bool drained)
{
    if (client->host_slabs == NULL)
        return;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUcontext same;
    /* The driver may wait for what is in flight, and that for a thread at the gate, which opens
     * under service_lock. Then, or if it refuses, this is left to the context's end. */
    pthread_mutex_unlock(&memory_lock);
    bool entered = drained && REAL(cuCtxPushCurrent_v2)(client->copy_context) == CUDA_SUCCESS;
    if (entered)
        REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    for (struct host_slab *slab = client->host_slabs; slab != NULL; slab = slab->next) {
        if (entered && slab->state == REGISTERED)
            host_memory_unregister(slab->memory);
        slab->state = UNREGISTERED;
    }
    if (entered) {
        REAL(cuThreadExchangeStreamCaptureMode)(&mode);
        REAL(cuCtxPopCurrent_v2)(&same);
    }
    pthread_mutex_lock(&memory_lock);
}

/* Gives the memory of an empty slab back. False: the driver keeps it, so it goes on
 * counting. Lock held, released meanwhile, in which time nobody else takes one away. */
static bool let_go(struct client *client, struct host_slab *slab)
{
    struct host_slab **link = &client->host_slabs;
    pthread_mutex_unlock(&memory_lock);
    bool free_of_driver = slab->state != REGISTERED || host_memory_unregister(slab->memory);
    if (free_of_driver)
        host_memory_unmap(slab->memory, slab->size);
    pthread_mutex_lock(&memory_lock);
    if (!free_of_driver)
        return false;
    while (*link != slab)
        link = &(*link)->next;
    *link = slab->next;
    client->memory.host -= slab->size;
    free(slab);
    return true;
}

void host_trim(struct client *client, uint64_t allowance)
{
    struct host_slab *slab = client->host_slabs;
    while (slab != NULL && client->memory.host > allowance)
        slab = slab->used == 0 && let_go(client, slab) ? client->host_slabs : slab->next;
}

void host_shrink(struct client *client, uint64_t allowance)
{
    if (client->memory.host <= allowance)
        return;
    for (struct block *kept = client->blocks; kept != NULL; kept = kept->younger)
        if (kept->state == BLOCK_RESIDENT)
            store_give(kept);
    host_trim(client, allowance);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Managed memory in blocks. A block is loaded by a prefetch to the card and evicted by a prefetch
 * to the host. The driver keeps the bytes valid throughout, so the worst case is a late page: a
 * kernel that touches a page on the host waits for it, and the CPU may touch any page at any time.
 *
 * The figures are upper bounds. A page counts as resident while its block is resident, even if no
 * kernel has touched the page yet, the CPU has migrated it back, or the program prefers it on the
 * host. Only submitted work migrates such pages to the card, so no page of an evicted block is on
 * the card while the gate is closed. Host memory of a block is counted while the block is swapped;
 * the driver keeps that memory longer, for the next eviction.
 *
 * Beyond the card: with NVSHARE_ENABLE_SINGLE_OVERSUB=1 a program may allocate more than the card
 * could ever hold, with cuMemAlloc, too. The excess is managed memory with the host as its
 * preferred location, which the card accesses over the bus. It is never loaded and has no blocks,
 * so all other memory keeps the room that the daemon has granted. The daemon decides whether the
 * host has enough memory.
 *
 * Devices without concurrent managed access keep managed memory on the card while work runs; on
 * these devices managed memory counts as pinned (unified.c).
 */
#include "memory/managed.h"

#include <stdlib.h>
#include <string.h>

#include "block/block.h"
#include "driver/log.h"
#include "driver/ops.h"
#include "driver/setting.h"
#include "gate/client.h"
#include "gate/contexts.h"
#include "memory/allocation.h"
#include "memory/ranges.h"

/* Where the program itself last prefetched a run of pages of an allocation. The driver, if asked,
 * would report the library's own prefetches. The program has never prefetched pages in no run. */
struct prefetch {
    struct range range;
    CUmemLocation location;
};

#define PAGE_OF_HOST ((CUdeviceptr)4096)

static CUdeviceptr first_page(CUdeviceptr address)
{
    return address / PAGE_OF_HOST * PAGE_OF_HOST;
}

static CUdeviceptr behind_last_page(CUdeviceptr address, size_t size)
{
    return first_page(address + size + PAGE_OF_HOST - 1);
}

static CUdeviceptr end_of(const struct prefetch *run)
{
    return run->range.address + run->range.size;
}

/* The run with this index, or NULL. */
static struct prefetch *run_at(const struct ranges *prefetches, size_t index)
{
    return index < prefetches->count ? (struct prefetch *)prefetches->sorted[index] : NULL;
}

/* Without memory to record it, the run counts as never prefetched. */
static void add_run(struct ranges *prefetches, CUdeviceptr begin, CUdeviceptr end,
                    CUmemLocation location)
{
    struct prefetch *run = malloc(sizeof *run);
    if (run == NULL || !ranges_reserve(prefetches)) {
        free(run);
        return;
    }
    *run = (struct prefetch){ { begin, end - begin }, location };
    ranges_insert(prefetches, &run->range);
}

static void drop_run(struct ranges *prefetches, struct prefetch *run)
{
    ranges_remove(prefetches, &run->range);
    free(run);
}

/* Forgets all prefetches in [begin, end). */
static void cut_out(struct ranges *prefetches, CUdeviceptr begin, CUdeviceptr end)
{
    struct prefetch *run;
    while ((run = run_at(prefetches, ranges_search(prefetches, begin))) != NULL
           && run->range.address < end) {
        CUdeviceptr run_begin = run->range.address, run_end = end_of(run);
        CUmemLocation location = run->location;
        drop_run(prefetches, run);
        if (run_begin < begin)
            add_run(prefetches, run_begin, begin, location);
        if (run_end > end)
            add_run(prefetches, end, run_end, location);
    }
}

static bool same(CUmemLocation one, CUmemLocation other)
{
    return one.type == other.type && one.id == other.id;
}

static void note_prefetch(struct ranges *prefetches, CUdeviceptr address, size_t size,
                          CUmemLocation location)
{
    CUdeviceptr begin = first_page(address), end = behind_last_page(address, size);
    cut_out(prefetches, begin, end);
    size_t at = ranges_search(prefetches, begin);
    struct prefetch *before = at == 0 ? NULL : run_at(prefetches, at - 1);
    struct prefetch *behind = run_at(prefetches, at);
    if (before != NULL && end_of(before) == begin && same(before->location, location)) {
        begin = before->range.address;
        drop_run(prefetches, before);
    }
    if (behind != NULL && behind->range.address == end && same(behind->location, location)) {
        end = end_of(behind);
        drop_run(prefetches, behind);
    }
    add_run(prefetches, begin, end, location);
}

/* Where the program last prefetched the whole range; type INVALID: to no single location. */
static CUmemLocation last_prefetch(const struct ranges *prefetches, CUdeviceptr address,
                                   size_t size)
{
    const struct prefetch *run = (struct prefetch *)ranges_at(prefetches, first_page(address));
    return run != NULL && end_of(run) >= behind_last_page(address, size)
        ? run->location : (CUmemLocation){ .type = CU_MEM_LOCATION_TYPE_INVALID };
}

/* One allocation. */
struct managed {
    struct range range;              /* `size`: as requested */
    struct client *client;
    CUcontext context;               /* its end frees the memory; NULL: that context has ended */
    struct managed *next_freed;
    struct ranges prefetches;        /* of struct prefetch: made by the program */
    size_t beyond;                   /* bytes counted in memory.beyond; 0: it has blocks */
    bool plain;                      /* the program got it from cuMemAlloc */
    unsigned long long id;
    size_t block_count;
    struct block *blocks[];
};

static struct ranges table;          /* of all managed allocations */

#define GRAIN ((size_t)64 << 10)     /* granularity of the driver's pages on the card */
#define ATTACH_GLOBAL 1u

/* Allocations that are being freed by the driver. They are not in the table: before the driver's
 * call returns, another thread may already have been given the same addresses. */
static struct managed *freed;

static size_t whole_grains(size_t bytes)
{
    return (bytes + GRAIN - 1) / GRAIN * GRAIN;
}

/* The allocation that contains `address`, or NULL. */
static struct managed *managed_find(CUdeviceptr address)
{
    return (struct managed *)ranges_at(&table, address);
}

static void hold(struct managed *managed, bool held)
{
    for (size_t i = 0; i < managed->block_count; i++)
        block_hold(managed->blocks[i], held);
}

static void discard(struct managed *managed)
{
    for (size_t i = 0; i < managed->block_count; i++)
        block_free(managed->blocks[i]);
    managed->client->memory.beyond -= managed->beyond;
    while (managed->prefetches.count > 0)
        drop_run(&managed->prefetches, run_at(&managed->prefetches, 0));
    free(managed->prefetches.sorted);
    free(managed);
}

/* Creates an allocation that is counted but has no addresses yet: with `beyond` bytes beyond the
 * card, which the caller has added to memory.beyond, or with blocks if `beyond` is 0. NULL: out of
 * memory; nothing is counted then. */
static struct managed *reserve(struct client *client, CUcontext context, size_t bytes,
                               size_t beyond)
{
    size_t count = beyond != 0 ? 0 : (bytes + BLOCK_SIZE - 1) / BLOCK_SIZE;
    struct managed *managed = calloc(1, sizeof *managed + count * sizeof managed->blocks[0]);
    if (managed == NULL) {
        client->memory.beyond -= beyond;
        return NULL;
    }
    *managed = (struct managed){
        .range.size = bytes, .client = client, .context = context, .beyond = beyond,
    };
    for (size_t left = bytes; managed->block_count < count; managed->block_count++) {
        size_t length = left < BLOCK_SIZE ? left : BLOCK_SIZE;
        struct block *block = block_new(client, true, 0, whole_grains(length));
        if (block == NULL) {
            discard(managed);
            return NULL;
        }
        block->place.managed.bytes = length;
        block->place.managed.device = client->device;
        block_hold(block, true);
        managed->blocks[managed->block_count] = block;
        left -= length;
    }
    if (!ranges_reserve(&table)) {
        discard(managed);
        return NULL;
    }
    return managed;
}

static void set_address(struct managed *managed, CUdeviceptr address)
{
    managed->range.address = address;
    for (size_t i = 0; i < managed->block_count; i++)
        managed->blocks[i]->address = address + i * BLOCK_SIZE;
    hold(managed, false);
    ranges_insert(&table, &managed->range);
}

static bool can_prefetch(CUdevice device)
{
    int concurrent = 0;
    return (HAVE_REAL(cuMemPrefetchAsync) || HAVE_REAL(cuMemPrefetchAsync_v2))
           && REAL(cuDeviceGetAttribute)(&concurrent,
                  CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, device) == CUDA_SUCCESS
           && concurrent;
}

/* Whether memory beyond the card is enabled. May be called with memory_lock held. */
static bool may_go_beyond(void)
{
    const char *text = setting("NVSHARE_ENABLE_SINGLE_OVERSUB");
    return text != NULL && strcmp(text, "1") == 0;
}

/* Calls the driver to allocate what reserve() has counted. */
static CUresult make(const struct managed *managed, unsigned int flags, CUdeviceptr *address)
{
    CUdevice device = managed->client->device;
    CUresult result = REAL(cuMemAllocManaged)(address, managed->range.size, flags);
    if (result != CUDA_SUCCESS || managed->beyond == 0)
        return result;
    result = REAL(cuMemAdvise)(*address, managed->range.size, CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
                               CU_DEVICE_CPU);
    if (result == CUDA_SUCCESS)
        result = REAL(cuMemAdvise)(*address, managed->range.size, CU_MEM_ADVISE_SET_ACCESSED_BY,
                                   device);
    if (result != CUDA_SUCCESS) {
        debug("managed memory cannot be kept on the host: error %d", (int)result);
        REAL(cuMemFree_v2)(*address);
    }
    return result;
}

static bool has_context(struct client *client, CUcontext *context)
{
    return client != NULL && can_prefetch(client->device)
           && contexts_current(context) == CUDA_SUCCESS;
}

/* `plain`: an allocation beyond the card that the program made with cuMemAlloc. */
static CUresult take(struct client *client, CUcontext context, size_t bytes, unsigned int flags,
                     bool plain, CUdeviceptr *address)
{
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    UNCANCELLED;
    LOCKED(memory_lock);
    struct managed *managed = NULL;
    size_t size = whole_grains(bytes);
    if (!plain && client_commit(client, size))
        managed = reserve(client, context, bytes, 0);
    else if (may_go_beyond() && client_go_beyond(client, size))
        managed = reserve(client, context, bytes, size);
    if (managed != NULL) {
        managed->plain = plain;
        managed->id = allocation_id();
        /* From now on each block counts as resident or as absent, so that the gate closes if one is
         * absent. */
        allocation_fill(managed->blocks, managed->block_count);
        client_update(client);
        pthread_mutex_unlock(&memory_lock);
        CUdeviceptr made = 0;
        result = make(managed, flags, &made);
        pthread_mutex_lock(&memory_lock);
        if (result == CUDA_SUCCESS) {
            set_address(managed, made);
            *address = made;
        } else {
            table.reserved--;
            discard(managed);
        }
    }
    client_update(client);
    return result;
}

bool managed_allocate(CUdeviceptr *address, size_t bytes, unsigned int flags, CUresult *result)
{
    struct client *client = client_current();
    CUcontext context;
    if (address == NULL || bytes == 0 || bytes > (size_t)1 << 46 || !has_context(client, &context))
        return false;
    *result = take(client, context, bytes, flags, false, address);
    return true;
}

bool managed_beyond(CUdeviceptr *address, size_t bytes)
{
    struct client *client = client_current();
    CUcontext context;
    return may_go_beyond() && bytes <= (size_t)1 << 46 && has_context(client, &context)
           && take(client, context, bytes, ATTACH_GLOBAL, true, address) == CUDA_SUCCESS;
}

bool managed_describe(CUdeviceptr address, struct memory_description *description)
{
    const struct managed *managed = managed_find(address);
    if (managed == NULL || !managed->plain)
        return false;
    *description = (struct memory_description){
        .base = managed->range.address,
        .size = managed->range.size,
        .context = managed->context,
        .device = managed->client->device,
        .id = managed->id,
    };
    return true;
}

static bool moving(const struct managed *managed)
{
    for (size_t i = 0; i < managed->block_count; i++)
        if (managed->blocks[i]->state == BLOCK_EVICTING
            || managed->blocks[i]->state == BLOCK_LOADING)
            return true;
    return false;
}

/* cuMemFree waits for work in flight that may use the memory, which stays counted until then. */
bool managed_free(CUdeviceptr address, bool plain, CUresult *result)
{
    if (client_none())
        return false;
    UNCANCELLED;
    LOCKED(memory_lock);
    struct managed *managed = managed_find(address);
    bool ours = managed != NULL && managed->range.address == address && (managed->plain || !plain);
    if (ours) {
        ranges_remove(&table, &managed->range);
        table.reserved++;            /* the driver may refuse to free the memory */
        managed->next_freed = freed;
        freed = managed;
        hold(managed, true);
        while (moving(managed))
            pthread_cond_wait(&memory_changed, &memory_lock);
        pthread_mutex_unlock(&memory_lock);
        *result = REAL(cuMemFree_v2)(address);
        pthread_mutex_lock(&memory_lock);
        struct client *client = managed->client;
        struct managed **link = &freed;
        while (*link != managed)
            link = &(*link)->next_freed;
        *link = managed->next_freed;
        hold(managed, false);
        if (*result == CUDA_SUCCESS || managed->context == NULL) {
            table.reserved--;
            discard(managed);
        } else {
            ranges_insert(&table, &managed->range);
        }
        client_update(client);
        pthread_cond_broadcast(&memory_changed);
    }
    return ours;
}

void managed_context_ends(CUcontext context)
{
    for (size_t i = table.count; i-- > 0;) {
        struct managed *managed = (struct managed *)table.sorted[i];
        if (managed->context == context) {
            ranges_remove(&table, &managed->range);
            discard(managed);
        }
    }
    for (struct managed *managed = freed; managed != NULL; managed = managed->next_freed)
        if (managed->context == context)
            managed->context = NULL; /* the memory is freed, whatever cuMemFree returns */
}

void managed_prefetched(CUdeviceptr address, size_t size, CUmemLocation place)
{
    if (client_none())
        return;
    LOCKED(memory_lock);
    struct managed *managed = managed_find(address);
    if (managed != NULL)
        note_prefetch(&managed->prefetches, address, size, place);
}

bool managed_last_prefetch(CUdeviceptr address, size_t size, CUmemLocation *place)
{
    if (client_none())
        return false;
    LOCKED(memory_lock);
    const struct managed *managed = managed_find(address);
    bool differs = false;
    for (size_t i = 0; managed != NULL && i < managed->block_count; i++)
        differs |= managed->blocks[i]->place.managed.sent;
    if (differs)
        *place = last_prefetch(&managed->prefetches, address, size);
    return differs;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Managed memory in blocks, loaded by a prefetch to the card and evicted by a prefetch to the host.
 * A page counts as resident while its block does, even if the CPU has migrated it to the host. Only
 * submitted work migrates pages to the card: behind a closed gate an evicted block gets none back.
 *
 * With NVSHARE_ENABLE_SINGLE_OVERSUB=1 a program may allocate more than the card could ever hold.
 * The excess stays on the host, which the card accesses over the bus, and has no blocks. On devices
 * without concurrent managed access managed memory counts as pinned (api/unified.c).
 */
#include "memory/managed.h"

#include <stdlib.h>
#include <string.h>

#include "block/block.h"
#include "driver/log.h"
#include "driver/ops.h"
#include "driver/ring.h"
#include "driver/setting.h"
#include "gate/client.h"
#include "gate/contexts.h"
#include "memory/allocation.h"
#include "tier/ranges.h"

/* The program's last prefetch of some pages. The driver would report the library's own prefetch. */
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

/* Records a prefetch, joined with neighbouring runs of the same location. */
static void note_prefetch(struct ranges *prefetches, CUdeviceptr address, size_t size,
                          CUmemLocation location)
{
    CUdeviceptr begin = first_page(address), end = behind_last_page(address, size);
    CUdeviceptr next = begin - 1;    /* a run that ends at `begin` is a neighbour */
    struct prefetch *run;
    while ((run = (struct prefetch *)ranges_between(prefetches, next, end + 1)) != NULL) {
        const struct prefetch old = *run;
        next = range_end(&old.range);
        drop_run(prefetches, run);
        if (old.location.type == location.type && old.location.id == location.id) {
            begin = old.range.address < begin ? old.range.address : begin;
            end = next > end ? next : end;
            continue;
        }
        if (old.range.address < begin)
            add_run(prefetches, old.range.address, begin, old.location);
        if (next > end)
            add_run(prefetches, end, next, old.location);
    }
    add_run(prefetches, begin, end, location);
}

struct managed {
    struct range range;              /* `size`: bytes as requested */
    struct client *client;
    CUcontext context;               /* its end frees the memory; NULL: that context has ended */
    struct managed *next;            /* next in the list `freed` */
    struct ranges prefetches;        /* elements: struct prefetch */
    size_t beyond;                   /* bytes counted in memory.beyond; 0: `blocks` are used */
    bool plain;                      /* the program got it from cuMemAlloc */
    unsigned long long id;
    size_t block_count;
    struct block *blocks[];
};

static struct ranges table;          /* all managed allocations that are not in `freed` */

#define GRAIN ((size_t)64 << 10)     /* granularity of the driver's pages on the card */
#define ATTACH_GLOBAL 1u

/* Allocations that the driver is freeing: other threads may already have got their addresses. */
static struct managed *freed;

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
        drop_run(&managed->prefetches, (struct prefetch *)managed->prefetches.sorted[0]);
    free(managed->prefetches.sorted);
    free(managed);
}

/* Creates an allocation without addresses: of `beyond` bytes of host memory, already added to
 * memory.beyond, or, if 0, with blocks. NULL: out of memory; nothing is counted then. */
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
        struct block *block = block_new(client, true, 0, ROUNDED_UP(length, GRAIN));
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

static bool may_go_beyond(void)
{
    const char *text = setting("NVSHARE_ENABLE_SINGLE_OVERSUB");
    return text != NULL && strcmp(text, "1") == 0;
}

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

/* Whether the client's managed memory can be evicted. *context: the current context. */
static bool is_evictable(struct client *client, CUcontext *context)
{
    int concurrent = 0;
    return client != NULL
        && (HAVE_REAL(cuMemPrefetchAsync) || HAVE_REAL(cuMemPrefetchAsync_v2))
        && REAL(cuDeviceGetAttribute)(&concurrent, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
                                      client->device) == CUDA_SUCCESS
        && concurrent && contexts_current(context) == CUDA_SUCCESS;
}

static void unreserve(struct managed *managed)
{
    table.reserved--;
    discard(managed);
}

static void undo_take(void *managed, uint64_t unused)
{
    (void)unused;
    struct client *client = ((struct managed *)managed)->client;
    LOCKED(memory_lock);
    unreserve(managed);
    client_update(client);
}

/* `plain`: for managed_beyond(). */
static CUresult take(struct client *client, CUcontext context, size_t bytes, unsigned int flags,
                     bool plain, CUdeviceptr *address)
{
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    LOCKED(memory_lock);
    struct managed *managed = NULL;
    size_t size = ROUNDED_UP(bytes, GRAIN);
    if (!plain && client_commit(client, size))
        managed = reserve(client, context, bytes, 0);
    else if (may_go_beyond() && client_go_beyond(client, size))
        managed = reserve(client, context, bytes, size);
    if (managed != NULL) {
        managed->plain = plain;
        managed->id = allocation_id();
        /* From now on each block counts as resident or absent: an absent block closes the gate. */
        allocation_fill(managed->blocks, managed->block_count);
        client_update(client);
        CUdeviceptr made = 0;
        {
            UNLESS_LEFT(undo_take, managed, 0);
            mutex_unlock(&memory_lock);
            result = make(managed, flags, &made);
            mutex_lock(&memory_lock);
        }
        if (result == CUDA_SUCCESS) {
            managed->range.address = *address = made;
            for (size_t i = 0; i < managed->block_count; i++)
                managed->blocks[i]->address = made + i * BLOCK_SIZE;
            hold(managed, false);
            ranges_insert(&table, &managed->range);
        } else {
            unreserve(managed);
        }
    }
    client_update(client);
    return result;
}

bool managed_allocate(CUdeviceptr *address, size_t bytes, unsigned int flags, CUresult *result)
{
    struct client *client = client_current();
    CUcontext context;
    if (address == NULL || bytes == 0 || bytes > (size_t)1 << 46 || !is_evictable(client, &context))
        return false;
    *result = take(client, context, bytes, flags, false, address);
    return true;
}

bool managed_beyond(CUdeviceptr *address, size_t bytes)
{
    struct client *client = client_current();
    CUcontext context;
    return may_go_beyond() && bytes <= (size_t)1 << 46 && is_evictable(client, &context)
           && take(client, context, bytes, ATTACH_GLOBAL, true, address) == CUDA_SUCCESS;
}

bool managed_describe(CUdeviceptr address, struct memory_description *description)
{
    const struct managed *managed = managed_find(address);
    if (managed == NULL || !managed->plain)
        return false;
    *description = (struct memory_description){
        .base = managed->range.address, .size = managed->range.size, .context = managed->context,
        .device = managed->client->device, .id = managed->id,
    };
    return true;
}

static bool moving(const struct managed *managed)
{
    for (size_t i = 0; i < managed->block_count; i++)
        if (block_is_moving(managed->blocks[i]))
            return true;
    return false;
}

static void end_free(struct managed *managed, bool done)
{
    struct client *client = managed->client;
    LIST_REMOVE(freed, managed);
    hold(managed, false);
    if (done || managed->context == NULL)
        unreserve(managed);
    else
        ranges_insert(&table, &managed->range);
    client_update(client);
    memory_notify();
}

/* The driver may or may not have freed the memory: the program's next cuMemFree() tells. */
static void undo_free(void *managed, uint64_t unused)
{
    (void)unused;
    LOCKED(memory_lock);
    end_free(managed, false);
}

/* cuMemFree waits for work in flight that may use the memory, which stays counted until then. */
bool managed_free(CUdeviceptr address, bool plain, CUresult *result)
{
    if (client_none())
        return false;
    LOCKED(memory_lock);
    struct managed *managed = managed_find(address);
    bool ours = managed != NULL && managed->range.address == address && (managed->plain || !plain);
    if (ours) {
        ranges_remove(&table, &managed->range);
        table.reserved++;            /* the entry is kept: the driver may refuse the free */
        managed->next = freed;
        freed = managed;
        hold(managed, true);
        {
            UNLESS_LEFT(undo_free, managed, 0);
            while (moving(managed))
                memory_wait();
            mutex_unlock(&memory_lock);
            *result = REAL(cuMemFree_v2)(address);
            mutex_lock(&memory_lock);
        }
        end_free(managed, *result == CUDA_SUCCESS);
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
    for (struct managed *managed = freed; managed != NULL; managed = managed->next)
        if (managed->context == context)
            managed->context = NULL; /* the memory is freed, whatever cuMemFree returns */
}

void managed_prefetched(CUdeviceptr address, size_t size, CUmemLocation location)
{
    LOCKED_OR_RETURN();
    struct managed *managed = managed_find(address);
    if (managed != NULL)
        note_prefetch(&managed->prefetches, address, size, location);
}

bool managed_last_prefetch(CUdeviceptr address, size_t size, CUmemLocation *location)
{
    READING_OR_RETURN(false);
    const struct managed *managed = managed_find(address);
    bool differs = false;
    for (size_t i = 0; managed != NULL && i < managed->block_count; i++)
        differs |= managed->blocks[i]->place.managed.sent;
    const struct prefetch *run = !differs ? NULL
        : (struct prefetch *)ranges_at(&managed->prefetches, first_page(address));
    if (run != NULL && range_end(&run->range) >= behind_last_page(address, size))
        *location = run->location;
    else
        *location = (CUmemLocation){ .type = CU_MEM_LOCATION_TYPE_INVALID };
    return differs;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Managed memory in blocks. The driver keeps the bytes; a block is loaded by a prefetch to the card
 * and evicted by a prefetch to the host. The driver keeps the bytes valid throughout, so the worst
 * case is a late page: a kernel that touches a page on the host waits for that page, and the CPU
 * may touch any page at any time.
 *
 * The figures are upper bounds. A page counts as resident while its block is resident, even if no
 * kernel has touched the page yet, the CPU has migrated it back, or the program prefers it on the
 * host. Only submitted work migrates such pages to the card, so no page of an evicted block is on
 * the card while the gate is closed. Host memory is counted while the block is swapped; the driver
 * keeps it longer, for the next eviction.
 *
 * Beyond the card: with NVSHARE_ENABLE_SINGLE_OVERSUB=1 a program may allocate more than the card
 * could ever hold, with cuMemAlloc, too. The excess is managed memory with the host as its
 * preferred location, which the card accesses over the bus. It is never loaded and has no blocks,
 * so all other memory keeps the room that the daemon has granted. The daemon decides whether the
 * host has enough memory.
 *
 * Devices without concurrent managed access keep managed memory on the card while work runs; on
 * these devices it counts as pinned (unified.c).
 */
#include "memory/managed.h"

#include <stdlib.h>
#include <string.h>

#include "block/block.h"
#include "block/prefetches.h"
#include "driver/log.h"
#include "driver/ops.h"
#include "driver/setting.h"
#include "gate/client.h"
#include "gate/commit.h"
#include "gate/contexts.h"
#include "memory/allocation.h"

/* Managed allocations sorted by address, with spare entries for allocations in progress. */

static struct managed **table;
static size_t table_count, table_reserved, table_room;

/* The index of the first allocation that begins after `address`. */
static size_t place_behind(CUdeviceptr address)
{
    size_t low = 0, high = table_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (table[middle]->base <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The allocation that contains `address`, or NULL. */
static struct managed *managed_find(CUdeviceptr address)
{
    size_t behind = place_behind(address);
    struct managed *managed = behind == 0 ? NULL : table[behind - 1];
    return managed != NULL && address - managed->base < managed->size ? managed : NULL;
}

/* Reserves an entry for an allocation in progress. False: out of host memory. */
static bool managed_reserve(void)
{
    if (table_count + table_reserved == table_room) {
        size_t room = table_room == 0 ? 64 : table_room * 2;
        struct managed **larger = realloc(table, room * sizeof *table);
        if (larger == NULL)
            return false;
        table = larger;
        table_room = room;
    }
    table_reserved++;
    return true;
}

static void managed_enter(struct managed *managed)
{
    size_t place = place_behind(managed->base);
    memmove(&table[place + 1], &table[place], (table_count - place) * sizeof *table);
    table[place] = managed;
    table_count++;
}

static void managed_strike(struct managed *managed)
{
    size_t place = place_behind(managed->base) - 1;
    table_count--;
    memmove(&table[place], &table[place + 1], (table_count - place) * sizeof *table);
}

/* removes the allocation, and keeps its entry reserved */
static void managed_withdraw(struct managed *managed)
{
    managed_strike(managed);
    table_reserved++;
}

/* Removes and returns one allocation of the context; NULL: the context has no more. */
static struct managed *managed_strike_of(CUcontext context)
{
    for (size_t i = table_count; i > 0; i--)
        if (table[i - 1]->context == context) {
            struct managed *managed = table[i - 1];
            managed_strike(managed);
            return managed;
        }
    return NULL;
}

/* the allocation is in the table now, or has failed */
static void managed_unreserve(void)
{
    table_reserved--;
}

#define GRAIN ((size_t)64 << 10)     /* granularity of the driver's pages on the card */
#define ATTACH_GLOBAL 1u

/* Allocations that are being freed by the driver. They are not in the table: before the driver's
 * call returns, another thread may already have been given the same addresses. */
static struct managed *freed;

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
    prefetches_forget(&managed->prefetches);
    free(managed);
}

/* Creates an allocation that is counted but has no addresses yet. NULL: out of memory. */
static struct managed *reserve(struct client *client, CUcontext context, size_t bytes)
{
    size_t count = (bytes + BLOCK_SIZE - 1) / BLOCK_SIZE;
    struct managed *managed = calloc(1, sizeof *managed + count * sizeof managed->blocks[0]);
    if (managed == NULL)
        return NULL;
    *managed = (struct managed){ .size = bytes, .client = client, .context = context };
    for (size_t left = bytes; managed->block_count < count; managed->block_count++) {
        size_t length = left < BLOCK_SIZE ? left : BLOCK_SIZE;
        struct block *block = block_new(client, true, 0,
                                        (length + GRAIN - 1) / GRAIN * GRAIN);
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
    if (!managed_reserve()) {
        discard(managed);
        return NULL;
    }
    return managed;
}

static void place(struct managed *managed, CUdeviceptr address)
{
    managed->base = address;
    for (size_t i = 0; i < managed->block_count; i++)
        managed->blocks[i]->address = address + i * BLOCK_SIZE;
    hold(managed, false);
    managed_enter(managed);
}

static bool can_be_sent(CUdevice device)
{
    int concurrent = 0;
    return (HAVE_REAL(cuMemPrefetchAsync) || HAVE_REAL(cuMemPrefetchAsync_v2))
           && REAL(cuDeviceGetAttribute)(&concurrent,
                  CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, device) == CUDA_SUCCESS
           && concurrent;
}

/* May be called with memory_lock held: it only reads. */
static bool may_go_beyond(void)
{
    const char *text = setting("NVSHARE_ENABLE_SINGLE_OVERSUB");
    return text != NULL && strcmp(text, "1") == 0;
}

/* NULL: not allowed, or out of memory. memory_lock is held, and released meanwhile. */
static struct managed *reserve_beyond(struct client *client, CUcontext context, size_t bytes)
{
    size_t size = (bytes + GRAIN - 1) / GRAIN * GRAIN;
    struct managed *managed = may_go_beyond() ? calloc(1, sizeof *managed) : NULL;
    if (managed == NULL || !client_go_beyond(client, size)) {
        free(managed);
        return NULL;
    }
    *managed = (struct managed){
        .size = bytes, .client = client, .context = context, .beyond = size,
    };
    if (!managed_reserve()) {
        discard(managed);
        return NULL;
    }
    return managed;
}

/* Makes the driver allocate what reserve() has counted. */
static CUresult make(const struct managed *managed, unsigned int flags, CUdeviceptr *address)
{
    CUdevice device = managed->client->device;
    CUresult result = REAL(cuMemAllocManaged)(address, managed->size, flags);
    if (result != CUDA_SUCCESS || managed->beyond == 0)
        return result;
    result = REAL(cuMemAdvise)(*address, managed->size, CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
                               CU_DEVICE_CPU);
    if (result == CUDA_SUCCESS)
        result = REAL(cuMemAdvise)(*address, managed->size, CU_MEM_ADVISE_SET_ACCESSED_BY, device);
    if (result != CUDA_SUCCESS) {
        debug("managed memory cannot be kept on the host: error %d", (int)result);
        REAL(cuMemFree_v2)(*address);
    }
    return result;
}

static bool has_context(struct client *client, CUcontext *context)
{
    return client != NULL && can_be_sent(client->device)
           && contexts_current(context) == CUDA_SUCCESS;
}

/* `plain`: an allocation beyond the card that the program made with cuMemAlloc. */
static CUresult take(struct client *client, CUcontext context, size_t bytes, unsigned int flags,
                     bool plain, CUdeviceptr *address)
{
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    UNCANCELLED;
    LOCKED(memory_lock);
    struct managed *managed =
        !plain && client_commit(client, (bytes + GRAIN - 1) / GRAIN * GRAIN)
            ? reserve(client, context, bytes) : reserve_beyond(client, context, bytes);
    if (managed != NULL) {
        managed->plain = plain;
        managed->id = allocation_id();
        /* From now on each block counts as resident or as missing, because the gate must know
         * which. */
        allocation_fill(managed->blocks, managed->block_count);
        client_update(client);
        pthread_mutex_unlock(&memory_lock);
        CUdeviceptr made = 0;
        result = make(managed, flags, &made);
        pthread_mutex_lock(&memory_lock);
        managed_unreserve();
        if (result == CUDA_SUCCESS) {
            place(managed, made);
            *address = made;
        } else {
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
        .base = managed->base,
        .size = managed->size,
        .context = managed->context,
        .device = managed->client->device,
        .id = managed->id,
    };
    return true;
}

static bool moving(const struct managed *managed)
{
    for (size_t i = 0; i < managed->block_count; i++)
        if (managed->blocks[i]->state == BLOCK_EVICTING || managed->blocks[i]->state == BLOCK_LOADING)
            return true;
    return false;
}

/* The driver waits for work in flight that may use the memory: until then it stays counted. */
bool managed_free(CUdeviceptr address, bool plain, CUresult *result)
{
    if (client_none())
        return false;
    UNCANCELLED;
    LOCKED(memory_lock);
    struct managed *managed = managed_find(address);
    bool ours = managed != NULL && managed->base == address && (managed->plain || !plain);
    if (ours) {
        managed_withdraw(managed);
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
        managed_unreserve();
        if (*result == CUDA_SUCCESS || managed->context == NULL)
            discard(managed);
        else
            managed_enter(managed);
        client_update(client);
        pthread_cond_broadcast(&memory_changed);
    }
    return ours;
}

void managed_context_ends(CUcontext context)
{
    struct managed *ended;
    while ((ended = managed_strike_of(context)) != NULL)
        discard(ended);
    for (struct managed *managed = freed; managed != NULL; managed = managed->next_freed)
        if (managed->context == context)
            managed->context = NULL; /* so that the thread that frees it finds it */
}

void managed_prefetched(CUdeviceptr address, size_t size, CUmemLocation place)
{
    if (client_none())
        return;
    LOCKED(memory_lock);
    struct managed *managed = managed_find(address);
    if (managed != NULL)
        prefetches_note(&managed->prefetches, address, size, place);
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
        *place = prefetches_last(&managed->prefetches, address, size);
    return differs;
}

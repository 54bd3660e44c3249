/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/async_allocation.h"

#include <stdlib.h>

#include "block/block.h"
#include "block/region.h"
#include "flight/capture.h"
#include "gate/client.h"
#include "memory/allocation.h"
#include "memory/large.h"
#include "memory/slab.h"
#include "pool/pending_frees.h"
#include "pool/pool.h"

#define BUCKETS 16384
#define MOST ((size_t)1 << 46)       /* upper limit, bytes of one allocation */
#define SEARCHED 256                 /* free allocations of a class that one search looks at */

static struct async_allocation *buckets[BUCKETS];

static struct async_allocation **bucket_of(CUdeviceptr address)
{
    return &buckets[address * 0x9E3779B97F4A7C15u >> 50];
}

struct async_allocation *async_at(CUdeviceptr address)
{
    struct async_allocation *async = *bucket_of(address);
    while (async != NULL && async->address != address)
        async = async->next;
    return async;
}

/* Bytes that an allocation occupies, and its size class. */
static size_t room_of(size_t bytes, unsigned *class)
{
    if (bytes <= SMALL_MAX)
        return slab_slot_size(bytes, class);
    size_t room = WHOLE_PAGES(bytes);
    *class = SLAB_CLASSES + 63 - (unsigned)__builtin_clzl(room / PAGE);
    return room;
}

static struct async_allocation *new_async(CUdeviceptr address, struct pool *pool)
{
    struct async_allocation *async = calloc(1, sizeof *async);
    if (async == NULL)
        return NULL;
    async->address = address;
    async->pool = pool;
    ring_clear(&async->order);
    ring_clear(&async->alike);
    async->next = *bucket_of(address);
    *bucket_of(address) = async;
    return async;
}

static void forget(struct async_allocation *async)
{
    struct async_allocation **link = bucket_of(async->address);
    while (*link != async)
        link = &(*link)->next;
    *link = async->next;
    free(async);
}

/* Frees the memory and forgets the allocation. */
static void release(struct async_allocation *async)
{
    struct pool *pool = async->pool;
    ring_leave(&async->order);
    ring_leave(&async->alike);
    allocation_release(async->address);
    if (pool != NULL) {
        pool->reserved -= async->room;
        pool_leave(pool);
    }
    forget(async);
}

bool pool_shrink(struct pool *pool, uint64_t keep)
{
    if (ring_empty(&pool->idle) || pool->reserved <= keep)
        return false;
    RELAXED;
    pool->users++;
    while (!ring_empty(&pool->idle) && pool->reserved > keep)
        release(RING_MEMBER(pool->idle.next, struct async_allocation, order));
    pool_leave(pool);
    return true;
}

void async_idle(struct async_allocation *async)
{
    if (async->pool == NULL || async->pool->destroyed)
        release(async);
    else
        ring_append(&async->pool->idle, &async->order);
}

struct async_allocation *async_retire(CUdeviceptr address)
{
    struct async_allocation *async = async_at(address);
    if (async == NULL) {
        async = new_async(address, NULL);
        if (async != NULL && !allocation_retire(address)) {
            forget(async);
            return NULL;
        }
    } else if (async->freed || !allocation_retire(address)) {
        return NULL;
    }
    if (async == NULL)
        return NULL;
    async->freed = true;
    if (async->pool != NULL) {
        async->pool->used -= async->size;
        ring_append(&async->pool->freed[async->class], &async->alike);
    }
    return async;
}

/* Whether work in the context's `stream` may use the free allocation now. */
static bool usable(const struct async_allocation *async, CUcontext context, uint64_t stream)
{
    if (async->pending == NULL && (async->stream == 0 || async->pool->opportunistic))
        return true;
    return async->stream == stream && stream != 0 && async->context == context;
}

/* The smallest free allocation that is large enough and wastes little; the latest freed of equals.
 * `early`: work in another stream may still touch it. */
static struct async_allocation *fitting(const struct pool *pool, size_t room, unsigned class,
                                        CUcontext context, uint64_t stream, bool early)
{
    size_t most = room + (class < SLAB_CLASSES ? 0 : room / 8);
    struct async_allocation *best = NULL;
    unsigned last = class < SLAB_CLASSES ? class : class + 1, searched = 0;
    for (; class <= last && class < ASYNC_CLASSES; class++) {
        const struct ring *head = &pool->freed[class];
        for (struct ring *link = head->previous; link != head && searched++ < SEARCHED;
             link = link->previous) {
            struct async_allocation *async = RING_MEMBER(link, struct async_allocation, alike);
            if (async->room < room || async->room > most
                || !(usable(async, context, stream) || (early && async->pending != NULL))
                || (best != NULL && best->room <= async->room))
                continue;
            best = async;
            if (async->room == room)
                return async;
        }
    }
    return best;
}

static void reuse(struct async_allocation *async, size_t bytes)
{
    pending_frees_leave(async);
    ring_leave(&async->alike);
    async->freed = false;
    async->size = bytes;
    allocation_renew(async->address, bytes);
}

/* Frees memory before the pool grows by `room` bytes. Beyond its release threshold the pool keeps
 * nothing; below, little more than its largest use so far, because memory that does not fit the
 * program's next allocation is of no use to the program. */
static bool make_way(struct pool *pool, size_t room)
{
    uint64_t plenty = pool->peak + pool->peak / 4 + 2 * BLOCK_SIZE;
    uint64_t keep = pool->threshold < plenty ? pool->threshold : plenty;
    if (pool->most != 0 && (room > pool->most || pool->reserved + room > pool->most))
        pool_shrink(pool, room > pool->most ? 0 : pool->most - room);
    pool_shrink(pool, keep > room ? keep - room : 0);
    return pool->most == 0 || pool->reserved + room <= pool->most;
}

static CUresult make(struct pool *pool, struct client *client, size_t bytes, size_t room,
                     unsigned class, struct async_allocation **async)
{
    CUdeviceptr address;
    if (!make_way(pool, room))
        return CUDA_ERROR_OUT_OF_MEMORY;
    /* Without a context: pools outlive contexts. */
    CUresult result = bytes <= SMALL_MAX ? slab_allocate(client, NULL, bytes, &address)
                                         : large_allocate(client, NULL, bytes, &address);
    if (result != CUDA_SUCCESS)
        return result;
    *async = new_async(address, pool);
    if (*async == NULL) {
        allocation_retire(address);
        allocation_release(address);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pool->users++;
    (*async)->size = bytes;
    (*async)->room = room;
    (*async)->class = class;
    pool->reserved += room;
    if (pool->reserved > pool->reserved_high)
        pool->reserved_high = pool->reserved;
    return CUDA_SUCCESS;
}

CUresult async_take(struct pool *pool, struct client *client, size_t bytes, CUcontext context,
                    CUstream stream, uint64_t name, CUdeviceptr *address)
{
    unsigned class;
    if (bytes > MOST)
        return CUDA_ERROR_OUT_OF_MEMORY;
    size_t room = room_of(bytes, &class);
    struct async_allocation *async = fitting(pool, room, class, context, name, false);
    if (async == NULL && pending_frees_look())
        async = fitting(pool, room, class, context, name, false);
    bool made = async == NULL;
    CUresult result = made ? make(pool, client, bytes, room, class, &async) : CUDA_SUCCESS;
    if (result == CUDA_ERROR_OUT_OF_MEMORY && pool->dependencies
        && (async = fitting(pool, room, class, context, name, true)) != NULL) {
        made = false;
        result = async->pending == NULL ? CUDA_SUCCESS : pending_frees_order(async, stream);
    }
    if (result != CUDA_SUCCESS)
        return result;
    if (!made)
        reuse(async, bytes);
    *address = async->address;
    pool->used += bytes;
    if (pool->used + pool->lost > pool->used_high)
        pool->used_high = pool->used + pool->lost;
    if (pool->used > pool->peak)
        pool->peak = pool->used;
    client_update(client);
    return CUDA_SUCCESS;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Stream-ordered allocation. Memory is accessible when the call returns, earlier than a program
 * may rely on. A free takes effect when the stream reaches it: the pool keeps the block for the
 * next allocation of that size, up to its release threshold (0 by default). */
#include "space/pool.h"

#include <stdlib.h>

#include "driver/object.h"
#include "space/allocation.h"

static struct pool *pools;           /* protected by allocations_lock */

struct pool *pool_make(struct device *device, uint64_t maximum)
{
    struct pool *pool = checked(calloc(1, sizeof *pool));
    *pool = (struct pool){.device = device, .maximum = maximum, .reuse = {1, 1, 1}};
    pool->next = pools;
    pools = pool;
    object_add(pool, OBJECT_POOL);
    return pool;
}

struct pool *pool_default(struct device *device)
{
    LOCKED(allocations_lock);
    if (device->default_pool == NULL)
        device->default_pool = pool_make(device, 0);
    return device->default_pool;
}

struct pool *pool_current(struct device *device)
{
    struct pool *pool = pool_default(device);
    LOCKED(allocations_lock);
    if (device->current_pool != NULL)
        pool = device->current_pool;
    return pool;
}

bool pool_shrink(struct pool *pool, uint64_t most)
{
    bool any = false;
    while (pool->kept != NULL && pool->reserved > most) {
        struct kept *kept = pool->kept;
        pool->kept = kept->next;
        pool->reserved -= kept->allocation->size;
        device_free(kept->allocation);
        free(kept);
        any = true;
    }
    return any;
}

static void free_now(struct allocation *allocation)
{
    struct pool *pool = allocation->pool;
    struct kept *kept = checked(malloc(sizeof *kept));
    *kept = (struct kept){pool->kept, allocation};
    allocation->hidden = true;
    pool->kept = kept;
    pool->used -= allocation->size;
    pool->lost += allocation->lost ? allocation->size : 0;
    pool_shrink(pool, pool->threshold > pool->used ? pool->threshold : pool->used);
}

void pool_loses(struct allocation *allocation)
{
    if (allocation->hidden)
        return;                      /* the pool keeps it */
    allocation->pool->used -= allocation->size;
    allocation->pool->reserved -= allocation->size;
    device_free(allocation);
}

void pool_give_back(CUdeviceptr address)
{
    LOCKED(allocations_lock);
    struct allocation *allocation = allocation_at(address);
    if (allocation != NULL && allocation->pool != NULL)
        free_now(allocation);
    else if (allocation != NULL)
        device_free(allocation);     /* memory of cuMemAlloc may be freed in a stream, too */
}

bool pools_trim(struct device *device)
{
    bool any = false;
    LOCKED(allocations_lock);
    for (struct pool *pool = pools; pool != NULL; pool = pool->next)
        if (pool->device == device)
            any = pool_shrink(pool, 0) || any;
    return any;
}

static bool reuse(struct pool *pool, size_t size, CUdeviceptr *address)
{
    for (struct kept **place = &pool->kept; *place != NULL; place = &(*place)->next) {
        struct kept *kept = *place;
        if (kept->allocation->size != size)
            continue;
        *address = kept->allocation->base;
        kept->allocation->hidden = false;
        kept->allocation->freeing = kept->allocation->lost = false;
        *place = kept->next;
        free(kept);
        return true;
    }
    return false;
}

CUresult pool_take(struct pool *pool, struct context *context, size_t size,
                   CUdeviceptr *address)
{
    pthread_mutex_lock(&allocations_lock);
    bool reused = reuse(pool, size, address);
    bool full = !reused && pool->maximum != 0 && pool->reserved + size > pool->maximum;
    pthread_mutex_unlock(&allocations_lock);
    FAIL_IF(full, CUDA_ERROR_OUT_OF_MEMORY);
    /* A pool belongs to its device. Its memory outlives the context in which it was allocated. */
    if (context->device->primary != NULL)
        context = context->device->primary;
    if (!reused)
        TRY(device_allocate(context, size, ALLOCATED_POOL, pool, address));
    LOCKED(allocations_lock);
    pool->used += size;
    if (pool->readers != 0)
        allocations_open(pool, pool->readers, 0);
    pool->reserved += reused ? 0 : size;
    if (pool->used + pool->lost > pool->used_high)
        pool->used_high = pool->used + pool->lost;
    if (pool->reserved > pool->reserved_high)
        pool->reserved_high = pool->reserved;
    return CUDA_SUCCESS;
}

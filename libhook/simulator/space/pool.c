/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory pools: stream-ordered allocation
 *
 * Memory is there when the call returns, which is earlier than a program may
 * count on. Freeing happens when the stream comes to it: then the block goes
 * back to its pool, which keeps it for the next allocation of the same size as
 * long as it holds no more than its release threshold, 0 by default.
 */
#include "space/pool_state.h"

#include <stdlib.h>
#include <string.h>

#include "space/allocation.h"
#include "stream/capture.h"
#include "driver/entry.h"
#include "space/graph_memory.h"
#include "driver/object.h"
#include "engine/stream.h"

static struct pool *pools;           /* under the allocations' lock */

struct pool *pool_make(struct device *device, uint64_t maximum)
{
    struct pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL)
        abort();
    *pool = (struct pool){.device = device, .maximum = maximum, .reuse = {1, 1, 1}};
    pool->next = pools;
    pools = pool;
    object_add(pool, OBJECT_POOL);
    return pool;
}

struct pool *pool_from(CUmemoryPool handle)
{
    return object_is(handle, OBJECT_POOL) ? (struct pool *)handle : NULL;
}

struct pool *pool_default(struct device *device)
{
    allocations_lock();
    if (device->default_pool == NULL)
        device->default_pool = pool_make(device, 0);
    struct pool *pool = device->default_pool;
    allocations_unlock();
    return pool;
}

struct pool *pool_current(struct device *device)
{
    struct pool *pool = pool_default(device);
    allocations_lock();
    if (device->current_pool != NULL)
        pool = device->current_pool;
    allocations_unlock();
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

void pool_free_now(struct allocation *allocation)
{
    struct pool *pool = allocation->pool;
    struct kept *kept = malloc(sizeof *kept);
    if (kept == NULL)
        abort();
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
        return;                      /* it is the pool's */
    allocation->pool->used -= allocation->size;
    allocation->pool->reserved -= allocation->size;
    device_free(allocation);
}

void pool_give_back(CUdeviceptr address)
{
    allocations_lock();
    struct allocation *allocation = allocation_find(address);
    bool found = allocation != NULL && allocation->base == address;
    if (found && allocation->pool != NULL)
        pool_free_now(allocation);
    else if (found)
        device_free(allocation);     /* cuMemAlloc's may be freed in a stream, too */
    allocations_unlock();
}

bool pools_trim(struct device *device)
{
    bool any = false;
    allocations_lock();
    for (struct pool *pool = pools; pool != NULL; pool = pool->next)
        if (pool->device == device)
            any = pool_shrink(pool, 0) || any;
    allocations_unlock();
    return any;
}

/* With the allocations' lock held. */
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

static CUresult take(struct pool *pool, struct context *context, size_t size,
                     CUdeviceptr *address)
{
    CUresult result = CUDA_SUCCESS;
    allocations_lock();
    bool reused = reuse(pool, size, address);
    bool full = !reused && pool->maximum != 0 && pool->reserved + size > pool->maximum;
    allocations_unlock();
    if (full)
        return CUDA_ERROR_OUT_OF_MEMORY;
    /* A pool is the device's, and its memory stays when a context ends that took some. */
    if (context->device->primary != NULL)
        context = context->device->primary;
    if (!reused)
        result = device_allocate(context, size, ALLOCATED_POOL, pool, address);
    if (result != CUDA_SUCCESS)
        return result;
    allocations_lock();
    pool->used += size;
    allocations_open(pool, pool->readers);
    pool->reserved += reused ? 0 : size;
    if (pool->used + pool->lost > pool->used_high)
        pool->used_high = pool->used + pool->lost;
    if (pool->reserved > pool->reserved_high)
        pool->reserved_high = pool->reserved;
    allocations_unlock();
    return CUDA_SUCCESS;
}

static CUresult allocate(CUdeviceptr *address, size_t size, struct pool *pool, CUstream handle)
{
    struct stream *stream;
    CUresult result = stream_from(handle, context_current(), &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (address == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (size == 0) {
        *address = 0;
        return CUDA_SUCCESS;
    }
    pthread_mutex_lock(&engine_lock);
    bool capturing = stream->capture != NULL;
    result = capturing ? graph_memory_capture(stream, size, address) : capture_allows(stream);
    pthread_mutex_unlock(&engine_lock);
    if (capturing)
        return result;
    if (result == CUDA_SUCCESS)
        result = capture_prohibits();
    if (result != CUDA_SUCCESS)
        return result;
    struct context *context = stream->context;
    result = take(pool, context, size, address);
    if (result != CUDA_ERROR_OUT_OF_MEMORY)
        return result;
    /* As the driver: what was freed but not come to yet may be enough. */
    pthread_mutex_lock(&engine_lock);
    context_wait(context);
    pthread_mutex_unlock(&engine_lock);
    pools_trim(pool->device);
    return take(pool, context, size, address);
}

static CUresult free_async(CUdeviceptr address, CUstream handle)
{
    struct stream *stream;
    CUresult result = stream_from(handle, context_current(), &stream);
    if (result != CUDA_SUCCESS || address == 0)
        return result;
    struct work work = {.kind = WORK_FREE, .freed = address};
    allocations_lock();
    struct allocation *allocation = allocation_find(address);
    bool graphs = allocation != NULL && allocation->base == address && allocation->graphs;
    allocations_unlock();
    pthread_mutex_lock(&engine_lock);
    bool capturing = stream->capture != NULL;
    /* The node says that the graph is done with it; the next launch finds it again. */
    if (capturing)
        result = graphs ? capture_add(stream, &(struct work){.kind = WORK_FREE})
                        : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&engine_lock);
    if (capturing)
        return result;
    result = capture_prohibits();
    if (result != CUDA_SUCCESS)
        return result;
    allocations_lock();
    allocation = allocation_find(address);
    bool pooled = allocation != NULL && allocation->base == address && !allocation->hidden
        && !allocation->freeing
        && (allocation->kind == ALLOCATED_POOL || allocation->kind == ALLOCATED);
    if (pooled)
        allocation->freeing = true;
    allocations_unlock();
    if (!pooled)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&engine_lock);
    result = stream_submit(stream, &work);
    pthread_mutex_unlock(&engine_lock);
    return result;
}

#define POOL_OF_DEVICE pool_current(context_current()->device)

API(cuMemAllocAsync, CUdeviceptr *address, size_t size, CUstream stream)
{
    ENTER(ENTRY_CONTEXT);
    return allocate(address, size, POOL_OF_DEVICE, stream);
}

API(cuMemAllocAsync_ptsz, CUdeviceptr *address, size_t size, CUstream stream)
{
    ENTER(ENTRY_CONTEXT);
    return allocate(address, size, POOL_OF_DEVICE,
                    stream == NULL ? CU_STREAM_PER_THREAD : stream);
}

static CUresult allocate_from(CUdeviceptr *address, size_t size, CUmemoryPool pool,
                              CUstream stream)
{
    return pool_from(pool) == NULL ? CUDA_ERROR_INVALID_VALUE
                                   : allocate(address, size, pool_from(pool), stream);
}

API(cuMemAllocFromPoolAsync, CUdeviceptr *address, size_t size, CUmemoryPool pool,
    CUstream stream)
{
    ENTER(ENTRY_CONTEXT);
    return allocate_from(address, size, pool, stream);
}

API(cuMemAllocFromPoolAsync_ptsz, CUdeviceptr *address, size_t size, CUmemoryPool pool,
    CUstream stream)
{
    ENTER(ENTRY_CONTEXT);
    return allocate_from(address, size, pool, stream == NULL ? CU_STREAM_PER_THREAD : stream);
}

API(cuMemFreeAsync, CUdeviceptr address, CUstream stream)
{
    ENTER(ENTRY_CONTEXT);
    return free_async(address, stream);
}

API(cuMemFreeAsync_ptsz, CUdeviceptr address, CUstream stream)
{
    ENTER(ENTRY_CONTEXT);
    return free_async(address, stream == NULL ? CU_STREAM_PER_THREAD : stream);
}

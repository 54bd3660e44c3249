/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory pools: stream-ordered allocation
 *
 * Memory is there when the call returns, which is earlier than a program may
 * count on. Freeing happens when the stream comes to it: then the block goes
 * back to its pool, which keeps it for the next allocation of the same size as
 * long as it holds no more than its release threshold, 0 by default.
 */
#include "pool.h"

#include <stdlib.h>
#include <string.h>

#include "allocation.h"
#include "capture.h"
#include "entry.h"
#include "object.h"
#include "stream.h"

struct kept {                        /* a free block */
    struct kept *next;
    struct allocation *allocation;
};

struct pool {
    struct pool *next;
    struct device *device;
    struct kept *kept;               /* all under the allocations' lock */
    uint64_t threshold, maximum;
    uint64_t reserved, reserved_high, used, used_high;
    int reuse[3];
};

static struct pool *pools;           /* under the allocations' lock */

static struct pool *make(struct device *device, uint64_t maximum)
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

static struct pool *pool_from(CUmemoryPool handle)
{
    return object_is(handle, OBJECT_POOL) ? (struct pool *)handle : NULL;
}

static struct pool *default_pool(struct device *device)
{
    allocations_lock();
    if (device->default_pool == NULL)
        device->default_pool = make(device, 0);
    struct pool *pool = device->default_pool;
    allocations_unlock();
    return pool;
}

static struct pool *current_pool(struct device *device)
{
    struct pool *pool = default_pool(device);
    allocations_lock();
    if (device->current_pool != NULL)
        pool = device->current_pool;
    allocations_unlock();
    return pool;
}

/* With the allocations' lock held: keeps at most `most` bytes that nobody uses. */
static bool shrink(struct pool *pool, uint64_t most)
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
    shrink(pool, pool->threshold > pool->used ? pool->threshold : pool->used);
}

void pool_give_back(CUdeviceptr address)
{
    allocations_lock();
    struct allocation *allocation = allocation_find(address);
    if (allocation != NULL && allocation->base == address && allocation->pool != NULL)
        pool_free_now(allocation);
    allocations_unlock();
}

bool pools_trim(struct device *device)
{
    bool any = false;
    allocations_lock();
    for (struct pool *pool = pools; pool != NULL; pool = pool->next)
        if (pool->device == device)
            any = shrink(pool, 0) || any;
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
        kept->allocation->freeing = false;
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
    if (!reused)
        result = device_allocate(context, size, ALLOCATED_POOL, pool, address);
    if (result != CUDA_SUCCESS)
        return result;
    allocations_lock();
    pool->used += size;
    pool->reserved += reused ? 0 : size;
    if (pool->used > pool->used_high)
        pool->used_high = pool->used;
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
    if (address == NULL || size == 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&engine_lock);
    result = stream->capture != NULL ? CUDA_ERROR_NOT_SUPPORTED : capture_allows(stream);
    pthread_mutex_unlock(&engine_lock);
    if (result != CUDA_SUCCESS)
        return result;
    struct context *context = stream->context;
    size = (size + 511) / 512 * 512;
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
    if (result != CUDA_SUCCESS)
        return result;
    allocations_lock();
    struct allocation *allocation = allocation_find(address);
    bool pooled = allocation != NULL && allocation->base == address && !allocation->hidden
        && !allocation->freeing
        && (allocation->kind == ALLOCATED_POOL || allocation->kind == ALLOCATED);
    if (pooled)
        allocation->freeing = true;
    allocations_unlock();
    if (!pooled)
        return CUDA_ERROR_INVALID_VALUE;
    struct work work = {.kind = WORK_FREE, .freed = address};
    pthread_mutex_lock(&engine_lock);
    result = stream_submit(stream, &work);
    pthread_mutex_unlock(&engine_lock);
    return result;
}

#define POOL_OF_DEVICE current_pool(context_current()->device)

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

API(cuMemPoolCreate, CUmemoryPool *handle, const CUmemPoolProps *properties)
{
    ENTER(ENTRY_INIT);
    if (handle == NULL || properties == NULL
        || properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED
        || properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    if (device_at(properties->location.id) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    if (properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE)
        return CUDA_ERROR_NOT_SUPPORTED;
    allocations_lock();
    *handle = (CUmemoryPool)make(device_at(properties->location.id), properties->maxSize);
    allocations_unlock();
    return CUDA_SUCCESS;
}

/* What is still in use goes back later; so the pool itself stays, out of reach. */
API(cuMemPoolDestroy, CUmemoryPool handle)
{
    ENTER(ENTRY_INIT);
    struct pool *pool = pool_from(handle);
    if (pool == NULL || pool->device->default_pool == pool)
        return CUDA_ERROR_INVALID_VALUE;
    object_remove(pool);
    allocations_lock();
    shrink(pool, 0);
    pool->threshold = 0;
    if (pool->device->current_pool == pool)
        pool->device->current_pool = NULL;
    allocations_unlock();
    return CUDA_SUCCESS;
}

API(cuMemPoolTrimTo, CUmemoryPool handle, size_t keep)
{
    ENTER(ENTRY_INIT);
    struct pool *pool = pool_from(handle);
    if (pool == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    allocations_lock();
    shrink(pool, keep);
    allocations_unlock();
    return CUDA_SUCCESS;
}

static CUresult attribute(struct pool *pool, CUmemPool_attribute name, void *value, bool set)
{
    uint64_t *bytes = value;
    int *option = value;
    switch ((int)name) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        *(set ? &pool->reuse[name - 1] : option) = set ? *option : pool->reuse[name - 1];
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        *(set ? &pool->threshold : bytes) = set ? *bytes : pool->threshold;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: {
        bool used = name == CU_MEMPOOL_ATTR_USED_MEM_HIGH;
        uint64_t *high = used ? &pool->used_high : &pool->reserved_high;
        if (set && *bytes != 0)
            return CUDA_ERROR_INVALID_VALUE;
        if (set)
            *high = used ? pool->used : pool->reserved;
        else
            *bytes = *high;
        return CUDA_SUCCESS;
    }
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        if (set)
            return CUDA_ERROR_INVALID_VALUE;
        *bytes = name == CU_MEMPOOL_ATTR_USED_MEM_CURRENT ? pool->used : pool->reserved;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult attribute_locked(CUmemoryPool handle, CUmemPool_attribute name, void *value,
                                 bool set)
{
    struct pool *pool = pool_from(handle);
    if (pool == NULL || value == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    allocations_lock();
    CUresult result = attribute(pool, name, value, set);
    allocations_unlock();
    return result;
}

API(cuMemPoolSetAttribute, CUmemoryPool pool, CUmemPool_attribute name, void *value)
{
    ENTER(ENTRY_INIT);
    return attribute_locked(pool, name, value, true);
}

API(cuMemPoolGetAttribute, CUmemoryPool pool, CUmemPool_attribute name, void *value)
{
    ENTER(ENTRY_INIT);
    return attribute_locked(pool, name, value, false);
}

API(cuDeviceGetDefaultMemPool, CUmemoryPool *pool, CUdevice device)
{
    ENTER(ENTRY_INIT);
    if (pool == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (device_at(device) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    *pool = (CUmemoryPool)default_pool(device_at(device));
    return CUDA_SUCCESS;
}

API(cuDeviceGetMemPool, CUmemoryPool *pool, CUdevice device)
{
    ENTER(ENTRY_INIT);
    if (pool == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (device_at(device) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    *pool = (CUmemoryPool)current_pool(device_at(device));
    return CUDA_SUCCESS;
}

API(cuDeviceSetMemPool, CUdevice ordinal, CUmemoryPool handle)
{
    ENTER(ENTRY_INIT);
    struct pool *pool = pool_from(handle);
    if (device_at(ordinal) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    if (pool == NULL || pool->device != device_at(ordinal))
        return CUDA_ERROR_INVALID_VALUE;
    allocations_lock();
    pool->device->current_pool = pool;
    allocations_unlock();
    return CUDA_SUCCESS;
}

API(cuMemPoolSetAccess, CUmemoryPool pool, const CUmemAccessDesc *list, size_t count)
{
    ENTER(ENTRY_INIT);
    if (pool_from(pool) == NULL || list == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (list[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE
            || device_at(list[i].location.id) == NULL)
            return CUDA_ERROR_INVALID_DEVICE;
        else if (device_at(list[i].location.id) != pool_from(pool)->device)
            return CUDA_ERROR_NOT_SUPPORTED;
    return CUDA_SUCCESS;
}

API(cuMemPoolGetAccess, CUmemAccess_flags *flags, CUmemoryPool pool, CUmemLocation *location)
{
    ENTER(ENTRY_INIT);
    if (flags == NULL || location == NULL || pool_from(pool) == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    bool own = location->type == CU_MEM_LOCATION_TYPE_DEVICE
        && device_at(location->id) == pool_from(pool)->device;
    *flags = own ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}

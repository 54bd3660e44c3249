/* SPDX-License-Identifier: Apache-2.0 */
/* Entry points that create, query and select memory pools. */
#include "driver/entry.h"
#include "driver/object.h"
#include "space/allocation.h"
#include "space/pool.h"

API(cuMemPoolCreate, CUmemoryPool *handle, const CUmemPoolProps *properties)
{
    ENTER(ENTRY_INIT);
    FAIL_IF(handle == NULL || properties == NULL
            || properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED
            || properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE, CUDA_ERROR_INVALID_VALUE);
    FAIL_IF(device_at(properties->location.id) == NULL, CUDA_ERROR_INVALID_DEVICE);
    /* A pool with exportable memory can be created, but the simulator exports none. */
    if (((unsigned)properties->handleTypes & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        != 0)
        return CUDA_ERROR_NOT_SUPPORTED;
    LOCKED(allocations_lock);
    struct pool *pool = pool_make(device_at(properties->location.id), properties->maxSize);
    pool->handle_types = properties->handleTypes;
    *handle = (CUmemoryPool)pool;
    return CUDA_SUCCESS;
}

/* Allocations in use return to the pool later, so its structure stays; its handle becomes
 * invalid. */
API(cuMemPoolDestroy, CUmemoryPool handle)
{
    ENTER(ENTRY_INIT);
    struct pool *pool = pool_from(handle);
    FAIL_IF(pool == NULL || pool->device->default_pool == pool, CUDA_ERROR_INVALID_VALUE);
    object_remove(pool);
    LOCKED(allocations_lock);
    pool_shrink(pool, 0);
    pool->threshold = 0;
    if (pool->device->current_pool == pool)
        pool->device->current_pool = NULL;
    return CUDA_SUCCESS;
}

API(cuMemPoolTrimTo, CUmemoryPool handle, size_t keep)
{
    ENTER(ENTRY_INIT);
    FIND(struct pool, pool, pool_from(handle), CUDA_ERROR_INVALID_VALUE);
    LOCKED(allocations_lock);
    pool_shrink(pool, keep);
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
        FAIL_IF(set && *bytes != 0, CUDA_ERROR_INVALID_VALUE);
        if (set)
            *high = used ? pool->used + pool->lost : pool->reserved;
        else
            *bytes = *high;
        return CUDA_SUCCESS;
    }
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        FAIL_IF(set, CUDA_ERROR_INVALID_VALUE);
        *bytes = name == CU_MEMPOOL_ATTR_USED_MEM_CURRENT ? pool->used + pool->lost
                                                          : pool->reserved;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult attribute_locked(CUmemoryPool handle, CUmemPool_attribute name, void *value,
                                 bool set)
{
    struct pool *pool = pool_from(handle);
    FAIL_IF(pool == NULL || value == NULL, CUDA_ERROR_INVALID_VALUE);
    LOCKED(allocations_lock);
    return attribute(pool, name, value, set);
}

FORWARD(cuMemPoolSetAttribute, (CUmemoryPool pool, CUmemPool_attribute name, void *value),
        ENTRY_INIT, attribute_locked(pool, name, value, true))
FORWARD(cuMemPoolGetAttribute, (CUmemoryPool pool, CUmemPool_attribute name, void *value),
        ENTRY_INIT, attribute_locked(pool, name, value, false))

GETTER(cuDeviceGetDefaultMemPool, (CUmemoryPool *pool, CUdevice device), ENTRY_INIT, pool,
       device_check(device), (CUmemoryPool)pool_default(device_at(device)))
GETTER(cuDeviceGetMemPool, (CUmemoryPool *pool, CUdevice device), ENTRY_INIT, pool,
       device_check(device), (CUmemoryPool)pool_current(device_at(device)))

API(cuDeviceSetMemPool, CUdevice ordinal, CUmemoryPool handle)
{
    ENTER(ENTRY_INIT);
    struct pool *pool = pool_from(handle);
    FAIL_IF(device_at(ordinal) == NULL, CUDA_ERROR_INVALID_DEVICE);
    FAIL_IF(pool == NULL || pool->device != device_at(ordinal), CUDA_ERROR_INVALID_VALUE);
    LOCKED(allocations_lock);
    pool->device->current_pool = pool;
    return CUDA_SUCCESS;
}

/* A pool's own device always has access, which cannot be removed. */
static CUresult check_access(const struct pool *pool, const CUmemAccessDesc *access)
{
    struct device *device = access->location.type == CU_MEM_LOCATION_TYPE_DEVICE
        ? device_at(access->location.id) : NULL;
    bool denied = device == pool->device && access->flags == CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return device == NULL || denied ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

static void open_to(struct pool *pool, const CUmemAccessDesc *access)
{
    uint32_t bit = 1u << access->location.id;
    bool none = access->flags == CU_MEM_ACCESS_FLAGS_PROT_NONE;
    if (device_at(access->location.id) == pool->device)
        return;
    pool->readers = none ? pool->readers & ~bit : pool->readers | bit;
    allocations_open(pool, none ? 0 : bit, none ? bit : 0);
}

API(cuMemPoolSetAccess, CUmemoryPool pool, const CUmemAccessDesc *list, size_t count)
{
    ENTER(ENTRY_INIT);
    FAIL_IF(pool_from(pool) == NULL || list == NULL, CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < count; i++)
        TRY(check_access(pool_from(pool), &list[i]));
    LOCKED(allocations_lock);
    for (size_t i = 0; i < count; i++)
        open_to(pool_from(pool), &list[i]);
    return CUDA_SUCCESS;
}

API(cuMemPoolGetAccess, CUmemAccess_flags *flags, CUmemoryPool pool, CUmemLocation *location)
{
    ENTER(ENTRY_INIT);
    FAIL_IF(flags == NULL || location == NULL || pool_from(pool) == NULL, CUDA_ERROR_INVALID_VALUE);
    bool open = location->type == CU_MEM_LOCATION_TYPE_DEVICE && device_at(location->id) != NULL
        && (device_at(location->id) == pool_from(pool)->device
            || (pool_from(pool)->readers >> location->id & 1) != 0);
    *flags = open ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}

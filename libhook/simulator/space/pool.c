/* SPDX-License-Identifier: Apache-2.0 */
/* Stream-ordered allocation. Memory is accessible when the call returns, earlier than a program
 * may rely on. A free takes effect when the stream reaches it: the pool keeps the block for the
 * next allocation of that size, up to its release threshold (0 by default). */
#include "space/pool.h"

#include <stdlib.h>

#include "driver/entry.h"

static struct pool *pools;           /* protected by the address space's lock */

/* The address space is locked for writing. */
static struct pool *pool_make(struct device *device, uint64_t maximum)
{
    struct pool *pool = checked(calloc(1, sizeof *pool));
    *pool = (struct pool){.device = device, .maximum = maximum, .reuse = {1, 1, 1}};
    pool->next = pools;
    pools = pool;
    object_add(pool, OBJECT_POOL);
    return pool;
}

static struct pool *pool_default(struct device *device)
{
    SPACE_LOCKED(write);
    if (device->default_pool == NULL)
        device->default_pool = pool_make(device, 0);
    return device->default_pool;
}

struct pool *pool_current(struct device *device)
{
    struct pool *pool = pool_default(device);
    SPACE_LOCKED(write);
    if (device->current_pool != NULL)
        pool = device->current_pool;
    return pool;
}

/* Keeps at most `most` bytes. True: some bytes were released. The address space is locked for
 * writing. */
static bool pool_shrink(struct pool *pool, uint64_t most)
{
    bool any = false;
    while (pool->kept != NULL && pool->reserved > most) {
        struct allocation *kept = pool->kept;
        pool->kept = kept->next_kept;
        pool->reserved -= kept->size;
        allocation_free(kept);
        any = true;
    }
    return any;
}

static void free_now(struct allocation *allocation)
{
    struct pool *pool = allocation->pool;
    allocation->hidden = true;
    allocation->next_kept = pool->kept;
    pool->kept = allocation;
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
    allocation_free(allocation);
}

void pool_give_back(CUdeviceptr address)
{
    SPACE_LOCKED(write);
    struct allocation *allocation = allocation_at(address);
    if (allocation != NULL && allocation->pool != NULL)
        free_now(allocation);
    else if (allocation != NULL && !allocation->graphs)
        allocation_free(allocation);     /* memory of cuMemAlloc may be freed in a stream, too */
}

bool pools_trim(struct device *device)
{
    bool any = false;
    SPACE_LOCKED(write);
    for (struct pool *pool = pools; pool != NULL; pool = pool->next)
        if (pool->device == device)
            any = pool_shrink(pool, 0) || any;
    return any;
}

static bool reuse(struct pool *pool, size_t size, CUdeviceptr *address)
{
    for (struct allocation **place = &pool->kept; *place != NULL; place = &(*place)->next_kept) {
        struct allocation *kept = *place;
        if (kept->size != size)
            continue;
        *address = kept->base;
        kept->hidden = kept->freeing = kept->lost = false;
        *place = kept->next_kept;
        return true;
    }
    return false;
}

CUresult pool_take(struct pool *pool, struct context *context, size_t size,
                   CUdeviceptr *address)
{
    space_lock_to_write();
    bool reused = reuse(pool, size, address);
    bool full = !reused && pool->maximum != 0 && pool->reserved + size > pool->maximum;
    space_unlock();
    FAIL_IF(full, CUDA_ERROR_OUT_OF_MEMORY);
    /* A pool belongs to its device. Its memory outlives the context in which it was allocated. */
    if (context->device->primary != NULL)
        context = context->device->primary;
    if (!reused)
        TRY(device_allocate(context, size, ALLOCATED_POOL, pool, address));
    SPACE_LOCKED(write);
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

/* Entry points that create, query and select pools. */

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
    SPACE_LOCKED(write);
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
    SPACE_LOCKED(write);
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
    SPACE_LOCKED(write);
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
    SPACE_LOCKED(write);
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
    SPACE_LOCKED(write);
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
    SPACE_LOCKED(write);
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

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts the card memory that the driver's own pools hold. A pool grows by 32 MiB or more at a time
 * and releases memory at some later synchronisation. Each pool is therefore queried before and
 * after each allocation, and after each free, trim and drain. Imported pools count for the process
 * that created them.
 */
#include "pool/driver_pools.h"

#include <stdlib.h>

#include "driver/log.h"
#include "driver/ops.h"
#include "driver/ring.h"
#include "flight/capture.h"
#include "gate/client.h"
#include "gate/gate.h"
#include "memory/pinned.h"
#include "pool/pool.h"
#include "tier/tier.h"

#define POOL_GRAIN ((size_t)32 << 20)

struct driver_pool {
    CUmemoryPool handle;
    CUdevice device;
    size_t counted;                  /* bytes counted for the device's client */
    struct driver_pool *next;
};

/* Protects driver_pools. Held during driver calls for a pool. */
static MUTEX(driver_pools_lock);
static struct driver_pool *driver_pools;
static _Atomic bool any_driver_pools;

static struct driver_pool *known(CUmemoryPool handle)
{
    struct driver_pool *pool = driver_pools;
    while (pool != NULL && pool->handle != handle)
        pool = pool->next;
    return pool;
}

static struct driver_pool *add(CUmemoryPool handle, CUdevice device)
{
    struct driver_pool *pool = malloc(sizeof *pool);
    if (pool != NULL) {
        *pool = (struct driver_pool){ handle, device, 0, driver_pools };
        driver_pools = pool;
        atomic_store(&any_driver_pools, true);
    }
    return pool;
}

/* The listed pool; NULL: the pool's memory does not count. The only counted pool that the program
 * did not create is the device's default pool. NULL `handle`: the device's current pool. */
static struct driver_pool *counted_pool(CUmemoryPool handle)
{
    CUdevice device;
    CUmemoryPool usual;
    if (REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS
        || (handle == NULL && REAL(cuDeviceGetMemPool)(&handle, device) != CUDA_SUCCESS))
        return NULL;
    struct driver_pool *pool = known(handle);
    if (pool == NULL && REAL(cuDeviceGetDefaultMemPool)(&usual, device) == CUDA_SUCCESS
        && usual == handle)
        pool = add(handle, device);
    return pool;
}

static size_t expected_growth(const struct driver_pool *pool, size_t bytes)
{
    size_t reserved = pool_attribute(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, 0);
    size_t used = pool_attribute(pool->handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, 0);
    size_t spare = reserved > used ? reserved - used : 0;
    if (bytes <= spare)
        return 0;
    size_t growth = bytes - spare;
    return growth > SIZE_MAX - POOL_GRAIN ? SIZE_MAX : ROUNDED_UP(growth, POOL_GRAIN);
}

/* Stops counting the bytes by which the pool has shrunk. Returns the bytes of its growth. */
static size_t recount(struct driver_pool *pool)
{
    size_t before = pool->counted;
    size_t reserved = pool_attribute(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, before);
    if (reserved >= before)
        return reserved - before;
    pinned_release_on(pool->device, before - reserved);
    pool->counted = reserved;
    return 0;
}

void pools_recount(void)
{
    pools_settle();
    if (!atomic_load_explicit(&any_driver_pools, memory_order_relaxed))
        return;
    RELAXED;
    LOCKED(driver_pools_lock);
    for (struct driver_pool *pool = driver_pools; pool != NULL; pool = pool->next)
        recount(pool);
}

CUresult driver_pool_begins(CUmemoryPool handle, size_t bytes, CUstream stream, bool *counted)
{
    size_t growth = 0;
    CUdevice device = CU_DEVICE_INVALID;
    *counted = false;
    if (!client_is_called_back()) {
        RELAXED;
        LOCKED(driver_pools_lock);
        const struct driver_pool *pool = counted_pool(handle);
        *counted = pool != NULL && pinned_counts_on(pool->device);
        growth = *counted ? expected_growth(pool, bytes) : 0;
        device = *counted ? pool->device : CU_DEVICE_INVALID;
    }
    if (*counted)
        return pinned_begin_on(device, growth, true);
    gate_enter(stream);
    return CUDA_SUCCESS;
}

void driver_pool_ends(CUmemoryPool handle, bool counted)
{
    if (!counted) {
        gate_leave();
        return;
    }
    size_t growth = 0;
    {
        RELAXED;
        LOCKED(driver_pools_lock);
        struct driver_pool *pool = counted_pool(handle);
        if (pool != NULL) {          /* else another thread has destroyed the pool */
            growth = recount(pool);
            pool->counted += growth;
        }
    }
    pinned_end(growth);
}

void driver_pool_add(CUmemoryPool handle, CUdevice device)
{
    if (client_none())
        return;
    LOCKED(driver_pools_lock);
    add(handle, device);
}

/* Allocations that outlive their pool stay counted, as no function tells when they are freed. */
CUresult driver_pool_destroy(CUmemoryPool handle)
{
    RELAXED;
    LOCKED(driver_pools_lock);
    size_t used = pool_attribute(handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, 0);
    CUresult result = REAL(cuMemPoolDestroy)(handle);
    struct driver_pool *gone = known(handle);
    if (result == CUDA_SUCCESS && gone != NULL) {
        LIST_REMOVE(driver_pools, gone);
        used = ROUNDED_UP(used, POOL_GRAIN);
        pinned_release_on(gone->device, used < gone->counted ? gone->counted - used : 0);
        free(gone);
    }
    return result;
}

static cuuint64_t graph_memory(CUdevice device, CUgraphMem_attribute attribute)
{
    cuuint64_t bytes;
    return REAL(cuDeviceGetGraphMemAttribute)(device, attribute, &bytes) == CUDA_SUCCESS
        ? bytes : 0;
}

void graph_memory_trim(CUdevice device)
{
    if (!HAVE_REAL(cuDeviceGetGraphMemAttribute) || !HAVE_REAL(cuDeviceGraphMemTrim))
        return;                      /* graphs have no memory before CUDA 11.4 */
    RELAXED;
    if (graph_memory(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT)
        <= graph_memory(device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT))
        return;
    CUresult result = REAL(cuDeviceGraphMemTrim)(device);
    if (result != CUDA_SUCCESS)
        debug("the memory of graphs was not trimmed: error %d", (int)result);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts the card memory that the driver's own pools hold: CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
 * not the bytes that the program has allocated from them.
 *
 * A pool grows by 32 MiB or more at a time, reuses freed memory for the next allocation, and
 * releases unneeded memory at some later synchronisation. Each pool is therefore queried before an
 * allocation, to find how much the pool may grow, and after it; and again whenever the program
 * frees, trims, or a wait for its work has ended (pools_recount).
 *
 * A pool counts for its own device, whichever is current: a program may allocate from it in a
 * stream of another device, and the service thread of another device may see it shrink. It does not
 * count until the program has used its device.
 *
 * Not counted: pools of host memory, and imported pools, whose memory counts for the process that
 * created it.
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

#define POOL_GRAIN ((size_t)32 << 20)

struct driver_pool {
    CUmemoryPool handle;
    CUdevice device;
    size_t counted;                  /* bytes counted for the client of that device */
    struct driver_pool *next;
};

/* Protects the list and its entries. Held during driver calls for a pool; memory_lock may be taken
 * while it is held, not the other way round. */
static pthread_mutex_t driver_pools_lock = PTHREAD_MUTEX_INITIALIZER;
static struct driver_pool *driver_pools;
static _Atomic bool any_driver_pools;

/* The driver's call invalidates other threads' captures in global mode, unless this thread is
 * RELAXED. */
static size_t pool_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, size_t otherwise)
{
    cuuint64_t value;
    return REAL(cuMemPoolGetAttribute)(pool, attribute, &value) == CUDA_SUCCESS ? value : otherwise;
}

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

/* The entry of the pool, or NULL if its memory does not count. The only counted pool that the
 * program did not create is the device's default pool. NULL `handle`: the device's current pool. */
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

static size_t whole_grains(size_t bytes)
{
    return (bytes + POOL_GRAIN - 1) / POOL_GRAIN * POOL_GRAIN;
}

/* Bytes by which an allocation may make the pool grow. */
static size_t expected_growth(const struct driver_pool *pool, size_t bytes)
{
    size_t reserved = pool_attribute(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, 0);
    size_t used = pool_attribute(pool->handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, 0);
    size_t spare = reserved > used ? reserved - used : 0;
    if (bytes <= spare)
        return 0;
    return bytes - spare > SIZE_MAX - POOL_GRAIN ? SIZE_MAX : whole_grains(bytes - spare);
}

/* Returns the bytes by which the pool has grown, for the caller to count. Subtracts the bytes by
 * which it has shrunk from the client's pinned memory. */
static size_t recount(struct driver_pool *pool)
{
    size_t before = pool->counted;
    pool->counted = pool_attribute(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, before);
    if (pool->counted >= before)
        return pool->counted - before;
    pinned_release_on(pool->device, before - pool->counted);
    return 0;
}

void pools_recount(void)
{
    pools_settle();
    if (!atomic_load_explicit(&any_driver_pools, memory_order_relaxed)
        || locked_here(&driver_pools_lock))
        return;                      /* locked here: the driver has called back */
    RELAXED;
    LOCKED(driver_pools_lock);
    for (struct driver_pool *pool = driver_pools; pool != NULL; pool = pool->next) {
        size_t reserved = pool_attribute(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
                                         pool->counted);
        if (reserved < pool->counted) {
            pinned_release_on(pool->device, pool->counted - reserved);
            pool->counted = reserved;
        }
    }
}

CUresult driver_pool_begins(CUmemoryPool handle, size_t bytes, CUstream stream, bool *counted)
{
    *counted = false;
    if (client_is_called_back() || locked_here(&driver_pools_lock)) {
        gate_enter(stream);
        return CUDA_SUCCESS;
    }
    CUstreamCaptureMode mode = capture_relax();
    pthread_mutex_lock(&driver_pools_lock);
    const struct driver_pool *pool = counted_pool(handle);
    *counted = pool != NULL && pinned_counts_on(pool->device);
    size_t growth = *counted ? expected_growth(pool, bytes) : 0;
    CUdevice device = *counted ? pool->device : CU_DEVICE_INVALID;
    pthread_mutex_unlock(&driver_pools_lock);
    capture_exchange(&mode);
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
    CUstreamCaptureMode mode = capture_relax();
    pthread_mutex_lock(&driver_pools_lock);
    /* Another thread may have destroyed the pool meanwhile. */
    struct driver_pool *pool = counted_pool(handle);
    size_t growth = pool == NULL ? 0 : recount(pool);
    pthread_mutex_unlock(&driver_pools_lock);
    capture_exchange(&mode);
    pinned_end(growth);
}

void driver_pool_add(CUmemoryPool handle, CUdevice device)
{
    if (client_none())
        return;
    LOCKED(driver_pools_lock);
    add(handle, device);
}

/* A pool that is destroyed while it has live allocations keeps their memory until they are freed,
 * and can no longer be queried. That memory stays counted. */
CUresult driver_pool_destroy(CUmemoryPool handle)
{
    RELAXED;
    LOCKED(driver_pools_lock);
    size_t used = pool_attribute(handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, 0);
    CUresult result = REAL(cuMemPoolDestroy)(handle);
    struct driver_pool *gone = known(handle);
    if (result == CUDA_SUCCESS && gone != NULL) {
        LIST_REMOVE(driver_pools, gone);
        used = used == 0 ? 0 : whole_grains(used);
        pinned_release_on(gone->device,
                          gone->counted - (used < gone->counted ? used : gone->counted));
        free(gone);
    }
    return result;
}

/*
 * Trims memory of CUDA graphs. The driver has one graph memory pool for each device of a process. A
 * graph's memory is allocated when the graph is launched and kept after it has been freed, until
 * the program asks for a trim, which few programs do. Such memory cannot be evicted and counts as
 * used by no client, so other clients could not use it.
 *
 * Memory that is still allocated stays. The library cannot request room for it in advance, because
 * its size is unknown at the launch.
 */

static cuuint64_t held(CUdevice device, CUgraphMem_attribute attribute)
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
    if (held(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT)
        <= held(device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT))
        return;
    CUresult result = REAL(cuDeviceGraphMemTrim)(device);
    if (result != CUDA_SUCCESS)
        debug("the memory of graphs was not trimmed: error %d", (int)result);
}

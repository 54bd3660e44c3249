/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts what the driver's pools hold of the card. That is CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
 * not what the program has allocated.
 *
 * A pool takes 32 MiB or more at a time, gives freed memory to the next allocation, and gives up
 * what it does not need at some later synchronisation. So each pool is asked before an allocation,
 * to find out how much of the card that may take, and after it; and again whenever the program
 * frees, trims, or has been waited for (pools_recount).
 *
 * A pool counts for its own device, whichever is current: a program may allocate from it in a
 * stream of another device, and another device's service may see it shrink. It does not count until
 * the program has used its device.
 *
 * Not counted: pools of host memory, and imported ones, whose memory counts for the process that
 * made it.
 */
#include "pool/driver_pools.h"

#include <stdlib.h>

#include "driver/log.h"
#include "driver/ops.h"
#include "flight/capture.h"
#include "gate/client.h"
#include "gate/gate.h"
#include "memory/pinned.h"
#include "pool/pool.h"

#define POOL_GRAIN ((size_t)32 << 20)

struct driver_pool {
    CUmemoryPool handle;
    CUdevice device;
    size_t counted;                  /* bytes, of the client of that device */
    struct driver_pool *next;
};

/* Protects the list and what is in it. Held while the driver is asked about a
 * pool; memory_lock may be taken under it, not the other way round. */
static pthread_mutex_t driver_pools_lock = PTHREAD_MUTEX_INITIALIZER;
static struct driver_pool *driver_pools;
static _Atomic bool any_driver_pools;

/* Breaks other threads' captures in global mode, unless this thread is RELAXED. */
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

/* The pool's entry, if its memory counts. The device's default pool is the
 * only one that the program did not make. NULL `handle`: the device's current. */
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

/* How much of the card an allocation may take. */
static size_t expected_growth(const struct driver_pool *pool, size_t bytes)
{
    size_t reserved = pool_attribute(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, 0);
    size_t used = pool_attribute(pool->handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, 0);
    size_t spare = reserved > used ? reserved - used : 0;
    if (bytes <= spare)
        return 0;
    return bytes - spare > SIZE_MAX - POOL_GRAIN ? SIZE_MAX
                                                 : whole_grains(bytes - spare);
}

/* Returns bytes by which it has grown, to be counted by the caller; bytes by
 * which it has shrunk are no longer counted. */
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
        return;                      /* the latter: the driver has called back */
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
    /* Another thread may have destroyed it meanwhile. */
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

/* A pool that is destroyed while some of it is allocated keeps that until it
 * is freed, and can no longer be asked. That much stays counted. */
CUresult driver_pool_destroy(CUmemoryPool handle)
{
    RELAXED;
    LOCKED(driver_pools_lock);
    size_t used = pool_attribute(handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, 0);
    CUresult result = REAL(cuMemPoolDestroy)(handle);
    struct driver_pool *gone = known(handle);
    if (result == CUDA_SUCCESS && gone != NULL) {
        struct driver_pool **link = &driver_pools;
        while (*link != gone)
            link = &(*link)->next;
        *link = gone->next;
        used = used == 0 ? 0 : whole_grains(used);
        pinned_release_on(gone->device,
                          gone->counted - (used < gone->counted ? used : gone->counted));
        free(gone);
    }
    return result;
}

/*
 * Gives memory of CUDA graphs back. The driver has one pool of it for each device of a process. What
 * a graph allocates it takes when the graph is launched, and keeps it when all of it has been freed,
 * until the program asks to have it trimmed, which hardly any program does. Such memory cannot leave
 * the card and counts as used outside, so others would have to do without it.
 *
 * What is still allocated stays: nobody knows at a launch how much that takes, so it cannot be asked
 * for before.
 */

static cuuint64_t held(CUdevice device, CUgraphMem_attribute attribute)
{
    cuuint64_t bytes;
    return REAL(cuDeviceGetGraphMemAttribute)(device, attribute, &bytes) == CUDA_SUCCESS ? bytes : 0;
}

void graph_memory_trim(CUdevice device)
{
    if (!HAVE_REAL(cuDeviceGetGraphMemAttribute) || !HAVE_REAL(cuDeviceGraphMemTrim))
        return;                      /* before CUDA 11.4 graphs have no memory */
    RELAXED;
    if (held(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT)
        <= held(device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT))
        return;
    CUresult result = REAL(cuDeviceGraphMemTrim)(device);
    if (result != CUDA_SUCCESS)
        debug("the memory of graphs was not trimmed: error %d", (int)result);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream-ordered allocation. What counts is what a pool holds of the card
 * (CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), not what the program has allocated
 * from it: a pool takes 32 MiB or more at a time, gives freed memory to the
 * next allocation, and gives up what it does not need at some later
 * synchronisation. So each pool is asked before an allocation, to find out
 * what the card may have to give, and after it; and again whenever the
 * program frees, trims, or has been waited for (pools_recount).
 *
 * During a capture nothing is allocated: the call becomes a node of the
 * graph, and graph memory is the driver's.
 *
 * Not counted: pools of host memory, and imported ones, whose memory counts
 * for the process that made it.
 */
#include "counted.h"

#include <pthread.h>
#include <stdlib.h>

#include "client.h"

#define POOL_GRAIN ((size_t)32 << 20)

struct pool {
    CUmemoryPool handle;
    size_t counted;                  /* bytes, of the client of the pool's device */
    struct pool *next;
};

/* Protects the list and what is in it. Held while the driver is asked about a
 * pool; memory_lock may be taken under it, not the other way round. */
static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;
static struct pool *pools;
static _Atomic bool any_pools;

/* Asking a pool for an attribute breaks other threads' captures in global
 * mode, unless this thread says it does not mind. */
static CUstreamCaptureMode relax(void)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    return mode;
}

static size_t pool_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, size_t otherwise)
{
    cuuint64_t value;
    return REAL(cuMemPoolGetAttribute)(pool, attribute, &value) == CUDA_SUCCESS ? value : otherwise;
}

static struct pool *known(CUmemoryPool handle)
{
    struct pool *pool = pools;
    while (pool != NULL && pool->handle != handle)
        pool = pool->next;
    return pool;
}

static struct pool *add(CUmemoryPool handle)
{
    struct pool *pool = malloc(sizeof *pool);
    if (pool != NULL) {
        *pool = (struct pool){ handle, 0, pools };
        pools = pool;
        atomic_store(&any_pools, true);
    }
    return pool;
}

/* The pool's entry, if its memory counts. The device's default pool is the
 * only one that the program did not make. NULL `handle`: the device's current. */
static struct pool *counted_pool(CUmemoryPool handle)
{
    CUdevice device;
    CUmemoryPool usual;
    if (REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS
        || (handle == NULL && REAL(cuDeviceGetMemPool)(&handle, device) != CUDA_SUCCESS))
        return NULL;
    struct pool *pool = known(handle);
    if (pool == NULL && REAL(cuDeviceGetDefaultMemPool)(&usual, device) == CUDA_SUCCESS
        && usual == handle)
        pool = add(handle);
    return pool;
}

/* How much of the card an allocation may take. */
static size_t expected_growth(const struct pool *pool, size_t bytes)
{
    size_t reserved = pool_attribute(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, 0);
    size_t used = pool_attribute(pool->handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, 0);
    size_t spare = reserved > used ? reserved - used : 0;
    if (bytes <= spare)
        return 0;
    return bytes - spare > SIZE_MAX - POOL_GRAIN ? SIZE_MAX
                                                 : counted_round(bytes - spare, POOL_GRAIN);
}

/* Returns bytes by which it has grown, to be counted by the caller; bytes by
 * which it has shrunk are no longer counted. */
static size_t recount(struct pool *pool)
{
    size_t before = pool->counted;
    pool->counted = pool_attribute(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, before);
    if (pool->counted >= before)
        return pool->counted - before;
    pinned_release(before - pool->counted);
    return 0;
}

void pools_recount(void)
{
    if (!atomic_load_explicit(&any_pools, memory_order_relaxed))
        return;
    CUstreamCaptureMode mode = relax();
    pthread_mutex_lock(&pools_lock);
    for (struct pool *pool = pools; pool != NULL; pool = pool->next) {
        size_t reserved = pool_attribute(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
                                         pool->counted);
        if (reserved < pool->counted) {
            pinned_release(pool->counted - reserved);
            pool->counted = reserved;
        }
    }
    pthread_mutex_unlock(&pools_lock);
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
}

static bool capturing(CUstream stream)
{
    CUstreamCaptureStatus status;
    return REAL(cuStreamIsCapturing)(stream, &status) != CUDA_SUCCESS
           || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* Before an allocation of `bytes`. On success *pool is to be counted after it
 * (NULL: nothing is), and the thread is inside the gate. */
static CUresult allocation_begins(CUmemoryPool handle, size_t bytes, CUstream stream,
                                  struct pool **pool)
{
    *pool = NULL;
    if (client_none() || capturing(stream)) {
        gate_enter(stream);
        return CUDA_SUCCESS;
    }
    CUstreamCaptureMode mode = relax();
    pthread_mutex_lock(&pools_lock);
    *pool = counted_pool(handle);
    size_t growth = *pool == NULL ? 0 : expected_growth(*pool, bytes);
    pthread_mutex_unlock(&pools_lock);
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    if (*pool != NULL)
        return pinned_begin(growth);
    gate_enter(stream);
    return CUDA_SUCCESS;
}

static void allocation_ends(CUmemoryPool handle, struct pool *pool)
{
    if (pool == NULL) {
        gate_leave();
        return;
    }
    CUstreamCaptureMode mode = relax();
    pthread_mutex_lock(&pools_lock);
    pool = counted_pool(handle);     /* another thread may have destroyed it meanwhile */
    size_t growth = pool == NULL ? 0 : recount(pool);
    pthread_mutex_unlock(&pools_lock);
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    pinned_end(growth);
}

#define ALLOCATE(name, handle, stream_, parameters, arguments)                     \
    EXPORT CUresult name parameters                                                \
    {                                                                              \
        struct pool *pool;                                                         \
        CUresult result = allocation_begins(handle, bytes, stream_, &pool);        \
        if (result != CUDA_SUCCESS)                                                \
            return result;                                                         \
        result = REAL(name) arguments;                                             \
        allocation_ends(handle, pool);                                             \
        return result;                                                             \
    }

ALLOCATE(cuMemAllocAsync, NULL, stream,
    (CUdeviceptr *address, size_t bytes, CUstream stream), (address, bytes, stream))
ALLOCATE(cuMemAllocAsync_ptsz, NULL, PER_THREAD(stream),
    (CUdeviceptr *address, size_t bytes, CUstream stream), (address, bytes, stream))
ALLOCATE(cuMemAllocFromPoolAsync, from, stream,
    (CUdeviceptr *address, size_t bytes, CUmemoryPool from, CUstream stream),
    (address, bytes, from, stream))
ALLOCATE(cuMemAllocFromPoolAsync_ptsz, from, PER_THREAD(stream),
    (CUdeviceptr *address, size_t bytes, CUmemoryPool from, CUstream stream),
    (address, bytes, from, stream))

/* Memory of cuMemAlloc may be freed so as well, and that waits. */
#define FREE(name, stream_)                                                        \
    EXPORT CUresult name(CUdeviceptr address, CUstream stream)                     \
    {                                                                              \
        CUresult result;                                                           \
        if (memory_free(address, &result))                                         \
            return result;                                                         \
        gate_enter(stream_);                                                       \
        result = REAL(name)(address, stream);                                      \
        gate_leave();                                                              \
        if (!client_none() && !capturing(stream_))                                 \
            pools_recount();                                                       \
        return result;                                                             \
    }

FREE(cuMemFreeAsync, stream)
FREE(cuMemFreeAsync_ptsz, PER_THREAD(stream))

EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
    CUresult result = REAL(cuMemPoolCreate)(pool, properties);
    if (result == CUDA_SUCCESS && properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE
        && !client_none()) {
        pthread_mutex_lock(&pools_lock);
        add(*pool);
        pthread_mutex_unlock(&pools_lock);
    }
    return result;
}

/* A pool that is destroyed while some of it is allocated keeps that until it
 * is freed, and can no longer be asked. That much stays counted. */
EXPORT CUresult cuMemPoolDestroy(CUmemoryPool handle)
{
    if (client_none())
        return REAL(cuMemPoolDestroy)(handle);
    CUstreamCaptureMode mode = relax();
    pthread_mutex_lock(&pools_lock);
    size_t used = pool_attribute(handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, 0);
    CUresult result = REAL(cuMemPoolDestroy)(handle);
    struct pool *gone = known(handle);
    if (result == CUDA_SUCCESS && gone != NULL) {
        struct pool **link = &pools;
        while (*link != gone)
            link = &(*link)->next;
        *link = gone->next;
        used = used == 0 ? 0 : counted_round(used, POOL_GRAIN);
        pinned_release(gone->counted - (used < gone->counted ? used : gone->counted));
        free(gone);
    }
    pthread_mutex_unlock(&pools_lock);
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    return result;
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    CUresult result = REAL(cuMemPoolTrimTo)(pool, keep);
    pools_recount();
    return result;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream-ordered allocation and freeing, from evictable memory of the library. Neither call waits
 * for the GPU.
 *
 * A pool whose memory no other process can hold gets its allocations from the library, in addition
 * to those that the driver has in it (usually none). They are made like those of cuMemAlloc, but
 * belong to no context. An address is valid at once, which is earlier than the stream needs it.
 *
 * A free makes the address invalid at once. The memory becomes free when the stream reaches that
 * point, signalled by an event (pending_frees.c). Until then the allocation is in the stream's
 * pending list; then it is idle in its pool. An allocation uses
 *
 *   1. a free allocation that fits: one freed in the same stream, pending or not, because the
 *      stream's own order separates the two uses; or an idle one, unless the program forbids
 *      reuse for its pool;
 *   2. else new memory. First the pool releases idle allocations beyond its release threshold,
 *      the oldest first.
 *
 * An allocation fits if it needs the same slot size of a slab, or wastes at most an eighth of the
 * pages.
 *
 * The driver releases memory beyond the threshold when the program synchronises. The library does
 * so when the pool must grow, when the program queries the pool, and whenever the client is
 * stopped. Idle memory has no content. Before a client is evicted, its pools therefore release all
 * idle memory, whatever the threshold: that costs less than to copy it once. Before an allocation
 * is refused, idle memory is released. Memory that work in another stream still touches then serves
 * an allocation of its own pool that fits, whose stream first waits for that work (unless the
 * program forbids it).
 *
 * Pools that other processes may hold (exportable or imported), and pools of other than device
 * memory, stay with the driver: driver_pools.c.
 */
#include "pool/ordered.h"

#include "driver/ops.h"
#include "flight/capture.h"
#include "gate/client.h"
#include "memory/memory.h"
#include "pool/async_allocation.h"
#include "pool/pending_frees.h"
#include "pool/pool.h"
#include "pool/stream.h"

bool pool_allocate(CUmemoryPool handle, size_t bytes, CUstream stream, CUdeviceptr *address,
                   CUresult *result)
{
    CUcontext context;
    CUdevice device;
    bool ours = false;
    if (capture_refuses(result))
        return true;
    RELAXED;
    if (stream_place(stream, &context, &device) == CUDA_SUCCESS
        && (handle != NULL || REAL(cuDeviceGetMemPool)(&handle, device) == CUDA_SUCCESS)) {
        uint64_t name = stream_name(stream);
        pthread_mutex_lock(&memory_lock);
        struct pool *pool = pool_adopted(handle);
        struct client *client = pool == NULL || pool->device < 0 || pool->device >= CLIENTS_MAX
            ? NULL : clients[pool->device];
        bool opening = client != NULL && pool_is_opening(pool);
        ours = client != NULL;
        if (ours) {
            pool->users++;
            *result = async_take(pool, client, bytes, context, stream, name, address);
            pool_leave(pool);
        }
        pthread_mutex_unlock(&memory_lock);
        if (opening && *result == CUDA_SUCCESS)
            *result = pool_open(handle);
    }
    return ours;
}

bool pool_free_async(CUdeviceptr address, CUstream stream, CUresult *result)
{
    struct mark mark;
    if (!memory_is_ours(address))
        return false;
    if (capture_refuses(result))
        return true;
    *result = pending_frees_mark(stream, &mark);
    if (*result != CUDA_SUCCESS)
        return true;
    LOCKED(memory_lock);
    struct async_allocation *async = async_retire(address);
    if (async != NULL) {
        pending_frees_put(async, &mark);
        /* No pool will reuse this memory, so no other code waits for it. */
        if (async->pool == NULL || async->pool->destroyed)
            pending_frees_look();
    } else {
        pending_frees_unmark(&mark);
        *result = CUDA_ERROR_INVALID_VALUE;
    }
    return true;
}

bool pool_free(CUdeviceptr address, CUresult *result)
{
    if (client_none())
        return false;
    if (capture_refuses(result))
        return true;
    LOCKED(memory_lock);
    struct async_allocation *async = async_at(address);
    bool ours = async != NULL;
    if (ours)
        *result = async_retire(address) != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (ours && *result == CUDA_SUCCESS) {
        struct pool *pool = async->pool;
        pool->users++;
        pool->lost += async->size;
        async->stream = 0;
        async_idle(async);
        pool_shrink(pool, pool->threshold);
        pool_leave(pool);
    }
    return ours;
}

CUmemoryPool pool_of(CUdeviceptr address)
{
    LOCKED(memory_lock);
    const struct async_allocation *async = async_at(address);
    CUmemoryPool handle = async == NULL || async->pool == NULL ? NULL : async->pool->handle;
    return handle;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream-ordered allocation, swappable.
 *
 * To a pool whose memory nobody else can hold belong, besides what the driver
 * has in it (nothing, as a rule), allocations of ours: allocated like those of
 * cuMemAlloc, so that they leave the card and come back, but of no context.
 * An address is good at once, which is earlier than a stream asks for, so
 * allocating never waits.
 *
 * Nor does freeing. The address ends at the call; the memory, when the stream
 * comes there, which an event tells (pending_frees.c). Until then the allocation waits in
 * the stream's pending list, and then it is idle in its pool. An allocation takes
 *   1. a free allocation that fits and was freed in the same stream, waiting or
 *      not, since the stream's own order keeps the two uses apart; or one that
 *      is idle, unless the program forbids that to its pool;
 *   2. else new memory; but first the pool gives back idle allocations, the oldest
 *      first, beyond its release threshold.
 * Fits: the same place in a slab, or pages of which at most an eighth is lost.
 * The driver gives back what exceeds the threshold when the program
 * synchronises. Here that comes to pass when the pool must grow, when the
 * program asks for figures, and whenever it is stopped. What is idle has no
 * content: before a pool's client is sent off the card it gives back all of
 * it, whatever the threshold, for that costs less than one copy of it. And
 * memory that would be refused is given back first, and waited for.
 *
 * A pool whose memory others may hold (that can be exported, or was imported),
 * or of other than device memory, stays the driver's: driver_pools.c.
 */
#include "pool/ordered.h"

#include "client/client.h"
#include "flight/capture.h"
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
            *result = async_take(pool, client, bytes, context, name, address);
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
        /* What no pool will use again is waited for by nobody else. */
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

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocates and frees memory in the order of streams, from memory of ours that can leave the card.
 * Neither call waits for the GPU.
 *
 * A pool whose memory nobody else can hold has allocations of ours, besides what the driver has in
 * it (as a rule nothing). They are made like those of cuMemAlloc, but belong to no context. An
 * address is good at once, which is earlier than the stream needs it.
 *
 * At a free the address ends at once. The memory is free when the stream comes there, which an
 * event tells (pending_frees.c). Until then it waits in the stream's pending list; then it is idle
 * in its pool. An allocation takes
 *   1. a free allocation that fits: one freed in the same stream, waiting or not, as the stream's own
 *      order keeps the two uses apart; or an idle one, unless the program forbids that to its pool;
 *   2. else new memory. First the pool gives back idle allocations beyond its release threshold, the
 *      oldest first.
 * One fits if it is the same place in a slab, or if at most an eighth of its pages is lost.
 *
 * The driver gives back what exceeds the threshold when the program synchronises. We do it when the
 * pool must grow, when the program asks for figures, and whenever it is stopped. Idle memory has no
 * content. So before a pool's client is sent off the card it gives all of it back, whatever the
 * threshold: that costs less than one copy of it. Before an allocation is refused, idle memory is
 * given back. Memory that work in another stream still touches then serves one of its own pool that
 * fits, whose stream first waits for that work (unless the program forbids it).
 *
 * Pools that others may hold (exportable or imported), or of other than device memory, stay the
 * driver's: driver_pools.c.
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

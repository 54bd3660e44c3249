/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/captures.h"
#include "driver/entry.h"
#include "space/graph_memory.h"
#include "space/pool.h"
#include "stream/capture.h"
#include "stream/submit.h"

/* Adds an allocation node; the graph owns the memory. engine_lock is held. */
static CUresult allocate_in_graph(CUdeviceptr *address, size_t size, struct stream *stream)
{
    struct work work = {.kind = WORK_GRAPH_MEMORY};
    TRY(graph_memory_new(stream->context, size, &work.memory));
    CUresult result = capture_add(stream, &work);
    if (result == CUDA_SUCCESS)
        *address = work.memory;
    graph_memory_count(work.memory, -1);     /* the node holds the reference now */
    return result;
}

/* Whether streams have yet to reach frees of the context's memory. */
static bool awaits_frees(const struct context *context)
{
    SPACE_LOCKED(read);
    for (const struct allocation *allocation = allocation_after(0); allocation != NULL;
         allocation = allocation_after(allocation->base))
        if (allocation->context == context && allocation->freeing)
            return true;
    return false;
}

static CUresult allocate(CUdeviceptr *address, size_t size, struct pool *pool, CUstream handle)
{
    FIND_STREAM(handle);
    FAIL_IF(address == NULL, CUDA_ERROR_INVALID_VALUE);
    if (size == 0) {
        *address = 0;
        return CUDA_SUCCESS;
    }
    pthread_mutex_lock(&engine_lock);
    bool capturing = stream->capture != NULL;
    result = capturing ? allocate_in_graph(address, size, stream) : capture_allows(stream);
    pthread_mutex_unlock(&engine_lock);
    if (capturing)
        return result;
    TRY(result);
    TRY(capture_prohibits());
    struct context *context = stream->context;
    result = pool_take(pool, context, size, address);
    if (result != CUDA_ERROR_OUT_OF_MEMORY || !awaits_frees(context))
        return result;
    /* Waits as the driver does: frees that streams have yet to reach may return enough memory. */
    context_drain(context);
    pools_trim(pool->device);
    return pool_take(pool, context, size, address);
}

static CUresult free_async(CUdeviceptr address, CUstream handle)
{
    struct stream *stream;
    CUresult result = stream_from(handle, context_current(), &stream);
    if (result != CUDA_SUCCESS || address == 0)
        return result;
    struct work work = {.kind = WORK_FREE, .freed = address};
    space_lock_to_write();
    struct allocation *allocation = allocation_at(address);
    bool graphs = allocation != NULL && allocation->graphs;
    space_unlock();
    pthread_mutex_lock(&engine_lock);
    bool capturing = stream->capture != NULL;
    /* The node ends the graph's use of the memory; the next launch uses the memory again. */
    if (capturing)
        result = graphs ? capture_add(stream, &work) : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&engine_lock);
    if (capturing)
        return result;
    TRY(capture_prohibits());
    space_lock_to_write();
    allocation = allocation_at(address);
    bool pooled = allocation != NULL && !allocation->hidden && !allocation->freeing
        && (allocation->kind == ALLOCATED_POOL || allocation->kind == ALLOCATED)
        && (!graphs || allocation->launched);
    if (pooled && graphs)
        allocation->launched = false;
    else if (pooled)
        allocation->freeing = true;
    space_unlock();
    FAIL_IF(!pooled, CUDA_ERROR_INVALID_VALUE);
    LOCKED(engine_lock);
    return stream_submit(stream, &work);
}

#define POOL_OF_DEVICE pool_current(context_current()->device)

API_PTSZ(cuMemAllocAsync, (CUdeviceptr *address, size_t size, CUstream stream),
         return allocate(address, size, POOL_OF_DEVICE, on);)

static CUresult allocate_from(CUdeviceptr *address, size_t size, CUmemoryPool pool,
                              CUstream stream)
{
    return pool_from(pool) == NULL ? CUDA_ERROR_INVALID_VALUE
                                   : allocate(address, size, pool_from(pool), stream);
}

API_PTSZ(cuMemAllocFromPoolAsync,
         (CUdeviceptr *address, size_t size, CUmemoryPool pool, CUstream stream),
         return allocate_from(address, size, pool, on);)

API_PTSZ(cuMemFreeAsync, (CUdeviceptr address, CUstream stream), return free_async(address, on);)

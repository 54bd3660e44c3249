/* SPDX-License-Identifier: Apache-2.0 */
/* Wraps stream-ordered allocation, from library pools (pool.c) or driver pools; memory of driver
 * pools counts as pinned (driver_pools.c). For a captured call the graph allocates the memory. */
#include "api/wrapper.h"
#include "gate/client.h"
#include "memory/allocation.h"
#include "memory/managed.h"
#include "pool/driver_pools.h"
#include "pool/pool.h"

static bool is_capturing(CUstream stream)
{
    CUstreamCaptureStatus status;
    return REAL(cuStreamIsCapturing)(stream, &status) != CUDA_SUCCESS
           || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* False: the caller must call the driver, which also reports wrong arguments. */
static bool allocate_in_library(CUmemoryPool handle, CUdeviceptr *address, size_t bytes,
                                CUstream stream, CUresult *result)
{
    return !client_none() && address != NULL && bytes != 0 && !is_capturing(stream)
        && pool_allocate(handle, bytes, stream, address, result);
}

static CUresult begin_driver_allocation(CUmemoryPool handle, size_t bytes, CUstream stream,
                                        bool *counted)
{
    if (!client_none() && !is_capturing(stream))
        return driver_pool_begins(handle, bytes, stream, counted);
    gate_enter(stream);
    return CUDA_SUCCESS;
}

#define ALLOCATE(name, pool, stream, parameters)                                   \
    SIGNATURE(name, parameters)                                                    \
    {                                                                              \
        bool counted = false;                                                      \
        CUresult result;                                                           \
        if (allocate_in_library(pool, p1, p2, stream, &result))                    \
            return result;                                                         \
        result = begin_driver_allocation(pool, p2, stream, &counted);              \
        if (result != CUDA_SUCCESS)                                                \
            return result;                                                         \
        result = CALL(name, parameters);                                           \
        driver_pool_ends(pool, counted);                                           \
        return result;                                                             \
    }
#define ALLOCATE_PTSZ(name, pool, stream, parameters)                              \
    ALLOCATE(name, pool, stream, parameters)                                       \
    ALLOCATE(name##_ptsz, pool, PER_THREAD(stream), parameters)

ALLOCATE_PTSZ(cuMemAllocAsync, NULL, p3, (CUdeviceptr *, size_t, CUstream))
ALLOCATE_PTSZ(cuMemAllocFromPoolAsync, p3, p4, (CUdeviceptr *, size_t, CUmemoryPool, CUstream))

/* False: not the library's memory. A graph can free only memory allocated in a graph. */
static bool free_in_library(CUdeviceptr address, CUstream stream, CUresult *result)
{
    CUstreamCaptureStatus status;
    /* Managed memory is freed by cuMemFree, which waits for work in flight. */
    if (!memory_is_ours(address))
        return managed_free(address, true, result);
    *result = REAL(cuStreamIsCapturing)(stream, &status);
    if (*result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE)
        *result = CUDA_ERROR_INVALID_VALUE;
    return *result != CUDA_SUCCESS || pool_free_async(address, stream, result);
}

#define FREE(name, stream_)                                                        \
    CUresult name(CUdeviceptr address, CUstream stream)                     \
    {                                                                              \
        CUresult result;                                                           \
        if (free_in_library(address, stream_, &result))                            \
            return result;                                                         \
        gate_enter(stream_);                                                       \
        result = REAL(name)(address, stream);                                      \
        gate_leave();                                                              \
        if (!client_none() && !is_capturing(stream_))                              \
            pools_recount();                                                       \
        return result;                                                             \
    }

FREE(cuMemFreeAsync, stream)
FREE(cuMemFreeAsync_ptsz, PER_THREAD(stream))

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
    CUresult result = REAL(cuMemPoolCreate)(pool, properties);
    CUdevice device = result == CUDA_SUCCESS ? counted_device(properties->location) : CU_DEVICE_CPU;
    if (device == CU_DEVICE_CPU)
        return result;
    if (properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE
        && properties->allocType == CU_MEM_ALLOCATION_TYPE_PINNED
        && properties->handleTypes == CU_MEM_HANDLE_TYPE_NONE && properties->usage == 0)
        pool_add(*pool, device, properties->maxSize);
    else
        driver_pool_add(*pool, device);
    return result;
}

CUresult cuMemPoolDestroy(CUmemoryPool handle)
{
    CUresult result;
    return pool_destroy(handle, &result) ? result : driver_pool_destroy(handle);
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    CUresult result = REAL(cuMemPoolTrimTo)(pool, keep);
    if (result == CUDA_SUCCESS)
        pool_trim(pool, keep);
    if (!client_none())
        pools_recount();
    return result;
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *access, size_t count)
{
    return pool_set_access(pool, access, count);
}

NOTED(cuMemPoolGetAttribute, pool_add_figures(p1, p2, p3),
    (CUmemoryPool, CUmemPool_attribute, void *))
NOTED(cuMemPoolSetAttribute, pool_set(p1, p2, p3), (CUmemoryPool, CUmemPool_attribute, void *))

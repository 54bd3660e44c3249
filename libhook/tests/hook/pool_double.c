/* SPDX-License-Identifier: Apache-2.0 */
/* Stands for the library's pools: of all pools, one is ours. What it gives is core_double.c's. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#include "driver/real.h"
#include "memory/memory.h"
#include "pool/ordered.h"
#include "pool/pool.h"
#include "pool/stream.h"

#define SEEN __attribute__((visibility("default")))
#define POOL ((CUmemoryPool)0xA0)
#define USED 0x1000                  /* bytes */

SEEN uint64_t core_pool_stream;      /* of the last allocation or free in it */
SEEN uint64_t core_pool_added, core_pool_most, core_pool_kept, core_pool_threshold;
SEEN int core_settled, core_streams_ended;
SEEN int core_pooled;                /* set by a test: our memory is from there */

void pool_add(CUmemoryPool handle, CUdevice device, size_t most)
{
    core_pool_added = (uint64_t)handle;
    core_pool_most = most;
}

bool pool_destroy(CUmemoryPool handle, CUresult *result)
{
    *result = handle == POOL ? REAL(cuMemPoolDestroy)(handle) : CUDA_SUCCESS;
    return handle == POOL;
}

CUresult pool_set_access(CUmemoryPool handle, const CUmemAccessDesc *access, size_t count)
{
    return REAL(cuMemPoolSetAccess)(handle, access, count);
}

void pool_tell(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
    if (handle == POOL && attribute == CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
        *(cuuint64_t *)value += USED;
}

void pool_set(CUmemoryPool handle, CUmemPool_attribute attribute, const void *value)
{
    if (handle == POOL && attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        core_pool_threshold = *(const cuuint64_t *)value;
}

void pool_trim(CUmemoryPool handle, size_t keep)
{
    if (handle == POOL)
        core_pool_kept = keep;
}

bool pool_allocate(CUmemoryPool handle, size_t bytes, CUstream stream, CUdeviceptr *address,
                   CUresult *result)
{
    core_pool_stream = (uint64_t)stream;
    return handle == POOL && memory_allocate(bytes, address, result);
}

bool pool_free_async(CUdeviceptr address, CUstream stream, CUresult *result)
{
    core_pool_stream = (uint64_t)stream;
    return memory_free(address, result);
}

bool pool_free(CUdeviceptr address, CUresult *result) { return false; }

CUmemoryPool pool_of(CUdeviceptr address)
{
    return core_pooled && memory_is_ours(address) ? POOL : NULL;
}

void pools_settle(void)
{
    core_settled++;
}

void stream_ends(void)
{
    core_streams_ended++;
}

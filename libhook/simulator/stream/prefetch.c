/* SPDX-License-Identifier: Apache-2.0 */
/* Moving managed memory about, in the order of streams. */
#include "driver/entry.h"
#include "memory/managed.h"
#include "stream/submit.h"

static CUresult prefetch(CUdeviceptr address, size_t size, CUmemLocation place, CUstream handle)
{
    struct stream *stream;
    CUresult result = stream_from(handle, context_current(), &stream);
    if (result != CUDA_SUCCESS)
        return result;
    allocations_lock();
    bool managed = managed_at(address, size) != NULL;
    allocations_unlock();
    if (!managed)
        return CUDA_ERROR_INVALID_VALUE;
    result = managed_check((int)place.type, place.id);
    if (result != CUDA_SUCCESS)
        return result;
    bool to_card = place.type == CU_MEM_LOCATION_TYPE_DEVICE;
    struct work work = {.kind = WORK_PREFETCH,
                        .prefetch = {.address = address, .size = size,
                                     .gpu = to_card ? device_at(place.id)->gpu : RESIDENCY_HOST}};
    pthread_mutex_lock(&engine_lock);
    result = stream_submit(stream, &work);
    pthread_mutex_unlock(&engine_lock);
    allocations_lock();
    struct residency *residency = managed_at(address, size);
    if (result == CUDA_SUCCESS && residency != NULL)
        residency_prefetched(residency, address, size, place);
    allocations_unlock();
    return result;
}

API(cuMemPrefetchAsync, CUdeviceptr address, size_t size, CUdevice device, CUstream stream)
{
    ENTER(ENTRY_CONTEXT);
    return prefetch(address, size, managed_place(device), stream);
}

API(cuMemPrefetchAsync_ptsz, CUdeviceptr address, size_t size, CUdevice device, CUstream stream)
{
    ENTER(ENTRY_CONTEXT);
    return prefetch(address, size, managed_place(device),
                    stream == NULL ? CU_STREAM_PER_THREAD : stream);
}

API(cuMemPrefetchAsync_v2, CUdeviceptr address, size_t size, CUmemLocation location,
    unsigned int flags, CUstream stream)
{
    ENTER(ENTRY_CONTEXT);
    return flags != 0 ? CUDA_ERROR_INVALID_VALUE
                      : prefetch(address, size, location, stream);
}

API(cuMemPrefetchAsync_v2_ptsz, CUdeviceptr address, size_t size, CUmemLocation location,
    unsigned int flags, CUstream stream)
{
    ENTER(ENTRY_CONTEXT);
    return flags != 0 ? CUDA_ERROR_INVALID_VALUE
                      : prefetch(address, size, location,
                                 stream == NULL ? CU_STREAM_PER_THREAD : stream);
}

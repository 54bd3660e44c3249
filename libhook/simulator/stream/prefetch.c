/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/managed.h"
#include "stream/submit.h"

static CUresult prefetch(CUdeviceptr address, size_t size, CUmemLocation place, CUstream handle)
{
    FIND_STREAM(handle);
    pthread_mutex_lock(&allocations_lock);
    bool managed = managed_at(address, size) != NULL;
    pthread_mutex_unlock(&allocations_lock);
    FAIL_IF(!managed, CUDA_ERROR_INVALID_VALUE);
    TRY(managed_check((int)place.type, place.id));
    bool to_card = place.type == CU_MEM_LOCATION_TYPE_DEVICE;
    struct work work = {.kind = WORK_PREFETCH,
                        .prefetch = {.address = address, .size = size,
                                     .gpu = to_card ? device_at(place.id)->gpu : RESIDENCY_HOST}};
    pthread_mutex_lock(&engine_lock);
    result = stream_submit(stream, &work);
    pthread_mutex_unlock(&engine_lock);
    LOCKED(allocations_lock);
    struct residency *residency = managed_at(address, size);
    if (result == CUDA_SUCCESS && residency != NULL)
        residency_prefetched(residency, address, size, place);
    return result;
}

API_PTSZ(cuMemPrefetchAsync,
         (CUdeviceptr address, size_t size, CUdevice device, CUstream stream),
         return prefetch(address, size, managed_place(device), on);)

API_PTSZ(cuMemPrefetchAsync_v2,
         (CUdeviceptr address, size_t size, CUmemLocation location, unsigned int flags,
          CUstream stream),
         return flags != 0 ? CUDA_ERROR_INVALID_VALUE : prefetch(address, size, location, on);)

/* firsts: for each location, the index of its first prefetch. */
API_PTSZ(cuMemPrefetchBatchAsync,
         (CUdeviceptr *addresses, size_t *sizes, size_t count, CUmemLocation *places,
          size_t *firsts, size_t place_count, unsigned long long flags, CUstream stream),
    FAIL_IF(count == 0 || addresses == NULL || sizes == NULL || places == NULL || firsts == NULL
            || place_count == 0 || place_count > count || firsts[0] != 0 || flags != 0,
            CUDA_ERROR_INVALID_VALUE);
    FAIL_IF(on == NULL || on == CU_STREAM_LEGACY, CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0, place = 0; i < count; i++) {
        while (place + 1 < place_count && firsts[place + 1] <= i)
            place++;
        TRY(prefetch(addresses[i], sizes[i], places[place], on));
    }
    return CUDA_SUCCESS;)

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

struct prefetches {
    CUdeviceptr *addresses;
    size_t *sizes;
    size_t count;
    CUmemLocation *places;
    size_t *firsts;                  /* for each location, the index of its first prefetch */
    size_t place_count;
};

static CUresult prefetch_all(const struct prefetches *list, unsigned long long flags,
                             CUstream stream)
{
    CUresult result = CUDA_SUCCESS;
    if (list->count == 0 || list->addresses == NULL || list->sizes == NULL || list->places == NULL
        || list->firsts == NULL || list->place_count == 0 || list->place_count > list->count
        || list->firsts[0] != 0 || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream == NULL || stream == CU_STREAM_LEGACY)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0, place = 0; i < list->count && result == CUDA_SUCCESS; i++) {
        while (place + 1 < list->place_count && list->firsts[place + 1] <= i)
            place++;
        result = cuMemPrefetchAsync_v2(list->addresses[i], list->sizes[i], list->places[place], 0,
                                       stream);
    }
    return result;
}

#define PREFETCHES CUdeviceptr *addresses, size_t *sizes, size_t count,                  \
                   CUmemLocation *places, size_t *firsts, size_t place_count
#define ALL_PREFETCHES (&(struct prefetches){addresses, sizes, count, places, firsts,    \
                                             place_count})

API_PTSZ(cuMemPrefetchBatchAsync, (PREFETCHES, unsigned long long flags, CUstream stream),
         return prefetch_all(ALL_PREFETCHES, flags, on);)

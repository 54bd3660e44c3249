/* SPDX-License-Identifier: Apache-2.0 */
/* Advice on managed memory, and prefetches (space/residency.h). They change no byte, since GPU and
 * host share one copy. Like the driver, refuses other memory. */
#include "space/space.h"
#include "stream/submit.h"

/* The residency of the managed allocation that contains the range; NULL: it is not managed. The
 * address space is locked. */
static struct residency *managed_at(CUdeviceptr address, size_t size)
{
    const struct mapping *mapping = space_find(address);
    bool inside = mapping != NULL && size != 0 && size <= mapping->base + mapping->size - address;
    return inside ? mapping->residency : NULL;
}

/* Whether the location exists. */
static CUresult managed_check(int type, int id)
{
    if (type == CU_MEM_LOCATION_TYPE_DEVICE && device_at(id) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    return type >= CU_MEM_LOCATION_TYPE_DEVICE && type <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT
        ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* The location that a device number stands for. */
static CUmemLocation managed_place(CUdevice device)
{
    return device == CU_DEVICE_CPU
        ? (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_HOST}
        : (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
}

static CUresult advise(CUdeviceptr address, size_t size, CUmem_advise advice, CUmemLocation place)
{
    /* The advice "read mostly" has no location. */
    if (advice < CU_MEM_ADVISE_SET_READ_MOSTLY || advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY
        || (advice > CU_MEM_ADVISE_UNSET_READ_MOSTLY
            && managed_check((int)place.type, place.id) != CUDA_SUCCESS))
        return CUDA_ERROR_INVALID_VALUE;
    SPACE_LOCKED(read);
    struct residency *residency = managed_at(address, size);
    if (residency != NULL)
        residency_advise(residency, address, size, advice, place);
    return residency != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

FORWARD(cuMemAdvise, (CUdeviceptr address, size_t size, CUmem_advise advice, CUdevice device),
        ENTRY_CONTEXT, advise(address, size, advice, managed_place(device)))
FORWARD(cuMemAdvise_v2, (CUdeviceptr address, size_t size, CUmem_advise advice,
        CUmemLocation location), ENTRY_CONTEXT, advise(address, size, advice, location))

static CUresult attribute_of(void *data, size_t room, CUmem_range_attribute attribute,
                             CUdeviceptr address, size_t size)
{
    if (data == NULL || room < sizeof(int) || room % sizeof(int) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    SPACE_LOCKED(read);
    const struct residency *residency = managed_at(address, size);
    bool told = residency != NULL
        && residency_attribute(residency, address, size, attribute, data);
    return told ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

FORWARD(cuMemRangeGetAttribute, (void *data, size_t room, CUmem_range_attribute attribute,
        CUdeviceptr address, size_t size), ENTRY_CONTEXT,
        attribute_of(data, room, attribute, address, size))

API(cuMemRangeGetAttributes, void **data, size_t *rooms, CUmem_range_attribute *attributes,
    size_t count, CUdeviceptr address, size_t size)
{
    ENTER(ENTRY_CONTEXT);
    if (data == NULL || rooms == NULL || attributes == NULL || count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = attribute_of(data[i], rooms[i], attributes[i], address, size);
    return result;
}

static CUresult prefetch(CUdeviceptr address, size_t size, CUmemLocation place, CUstream handle)
{
    FIND_STREAM(handle);
    space_lock_to_read();
    bool managed = managed_at(address, size) != NULL;
    space_unlock();
    FAIL_IF(!managed, CUDA_ERROR_INVALID_VALUE);
    TRY(managed_check((int)place.type, place.id));
    bool to_card = place.type == CU_MEM_LOCATION_TYPE_DEVICE;
    struct work work = {.kind = WORK_PREFETCH,
                        .prefetch = {.address = address, .size = size,
                                     .gpu = to_card ? device_at(place.id)->gpu : RESIDENCY_HOST}};
    pthread_mutex_lock(&engine_lock);
    result = stream_submit(stream, &work);
    pthread_mutex_unlock(&engine_lock);
    SPACE_LOCKED(read);
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

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Advice on managed memory and its migration (residency.h). Neither changes a byte: GPU and host
 * share one copy. Advice about other memory is refused, as by the driver.
 */
#include "memory/managed.h"

#include "driver/entry.h"

struct residency *managed_at(CUdeviceptr address, size_t size)
{
    const struct allocation *allocation = allocation_find(address);
    bool managed = allocation != NULL && allocation->kind == ALLOCATED_MANAGED
        && size != 0 && size <= allocation->base + allocation->size - address;
    return managed ? allocation->residency : NULL;
}

CUresult managed_check(int type, int id)
{
    if (type == CU_MEM_LOCATION_TYPE_DEVICE && device_at(id) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    return type >= CU_MEM_LOCATION_TYPE_DEVICE && type <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT
        ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUmemLocation managed_place(CUdevice device)
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
    LOCKED(allocations_lock);
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
    LOCKED(allocations_lock);
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

/* SPDX-License-Identifier: Apache-2.0 */
/* Virtual memory management: addresses, physical memory, mappings, access. */
#include <stdlib.h>

#include "driver/entry.h"
#include "driver/object.h"
#include "engine/queue.h"
#include "space/space.h"

static struct physical *physical_from(CUmemGenericAllocationHandle handle)
{
    const void *pointer = (const void *)(uintptr_t)handle;
    return object_is(pointer, OBJECT_PHYSICAL) ? (struct physical *)pointer : NULL;
}

static CUmemGenericAllocationHandle make_handle(struct physical *physical)
{
    if (atomic_fetch_add(&physical->handles, 1) == 0)
        object_add(physical, OBJECT_PHYSICAL);
    return (uintptr_t)physical;
}

static bool on_grain(uint64_t value)
{
    return value % PHYSICAL_GRAIN == 0;
}

API(cuMemAddressReserve, CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr hint,
    unsigned long long flags)
{
    ENTER(ENTRY_INIT);
    FAIL_IF(address == NULL || size == 0 || !on_grain(size) || flags != 0
            || (alignment & (alignment - 1)) != 0, CUDA_ERROR_INVALID_VALUE);
    if (alignment < PHYSICAL_GRAIN)
        alignment = PHYSICAL_GRAIN;
    SPACE_LOCKED(write);
    CUdeviceptr base = space_reserve(size, alignment, hint, true);
    FAIL_IF(base == 0, CUDA_ERROR_OUT_OF_MEMORY);
    *address = base;
    return CUDA_SUCCESS;
}

API(cuMemAddressFree, CUdeviceptr address, size_t size)
{
    ENTER(ENTRY_INIT);
    SPACE_LOCKED(write);
    bool freed = space_unreserve(address, size, true);
    return freed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult check_properties(const CUmemAllocationProp *properties)
{
    if (properties == NULL || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return properties->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA
            ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
    FAIL_IF(device_at(properties->location.id) == NULL, CUDA_ERROR_INVALID_DEVICE);
    return properties->requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE
            || properties->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

API(cuMemCreate, CUmemGenericAllocationHandle *handle, size_t size,
    const CUmemAllocationProp *properties, unsigned long long flags)
{
    ENTER(ENTRY_INIT);
    FAIL_IF(handle == NULL || size == 0 || !on_grain(size) || flags != 0, CUDA_ERROR_INVALID_VALUE);
    TRY(check_properties(properties));
    struct physical *physical;
    TRY(physical_create(device_at(properties->location.id), size,
                        properties->requestedHandleTypes, &physical));
    *handle = make_handle(physical);
    return CUDA_SUCCESS;
}

API(cuMemRelease, CUmemGenericAllocationHandle handle)
{
    ENTER(ENTRY_INIT);
    FIND(struct physical, physical, physical_from(handle), CUDA_ERROR_INVALID_VALUE);
    if (atomic_fetch_sub(&physical->handles, 1) == 1)
        object_remove(physical);
    physical_drop(physical);
    return CUDA_SUCCESS;
}

API(cuMemMap, CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
    unsigned long long flags)
{
    ENTER(ENTRY_INIT);
    struct physical *physical = physical_from(handle);
    if (physical == NULL || size == 0 || !on_grain(address) || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (offset != 0 || size != physical->size)
        return CUDA_ERROR_NOT_SUPPORTED;     /* only whole allocations can be mapped */
    SPACE_LOCKED(write);
    const struct mapping mapping = {.base = address, .size = size, .physical = physical};
    FAIL_IF(!space_is_reserved(address, size) || !space_map(&mapping), CUDA_ERROR_INVALID_VALUE);
    physical_hold(physical);
    return CUDA_SUCCESS;
}

/* A range may contain holes, but must not cut a mapping. Submitted work that would access the
 * range is doomed; see queue.c. */
API(cuMemUnmap, CUdeviceptr address, size_t size)
{
    ENTER(ENTRY_INIT);
    struct mapping *first;
    size_t count;
    LOCKED(engine_lock);
    streams_doom(address, size);
    SPACE_LOCKED(write);
    /* The end of the range may lie outside of the reservation. */
    FAIL_IF(size == 0 || !on_grain(address) || !on_grain(size)
            || !space_is_reserved(address, PHYSICAL_GRAIN)
            || !space_within(address, size, &first, &count), CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < count; i++)
        physical_drop(first[i].physical);
    space_unmap(first, count);
    return CUDA_SUCCESS;
}

static CUresult check_access(const CUmemAccessDesc *list, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        FAIL_IF(list[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE
                && list[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READ
                && list[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CUDA_ERROR_INVALID_VALUE);
        FAIL_IF(list[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE, CUDA_ERROR_INVALID_VALUE);
        FAIL_IF(device_at(list[i].location.id) == NULL, CUDA_ERROR_INVALID_DEVICE);
    }
    return CUDA_SUCCESS;
}

API(cuMemSetAccess, CUdeviceptr address, size_t size, const CUmemAccessDesc *list, size_t count)
{
    ENTER(ENTRY_INIT);
    FAIL_IF(list == NULL || count == 0, CUDA_ERROR_INVALID_VALUE);
    TRY(check_access(list, count));
    struct mapping *first = NULL;
    SPACE_LOCKED(write);
    size_t mappings = space_is_reserved(address, size) ? space_whole(address, size, &first) : 0;
    for (size_t i = 0; i < mappings; i++)
        for (size_t j = 0; j < count; j++) {
            uint32_t bit = 1u << list[j].location.id;
            first[i].readable &= ~bit;
            first[i].writable &= ~bit;
            if (list[j].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE)
                first[i].readable |= bit;
            if (list[j].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
                first[i].writable |= bit;
        }
    return mappings != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API(cuMemGetAccess, unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address)
{
    ENTER(ENTRY_INIT);
    if (flags == NULL || location == NULL || location->type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    if (device_at(location->id) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    uint32_t bit = 1u << location->id;
    SPACE_LOCKED(read);
    struct mapping *mapping = space_find(address);
    bool mapped = mapping != NULL && mapping->physical != NULL;
    if (mapped)
        *flags = (mapping->writable & bit) != 0 ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
            : (mapping->readable & bit) != 0 ? CU_MEM_ACCESS_FLAGS_PROT_READ
            : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return mapped ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API(cuMemRetainAllocationHandle, CUmemGenericAllocationHandle *handle, void *address)
{
    ENTER(ENTRY_INIT);
    FAIL_IF(handle == NULL, CUDA_ERROR_INVALID_VALUE);
    SPACE_LOCKED(read);
    const struct mapping *mapping = space_find((uintptr_t)address);
    FAIL_IF(mapping == NULL || mapping->allocation != NULL, CUDA_ERROR_INVALID_VALUE);
    physical_hold(mapping->physical);
    *handle = make_handle(mapping->physical);
    return CUDA_SUCCESS;
}

API(cuMemGetAllocationGranularity, size_t *grain, const CUmemAllocationProp *properties,
    CUmemAllocationGranularity_flags option)
{
    ENTER(ENTRY_INIT);
    if (grain == NULL || option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(check_properties(properties));
    *grain = PHYSICAL_GRAIN;
    return CUDA_SUCCESS;
}

API(cuMemGetAllocationPropertiesFromHandle, CUmemAllocationProp *properties,
    CUmemGenericAllocationHandle handle)
{
    ENTER(ENTRY_INIT);
    struct physical *physical = physical_from(handle);
    FAIL_IF(properties == NULL || physical == NULL, CUDA_ERROR_INVALID_VALUE);
    *properties = (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED, .requestedHandleTypes = physical->handle_types,
        .location = {CU_MEM_LOCATION_TYPE_DEVICE, physical->device->ordinal}};
    return CUDA_SUCCESS;
}

API(cuMemExportToShareableHandle, void *shareable, CUmemGenericAllocationHandle handle,
    CUmemAllocationHandleType type, unsigned long long flags)
{
    ENTER(ENTRY_INIT);
    struct physical *physical = physical_from(handle);
    if (shareable == NULL || physical == NULL || flags != 0
        || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || physical->handle_types != type)
        return CUDA_ERROR_INVALID_VALUE;
    return physical_export(physical, shareable);
}

API(cuMemImportFromShareableHandle, CUmemGenericAllocationHandle *handle, void *shareable,
    CUmemAllocationHandleType type)
{
    ENTER(ENTRY_INIT);
    struct physical *physical;
    if (handle == NULL || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(physical_import((int)(intptr_t)shareable, &physical));
    *handle = make_handle(physical);
    return CUDA_SUCCESS;
}

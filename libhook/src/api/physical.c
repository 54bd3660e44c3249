/* SPDX-License-Identifier: Apache-2.0 */
/* Wraps the functions for physical memory that the program maps itself. Most of it is swappable
 * (vmm.h); other memory counts as pinned as long as a handle or a mapping refers to it, imported
 * memory in the process that has created it. Like the driver, the wrappers refuse to map, unmap,
 * set access to or return a handle for memory of cuMemAlloc (region.c). */
#include "api/wrapper.h"
#include "block/region.h"
#include "gate/client.h"
#include "memory/allocation.h"
#include "memory/vmm.h"

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                            const CUmemAllocationProp *properties, unsigned long long flags)
{
    CUdevice device = client_none() || properties == NULL ? CU_DEVICE_CPU
                                                          : counted_device(properties->location);
    if (device == CU_DEVICE_CPU)
        return REAL(cuMemCreate)(handle, size, properties, flags);
    CUresult result;
    if (handle != NULL && flags == 0 && properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE
        && vmm_create(handle, size, properties, &result))
        return result;
    COUNTED_CREATE(pinned_begin_on(device, size, false), size, COUNTED_HANDLE, *handle,
                   REAL(cuMemCreate)(handle, size, properties, flags));
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    CUresult result;
    if (vmm_release(handle, &result))
        return result;
    result = REAL(cuMemRelease)(handle);
    if (result == CUDA_SUCCESS)
        pinned_forget(counted_key(COUNTED_HANDLE, handle));
    return result;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    if (memory_is_ours((CUdeviceptr)address))
        return CUDA_ERROR_INVALID_VALUE;
    if (handle != NULL && vmm_retain((CUdeviceptr)address, handle))
        return CUDA_SUCCESS;
    CUresult result = REAL(cuMemRetainAllocationHandle)(handle, address);
    CUdeviceptr start;
    size_t size;
    if (result == CUDA_SUCCESS && !client_none()
        && REAL(cuMemGetAddressRange_v2)(&start, &size, (CUdeviceptr)address) == CUDA_SUCCESS)
        pinned_refer(counted_key(COUNTED_HANDLE, *handle), size,
                     counted_key(COUNTED_MAPPING, start));
    return result;
}

CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset,
                         CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    if (memory_is_ours(address))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result;
    if (vmm_map(address, size, offset, handle, flags, &result))
        return result;
    reservation_is_mixed(address);
    result = REAL(cuMemMap)(address, size, offset, handle, flags);
    if (result == CUDA_SUCCESS)
        pinned_refer(counted_key(COUNTED_MAPPING, address), size,
                     counted_key(COUNTED_HANDLE, handle));
    return result;
}

/* Stops counting the mappings that cuMemUnmap has unmapped; there may be holes between them. */
static void forget_mappings(CUdeviceptr address, size_t size)
{
    size_t part;
    for (size_t done = 0; done < size; done += part) {
        part = pinned_forget(counted_key(COUNTED_MAPPING, address + done));
        if (part == 0)
            part = PAGE;
    }
}

CUresult cuMemUnmap(CUdeviceptr address, size_t size)
{
    if (memory_is_ours(address))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result;
    if (!vmm_unmap(address, size, &result))
        result = REAL(cuMemUnmap)(address, size);
    if (result == CUDA_SUCCESS && !client_none())
        forget_mappings(address, size);
    return result;
}

SERVED(cuMemSetAccess,
    INVALID_IF(memory_is_ours(p1)) || vmm_set_access(p1, p2, p3, p4, &result),
    (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t))
NOTED(cuMemAddressReserve, reservation_add(*p1, p2),
    (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long))

CUresult cuMemAddressFree(CUdeviceptr address, size_t size)
{
    return memory_is_ours(address) || vmm_mapped_in(address, size)
               ? CUDA_ERROR_INVALID_VALUE : reservation_free(address, size);
}

static CUresult pin_range(CUdeviceptr address, size_t size)
{
    return memory_is_ours(address) ? CUDA_ERROR_NOT_SUPPORTED
                                   : vmm_pin_range_in_place(address, size);
}

/* These wrappers pin memory to which an NVLink switch or other cards may write afterwards. */
SERVED(cuMulticastBindAddr, FAILED(pin_range(p3, p4)),
    (CUmemGenericAllocationHandle, size_t, CUdeviceptr, size_t, unsigned long long))
SERVED(cuMulticastBindMem, FAILED(vmm_pin_in_place(&p3)),
    (CUmemGenericAllocationHandle, size_t, CUmemGenericAllocationHandle, size_t, size_t,
     unsigned long long))
SERVED(cuMulticastBindAddr_v2, FAILED(pin_range(p4, p5)),
    (CUmemGenericAllocationHandle, CUdevice, size_t, CUdeviceptr, size_t, unsigned long long))
SERVED(cuMulticastBindMem_v2, FAILED(vmm_pin_in_place(&p4)),
    (CUmemGenericAllocationHandle, CUdevice, size_t, CUmemGenericAllocationHandle, size_t, size_t,
     unsigned long long))
SERVED(cuLogicalEndpointBindAddr, FAILED(pin_range((uintptr_t)p4, p5)),
    (CUlogicalEndpointId, CUdevice, cuuint64_t, void *, cuuint64_t, unsigned long long))
SERVED(cuLogicalEndpointBindMem, FAILED(vmm_pin_in_place(&p4)),
    (CUlogicalEndpointId, CUdevice, cuuint64_t, CUmemGenericAllocationHandle, cuuint64_t,
     cuuint64_t, unsigned long long))

/* Pins the exported memory, because another process may write to it. */
CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                             CUmemAllocationHandleType type,
                                             unsigned long long flags)
{
    CUmemAllocationProp properties;
    if (vmm_properties(handle, &properties)
        && (type == CU_MEM_HANDLE_TYPE_NONE || (type & ~properties.requestedHandleTypes) != 0))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = vmm_pin_in_place(&handle);
    return result != CUDA_SUCCESS
               ? result : REAL(cuMemExportToShareableHandle)(shareable, handle, type, flags);
}

SERVED(cuMemGetAllocationPropertiesFromHandle, p1 != NULL && vmm_properties(p2, p1),
    (CUmemAllocationProp *, CUmemGenericAllocationHandle))

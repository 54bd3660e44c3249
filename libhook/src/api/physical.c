/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wraps the functions for physical memory that the program creates and maps itself. Most of it is
 * swappable (vmm.h); the rest stays with the driver, and is counted.
 *
 * The driver frees physical memory when nothing refers to it: neither a handle (the one from its
 * creation, or another from cuMemRetainAllocationHandle) nor a mapping. Many programs release the
 * handle right after mapping, so both are tracked. Memory that another process created and this one
 * imported counts in that process.
 *
 * Addresses in ranges that region.h has reserved are the library's. For the program they are plain
 * memory, so the wrappers refuse what the driver refuses for plain memory: to map, unmap or change
 * it, and to return a handle for it.
 */
#include <stdlib.h>

#include "api/wrapper.h"
#include "block/region.h"
#include "gate/client.h"
#include "memory/allocation.h"
#include "memory/vmm.h"

struct physical {
    unsigned references;             /* handles and mappings */
};

/* A handle or the start of a mapping. */
struct reference {
    uint64_t key;
    size_t size;                     /* bytes of a mapping */
    struct physical *physical;
    struct reference *next;
};

#define BUCKETS 1024

/* Protects all of the above. Its holder takes no other lock. */
static pthread_mutex_t physical_lock = PTHREAD_MUTEX_INITIALIZER;
static struct reference *buckets[BUCKETS];

static struct reference **bucket_of(uint64_t key)
{
    return &buckets[key * 0x9E3779B97F4A7C15u >> 54];
}

static struct physical *find(uint64_t key)
{
    struct reference *reference = *bucket_of(key);
    while (reference != NULL && reference->key != key)
        reference = reference->next;
    return reference == NULL ? NULL : reference->physical;
}

static void refer(uint64_t key, size_t size, struct physical *physical)
{
    struct reference *reference = malloc(sizeof *reference);
    physical->references++;
    if (reference == NULL)
        return;                      /* out of memory: counted until the process ends */
    *reference = (struct reference){ key, size, physical, *bucket_of(key) };
    *bucket_of(key) = reference;
}

/* Drops the oldest reference with this key: the driver may have reused the handle or address before
 * this thread got here. Returns its size, 0 if there is none; *gone is the physical memory without
 * any reference left. */
static size_t drop(uint64_t key, struct physical **gone)
{
    struct reference **oldest = NULL;
    *gone = NULL;
    for (struct reference **link = bucket_of(key); *link != NULL; link = &(*link)->next)
        if ((*link)->key == key)
            oldest = link;
    if (oldest == NULL)
        return 0;
    struct reference *reference = *oldest;
    size_t size = reference->size;
    *oldest = reference->next;
    if (--reference->physical->references == 0)
        *gone = reference->physical;
    free(reference);
    return size;
}

/* As drop(), and stops counting physical memory that has no reference left. */
static size_t forget(uint64_t key)
{
    struct physical *gone;
    pthread_mutex_lock(&physical_lock);
    size_t size = drop(key, &gone);
    pthread_mutex_unlock(&physical_lock);
    if (gone != NULL)
        pinned_forget(counted_key(COUNTED_PHYSICAL, (uint64_t)gone));
    free(gone);
    return size;
}

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
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
    result = pinned_begin_on(device, size, false);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuMemCreate)(handle, size, properties, flags);
    struct physical *physical = result == CUDA_SUCCESS ? calloc(1, sizeof *physical) : NULL;
    if (physical != NULL) {
        pinned_remember(counted_key(COUNTED_PHYSICAL, (uint64_t)physical), size);
        LOCKED(physical_lock);
        refer(counted_key(COUNTED_HANDLE, *handle), size, physical);
    }
    pinned_end(result == CUDA_SUCCESS ? size : 0);
    return result;
}

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    CUresult result;
    if (vmm_release(handle, &result))
        return result;
    result = REAL(cuMemRelease)(handle);
    if (result == CUDA_SUCCESS && !client_none())
        forget(counted_key(COUNTED_HANDLE, handle));
    return result;
}

EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    if (memory_is_ours((CUdeviceptr)address))
        return CUDA_ERROR_INVALID_VALUE;
    if (handle != NULL && vmm_retain((CUdeviceptr)address, handle))
        return CUDA_SUCCESS;
    CUresult result = REAL(cuMemRetainAllocationHandle)(handle, address);
    CUdeviceptr start;
    size_t size;
    if (result == CUDA_SUCCESS && !client_none()
        && REAL(cuMemGetAddressRange_v2)(&start, &size, (CUdeviceptr)address) == CUDA_SUCCESS) {
        LOCKED(physical_lock);
        struct physical *physical = find(counted_key(COUNTED_MAPPING, start));
        if (physical != NULL)
            refer(counted_key(COUNTED_HANDLE, *handle), 0, physical);
    }
    return result;
}

EXPORT CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset,
                         CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    if (memory_is_ours(address))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result;
    if (vmm_map(address, size, offset, handle, flags, &result))
        return result;
    reservation_is_mixed(address);
    result = REAL(cuMemMap)(address, size, offset, handle, flags);
    if (result == CUDA_SUCCESS && !client_none()) {
        LOCKED(physical_lock);
        struct physical *physical = find(counted_key(COUNTED_HANDLE, handle));
        if (physical != NULL)
            refer(counted_key(COUNTED_MAPPING, address), size, physical);
    }
    return result;
}

/* One call may unmap several mappings, with holes between them. */
static void forget_mappings(CUdeviceptr address, size_t size)
{
    size_t part;
    for (size_t done = 0; done < size; done += part) {
        part = forget(counted_key(COUNTED_MAPPING, address + done));
        if (part == 0)
            part = PAGE;
    }
}

EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t size)
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

EXPORT CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *access,
                               size_t count)
{
    if (memory_is_ours(address))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result;
    return vmm_set_access(address, size, access, count, &result)
               ? result : REAL(cuMemSetAccess)(address, size, access, count);
}

EXPORT CUresult cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment,
                                    CUdeviceptr hint, unsigned long long flags)
{
    CUresult result = REAL(cuMemAddressReserve)(address, size, alignment, hint, flags);
    if (result == CUDA_SUCCESS)
        reservation_add(*address, size);
    return result;
}

EXPORT CUresult cuMemAddressFree(CUdeviceptr address, size_t size)
{
    /* The driver does not free an address range with mappings. */
    return memory_is_ours(address) || vmm_mapped_in(address, size)
               ? CUDA_ERROR_INVALID_VALUE : reservation_free(address, size);
}

static CUresult pinned_range(CUdeviceptr address, size_t size)
{
    return memory_is_ours(address) ? CUDA_ERROR_NOT_SUPPORTED
                                   : vmm_pin_range_in_place(address, size);
}

/* The wrapper of a function after which an NVLink switch, or other cards over a fabric, may write
 * to the memory: it must not move any more. */
#define PINNING(name, pinned, parameters, arguments)                               \
    EXPORT CUresult name parameters                                                \
    {                                                                              \
        CUresult result = pinned;                                                  \
        return result != CUDA_SUCCESS ? result : REAL(name) arguments;             \
    }

PINNING(cuMulticastBindAddr, pinned_range(address, size),
    (CUmemGenericAllocationHandle multicast, size_t offset, CUdeviceptr address, size_t size,
     unsigned long long flags),
    (multicast, offset, address, size, flags))
PINNING(cuMulticastBindMem, vmm_pin_in_place(&handle),
    (CUmemGenericAllocationHandle multicast, size_t offset, CUmemGenericAllocationHandle handle,
     size_t start, size_t size, unsigned long long flags),
    (multicast, offset, handle, start, size, flags))
PINNING(cuMulticastBindAddr_v2, pinned_range(address, size),
    (CUmemGenericAllocationHandle multicast, CUdevice device, size_t offset, CUdeviceptr address,
     size_t size, unsigned long long flags),
    (multicast, device, offset, address, size, flags))
PINNING(cuMulticastBindMem_v2, vmm_pin_in_place(&handle),
    (CUmemGenericAllocationHandle multicast, CUdevice device, size_t offset,
     CUmemGenericAllocationHandle handle, size_t start, size_t size, unsigned long long flags),
    (multicast, device, offset, handle, start, size, flags))
PINNING(cuLogicalEndpointBindAddr, pinned_range((uintptr_t)address, size),
    (CUlogicalEndpointId endpoint, CUdevice device, cuuint64_t offset, void *address,
     cuuint64_t size, unsigned long long flags),
    (endpoint, device, offset, address, size, flags))
PINNING(cuLogicalEndpointBindMem, vmm_pin_in_place(&handle),
    (CUlogicalEndpointId endpoint, CUdevice device, cuuint64_t offset,
     CUmemGenericAllocationHandle handle, cuuint64_t start, cuuint64_t size,
     unsigned long long flags),
    (endpoint, device, offset, handle, start, size, flags))

/* Memory that another process writes to must not move. */
EXPORT CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
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

EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties,
                                                       CUmemGenericAllocationHandle handle)
{
    return properties != NULL && vmm_properties(handle, properties)
               ? CUDA_SUCCESS : REAL(cuMemGetAllocationPropertiesFromHandle)(properties, handle);
}

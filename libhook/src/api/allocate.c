/* SPDX-License-Identifier: Apache-2.0 */
/* Wraps cuMemAlloc and cuMemFree. Where the current context's GPU has a client, memory is swappable
 * (allocation.h), except memory of CUDA 2's 32-bit functions, which counts as pinned. */
#include "api/wrapper.h"
#include "gate/client.h"
#include "memory/allocation.h"
#include "memory/managed.h"
#include "pool/driver_pools.h"
#include "pool/pool.h"

SERVED(cuMemAlloc_v2, memory_allocate(p2, p1, &result), (CUdeviceptr *, size_t))

/* *pitch: bytes from row to row, rounded up to the texture alignment as the driver does. False: the
 * caller must call the driver, which also reports wrong arguments. */
static bool pitch_of(size_t width, size_t height, unsigned int element, size_t *pitch)
{
    CUdevice device;
    int alignment;
    if (width == 0 || height == 0 || (element != 4 && element != 8 && element != 16)
        || REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS
        || REAL(cuDeviceGetAttribute)(&alignment, CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, device)
               != CUDA_SUCCESS
        || alignment <= 0 || width > SIZE_MAX - (size_t)alignment)
        return false;
    *pitch = counted_round(width, (size_t)alignment);
    return *pitch <= SIZE_MAX / height;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width,
                                   size_t height, unsigned int element)
{
    CUresult result;
    size_t row;
    if (address == NULL || pitch == NULL || !pitch_of(width, height, element, &row)
        || !memory_allocate(row * height, address, &result))
        return REAL(cuMemAllocPitch_v2)(address, pitch, width, height, element);
    if (result == CUDA_SUCCESS)
        *pitch = row;
    return result;
}

COUNTED(cuMemAlloc, p2, COUNTED_ADDRESS, (CUdeviceptr_v1 *, unsigned int))
COUNTED(cuMemAllocPitch, counted_round(p3, 512) * p4, COUNTED_ADDRESS,
    (CUdeviceptr_v1 *, unsigned int *, unsigned int, unsigned int, unsigned int))

/* If the memory is of a driver pool, pools_recount() counts the bytes that the pool still holds. */
CUresult cuMemFree_v2(CUdeviceptr address)
{
    CUresult result;
    if (pool_free(address, &result) || memory_free(address, &result)
        || managed_free(address, false, &result))
        return result;
    result = REAL(cuMemFree_v2)(address);
    if (result == CUDA_SUCCESS)
        pinned_forget(counted_key(COUNTED_ADDRESS, address));
    if (!client_none())
        pools_recount();
    return result;
}

COUNTED_DESTROY(cuMemFree, COUNTED_ADDRESS, CUdeviceptr_v1)

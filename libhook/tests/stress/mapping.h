/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that the program creates and maps itself, in whole handles. */
#pragma once

#include <unistd.h>

#include "calls.h"

#define GRAIN ((size_t)2 << 20)

/* Somewhere else each time, with no access to what was there before. */
static inline CUdeviceptr map_handle(CUmemGenericAllocationHandle handle, size_t bytes)
{
    const CUmemAccessDesc access = {
        .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE },
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    CUdeviceptr address = 0;
    check(cuMemAddressReserve(&address, bytes, 0, 0, 0), "cuMemAddressReserve");
    check(cuMemMap(address, bytes, 0, handle, 0), "cuMemMap");
    check(cuMemSetAccess(address, bytes, &access, 1), "cuMemSetAccess");
    return address;
}

/* 0: out of memory. The handle is released at once, as most programs do. */
static inline CUdeviceptr map_new(size_t bytes)
{
    const CUmemAllocationProp properties = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE },
    };
    CUmemGenericAllocationHandle handle;
    CUresult result = cuMemCreate(&handle, bytes, &properties, 0);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return 0;
    check(result, "cuMemCreate");
    CUdeviceptr address = map_handle(handle, bytes);
    check(cuMemRelease(handle), "cuMemRelease");
    return address;
}

static inline void unmap(CUdeviceptr address, size_t bytes)
{
    check(cuMemUnmap(address, bytes), "cuMemUnmap");
    check(cuMemAddressFree(address, bytes), "cuMemAddressFree");
}

/* To other addresses; for a while at both, or at none. */
static inline CUdeviceptr map_elsewhere(CUdeviceptr address, size_t bytes, bool both, bool export)
{
    CUmemGenericAllocationHandle handle;
    check(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)(address + bytes / 2)),
          "cuMemRetainAllocationHandle");
    int file;
    CUresult result = export ? cuMemExportToShareableHandle(&file, handle,
                                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)
                             : CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_ERROR_OUT_OF_MEMORY) {
        check(result, "cuMemExportToShareableHandle");
        close(file);
    }
    CUdeviceptr moved = both ? map_handle(handle, bytes) : 0;
    unmap(address, bytes);
    if (!both)
        moved = map_handle(handle, bytes);
    check(cuMemRelease(handle), "cuMemRelease");
    return moved;
}

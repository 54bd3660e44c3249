/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program's own virtual memory (cuMemAddressReserve, cuMemCreate, cuMemMap), for wrappers, any
 * thread, no lock held. False: not the library's memory, call the driver; else *result is the
 * value to return.
 */
#pragma once

#include "driver/driver.h"

void reservation_add(CUdeviceptr base, size_t size);
/* Wraps cuMemAddressFree: also calls the driver. */
CUresult reservation_free(CUdeviceptr base, size_t size);
/* Called before the driver maps memory that is not the library's in the reservation. */
void reservation_is_mixed(CUdeviceptr address);

/* False: no client on that device, or memory of a kind that cannot be evicted. */
bool vmm_create(CUmemGenericAllocationHandle *handle, size_t size,
                const CUmemAllocationProp *properties, CUresult *result);
bool vmm_release(CUmemGenericAllocationHandle handle, CUresult *result);
bool vmm_retain(CUdeviceptr address, CUmemGenericAllocationHandle *handle);
bool vmm_properties(CUmemGenericAllocationHandle handle, CUmemAllocationProp *properties);

bool vmm_map(CUdeviceptr address, size_t size, size_t offset,
             CUmemGenericAllocationHandle handle, unsigned long long flags, CUresult *result);
bool vmm_unmap(CUdeviceptr address, size_t size, CUresult *result);
bool vmm_set_access(CUdeviceptr address, size_t size, const CUmemAccessDesc *access,
                    size_t count, CUresult *result);
bool vmm_mapped_in(CUdeviceptr address, size_t size);

bool vmm_access_of(CUdeviceptr address, const CUmemLocation *location, unsigned long long *flags);

/* Pins an allocation until it is freed, because a device or process other than this program's
 * kernels is about to access it. *handle becomes the driver's handle; a handle that is not the
 * library's is left unchanged. After CUDA_ERROR_OUT_OF_MEMORY, or CUDA_ERROR_NOT_READY (the
 * program's work did not end), nothing has changed. */
CUresult vmm_pin_in_place(CUmemGenericAllocationHandle *handle);
/* vmm_pin_in_place() for all allocations mapped in a range. */
CUresult vmm_pin_range_in_place(CUdeviceptr address, size_t size);

struct memory_description;
/* memory_describe() for an evictable VMM allocation mapped at `address`. memory_lock is held. */
bool vmm_describe(CUdeviceptr address, struct memory_description *description);

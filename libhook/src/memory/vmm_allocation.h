/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Physical memory that the program creates and maps itself (cuMemCreate, cuMemMap), as the wrappers
 * see it. All functions may be called from any thread with no lock held. Those that return a bool
 * return false for memory that is not the library's: the wrapper then calls the driver; else
 * *result holds the value to return.
 */
#pragma once

#include "driver/driver.h"

struct vmm_allocation;

/* False: no client on that device, or memory of a kind that cannot be evicted. */
bool vmm_create(CUmemGenericAllocationHandle *handle, size_t size,
                const CUmemAllocationProp *properties, CUresult *result);
bool vmm_release(CUmemGenericAllocationHandle handle, CUresult *result);
/* False: no VMM allocation of the library is mapped at this address. */
bool vmm_retain(CUdeviceptr address, CUmemGenericAllocationHandle *handle);
bool vmm_properties(CUmemGenericAllocationHandle handle, CUmemAllocationProp *properties);

/* The access of a device to an address. False: no VMM allocation is mapped there. */
bool vmm_access_of(CUdeviceptr address, const CUmemLocation *location,
                   unsigned long long *flags);
/* The reservation around an address, as pointer attributes report it. False: as above. */
bool vmm_range_of(CUdeviceptr address, CUdeviceptr *base, size_t *size);

/* Pins an allocation on the card for good, because something other than this program's kernels is
 * about to access it. *handle becomes the driver's handle; a handle that is not the library's is
 * left unchanged. CUDA_ERROR_OUT_OF_MEMORY if the card has no room for a copy, CUDA_ERROR_NOT_READY
 * if the program's work did not end; nothing has changed then. */
CUresult vmm_pin_in_place(CUmemGenericAllocationHandle *handle);
/* vmm_pin_in_place() for all allocations mapped in a range. */
CUresult vmm_pin_range_in_place(CUdeviceptr address, size_t size);

/* Finds the allocation of a handle. NULL: not the library's. This and the next function are called
 * with memory_lock held. */
struct vmm_allocation *vmm_find(CUmemGenericAllocationHandle handle);
/* Frees the allocation if it has neither a handle nor a mapping left. */
void vmm_drop(struct vmm_allocation *vmm);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Physical memory that the program creates and maps itself (cuMemCreate,
 * cuMemMap), as the wrappers see it. All functions may be called from any
 * thread with no lock held. Those that return a bool say false for what is
 * not ours: the wrapper calls the driver instead; else *result holds what to
 * return.
 */
#pragma once

#include "driver/driver.h"

struct vmm_allocation;

/* False: no client on that device, or memory of a kind that cannot move. */
bool vmm_create(CUmemGenericAllocationHandle *handle, size_t size,
                const CUmemAllocationProp *properties, CUresult *result);
bool vmm_release(CUmemGenericAllocationHandle handle, CUresult *result);
/* False: none of ours is mapped at this address. */
bool vmm_retain(CUdeviceptr address, CUmemGenericAllocationHandle *handle);
bool vmm_properties(CUmemGenericAllocationHandle handle, CUmemAllocationProp *properties);

/* What a processor may do at an address. False: none of ours is mapped there. */
bool vmm_access_of(CUdeviceptr address, const CUmemLocation *location,
                   unsigned long long *flags);
/* The reservation around an address, as pointer attributes tell it. False: the same. */
bool vmm_range_of(CUdeviceptr address, CUdeviceptr *base, size_t *size);

/* Memory that others than this program's kernels are about to reach stays on
 * the card from now on, for good. *handle becomes the driver's own handle;
 * one that is not ours is left as it is. CUDA_ERROR_OUT_OF_MEMORY if the card
 * has no room for a copy of it, CUDA_ERROR_NOT_READY if the program's work
 * did not end; then all is as before. */
CUresult vmm_pin_in_place(CUmemGenericAllocationHandle *handle);
/* The same for all that is mapped in a range. */
CUresult vmm_pin_range_in_place(CUdeviceptr address, size_t size);

/* NULL: not ours. With memory_lock held, as the next. */
struct vmm_allocation *vmm_find(CUmemGenericAllocationHandle handle);
/* Forgets it if neither a handle nor a mapping is left. */
void vmm_drop(struct vmm_allocation *vmm);

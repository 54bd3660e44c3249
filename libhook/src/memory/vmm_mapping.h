/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program's mappings of memory that it created itself. For wrappers, with the conventions of
 * vmm_allocation.h.
 */
#pragma once

#include "driver/driver.h"

/* False: the library has no mapping there. */
bool vmm_map(CUdeviceptr address, size_t size, size_t offset,
             CUmemGenericAllocationHandle handle, unsigned long long flags, CUresult *result);
bool vmm_unmap(CUdeviceptr address, size_t size, CUresult *result);
bool vmm_set_access(CUdeviceptr address, size_t size, const CUmemAccessDesc *access,
                    size_t count, CUresult *result);

/* Whether the library has a mapping in the range. */
bool vmm_mapped_in(CUdeviceptr address, size_t size);

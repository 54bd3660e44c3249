/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the program maps memory of its own, as the wrappers see it: as in vmm_allocation.h.
 */
#pragma once

#include "driver/driver.h"

/* False: nothing of ours is concerned. */
bool vmm_map(CUdeviceptr address, size_t size, size_t offset,
             CUmemGenericAllocationHandle handle, unsigned long long flags, CUresult *result);
bool vmm_unmap(CUdeviceptr address, size_t size, CUresult *result);
bool vmm_set_access(CUdeviceptr address, size_t size, const CUmemAccessDesc *access,
                    size_t count, CUresult *result);

/* Whether anything of ours is mapped in the range. */
bool vmm_mapped_in(CUdeviceptr address, size_t size);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream-ordered allocation from memory of the library, as the wrappers see it. All functions may
 * be called from any thread with no lock held, for a stream that is not being captured, and disturb
 * captures in other streams only as the driver's functions would. False: not the library's memory;
 * call the driver.
 */
#pragma once

#include "driver/driver.h"

/* cuMemAllocFromPoolAsync; NULL: the current pool of the stream's device. */
bool pool_allocate(CUmemoryPool handle, size_t bytes, CUstream stream, CUdeviceptr *address,
                   CUresult *result);
/* cuMemFreeAsync, for any memory of the library. */
bool pool_free_async(CUdeviceptr address, CUstream stream, CUresult *result);
/* cuMemFree of memory from a pool: the program has waited for its work. */
bool pool_free(CUdeviceptr address, CUresult *result);
/* CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE of the allocation that begins there, or NULL. */
CUmemoryPool pool_of(CUdeviceptr address);

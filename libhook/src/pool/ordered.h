/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream-ordered allocation from memory of our own, as the wrappers see it.
 * All functions may be called from any thread with no lock held, in no stream
 * that is being captured, and disturb captures in other streams only as the
 * driver's would. False: not ours, call the driver.
 */
#pragma once

#include "driver/driver.h"

/* cuMemAllocFromPoolAsync; NULL: the pool that is current on the stream's device. */
bool pool_allocate(CUmemoryPool handle, size_t bytes, CUstream stream, CUdeviceptr *address,
                   CUresult *result);
/* cuMemFreeAsync, of any memory of ours. */
bool pool_free_async(CUdeviceptr address, CUstream stream, CUresult *result);
/* cuMemFree, of memory from pools: the program has seen its work done. */
bool pool_free(CUdeviceptr address, CUresult *result);
/* CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE of what begins there, or NULL. */
CUmemoryPool pool_of(CUdeviceptr address);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream-ordered allocation from memory of our own, as the wrappers see it.
 * All functions may be called from any thread with no lock held, in no stream
 * that is being captured, and disturb captures in other streams only as the
 * driver's would. False: not ours, call the driver.
 */
#ifndef NVSHARE_POOL_H
#define NVSHARE_POOL_H

#include <stdbool.h>

#include "interpose/driver.h"

/* The driver has made `handle`, and its memory may move. `most`: bytes, 0 for any number. */
void pool_add(CUmemoryPool handle, CUdevice device, size_t most);
/* cuMemPoolDestroy; calls the driver. */
bool pool_destroy(CUmemoryPool handle, CUresult *result);
/* cuMemPoolSetAccess; calls the driver. */
CUresult pool_set_access(CUmemoryPool handle, const CUmemAccessDesc *access, size_t count);

/* What the driver has answered, or accepted, completed by what is ours. */
void pool_tell(CUmemoryPool handle, CUmemPool_attribute attribute, void *value);
void pool_set(CUmemoryPool handle, CUmemPool_attribute attribute, const void *value);
void pool_trim(CUmemoryPool handle, size_t keep);

/* cuMemAllocFromPoolAsync; NULL: the pool that is current on the stream's device. */
bool pool_allocate(CUmemoryPool handle, size_t bytes, CUstream stream, CUdeviceptr *address,
                   CUresult *result);
/* cuMemFreeAsync, of any memory of ours. */
bool pool_free_async(CUdeviceptr address, CUstream stream, CUresult *result);
/* cuMemFree, of memory from pools: the program has seen its work done. */
bool pool_free(CUdeviceptr address, CUresult *result);
/* CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE of what begins there, or NULL. */
CUmemoryPool pool_of(CUdeviceptr address);

/* A stream is about to be destroyed: its handle will be another's. */
void stream_ends(void);

/* Gives back what pools hold beyond their release threshold, as the driver
 * does when a program synchronises. */
void pools_settle(void);

#endif

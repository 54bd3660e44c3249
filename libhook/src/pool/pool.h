/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream-ordered allocation from memory of the library, and the pools that keep it, as the wrappers
 * see them. All functions but the last three may be called from any thread with no lock held.
 * False: not the library's memory or pool; call the driver.
 */
#pragma once

#include "driver/driver.h"

struct client;

/* The next two are called for a stream that is not being captured, and disturb captures in other
 * streams only as the driver's functions would. cuMemAllocFromPoolAsync; NULL: the current pool of
 * the stream's device. */
bool pool_allocate(CUmemoryPool handle, size_t bytes, CUstream stream, CUdeviceptr *address,
                   CUresult *result);
/* cuMemFreeAsync, for any memory of the library. */
bool pool_free_async(CUdeviceptr address, CUstream stream, CUresult *result);
/* cuMemFree of memory from a pool: the program has waited for its work. */
bool pool_free(CUdeviceptr address, CUresult *result);
/* CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE of the allocation that begins there, or NULL. */
CUmemoryPool pool_of(CUdeviceptr address);

/* The driver has created `handle`, whose memory may be evictable. `most`: bytes, 0 for no
 * maximum. */
void pool_add(CUmemoryPool handle, CUdevice device, size_t most);
/* cuMemPoolDestroy; calls the driver. */
bool pool_destroy(CUmemoryPool handle, CUresult *result);
/* cuMemPoolSetAccess; calls the driver. */
CUresult pool_set_access(CUmemoryPool handle, const CUmemAccessDesc *access, size_t count);

/* Completes a value that the driver has returned, or applies one that it has accepted. */
void pool_add_figures(CUmemoryPool handle, CUmemPool_attribute attribute, void *value);
void pool_set(CUmemoryPool handle, CUmemPool_attribute attribute, const void *value);
void pool_trim(CUmemoryPool handle, size_t keep);

/* Releases memory of pools beyond their thresholds, as the driver does when a program
 * synchronises. */
void pools_settle(void);

/* The following functions are called with memory_lock held. */

/* Releases free memory of pools because the client needs it. True if any was released. Waits for no
 * work, as the driver does not. */
bool pools_yield(const struct client *client);
/* A `reclaimer` (gate/client.h). With `until`, as pools_yield(); otherwise pools keep the memory
 * that the program's thresholds allow. */
bool pools_reclaim(struct client *client, uint64_t bytes, uint64_t until);
/* The events of a context that ends are destroyed with it, and its work is done. */
void pending_frees_context_ends(CUcontext context);

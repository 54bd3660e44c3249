/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream-ordered allocation from memory of the library, and its pools, for wrappers on any thread
 * with no lock held. False: not the library's memory or pool; call the driver.
 */
#pragma once

#include "driver/driver.h"

struct client;

/* cuMemAllocFromPoolAsync outside captures. `handle` NULL: current pool of the stream's device. */
bool pool_allocate(CUmemoryPool handle, size_t bytes, CUstream stream, CUdeviceptr *address,
                   CUresult *result);
/* cuMemFreeAsync outside captures, for any memory of the library. */
bool pool_free_async(CUdeviceptr address, CUstream stream, CUresult *result);
/* cuMemFree of memory from a pool: the program has waited for the work that uses the memory. */
bool pool_free(CUdeviceptr address, CUresult *result);
/* CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE of the allocation that begins at `address`, or NULL. */
CUmemoryPool pool_of(CUdeviceptr address);

/* Lists a pool that the driver has created. `most`: bytes, 0 for no maximum. */
void pool_add(CUmemoryPool handle, CUdevice device, size_t most);
/* The next two functions also call the driver. */
bool pool_destroy(CUmemoryPool handle, CUresult *result);
CUresult pool_set_access(CUmemoryPool handle, const CUmemAccessDesc *access, size_t count);

/* After the driver's call: add the library's bytes to a value, apply an accepted value, or release
 * idle memory until the pool holds at most `keep` bytes. */
void pool_add_figures(CUmemoryPool handle, CUmemPool_attribute attribute, void *value);
void pool_set(CUmemoryPool handle, CUmemPool_attribute attribute, const void *value);
void pool_trim(CUmemoryPool handle, size_t keep);

/* The driver's figure or option, or `otherwise` if the driver refuses. The call invalidates other
 * threads' captures in global mode: callers are RELAXED. */
uint64_t pool_attribute(CUmemoryPool handle, CUmemPool_attribute attribute, uint64_t otherwise);
/* Releases memory beyond the thresholds, as the driver does when a program synchronises. */
void pools_settle(void);

/* The following functions are called with memory_lock held. */

/* Releases free memory of pools without waiting for work. True if any was released. */
bool pools_yield(const struct client *client);
/* A `reclaimer` (gate/client.h). `until` 0: releases nothing, as pools may keep idle memory. */
bool pools_reclaim(struct client *client, uint64_t bytes, uint64_t until);
/* Completes the pending frees of an ending context: its work is done, its events are destroyed. */
void pending_frees_context_ends(CUcontext context);

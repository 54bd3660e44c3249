/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream-ordered allocation from memory of the library, and its pools, for wrappers on any thread
 * with no lock held. False: not the library's memory or pool; call the driver.
 */
#pragma once

#include "driver/driver.h"

struct client;

/* The next two are called for a stream that is not being captured, and disturb captures in other
 * streams only as the driver's functions would. pool_allocate() is cuMemAllocFromPoolAsync;
 * `handle` NULL: the current pool of the stream's device. */
bool pool_allocate(CUmemoryPool handle, size_t bytes, CUstream stream, CUdeviceptr *address,
                   CUresult *result);
/* cuMemFreeAsync, for any memory of the library. */
bool pool_free_async(CUdeviceptr address, CUstream stream, CUresult *result);
/* cuMemFree of memory from a pool: the program has waited for the work that uses the memory. */
bool pool_free(CUdeviceptr address, CUresult *result);
/* CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE of the allocation that begins there, or NULL. */
CUmemoryPool pool_of(CUdeviceptr address);

/* The driver has created `handle`. `most`: bytes, 0 for no maximum. */
void pool_add(CUmemoryPool handle, CUdevice device, size_t most);
/* cuMemPoolDestroy; calls the driver. */
bool pool_destroy(CUmemoryPool handle, CUresult *result);
/* cuMemPoolSetAccess; calls the driver. */
CUresult pool_set_access(CUmemoryPool handle, const CUmemAccessDesc *access, size_t count);

/* Called after the driver has returned an attribute's value, to which the library's bytes are added,
 * or has accepted one. pool_trim() releases idle memory until the pool holds `keep` bytes. */
void pool_add_figures(CUmemoryPool handle, CUmemPool_attribute attribute, void *value);
void pool_set(CUmemoryPool handle, CUmemPool_attribute attribute, const void *value);
void pool_trim(CUmemoryPool handle, size_t keep);

/* Releases memory beyond the thresholds, as the driver does when a program synchronises. */
void pools_settle(void);

/* The following functions are called with memory_lock held. */

/* Releases free memory of pools because the client needs it. True if any was released. Waits for no
 * work, as the driver does not. */
bool pools_yield(const struct client *client);
/* A `reclaimer` (gate/client.h). `until` not 0: as pools_yield(); 0: releases nothing, because
 * pools keep the memory that the program's thresholds allow. */
bool pools_reclaim(struct client *client, uint64_t bytes, uint64_t until);
/* Completes all frees that wait for a context that ends: its work is done, its events destroyed. */
void pending_frees_context_ends(CUcontext context);

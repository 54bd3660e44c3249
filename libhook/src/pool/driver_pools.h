/* SPDX-License-Identifier: Apache-2.0 */
/* The card memory that the driver's own pools hold. For any thread with no lock held. */
#pragma once

#include "driver/driver.h"

/* driver_pool_begins() and driver_pool_ends() enclose an allocation from `handle` (NULL: the
 * device's current pool) outside captures, as pinned_begin() and pinned_end() do;
 * driver_pool_begins() sets *counted, which is passed to driver_pool_ends(). */
void driver_pool_add(CUmemoryPool handle, CUdevice device); /* the program made it */
CUresult driver_pool_begins(CUmemoryPool handle, size_t bytes, CUstream stream, bool *counted);
void driver_pool_ends(CUmemoryPool handle, bool counted);
CUresult driver_pool_destroy(CUmemoryPool handle); /* calls the driver */
/* Releases memory of the library's pools beyond their thresholds and counts the driver's pools,
 * which release memory some time after it was freed. To be called after a drain. */
void pools_recount(void);

/* Releases graph memory that no graph uses. Nothing may be in flight. */
void graph_memory_trim(CUdevice device);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The card memory that the driver's own pools hold. All functions may be called from any thread
 * with no lock held.
 */
#pragma once

#include "driver/driver.h"

/* driver_pool_begins() and driver_pool_ends() enclose an allocation from `handle` (NULL: the
 * device's current pool) outside captures, as pinned_begin() and pinned_end() do;
 * driver_pool_begins() sets *counted, which is passed to driver_pool_ends(). */
void driver_pool_add(CUmemoryPool handle, CUdevice device); /* the program made it */
CUresult driver_pool_begins(CUmemoryPool handle, size_t bytes, CUstream stream, bool *counted);
void driver_pool_ends(CUmemoryPool handle, bool counted);
CUresult driver_pool_destroy(CUmemoryPool handle); /* calls the driver */
/* The driver's pools release memory on their own, some time after it was freed. Counts the driver's
 * pools again, after the library's pools have released memory beyond their thresholds; to be called
 * after a drain, with no lock held. */
void pools_recount(void);

/* Releases graph memory that no graph uses. Nothing may be in flight. */
void graph_memory_trim(CUdevice device);

/* SPDX-License-Identifier: Apache-2.0 */
/* The card memory that the driver's own pools hold. For any thread with no lock held. */
#pragma once

#include "driver/driver.h"

/* driver_pool_begins() and driver_pool_ends() enclose an allocation outside captures, as
 * pinned_begin() and pinned_end() do. `handle` NULL: the device's current pool. */
void driver_pool_add(CUmemoryPool handle, CUdevice device); /* lists the program's new pool */
CUresult driver_pool_begins(CUmemoryPool handle, size_t bytes, CUstream stream, bool *counted);
void driver_pool_ends(CUmemoryPool handle, bool counted);
CUresult driver_pool_destroy(CUmemoryPool handle); /* also calls the driver */
/* Called after a drain: pools_settle(), then uncounts memory that driver pools have released. */
void pools_recount(void);

/* Frees graph memory that no graph uses, while nothing is in flight. Else the driver would keep
 * that memory, which cannot be evicted and counts for no client. */
void graph_memory_trim(CUdevice device);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the driver's pools hold of the card. All functions may be called from any thread with no
 * lock held.
 */
#pragma once

#include "driver/driver.h"

/* Begin and end as pinned_begin()
 * and pinned_end() do, around an allocation from `handle` (NULL: the device's
 * current pool) outside captures; `counted` goes from one to the other. */
void driver_pool_add(CUmemoryPool handle, CUdevice device); /* the program made it */
CUresult driver_pool_begins(CUmemoryPool handle, size_t bytes, CUstream stream, bool *counted);
void driver_pool_ends(CUmemoryPool handle, bool counted);
CUresult driver_pool_destroy(CUmemoryPool handle); /* calls the driver */
/* Pools give memory back on their own, some time after it was freed. Counts
 * again what the driver's hold, after giving back what ours hold too much; to
 * be called after a drain, with no lock held. */
void pools_recount(void);

/* Nothing is in flight: graphs give back what they hold of the card and do not use. */
void graph_memory_trim(CUdevice device);

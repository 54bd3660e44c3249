/* SPDX-License-Identifier: Apache-2.0 */
/* The program's managed memory (cuMemAllocManaged), for wrappers, any thread, no lock held. */
#pragma once

#include "driver/driver.h"

struct memory_description;

/* False: no client, or its managed memory is not evictable. Else *result is the return value. */
bool managed_allocate(CUdeviceptr *address, size_t bytes, unsigned int flags, CUresult *result);

/* Allocates host memory for a cuMemAlloc beyond the card's size. False: disabled, or refused. */
bool managed_beyond(CUdeviceptr *address, size_t bytes);

/* `plain`: only memory from cuMemAlloc. False: no such allocation begins at `address`. */
bool managed_free(CUdeviceptr address, bool plain, CUresult *result);

void managed_prefetched(CUdeviceptr address, size_t size, CUmemLocation location);
/* *location: the last destination of the program's prefetches, if the same for the whole range;
 * else type INVALID. False: ask the driver, as the library has prefetched nothing there. */
bool managed_last_prefetch(CUdeviceptr address, size_t size, CUmemLocation *location);

/* The following functions are called with memory_lock held. */

/* memory_describe() for an allocation of managed_beyond(). */
bool managed_describe(CUdeviceptr address, struct memory_description *description);
void managed_context_ends(CUcontext context);

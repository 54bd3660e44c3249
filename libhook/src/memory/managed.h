/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program's managed memory (cuMemAllocManaged) as the wrappers see it. All functions may be
 * called from any thread with no lock held.
 */
#pragma once

#include "driver/driver.h"

struct memory_description;

/* cuMemAllocManaged. False: no client on this device, or a client whose managed memory cannot be
 * evicted. Else *result holds the value to return. */
bool managed_allocate(CUdeviceptr *address, size_t bytes, unsigned int flags, CUresult *result);

/* cuMemAlloc of more than the card could hold: managed memory that stays on the host and is
 * accessed from there (NVSHARE_ENABLE_SINGLE_OVERSUB). False: not enabled, or not available. */
bool managed_beyond(CUdeviceptr *address, size_t bytes);

/* cuMemFree, or, with `plain`, a call that may free only memory from cuMemAlloc. False: no managed
 * allocation begins there. */
bool managed_free(CUdeviceptr address, bool plain, CUresult *result);

/* Records that the program has prefetched a range. */
void managed_prefetched(CUdeviceptr address, size_t size, CUmemLocation place);
/* *place: where the program last prefetched the whole range; type INVALID: to no single location.
 * False: ask the driver. Its answer is right, as the library has prefetched nothing there. */
bool managed_last_prefetch(CUdeviceptr address, size_t size, CUmemLocation *place);

/* The following functions are called with memory_lock held. */

/* memory_describe() for an allocation beyond the card that the program made with cuMemAlloc. */
bool managed_describe(CUdeviceptr address, struct memory_description *description);
/* Frees all managed memory of a context that is about to end. */
void managed_context_ends(CUcontext context);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which bytes the program has allocated, for wrappers of copies and fills: the driver refuses a copy
 * that goes beyond its allocation, but small allocations share the pages that the driver knows.
 *
 * extents_exceeded() may be called by any thread, without a lock. The structures are therefore
 * never freed, only reused: a thread that uses freed memory reads a wrong answer, but never an
 * invalid address. All other functions are called with memory_lock held.
 */
#pragma once

#include "block/region.h"

#define EXTENTS_CLASSES 64

/* Extents of `count` slots of `slot_size` bytes, of which none is allocated. `class`: below
 * EXTENTS_CLASSES, and the same only for the same numbers. NULL, which is valid below and allows
 * all accesses: out of host memory. */
struct extents *extents_new(unsigned class, size_t slot_size, size_t count);
void extents_free(struct extents *extents);
/* Sets the first address of the slots, before the program knows any address. */
void extents_begin(struct extents *extents, CUdeviceptr base);
/* Sets the size of the allocation in the slot of `address`, in bytes as requested; 0: none. */
void extents_set(struct extents *extents, CUdeviceptr address, size_t size);

/* Whether the range uses memory of the library beyond the allocation in which it begins, or begins
 * in no allocation. False: also for memory that the driver itself knows. */
bool extents_exceeded(CUdeviceptr address, size_t bytes);

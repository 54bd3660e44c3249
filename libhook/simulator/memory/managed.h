/* SPDX-License-Identifier: Apache-2.0 */
/* Looks up managed memory, and validates the locations of advice and prefetches. */
#pragma once

#include "space/allocation.h"

/* The residency of the managed allocation that contains the range; NULL: it is not managed.
 * allocations_lock is held. */
struct residency *managed_at(CUdeviceptr address, size_t size);

/* managed_check(): whether the location exists. The next function: the location that a device
 * number stands for. */
CUresult managed_check(int type, int id);
CUmemLocation managed_place(CUdevice device);

/* SPDX-License-Identifier: Apache-2.0 */
/* Which memory is managed, and places for it. */
#pragma once

#include "space/allocation.h"

/* Of an allocation that contains the range; NULL: it is not managed. With the allocations' lock held. */
struct residency *managed_at(CUdeviceptr address, size_t size);

/* Whether there is such a place; the place that a device's number means. */
CUresult managed_check(int type, int id);
CUmemLocation managed_place(CUdevice device);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small allocations, which share a block. All functions are called with memory_lock held.
 */
#pragma once

#include "driver/driver.h"

#define SLAB_CLASSES 48

struct client;

CUresult slab_allocate(struct client *client, CUcontext context, size_t bytes,
                       CUdeviceptr *address);
/* The size of the slot for `bytes` bytes, and its class. */
size_t slab_slot_size(size_t bytes, unsigned *class);

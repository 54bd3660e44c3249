/* SPDX-License-Identifier: Apache-2.0 */
/* Memory pools. */
#pragma once

#include "driver/object.h"
#include "space/allocation.h"

struct kept {                        /* free memory of one allocation */
    struct kept *next;
    struct allocation *allocation;
};

struct pool {
    struct pool *next;
    struct device *device;
    struct kept *kept;               /* protected by allocations_lock, as all fields */
    uint64_t threshold, maximum;
    uint64_t reserved, reserved_high, used, used_high;
    uint64_t lost;  /* bytes freed by cuMemFree, which the driver never stops to count as used */
    CUmemAllocationHandleType handle_types;
    int reuse[3];
    uint32_t readers;                /* a bit for each other device that has access */
};

OBJECT_FROM(pool_from, struct pool, CUmemoryPool, OBJECT_POOL)
struct pool *pool_default(struct device *device);
struct pool *pool_current(struct device *device);

/* allocations_lock is held. Shrink keeps at most `most` bytes; true: some bytes were released. */
struct pool *pool_make(struct device *device, uint64_t maximum);
bool pool_shrink(struct pool *pool, uint64_t most);

CUresult pool_take(struct pool *pool, struct context *context, size_t size,
                   CUdeviceptr *address);

/* Returns memory to its pool when the stream has reached the cuMemFreeAsync. */
void pool_give_back(CUdeviceptr address);
/* The context of the allocation ends. allocations_lock is held. */
void pool_loses(struct allocation *allocation);

/* Frees the unused memory of all pools of the device. False: there was no unused memory. */
bool pools_trim(struct device *device);

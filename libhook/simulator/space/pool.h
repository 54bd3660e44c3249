/* SPDX-License-Identifier: Apache-2.0 */
/* Memory pools. */
#pragma once

#include "driver/object.h"
#include "space/space.h"

struct pool {
    struct pool *next;
    struct device *device;
    struct allocation *kept;         /* list of unused memory; protected by the address space's
                                        lock, as all fields */
    uint64_t threshold, maximum;
    uint64_t reserved, reserved_high, used, used_high;
    uint64_t lost;  /* bytes freed by cuMemFree, which the driver never stops to count as used */
    CUmemAllocationHandleType handle_types;
    int reuse[3];
    uint32_t readers;                /* a bit for each other device that has access */
};

OBJECT_FROM(pool_from, struct pool, CUmemoryPool, OBJECT_POOL)
struct pool *pool_current(struct device *device);

CUresult pool_take(struct pool *pool, struct context *context, size_t size,
                   CUdeviceptr *address);

/* Returns memory to its pool when the stream has reached the cuMemFreeAsync. */
void pool_give_back(CUdeviceptr address);
/* The context of the allocation ends. The address space is locked for writing. */
void pool_loses(struct allocation *allocation);

/* Frees the unused memory of all pools of the device. False: there was no unused memory. */
bool pools_trim(struct device *device);

/* SPDX-License-Identifier: Apache-2.0 */
/* Memory pools. */
#pragma once

#include "space/allocation.h"

struct kept {                        /* a free block */
    struct kept *next;
    struct allocation *allocation;
};

struct pool {
    struct pool *next;
    struct device *device;
    struct kept *kept;               /* all under the allocations' lock */
    uint64_t threshold, maximum;
    uint64_t reserved, reserved_high, used, used_high;
    uint64_t lost;                   /* freed by cuMemFree: the driver says for ever that it is used */
    CUmemAllocationHandleType handle_types;
    int reuse[3];
    uint32_t readers;                /* other devices that it is open to: a bit each */
};

struct pool *pool_from(CUmemoryPool handle);
struct pool *pool_default(struct device *device);
struct pool *pool_current(struct device *device);

/* With the allocations' lock held. Shrink keeps at most `most` bytes; true if anything went. */
struct pool *pool_make(struct device *device, uint64_t maximum);
bool pool_shrink(struct pool *pool, uint64_t most);

CUresult pool_take(struct pool *pool, struct context *context, size_t size,
                   CUdeviceptr *address);

/* Stream-ordered freeing has come to pass. */
void pool_give_back(CUdeviceptr address);
/* Its context ends. With the allocations' lock held. */
void pool_loses(struct allocation *allocation);

/* Frees what the device's pools hold and nobody uses; true if that was anything. */
bool pools_trim(struct device *device);

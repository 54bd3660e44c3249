/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library's pools, which keep memory after it was freed; see ordered.c.
 */
#pragma once

#include "driver/driver.h"
#include "driver/ring.h"
#include "memory/slab.h"

#define ASYNC_CLASSES (SLAB_CLASSES + 32)

struct client;

struct pool {
    CUmemoryPool handle;
    CUdevice device;
    size_t most;                     /* maximum bytes; 0: no maximum */
    uint32_t readers;                /* a bit for each other device with access */
    uint32_t opened;                 /* bits of `readers` already granted */
    bool destroyed;                  /* freed when its last user leaves */
    unsigned users;                  /* allocations, and calls in progress */
    uint64_t threshold;              /* free bytes that it keeps (release threshold) */
    bool opportunistic;              /* CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC */
    bool dependencies;               /* CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES */
    uint64_t used, used_high;        /* bytes as requested */
    uint64_t lost;                   /* freed by cuMemFree: reported as used, as by the driver */
    uint64_t reserved, reserved_high;
    uint64_t peak;                   /* maximum of `used`; the program cannot reset it */
    struct ring idle; /* free allocations that no work touches, oldest first */
    struct ring freed[ASYNC_CLASSES];/* all free allocations, by size class */
    struct pool *next;
};

/* For the wrappers: from any thread, with no lock held. False: not a pool of the library, so the
 * wrapper calls the driver. */

/* The driver has created `handle`, whose memory may be evictable. `most`: bytes, 0 for no
 * maximum. */
void pool_add(CUmemoryPool handle, CUdevice device, size_t most);
/* cuMemPoolDestroy; calls the driver. */
bool pool_destroy(CUmemoryPool handle, CUresult *result);
/* cuMemPoolSetAccess; calls the driver. */
CUresult pool_set_access(CUmemoryPool handle, const CUmemAccessDesc *access, size_t count);

/* Completes a value that the driver has returned, or applies one that it has accepted. */
void pool_tell(CUmemoryPool handle, CUmemPool_attribute attribute, void *value);
void pool_set(CUmemoryPool handle, CUmemPool_attribute attribute, const void *value);
void pool_trim(CUmemoryPool handle, size_t keep);

/* Releases memory of pools beyond their thresholds, as the driver does when a program
 * synchronises. */
void pools_settle(void);

/* The following functions are called with memory_lock held, except pool_open(). */

/* The library's pool of that handle. NULL: a pool of the driver. */
struct pool *pool_named(CUmemoryPool handle);
/* As pool_named(), but makes a device's known default pool the library's. To be called before the
 * program allocates from the pool. */
struct pool *pool_adopted(CUmemoryPool handle);
/* Whether pool_open() must still grant some devices access, without the lock. */
bool pool_is_opening(const struct pool *pool);
CUresult pool_open(CUmemoryPool handle);
void pool_leave(struct pool *pool);               /* drops one user */

/* Releases free memory of pools because the client needs it. True if any was released. Waits for no
 * work, as the driver does not. */
bool pools_yield(const struct client *client);
/* A `reclaimer` (gate/client.h). With `until`, as pools_yield(); otherwise pools keep the memory
 * that the program's thresholds allow. */
bool pools_reclaim(struct client *client, uint64_t bytes, uint64_t until);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pools that keep memory of ours after it was freed; see ordered.c.
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
    size_t most;                     /* bytes that it may hold; 0: any number */
    uint32_t readers;                /* other devices that may reach it: a bit each */
    uint32_t opened;                 /* and those that can, once its device has a client */
    bool destroyed;                  /* and goes with the last that uses it */
    unsigned users;                  /* allocations, and calls under way */
    uint64_t threshold;              /* bytes that it keeps when they are free */
    bool opportunistic;              /* what is free in one stream may serve another, */
    bool dependencies;               /* and what will be may, which then waits for that */
    uint64_t used, used_high;        /* bytes, as asked for */
    uint64_t lost;                   /* freed by cuMemFree: told as used for ever, as by the driver */
    uint64_t reserved, reserved_high;
    uint64_t peak;                   /* of `used`; the program cannot set it back */
    struct ring idle; /* free allocations that no work touches any more, oldest first */
    struct ring freed[ASYNC_CLASSES];/* all free ones, by size */
    struct pool *next;
};

/* The wrappers' side: from any thread, with no lock held. False: not ours, call the driver. */

/* The driver has made `handle`, and its memory may move. `most`: bytes, 0 for any number. */
void pool_add(CUmemoryPool handle, CUdevice device, size_t most);
/* cuMemPoolDestroy; calls the driver. */
bool pool_destroy(CUmemoryPool handle, CUresult *result);
/* cuMemPoolSetAccess; calls the driver. */
CUresult pool_set_access(CUmemoryPool handle, const CUmemAccessDesc *access, size_t count);

/* What the driver has answered, or accepted, completed by what is ours. */
void pool_tell(CUmemoryPool handle, CUmemPool_attribute attribute, void *value);
void pool_set(CUmemoryPool handle, CUmemPool_attribute attribute, const void *value);
void pool_trim(CUmemoryPool handle, size_t keep);

/* Gives back what pools hold beyond their release threshold, as the driver
 * does when a program synchronises. */
void pools_settle(void);

/* The following with memory_lock held, but for pool_open(). */

/* Ours, of that name. NULL: the driver's, */
struct pool *pool_named(CUmemoryPool handle);
/* unless it is a device's own that we know: then it is made ours, before there is memory
 * from it. */
struct pool *pool_adopted(CUmemoryPool handle);
/* Some readers wait for what pool_open() does, without the lock. */
bool pool_is_opening(const struct pool *pool);
CUresult pool_open(CUmemoryPool handle);
void pool_leave(struct pool *pool);               /* one user less */

/* The client needs memory more than what is free in pools does. True if any went. Waits for no work,
 * as the driver does not. */
bool pools_yield(const struct client *client);
/* With `until` the same: gate/client.h. Otherwise the program may keep what it has asked to. */
bool pools_reclaim(struct client *client, uint64_t bytes, uint64_t until);

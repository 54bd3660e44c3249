/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocations by cuMemAllocAsync; see ordered.c.
 *
 * All functions are called with memory_lock held.
 */
#pragma once

#include "driver/driver.h"
#include "driver/ring.h"

struct client;
struct pool;

struct async_allocation {
    CUdeviceptr address;
    size_t size;                     /* bytes as requested */
    size_t room;                     /* bytes that it occupies */
    unsigned class;
    struct pool *pool;               /* NULL: made by cuMemAlloc, and being freed */
    bool freed;
    uint64_t stream;                 /* stream of the free, named by stream.c; 0: unknown */
    CUcontext context;               /* in which `stream` is unique */
    struct pending_frees *pending;   /* its pending list; NULL: no work touches it */
    struct marker *marker;           /* recorded after the work that touches it */
    struct ring order;               /* in the pending list, or in the pool's idle list */
    struct ring alike;               /* in the list of free allocations of its class */
    struct async_allocation *next;   /* in the hash table by address */
};

struct async_allocation *async_at(CUdeviceptr address); /* that begins there, freed or not */
/* Allocates from a pool, for work in the context's `stream`, whose name is `name`. May release the
 * lock meanwhile. */
CUresult async_take(struct pool *pool, struct client *client, size_t bytes, CUcontext context,
                    CUstream stream, uint64_t name, CUdeviceptr *address);
/* Makes the program's address invalid; the caller owns the allocation then. NULL: there is no
 * allocation, or no host memory to record it. */
struct async_allocation *async_retire(CUdeviceptr address);
/* Called when no work touches the allocation any more: makes it idle in its pool, or frees it. */
void async_idle(struct async_allocation *async);

/* Releases idle allocations until the pool holds at most `keep` bytes. True if it released any. */
bool pool_shrink(struct pool *pool, uint64_t keep);

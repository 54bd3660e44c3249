/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a program got from cuMemAllocAsync; see ordered.c.
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
    size_t size;                     /* bytes, as asked for */
    size_t room;                     /* that are there */
    unsigned class;
    struct pool *pool;               /* NULL: of cuMemAlloc, and on its way out */
    bool freed;
    uint64_t stream;                 /* that it was freed in; see stream.c; 0: not known */
    CUcontext context;               /* in which that is its name */
    struct pending_frees *pending;   /* where it waits; NULL: no work touches it any more */
    struct marker *marker;           /* behind the work it waits for */
    struct ring order;               /* in the pending list, or among the idle */
    struct ring alike;               /* among the free allocations of its class */
    struct async_allocation *next;   /* in the table by address */
};

struct async_allocation *async_at(CUdeviceptr address); /* begins there, freed or not */
/* Out of a pool, made or reused for work in the context's `stream`, whose name is `name`. May release
 * the lock meanwhile. */
CUresult async_take(struct pool *pool, struct client *client, size_t bytes, CUcontext context,
                    CUstream stream, uint64_t name, CUdeviceptr *address);
/* The program's address ends; the allocation belongs to nobody yet. NULL: there is
 * no allocation, or no memory to remember it by. */
struct async_allocation *async_retire(CUdeviceptr address);
/* No work touches it any more: it goes to its pool's idle, or altogether. */
void async_idle(struct async_allocation *async);

/* Gives idle allocations back until the pool holds no more than `keep` bytes. True if any went. */
bool pool_shrink(struct pool *pool, uint64_t keep);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pieces: what a program got from cuMemAllocAsync; and pools, that keep them
 * after they were freed, and lists of pending frees, in which freed ones wait. See pool.c for
 * how they go together.
 *
 * All functions are called with memory_lock held unless they say otherwise.
 */
#ifndef NVSHARE_ASYNC_ALLOCATION_H
#define NVSHARE_ASYNC_ALLOCATION_H

#include "interpose/ring.h"
#include "memory/allocation.h"

#define ASYNC_CLASSES (SLAB_CLASSES + 32)

struct pool {
    CUmemoryPool handle;
    CUdevice device;
    size_t most;                     /* bytes that it may hold; 0: any number */
    uint32_t readers;                /* other devices that may reach it: a bit each */
    uint32_t opened;                 /* and those that can, once its device has a client */
    bool destroyed;                  /* and goes with the last that uses it */
    unsigned users;                  /* allocations, and calls under way */
    uint64_t threshold;              /* bytes that it keeps when they are free */
    bool opportunistic;              /* what is free in one stream may serve another */
    uint64_t used, used_high;        /* bytes, as asked for */
    uint64_t lost;                   /* freed by cuMemFree: told as used for ever, as by the driver */
    uint64_t reserved, reserved_high;
    uint64_t peak;                   /* of `used`; the program cannot set it back */
    struct ring idle; /* free allocations that no work touches any more, oldest first */
    struct ring freed[ASYNC_CLASSES];/* all free ones, by size */
    struct pool *next;
};

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

/* async_allocation.c */
struct async_allocation *async_at(CUdeviceptr address); /* begins there, freed or not */
/* Out of a pool, made or reused for work in the context's `stream`. May release the lock
 * meanwhile. */
CUresult async_take(struct pool *pool, struct client *client, size_t bytes, CUcontext context,
                    uint64_t stream, CUdeviceptr *address);
/* The program's address ends; the allocation belongs to nobody yet. NULL: there is
 * no allocation, or no memory to remember it by. */
struct async_allocation *async_retire(CUdeviceptr address);
/* No work touches it any more: it goes to its pool's idle, or altogether. */
void async_idle(struct async_allocation *async);

/* pool.c */
/* Ours, of that name. NULL: the driver's, */
struct pool *pool_named(CUmemoryPool handle);
/* unless it is a device's own that we know: then it is made ours, before there is memory
 * from it. */
struct pool *pool_adopted(CUmemoryPool handle);
/* Some readers wait for what pool_open() does, without the lock. */
bool pool_is_opening(const struct pool *pool);
CUresult pool_open(CUmemoryPool handle);
/* Gives idle allocations back until the pool holds no more than `keep` bytes. True if any went. */
bool pool_shrink(struct pool *pool, uint64_t keep);
void pool_leave(struct pool *pool);               /* one user less */

/* pending_frees.c */

/* A place in a stream, behind all that it holds by now. */
struct mark {
    struct pending_frees *pending;
    struct marker *marker;
};
/* Without the lock. The driver's error if it takes no mark; then there is none. */
CUresult pending_frees_mark(CUstream stream, struct mark *mark);
void pending_frees_unmark(const struct mark *mark); /* was for nothing */
void pending_frees_put(struct async_allocation *async, const struct mark *mark);
void pending_frees_leave(struct async_allocation *async); /* the stream itself uses it again */
/* Makes those idle whose work is done. True if there were any. */
bool pending_frees_look(void);
/* The same after waiting for the oldest in one; releases the lock. False: there are none. */
bool pending_frees_wait(void);
void pending_frees_context_ends(CUcontext context);

/* stream.c; all without the lock */

/* What a stream is known by among all there ever are in its context; 0: by nothing. */
uint64_t stream_name(CUstream stream);
/* Its context, or the current one if it is in any. The driver's error. */
CUresult stream_place(CUstream stream, CUcontext *context, CUdevice *device);

#endif

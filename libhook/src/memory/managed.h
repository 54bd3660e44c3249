/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program's managed memory (cuMemAllocManaged) as the wrappers see it. All
 * functions may be called from any thread with no lock held.
 */
#pragma once

#include "block/block.h"
#include "block/prefetches.h"
#include "driver/driver.h"

struct managed {
    CUdeviceptr base;
    size_t size;                     /* as asked for */
    struct client *client;
    CUcontext context;               /* it goes with this; NULL: which has gone */
    struct managed *next_freed;
    struct prefetches prefetches;    /* the program's own */
    size_t beyond;                   /* bytes that it counts beyond the card; 0: it has blocks */
    bool plain;                      /* to the program it is cuMemAlloc's, with this id */
    unsigned long long id;
    size_t block_count;
    struct block *blocks[];
};

struct memory_description;

/* cuMemAllocManaged. False: no client on this device, or one whose managed
 * memory cannot be sent away. Else *result holds what to return. */
bool managed_allocate(CUdeviceptr *address, size_t bytes, unsigned int flags, CUresult *result);

/* cuMemAlloc beyond what the card could hold: managed memory that lies on the
 * host and is reached from there (NVSHARE_ENABLE_SINGLE_OVERSUB). False: not
 * asked for, or not to be had. */
bool managed_beyond(CUdeviceptr *address, size_t bytes);

/* cuMemFree, or where the program may only free what it got from cuMemAlloc
 * (`plain`). False: no allocation of these begins there. */
bool managed_free(CUdeviceptr address, bool plain, CUresult *result);

/* The program has prefetched a range, or asks where all of it was last prefetched
 * to (a place of type INVALID: to none). False: the driver knows as well. */
void managed_prefetched(CUdeviceptr address, size_t size, CUmemLocation place);
bool managed_last_prefetch(CUdeviceptr address, size_t size, CUmemLocation *place);

/* The following with memory_lock held. */

/* memory_describe() of what lies beyond the card, and stands for plain memory. */
bool managed_describe(CUdeviceptr address, struct memory_description *description);
/* All managed memory of a context, which is about to go. */
void managed_context_ends(CUcontext context);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocations of more than SMALL_MAX, which own their blocks; and spares, which the program has
 * freed and which stay mapped for a short time. All functions are called with memory_lock held.
 */
#pragma once

#include "block/region.h"
#include "driver/driver.h"
#include "driver/ring.h"

struct block;

struct large {
    struct page_owner owner;
    CUdeviceptr base;
    size_t size;                     /* bytes as requested */
    unsigned long long id;
    bool sync_memops;
    bool freeing;
    bool spare;                      /* freed by the program and kept: a spare */
    uint64_t freed_at;               /* us */
    struct ring order, alike;        /* in the lists of its client's spares */
    struct vmm_allocation *vmm;      /* the VMM allocation that it backs; NULL: from cuMemAlloc */
    size_t block_count;
    struct block *blocks[];
};

CUresult large_allocate(struct client *client, CUcontext context, size_t bytes,
                        CUdeviceptr *address);
/* As large_allocate(), for physical memory with `properties`, which must outlive the allocation.
 * Memory that may be exported is a single block if it is not too large. */
CUresult large_create(struct client *client, size_t bytes, const CUmemAllocationProp *properties,
                      CUdeviceptr *address);
void large_release(struct large *large);
struct large *large_of(struct page_owner *owner); /* NULL: the owner is not a large allocation */

void spares_prepare(const struct client *client);   /* for a new client */
uint64_t spares_bytes(const struct client *client); /* counted as allocated and resident */

/* Keeps an allocation that the program has freed and no work uses. False: it cannot be kept; the
 * caller calls large_release(). */
bool spare_keep(struct large *large);
/* Gives a spare of this size and context back to the program. False: there is none; allocate. */
bool spare_take(struct client *client, CUcontext context, size_t bytes, CUdeviceptr *address);

/* A `reclaimer` (gate/client.h): releases the oldest spares until `bytes` bytes or all are
 * released. */
bool spares_reclaim(struct client *client, uint64_t bytes, uint64_t until);
/* For the service thread: releases spares that are too old, at most EXPIRED_AT_ONCE. Returns the us
 * until it must be called again. */
int64_t spares_expire(struct client *client);

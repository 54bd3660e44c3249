/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocations of more than SMALL_MAX, which own their blocks. All functions are called with
 * memory_lock held.
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
    bool spare;                      /* freed by the program and kept: spare.c */
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

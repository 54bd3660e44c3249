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
    size_t size;                     /* as asked for */
    unsigned long long id;
    bool sync_memops;
    bool freeing;
    bool spare;                      /* freed, and kept: spare.c */
    uint64_t freed_at;               /* us */
    struct ring order, alike;        /* among its client's spares */
    struct vmm_allocation *vmm;      /* it is the home of; NULL: the program's by cuMemAlloc */
    size_t block_count;
    struct block *blocks[];
};

CUresult large_allocate(struct client *client, CUcontext context, size_t bytes,
                        CUdeviceptr *address);
/* The same of physical memory with these properties, which last as long as it. What may be exported
 * is in one piece, if it is not too large. */
CUresult large_create(struct client *client, size_t bytes, const CUmemAllocationProp *properties,
                      CUdeviceptr *address);
void large_release(struct large *large);
struct large *large_of(struct page_owner *owner); /* NULL: it is none */

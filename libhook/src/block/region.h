/* SPDX-License-Identifier: Apache-2.0 */
/* Hands out device addresses in pages of 2 MiB, from large regions reserved once from the driver.
 * A page, mapped or not, is in use until region_give(). memory_lock is held in all functions but
 * region_entered(). */
#pragma once

#include "tier/tier.h"

struct block;
struct client;
struct extents;                      /* memory/extents.h */

/* First member of each structure that owns pages. */
struct page_owner {
    const struct owner_operations *operations;     /* see memory/allocation.h */
    const struct owner_mappings *mappings;         /* NULL: mapped at block->address only */
    const CUmemAllocationProp *properties;         /* of its card memory; NULL: defaults */
    struct client *client;           /* NULL: memory of another process */
    CUcontext context;               /* its end frees the memory; NULL: the memory has no context */
    struct extents *extents;         /* of its allocations; NULL: the driver knows them */
    struct block *const *blocks;     /* all blocks of the owner, by rising address */
    size_t block_count;
};
/* Map and unmap a block at the program's addresses, besides block->address (memory/vmm.c). */
struct owner_mappings {
    CUresult (*map)(struct page_owner *owner, struct block *block);
    CUresult (*unmap)(struct page_owner *owner, struct block *block);
};

/* Takes `size` bytes of addresses (whole pages), or returns the driver's error. */
CUresult region_take(size_t size, CUdeviceptr *address);
void region_give(CUdeviceptr address, size_t size);
/* Creates memory and maps it at new addresses. Changes nothing if the driver refuses. */
CUresult region_map_new(size_t size, const CUmemAllocationProp *properties,
                        const CUmemAccessDesc *access, size_t count, CUdeviceptr *address,
                        CUmemGenericAllocationHandle *handle);
/* Unmaps memory of region_map_new(); the handle stays valid. */
void region_unmap(CUdeviceptr address, size_t size);

void region_set_owner(CUdeviceptr address, size_t size, struct page_owner *owner);
struct page_owner *region_owner(CUdeviceptr address); /* NULL: outside all regions, or free */
/* The owner of the first page that has one, from the page of *address on and before `end`. Moves
 * *address to that page. NULL: none has one. */
struct page_owner *region_owner_between(CUdeviceptr *address, CUdeviceptr end);
/* Sets *extents to those of the page's owner; NULL: the owner has none, or the address lies outside
 * all regions. True: it lies outside, but the range ends in a region. Any thread, without a lock. */
bool region_entered(CUdeviceptr address, size_t bytes, const struct extents **extents);
bool region_contains(CUdeviceptr address);        /* reserved by the library, in use or not */

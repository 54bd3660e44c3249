/* SPDX-License-Identifier: Apache-2.0 */
/* Device addresses, in pages of 2 MiB of large regions reserved once from the driver. Taken
 * pages stay taken until given back, mapped or not. memory_lock is held in all functions. */
#pragma once

#include "tier/tier.h"

struct block;
struct client;

/* Head of all structures that own pages. */
struct page_owner {
    const struct owner_operations *operations;     /* memory/allocation.h */
    const struct owner_mappings *mappings;         /* NULL: mapped only at its blocks' addresses */
    const CUmemAllocationProp *properties;         /* of physical memory; NULL: defaults */
    struct client *client;           /* NULL: memory of another process */
    CUcontext context;               /* the memory ends with this context; NULL: with no context */
    struct block *const *blocks;     /* all blocks, in the order of addresses */
    size_t block_count;
};
/* Map and unmap a block at further addresses than block->address (memory/vmm.c). */
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
struct page_owner *region_owner(CUdeviceptr address); /* NULL: not the library's, or not in use */
bool region_contains(CUdeviceptr address);        /* reserved by the library, in use or not */

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device addresses. Large regions of address space are reserved from the
 * driver once and parcelled out here in pages of 2 MiB, the unit in which
 * the driver maps. An address belongs to whoever took it until it is given
 * back, mapped or not.
 *
 * All functions are called with the memory lock held.
 */
#pragma once

#include "tier/tier.h"

struct block;
struct client;

/* What has a page begins with this. */
struct page_owner {
    const struct owner_operations *operations;     /* memory/allocation.h */
    const struct owner_mappings *mappings;         /* NULL: its blocks are mapped at home alone */
    const CUmemAllocationProp *properties;         /* of physical memory; NULL: nothing special */
    struct client *client;           /* NULL: it is another process's memory */
    CUcontext context;               /* with which it goes; NULL: with none */
};
/* Mapping and unmapping a block where it is mapped besides. */
struct owner_mappings {
    CUresult (*map)(struct page_owner *owner, struct block *block);
    CUresult (*unmap)(struct page_owner *owner, struct block *block);
};

/* Takes `size` bytes (whole pages). The driver's error if it has no addresses. */
CUresult region_take(size_t size, CUdeviceptr *address);
void region_give(CUdeviceptr address, size_t size);

/* Each page of taken addresses can have an owner. */
void region_set_owner(CUdeviceptr address, size_t size, struct page_owner *owner);
struct page_owner *region_owner(CUdeviceptr address); /* NULL: not ours, or not in use */
bool region_contains(CUdeviceptr address);        /* reserved by us, in use or not */

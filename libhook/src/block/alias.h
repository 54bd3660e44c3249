/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the program has mapped its VMM allocations.
 *
 * All functions are called with memory_lock held.
 */
#ifndef NVSHARE_ALIAS_H
#define NVSHARE_ALIAS_H

#include <stdbool.h>
#include <stddef.h>

#include "interpose/driver.h"

struct block;
struct vmm_allocation;

/* One mapping of a VMM allocation, always of the whole. */
struct alias {
    CUdeviceptr address;
    size_t size;
    CUdeviceptr range;               /* what the program reserved around it, */
    size_t range_size;               /* as the driver tells while it is mapped */
    struct vmm_allocation *vmm;
    struct alias *next;              /* of the same VMM allocation */
    size_t access_count;
    CUmemAccessDesc *access;         /* one for each processor that was ever named */
};

/* Maps a VMM allocation, as far as it is on the card. The driver's error, or ours. */
CUresult alias_add(struct vmm_allocation *vmm, CUdeviceptr address);
/* Forgets one that the driver has unmapped. */
void alias_remove(struct alias *alias);

struct alias *alias_at(CUdeviceptr address);       /* the one that contains it, or NULL */
/* The first that ends behind `address`, and the next by address. */
struct alias *alias_from(CUdeviceptr address);
/* Whether each alias in the range lies in it in whole; *any: there is one. */
bool alias_whole(CUdeviceptr address, size_t size, bool *any);
/* Maps a VMM allocation pinned in place at all its places, where nothing is mapped now. */
CUresult alias_map_pinned(const struct vmm_allocation *vmm);
/* Remembers what the driver has accepted. False: no memory to remember it. */
bool alias_set_access(struct alias *alias, const CUmemAccessDesc *access, size_t count);

/* Mapping and unmapping a block at the places where the program has mapped it besides. */
CUresult block_map_aliases(struct block *block);
CUresult block_unmap_aliases(struct block *block);

#endif

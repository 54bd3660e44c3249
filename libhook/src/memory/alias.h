/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the program has mapped its VMM allocations.
 *
 * All functions are called with memory_lock held.
 */
#pragma once

#include "driver/driver.h"

struct block;
struct client;
struct large;

/* What a handle from cuMemCreate stands for. */
struct vmm_allocation {
    CUmemGenericAllocationHandle handle;           /* as handed to the program */
    CUmemAllocationProp properties;
    size_t size;
    struct client *client;
    struct large *memory;            /* can leave the card; NULL: pinned in place */
    CUmemGenericAllocationHandle real; /* the driver's, if pinned in place */
    unsigned references;             /* handles given out and not released */
    bool pinning;                    /* by one thread; the others wait */
    bool written;                    /* was ever mapped, so may have content */
    struct alias *aliases;
    struct vmm_allocation *next;     /* in its bucket */
};

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

/* Gives access to what of it is on the card. */
CUresult alias_open(const struct alias *alias, const CUmemAccessDesc *access, size_t count);
/* All of it is on the card. */
bool vmm_is_there(const struct vmm_allocation *vmm);

/* Unmaps a block on the card from where the program has mapped it. */
CUresult alias_unmap_block(const struct vmm_allocation *vmm, const struct block *block);
/* The mappings of an allocation of which `vmm` is set. */
extern const struct owner_mappings alias_mappings;

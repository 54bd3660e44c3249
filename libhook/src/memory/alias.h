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

/* Memory that the program created with cuMemCreate. */
struct vmm_allocation {
    CUmemGenericAllocationHandle handle;           /* as returned to the program */
    CUmemAllocationProp properties;
    size_t size;
    struct client *client;
    struct large *memory;            /* evictable; NULL: pinned in place */
    CUmemGenericAllocationHandle real; /* the driver's handle, if pinned in place */
    unsigned references;             /* handles returned and not yet released */
    bool pinning;                    /* a thread is pinning it; other threads wait */
    bool written;                    /* it was mapped at least once, so it may have content */
    struct alias *aliases;
    struct vmm_allocation *next;     /* in the same hash bucket */
};

/* One mapping of a VMM allocation, always of the whole allocation. */
struct alias {
    CUdeviceptr address;
    size_t size;
    CUdeviceptr range;               /* the program's reservation around it, as */
    size_t range_size;               /* the driver reports it while it is mapped */
    struct vmm_allocation *vmm;
    struct alias *next;              /* of the same VMM allocation */
    size_t access_count;
    CUmemAccessDesc *access;         /* one entry for each device that was ever named */
};

/* Maps the resident blocks of a VMM allocation at `address`. Returns the driver's error, or the
 * library's. */
CUresult alias_add(struct vmm_allocation *vmm, CUdeviceptr address);
/* Removes an alias that the driver has unmapped. */
void alias_remove(struct alias *alias);

struct alias *alias_at(CUdeviceptr address);       /* the alias that contains `address`, or NULL */
/* The first alias that ends after `address`, in the order of addresses; NULL: none. */
struct alias *alias_from(CUdeviceptr address);
/* Whether each alias that overlaps the range lies inside it; *any: at least one overlaps it. */
bool alias_whole(CUdeviceptr address, size_t size, bool *any);
/* Maps a VMM allocation that is pinned in place at all its aliases, where nothing is mapped now. */
CUresult alias_map_pinned(const struct vmm_allocation *vmm);
/* Records access rights that the driver has accepted. False: out of host memory. */
bool alias_set_access(struct alias *alias, const CUmemAccessDesc *access, size_t count);

/* Sets access rights on the alias's resident blocks. */
CUresult alias_open(const struct alias *alias, const CUmemAccessDesc *access, size_t count);
/* All its blocks are resident. */
bool vmm_is_resident(const struct vmm_allocation *vmm);

/* Unmaps a resident block from all aliases of the allocation. */
CUresult alias_unmap_block(const struct vmm_allocation *vmm, const struct block *block);
/* The mappings of an allocation that belongs to a VMM allocation (`vmm` is set). */
extern const struct owner_mappings alias_mappings;

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the program has mapped its chunks.
 *
 * All functions are called with memory_lock held.
 */
#ifndef NVSHARE_ALIAS_H
#define NVSHARE_ALIAS_H

#include "memory/allocation.h"

/* What a handle from cuMemCreate stands for. */
struct chunk {
    CUmemGenericAllocationHandle handle;           /* as handed to the program */
    CUmemAllocationProp properties;
    size_t size;
    struct client *client;
    struct large *memory;            /* can leave the card; NULL: anchored */
    CUmemGenericAllocationHandle real;             /* the driver's, if anchored */
    unsigned references;             /* handles given out and not released */
    bool anchoring;                  /* by one thread; the others wait */
    bool written;                    /* was ever mapped, so may have content */
    struct alias *aliases;
    struct chunk *next;              /* in its bucket */
};

/* One mapping of a chunk, always of the whole. */
struct alias {
    CUdeviceptr address;
    size_t size;
    CUdeviceptr range;               /* what the program reserved around it, */
    size_t range_size;               /* as the driver tells while it is mapped */
    struct chunk *chunk;
    struct alias *next;              /* of the same chunk */
    size_t access_count;
    CUmemAccessDesc *access;         /* one for each processor that was ever named */
};

/* chunk.c: forgets it if neither a handle nor a mapping is left. */
void chunk_drop(struct chunk *chunk);

/* Maps a chunk, as far as it is on the card. The driver's error, or ours. */
CUresult alias_add(struct chunk *chunk, CUdeviceptr address);
/* Forgets one that the driver has unmapped. */
void alias_remove(struct alias *alias);

struct alias *alias_at(CUdeviceptr address);       /* the one that contains it, or NULL */
/* The first that ends behind `address`, and the next by address. */
struct alias *alias_from(CUdeviceptr address);
/* Whether each alias in the range lies in it in whole; *any: there is one. */
bool alias_whole(CUdeviceptr address, size_t size, bool *any);
/* Maps an anchored chunk at all its places, where nothing is mapped now. */
CUresult alias_map_anchored(const struct chunk *chunk);
/* Remembers what the driver has accepted. False: no memory to remember it. */
bool alias_set_access(struct alias *alias, const CUmemAccessDesc *access, size_t count);

#endif

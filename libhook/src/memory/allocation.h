/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocations: what the program got from cuMemAlloc. Those above 1 MiB own
 * their blocks; smaller ones share a slab, one block of 2 MiB divided into
 * places of one size.
 *
 * All functions are called with memory_lock held.
 */
#ifndef NVSHARE_ALLOCATION_H
#define NVSHARE_ALLOCATION_H

#include "block/block.h"
#include "interpose/ring.h"
#include "memory/memory.h"

#define SMALL_MAX ((size_t)1 << 20)

/* The owner of a page, as region_owner() gives it. */
struct page_owner {
    enum { OWNER_LARGE, OWNER_SLAB, OWNER_IMPORT } kind;
    struct client *client;
    CUcontext context;
};

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
void large_release(struct large *large);

CUresult slab_allocate(struct client *client, CUcontext context, size_t bytes,
                       CUdeviceptr *address);
/* False: no object in use there. `exact`: the address must be its first byte. */
bool slab_find(struct slab *slab, CUdeviceptr address, struct memory_description *description);
void slab_set_sync_memops(struct slab *slab, CUdeviceptr address, bool on);
/* Two steps, as the memory must not be used again while work may touch it:
 * first invalid for the program (false: it was already), then free. */
bool slab_retire(struct slab *slab, CUdeviceptr address);
void slab_release(struct slab *slab, CUdeviceptr address);
/* A retired one is the program's again, as a new one of `bytes`, which its place holds. */
void slab_renew(struct slab *slab, CUdeviceptr address, size_t bytes);
/* All of it, with every object in it. */
void slab_destroy(struct slab *slab);
size_t slab_place(size_t bytes, unsigned *class); /* that so many bytes take, and its class */

/* The same of either kind, by address: memory.c. Retire: the address belongs
 * to the program no longer; false: no allocation begins there, or it is retired. */
bool allocation_retire(CUdeviceptr address);
void allocation_renew(CUdeviceptr address, size_t bytes);
void allocation_release(CUdeviceptr address);     /* a retired one, which nothing uses any more */

/* memory_describe(), with the lock held. */
bool allocation_describe(CUdeviceptr address, struct memory_description *description);

/* managed.c: the same of what lies beyond the card, and stands for plain memory. */
bool managed_describe(CUdeviceptr address, struct memory_description *description);

/* The blocks of an allocation, in order: how many, and each. */
size_t allocation_blocks(struct page_owner *owner);
struct block *allocation_block(struct page_owner *owner, size_t index);

/* ipc_import.c: memory of another process, mapped here. */
struct ipc_import;
bool ipc_import_describe(const struct ipc_import *import, CUdeviceptr address,
                         struct memory_description *description);
void ipc_import_context_ends(CUcontext context);

struct block *slab_block(struct slab *slab);
unsigned long long allocation_id(void);           /* a new one */

/* Maps those of the blocks for which there is room; the others stay empty and
 * the client is starved until it gets more. */
void allocation_fill(struct block **blocks, size_t count);

#endif

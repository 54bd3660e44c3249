/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocations: what the program got from cuMemAlloc. Those above 1 MiB own
 * their blocks (large.c); smaller ones share a slab, one block of 2 MiB divided
 * into places of one size (slab.c).
 *
 * All functions are called with memory_lock held.
 */
#ifndef NVSHARE_ALLOCATION_H
#define NVSHARE_ALLOCATION_H

#include <stdbool.h>
#include <stddef.h>

#include "interpose/driver.h"

#define SMALL_MAX ((size_t)1 << 20)

struct block;
struct client;
struct memory_description;

/* The owner of a page, as region_owner() gives it. */
struct page_owner {
    enum { OWNER_LARGE, OWNER_SLAB, OWNER_IMPORT } kind;
    struct client *client;
    CUcontext context;
};

/* By address, of either kind. Retire: the address belongs to the program no
 * longer; false: no allocation begins there, or it is retired. */
bool allocation_retire(CUdeviceptr address);
void allocation_renew(CUdeviceptr address, size_t bytes);
void allocation_release(CUdeviceptr address);     /* a retired one, which nothing uses any more */

/* memory_describe(), with the lock held. */
bool allocation_describe(CUdeviceptr address, struct memory_description *description);

/* The blocks of an allocation, in order: how many, and each. */
size_t allocation_blocks(struct page_owner *owner);
struct block *allocation_block(struct page_owner *owner, size_t index);

unsigned long long allocation_id(void);           /* a new one */

/* Maps those of the blocks for which there is room; the others stay empty and
 * the client is starved until it gets more. */
void allocation_fill(struct block **blocks, size_t count);

#endif

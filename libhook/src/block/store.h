/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store says where a block's physical memory comes from and where its bytes are while
 * it is away. Every block has one for life, and who moves blocks (swap/) calls nothing else.
 *
 * store_host maps physical memory at the block's address and copies to host memory. All
 * that the program gets from cuMemAlloc has it. store_managed is for managed memory: the
 * driver has both, and is asked to prefetch.
 *
 * To add one: write block/store_NAME.c, which defines a `const struct store`, declare it
 * below, and give it to block_new() for the blocks that it is for. It may use functions
 * of other stores: mapped.h has those for physical memory. What it has to know of a block
 * goes into block->place. tests/store has an example, which keeps bytes in files.
 *
 * All functions are called with memory_lock held, settle() excepted, and only take(),
 * out() and in() may release it. These four run on the service thread, in
 * client->copy_context, on a block that is LEAVING or COMING and that nobody frees
 * meanwhile; the others run on any thread.
 */
#pragma once

#include "interpose/driver.h"

struct block;

struct store {
    /* Puts physical memory behind the block's address. If that fails, nothing has changed;
     * CUDA_ERROR_OUT_OF_MEMORY means that it may succeed later. */
    CUresult (*map)(struct block *block);
    /* Takes it away. It fails only if the context has failed for good; the memory stays then. */
    CUresult (*unmap)(struct block *block);
    /* Sets the access that another device has to the memory of a block on the card. */
    CUresult (*open)(struct block *block, const CUmemAccessDesc *access);

    /* Finds a place for all bytes of a block that has none. memory.host may grow to `allowance`
     * for it, and counts what it takes. May wait for host memory, not for the bus. False: there is
     * no place. */
    bool (*take)(struct block *block, uint64_t allowance);
    /* Forgets the place and what lies there. May not wait. */
    void (*give)(struct block *block);

    /* Start to bring bytes to the place, or from there to the card, in the order of the
     * stream: `size` of them, `offset` bytes into the block. Must release the lock if the driver
     * may wait for the bus. After an error no more is started for this block. */
    CUresult (*out)(struct block *block, size_t offset, size_t size, CUstream stream);
    CUresult (*in)(struct block *block, size_t offset, size_t size, CUstream stream);
    /* All that out() or in() have started for the block has ended, as `result` says. Comes once
     * for each move, also for one that failed or was cut short. Without memory_lock; may
     * wait. Returns `result`, or an error of its own: then the move has failed. The
     * bytes are where they came from, so the place holds them still after a failed in(). */
    CUresult (*settle)(struct block *block, CUresult result);

    bool looks;                      /* a kernel may read the block (swap/content.c); what is zero
                                        or unchanged is not moved then */
    bool pieces;                     /* out() and in() can move a part of it */
    bool keeps;                      /* the place keeps the bytes when they are on the card again */
    bool slabs;                      /* the place lies in a slab (host_slabs.h), so that copies
                                        take as long as the bus does */
};

/* What a store has to know of a block. For its own file, and for who makes blocks for it. */
union store_place {
    struct {
        struct host_slab *slab;
        char *address;
    } host;
    struct {
        size_t bytes;                /* as the program asked for; the block's size is rounded up */
        bool mostly_read;            /* to be advised again once it is away */
        bool sent;                   /* somewhere by the library, once at least */
    } managed;
    void *own;                       /* of a store that needs more */
};

extern const struct store store_host, store_managed;

/* Finds a place for a block unless it has one (block->stored). As take(). */
bool store_take(struct block *block, uint64_t allowance);
/* Gives it back if it has one. */
void store_give(struct block *block);

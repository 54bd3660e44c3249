/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tier is where the bytes of a block are while the block is not on the card. A tier knows nothing
 * of blocks: it is asked for places of a given size, and copies between the card and a place.
 *
 * tier_host is page-locked host memory; all that the program gets from cuMemAlloc is copied there.
 * tier_peer is memory of another GPU that the daemon has lent, copied over NVLink.
 * tier_managed is for managed memory: the driver holds the bytes, and is asked to prefetch them.
 *
 * A block has a list of tiers in which it may be, and takes a place in the first that has one. It may
 * take the next in another: it gives its place back whenever it is on the card and others need that.
 * To add a tier: implement the operations in tier/NAME.c, declare it below, and name it in
 * MAPPED_TIERS (block/block.c). What it has to remember of a place goes into struct place.
 *
 * All functions are called with memory_lock held, settle() excepted, and only room(), take(), out()
 * and in() may release it. These five run on the service thread, in client->copy_context.
 */
#pragma once

#include "driver/driver.h"

#define PAGE ((size_t)2 << 20)       /* in which the driver maps, and places are given */
#define WHOLE_PAGES(bytes) (((bytes) + PAGE - 1) / PAGE * PAGE)

/* Large enough that remapping (30 us) hides behind the copy (600 us at bus speed), small enough that
 * room is handed on early and little is wasted. */
#define BLOCK_SIZE ((size_t)32 << 20)

struct client;
struct host_slab;

/* Where the bytes of one block are. */
struct place {
    const struct tier *tier;         /* NULL: it has no place */
    union {
        struct {
            struct host_slab *slab;
            char *address;
        } host;
        struct {
            CUdeviceptr address;     /* at which this GPU reaches it */
            CUmemGenericAllocationHandle handle;
        } peer;
        struct {                     /* valid without a place, too */
            size_t bytes;            /* as the program asked for; the block's size is rounded up */
            CUdevice device;
            bool mostly_read;        /* to be advised again once it is away */
            bool sent;               /* somewhere by the library, once at least */
        } managed;
    };
};

struct tier {
    /* So many bytes are about to leave, and somebody waits for that: the tier may prepare places
     * ahead. 0: no more are, and what the tier has begun ends. NULL: it prepares nothing. */
    void (*room)(struct client *client, uint64_t bytes);
    /* Finds a place for `size` bytes. memory.host may grow to `allowance` for it, and counts what it
     * takes. May wait for host memory, not for the bus; `patient`: also for what is made at leisure.
     * False: there is no place now. The caller sets place->tier. */
    bool (*take)(struct client *client, size_t size, uint64_t allowance, bool patient,
                 struct place *place);
    /* Forgets the place and its bytes. May not wait. */
    void (*give)(struct client *client, size_t size, struct place *place);

    /* Start to copy to the place, or from there to the card, in the order of the stream: `size`
     * bytes, `offset` bytes into the block, which lies at `address`. Must release the lock if the
     * driver may wait for the bus. After an error no more is started for this block. */
    CUresult (*out)(struct place *place, CUdeviceptr address, size_t offset, size_t size,
                    CUstream stream);
    CUresult (*in)(struct place *place, CUdeviceptr address, size_t offset, size_t size,
                   CUstream stream);
    /* All that out() or in() have started for the block has ended, whether well, or cut short.
     * Without memory_lock; may wait. NULL: there is nothing to do then. */
    void (*settle)(struct place *place, CUdeviceptr address);

    bool pieces;                     /* out() and in() can copy a part of a block */
    bool keeps;                      /* the place keeps the bytes when they are on the card again */
    bool over_bus;                   /* copies take as long as the bus does */
};

extern const struct tier tier_host, tier_managed, tier_peer;

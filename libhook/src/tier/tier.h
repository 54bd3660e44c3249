/* SPDX-License-Identifier: Apache-2.0 */
/* A tier holds the bytes of swapped blocks: it provides places of a given size, and copies
 * between the card and a place. tier_peer is memory of another GPU that the daemon has lent;
 * tier_host page-locked host memory; tier_managed managed memory, which the driver prefetches;
 * tier_disk a file: block/store.c moves blocks there from host memory, so the tier has no take(),
 * and copy() only loads.
 *
 * A block takes a place in the first tier of its list with space. To add a tier: implement the
 * operations in tier/NAME.c, put its data into struct place, declare it below, and name it in
 * MAPPED_TIERS (block/block.c).
 *
 * memory_lock is held in all operations but settle(); only take() and copy() may release it.
 * take(), copy() and settle() run on the service thread, in client->copy_context. */
#pragma once

#include "driver/driver.h"

#define PAGE ((size_t)2 << 20)       /* granularity of the driver's mappings and of places */
#define ROUNDED_UP(bytes, grain) (((bytes) + (grain) - 1) / (grain) * (grain))
#define WHOLE_PAGES(bytes) ROUNDED_UP(bytes, PAGE)

/* So large that a copy (600 us) hides the remapping (30 us); a larger block frees memory later. */
#define BLOCK_SIZE ((size_t)32 << 20)

struct client;
struct disk_extent;
struct host_slab;

struct place {
    const struct tier *tier;         /* NULL: no place */
    union {
        struct {
            struct host_slab *slab;
            char *address;
        } host;
        struct {
            CUdeviceptr address;     /* mapped for access by the client's GPU */
            CUmemGenericAllocationHandle handle;
        } peer;
        struct disk_extent *disk;
        struct {                     /* valid even while `tier` is NULL */
            size_t bytes;            /* as allocated; block->size is rounded up */
            CUdevice device;
            bool mostly_read;        /* read-mostly advice was withdrawn; settle() restores it */
            bool sent;               /* prefetched by the library at least once */
        } managed;
    };
};

enum settled {
    SETTLED,
    UNSETTLED,                       /* the copy failed; the place still has the bytes */
    LOST,                            /* the place does not have the bytes any more */
};

struct tier {
    /* Finds a place for `size` bytes; the caller sets place->tier. memory.host, which
     * counts the bytes, may grow to `allowance`. May wait for threads that make host memory
     * (`patient`: also for threads of low priority), but not for the bus. False: no place now. */
    bool (*take)(struct client *client, size_t size, uint64_t allowance, bool patient,
                 struct place *place);
    /* Frees the place and its bytes. Must not wait. */
    void (*give)(struct client *client, size_t size, struct place *place);

    /* Starts to copy `size` bytes to the place (`out`) or to the card, in stream order, from
     * `offset` in the block mapped at `address`. Must release the lock if the driver may
     * wait for the bus. After an error no more copies are started for this block. */
    CUresult (*copy)(struct place *place, bool out, CUdeviceptr address, size_t offset, size_t size,
                     CUstream stream);
    /* Called without memory_lock when all copies of the block have ended, completely or not;
     * may wait. NULL: nothing to do. */
    enum settled (*settle)(struct place *place, CUdeviceptr address);

    bool pieces;                     /* copy() can copy a part of a block */
    bool keeps;                      /* the place keeps the bytes after a load */
    bool over_bus;                   /* copies run at the full speed of the bus */
};

extern const struct tier tier_disk, tier_host, tier_managed, tier_peer;

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client's file on a disk. All functions are called with memory_lock held, on the service
 * thread. block/store.c moves blocks to the file.
 */
#pragma once

#include "tier/tier.h"

/* One block on its way from host memory to the file. */
struct disk_write {
    const char *memory;              /* valid until `done` */
    struct disk_extent *extent;      /* its place; NULL: not used */
    _Atomic bool cancelled;          /* ends with the request that is under way: ECANCELED */
    bool done;
    int error;
    struct disk_write *next;
};

/* Takes the file over from a descriptor, which the caller keeps, unless bytes lie in an earlier file.
 * -1: there must be an earlier one. Returns an errno; ENOSYS: the kernel has no close_range() (Linux
 * 5.9). May release and retake the lock. */
int disk_open(struct client *client, int descriptor);
/* Starts to write a block of `size` bytes from `memory`, to a place within the first `most` bytes of
 * the file. False: there is none now. */
bool disk_write(struct client *client, size_t size, uint64_t most, struct disk_write *write,
                const char *memory);
/* Makes a block's place of an extent that was written, and counts it. */
void disk_take(struct client *client, struct disk_extent *extent, struct place *place);
/* Frees an extent that is no place. */
void disk_give(struct disk_extent *extent);
/* No more blocks are loaded for now: gives up staging memory. */
void disk_end_reads(struct client *client);

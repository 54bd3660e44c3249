/* SPDX-License-Identifier: Apache-2.0 */
/* A client's file on a disk. Service thread, with memory_lock held. */
#pragma once

#include "tier/tier.h"

/* A place in the file, and the transfer of a block to or from it. */
struct disk_extent {
    struct disk *disk;
    uint64_t offset;                 /* bytes from the file's begin */
    size_t size;                     /* bytes */
    size_t begun, left;              /* bytes with transfer begun; with transfer not completed */
    int error;                       /* errno of the transfer; 0: no error so far */
    struct disk_extent *next;        /* in the queue of writes, or of loads */
    const char *memory;              /* source of a write; valid until `left` is 0 */
    _Atomic bool cancelled;          /* the write ends with ECANCELED after its current requests */
    bool overwritten;                /* the source has changed: the written bytes are useless */
    struct block *block;             /* NULL: the block was freed or has given up its place */
    struct place place;              /* if `block` is NULL: the source of the write, to be freed */
    CUdeviceptr address;             /* destination of a load on the card */
    CUstream stream;
    CUresult result;
    uint64_t sums[];                 /* a checksum for each chunk */
};

/* Opens the client's file by a duplicate of `descriptor`. If an earlier file has bytes in use, or
 * `descriptor` is -1, the earlier file stays. Returns 0 or an errno; ENOSYS: the kernel lacks
 * close_range() (Linux 5.9). May release the lock. */
int disk_open(struct client *client, int descriptor);
/* Whether the client has a file. May be called without the lock by its service thread. */
bool disk_is_open(const struct client *client);
/* Starts to write `size` bytes from `memory` to a place within the first `most` bytes of the file.
 * NULL: no such place is free, or no memory to record it. */
struct disk_extent *disk_write(struct client *client, size_t size, uint64_t most,
                               const char *memory);
/* Makes the written extent the place of a block, and counts it in client->stored. */
void disk_take(struct client *client, struct disk_extent *extent, struct place *place);
/* Wakes the writers, which cut unused space at the file's end beyond client->file bytes. */
void disk_wake_writers(void);
/* Frees an extent that is not, or no longer, the place of a block. */
void disk_give(struct disk_extent *extent);
/* Frees the staging memory at the end of a LOAD. */
void disk_end_reads(struct client *client);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks: the unit of eviction and loading. A block is a run of whole pages at an address that
 * never changes, with one physical allocation behind it while it is resident.
 *
 * All functions are called with memory_lock held.
 */
#pragma once

#include "gate/client.h"
#include "tier/disk.h"
#include "tier/tier.h"

enum block_state {
    BLOCK_EMPTY,                     /* never mapped: holds nothing */
    BLOCK_RESIDENT,
    BLOCK_EVICTING,                   /* being evicted; still mapped */
    BLOCK_SWAPPED,                   /* its bytes are in its place */
    BLOCK_LOADING,                    /* being loaded; mapped */
    BLOCK_COPYING,                   /* swapped; its bytes are being copied to another tier */
    BLOCK_SHARED,                    /* accessible to other processes: pinned for good */
    BLOCK_LOST, /* its context failed (block.c); counted nowhere */
};

/* The result of examine.cu for a block. */
struct content {
    uint64_t sum[4];
    uint64_t any;                    /* all words, or-ed */
};

/* The result of reading a block while its program did not run. */
struct look {
    struct content part, all;        /* of one word in PART, and of all words */
    bool whole;                      /* `all` is valid; if not, the block has changed */
    uint64_t turn;                   /* client->turns for which it is valid; 0: none */
};

/* The write of a swapped block to the client's file; see store.c. */
struct store {
    struct disk_write write;
    struct block *block;             /* NULL: it has given up its place */
    struct place place;              /* this one then */
    size_t size;
    uint64_t turn;                   /* client->turns at its begin */
};

struct block {
    CUdeviceptr address;
    size_t size;
    struct client *client;
    enum block_state state;
    bool doomed;                     /* freed while it moves; the mover frees it */
    bool immovable;                  /* at present: block_hold() */
    bool managed;                    /* mapped by the driver, and not readable by examine.cu */
    struct place place;              /* may be kept while resident */
    struct place copy;               /* on the host, of what `place` has on another GPU */
    CUmemGenericAllocationHandle handle;
    uint64_t clean_as_of_turn;       /* the place is current while the client's `turns` equals this;
                                        0: never */
    struct look look;
    struct content part;             /* at its last eviction, if `parted` */
    struct content content;          /* of the place, if `known`; of the block, if `looked` */
    bool parted, looked, known;
    bool zero;                       /* swapped without a place: cleared when it is loaded */
    bool seen, light;                /* read at least once; was all zero at the last reading */
    bool restless;                   /* had changed at its last eviction */
    bool writing_back;               /* EVICTING for a writeback: it stays resident */
    struct store *store;             /* NULL: it is not being written */
    struct block *older, *younger;
    size_t slot;                     /* search.c */
};

void block_set_state(struct block *block, enum block_state state);
/* Whether the block is resident and its place has the same bytes: the program has not run since the
 * writeback or load. */
bool block_is_clean(const struct block *block);
/* Whether the result of reading it is valid: the program has not run since. */
bool block_look_holds(const struct block *block);
/* Whether a resident block can be evicted without a copy: it is clean, or was read as zero, and the
 * program has not run since. */
bool block_ready(const struct block *block);
/* Marks the block clean. Must not be called for a running client, whose program may write at
 * once. */
void block_note_clean(struct block *block);
/* Forbids or allows moving the block. */
void block_hold(struct block *block, bool held);
/* A new EMPTY block at the end of its client's list, counted as allocated. NULL: out of memory. */
struct block *block_new(struct client *client, bool managed, CUdeviceptr address, size_t size);
/* Finds a place for a block, as take() of its tiers. If there is none, resident blocks give up the
 * places that they keep. */
bool block_take_place(struct block *block, uint64_t allowance);
/* Gives up the block's place, if it has one, and its copy. */
void block_give_place(struct block *block);
/* Gives up the copy alone: `place` is about to be overwritten, or others need host memory. */
void block_give_copy(struct block *block);
/* The copy replaces the place. Without a copy as block_give_place(). */
void block_return_place(struct block *block);
/* Makes resident blocks give up places until the client holds at most `allowance` bytes of host
 * memory, if that suffices. Service thread; may release and retake the lock. */
void blocks_give_places(struct client *client, uint64_t allowance);
/* Maps physical memory behind an EMPTY or SWAPPED block and counts it as resident; the caller sets
 * the state. Changes nothing if the driver refuses. */
CUresult block_map(struct block *block);
/* The opposite. An error means that the context has failed for good: the memory then stays counted,
 * because it stays on the card. */
CUresult block_unmap(struct block *block);
/* Pins the block for good, and counts it as pinned. */
void block_share(struct block *block);
/* Drops a block without a copy, resident or swapped; a block that is moving stays as it is. */
void block_lose(struct block *block);
/* Unmaps the block, gives up its place and frees it with its addresses, now or, if it is moving, at
 * the end of the move. */
void block_free(struct block *block);

/* Called after a move has failed. If its context has failed for good, all of the client's memory is
 * dropped. Blocks that are moving have failed, too, and are dropped when the move ends. Service
 * thread, with memory_lock held. */
void release_if_context_failed(struct client *client);

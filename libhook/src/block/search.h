/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the next block to load, to evict, or to give up its place. All functions are called with
 * memory_lock held.
 */
#pragma once

#include "block/block.h"

/* The cost of evicting a block; out.c says why. */
enum rank { RANK_ZERO, RANK_UNCHANGED, RANK_OTHER, RANKS };

enum search {
    SEARCH_ABSENT,                   /* to be loaded */
    SEARCH_STORABLE,                 /* swapped, in host memory and not being stored */
    SEARCH_DIRTY,                    /* swapped to another GPU, without a copy on the host */
    SEARCH_COPIED,                   /* have such a copy */
    /* All others are resident, and */
    SEARCH_KEPT,                     /* have a place in a tier above the disk, */
    SEARCH_UNSEEN,                   /* were never read, */
    SEARCH_LIGHT,                    /* were zero when last read, */
    SEARCH_READY,                    /* can be evicted without a copy, */
    SEARCH_VICTIM,                   /* can be evicted, at most at the added rank, */
    SEARCH_UNREADY = SEARCH_VICTIM + RANKS, /* the same, but not without a copy */
    SEARCHES = SEARCH_UNREADY + RANKS,
};

/* The oldest or the youngest such block. NULL: there is none. */
struct block *search_oldest(const struct client *client, enum search search);
struct block *search_youngest(const struct client *client, enum search search);
/* Bytes of all such blocks. */
uint64_t search_bytes(const struct client *client, enum search search);

/* Adds a new block, the youngest. False: out of memory. */
bool search_enter(struct block *block);
/* A property of the block has changed that may matter to a search. */
void search_note(struct block *block);
/* The block is about to be freed. */
void search_leave(struct block *block);

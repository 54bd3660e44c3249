/* SPDX-License-Identifier: Apache-2.0 */
/* Finds a client's next block to load, evict, store, or give up its place. memory_lock is held. */
#pragma once

#include "block/block.h"

/* Classes of eviction cost; see swap.c. */
enum rank { RANK_ZERO, RANK_UNCHANGED, RANK_OTHER, RANKS };

enum search {
    SEARCH_ABSENT,                   /* EMPTY or SWAPPED: can be loaded */
    SEARCH_STORABLE,                 /* swapped, in host memory, no write to the file in flight */
    SEARCH_DIRTY,                    /* swapped to another GPU, without a copy on the host */
    SEARCH_COPIED,                   /* bytes on another GPU, with a copy on the host */
    /* The searches below find resident blocks that */
    SEARCH_KEPT,                     /* have a place in a tier above the disk, */
    SEARCH_UNREAD,                   /* were never read, */
    SEARCH_WAS_ZERO,                 /* were zero when last read, */
    SEARCH_READY,                    /* can be evicted without a copy, */
    SEARCH_VICTIM,                   /* + rank: can be evicted, and have this or a cheaper rank, */
    SEARCH_UNREADY = SEARCH_VICTIM + RANKS, /* + rank: match SEARCH_VICTIM, but need a copy */
    SEARCHES = SEARCH_UNREADY + RANKS,
};

/* The oldest or youngest block that satisfies the search; NULL: there is none. */
struct block *search_oldest(const struct client *client, enum search search);
struct block *search_youngest(const struct client *client, enum search search);
uint64_t search_bytes(const struct client *client, enum search search);

/* Adds the block as the youngest. False: out of memory. */
bool search_enter(struct block *block);
/* To be called after a change of the block that may affect a search. */
void search_note(struct block *block);
/* Removes a block that is about to be freed. */
void search_leave(struct block *block);

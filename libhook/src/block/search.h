/* SPDX-License-Identifier: Apache-2.0 */
/* Finds a client's next block to load, evict, store, or give up its place. memory_lock is held. */
#pragma once

#include "block/block.h"

/* Classes of eviction cost; see swap.c. */
enum rank { RANK_ZERO, RANK_UNCHANGED, RANK_OTHER, RANKS };

enum search {
    /* Searches for the oldest block that */
    SEARCH_ABSENT,                   /* is EMPTY or SWAPPED: can be loaded, */
    SEARCH_DIRTY,                    /* is swapped to another GPU, without a copy on the host, */
    SEARCH_COPIED,                   /* has its bytes on another GPU, with a copy on the host, */
    SEARCH_KEPT,                     /* is resident and has a place in a tier above the disk */
    SEARCHES_OLDEST,
    /* Searches for the youngest block that */
    SEARCH_STORABLE = SEARCHES_OLDEST, /* is swapped, in host memory, with no write in flight, */
    /* or is resident and */
    SEARCH_UNREAD,                   /* was never read, */
    SEARCH_WAS_ZERO,                 /* was zero when last read, */
    SEARCH_READY,                    /* can be evicted without a copy, */
    SEARCH_VICTIM,                   /* + rank: can be evicted, and has this or a cheaper rank, */
    SEARCH_UNREADY = SEARCH_VICTIM + RANKS, /* + rank: matches SEARCH_VICTIM, but needs a copy */
    SEARCHES = SEARCH_UNREADY + RANKS,
};

/* NULL: no block satisfies the search. */
struct block *search_first(const struct client *client, enum search search);
uint64_t search_bytes(const struct client *client, enum search search);

/* To be called for a new, listed block, and after a change that may affect a search. */
void search_note(struct block *block);
/* Removes a block that is about to leave the list. */
void search_leave(struct block *block);

/* SPDX-License-Identifier: Apache-2.0 */
/* Finds a client's next block to load, evict, store, or give up its place. memory_lock is held. */
#pragma once

#include "block/block.h"

/* Classes of victims, first the cheapest to evict; see swap.c. */
enum rank { RANK_ZERO, RANK_UNCHANGED, RANK_OTHER, RANKS };

enum search {
    /* Each of these searches finds the oldest block that */
    SEARCH_ABSENT,                   /* is EMPTY or SWAPPED, and may be loaded */
    SEARCH_DIRTY,                    /* is SWAPPED to a lent tier, without a copy behind it */
    SEARCH_COPIED,                   /* has its bytes in a lent tier, and such a copy */
    SEARCH_KEPT,                     /* is RESIDENT and keeps a place that memory.host counts */
    SEARCHES_OLDEST,
    /* Each of these searches finds the youngest block that */
    SEARCH_STORABLE = SEARCHES_OLDEST, /* is SWAPPED to a readable place, and not being stored */
    /* Each of these searches finds the youngest RESIDENT block that */
    SEARCH_UNREAD,                   /* was never read by contents.c */
    SEARCH_WAS_ZERO,                 /* was all zero when contents.c last read it */
    SEARCH_READY,                    /* can be evicted without a copy */
    SEARCH_VICTIM,                   /* + rank: can be evicted, and has this or a cheaper rank */
    SEARCH_UNREADY = SEARCH_VICTIM + RANKS, /* + rank: matches SEARCH_VICTIM, but needs a copy */
    SEARCHES = SEARCH_UNREADY + RANKS,
};

/* NULL: no block satisfies the search. */
struct block *search_first(const struct client *client, enum search search);
uint64_t search_bytes(const struct client *client, enum search search);
/* search_bytes() of SEARCH_DIRTY, which no turn changes, without a scan of the blocks. */
uint64_t search_dirty_bytes(const struct client *client);

/* Must be called for a block new in the client's list, and after changes that affect a search. */
void search_note(struct block *block);
/* Removes a block that is about to leave the list. */
void search_leave(struct block *block);

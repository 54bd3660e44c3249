/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks: what moves between card and host. A block is a run of whole pages
 * at an address that never changes, with one physical allocation behind it
 * while it is resident.
 *
 * All functions are called with memory_lock held.
 */
#pragma once

#include "gate/client.h"
#include "tier/tier.h"

enum block_state {
    BLOCK_EMPTY,                     /* never brought in: holds nothing */
    BLOCK_RESIDENT,
    BLOCK_LEAVING,                   /* being copied out; still mapped */
    BLOCK_SWAPPED,                   /* its bytes are in its place */
    BLOCK_COMING,                    /* mapped; being copied in */
    BLOCK_SHARED,                    /* others reach it too: on the card for good, and pinned */
    BLOCK_LOST, /* its bytes are nowhere any more (block.c), and it counts nowhere */
};

/* What examine.cu finds in a block. */
struct content {
    uint64_t sum[4];
    uint64_t any;                    /* all words, or-ed */
};

/* What was seen of a block while the program that has it stood still. */
struct look {
    struct content part, all;        /* of a small part of its words, of all of them */
    bool whole;                      /* `all` is known; if not, the block has changed for certain */
    uint64_t turn;                   /* the client's when it was; it holds until the next one. 0: never */
};

struct block {
    CUdeviceptr address;
    size_t size;
    struct client *client;
    enum block_state state;
    bool doomed;                     /* freed while on the move; its mover finishes it */
    bool immovable;                  /* now: block_hold() */
    bool managed;                    /* the driver maps and unmaps it, and no kernel of ours reads it */
    struct place place;              /* may be kept while resident */
    CUmemGenericAllocationHandle handle;
    uint64_t clean_as_of_turn;       /* the place is current while the client's `turns` equals this;
                                        0: never */
    struct look look;
    struct content part;             /* as it was when it left for the last time, if `parted` */
    struct content content;          /* of the place, if `known`; of what is leaving, if `looked` */
    bool parted, looked, known;
    bool zero;                       /* swapped without a place: cleared when it comes back */
    bool seen, light;                /* looked at once; all zero when that was last done */
    bool restless;                   /* had changed when it left for the last time */
    bool writing_back;               /* LEAVING only until it has been copied: it stays */
    struct block *older, *younger;
    size_t slot;                     /* search.c */
};

void block_set_state(struct block *block, enum block_state state);
/* It is on the card, and its place holds the same: the program has not run since they
 * were made equal. */
bool block_is_clean(const struct block *block);
/* It was looked at since the program ran. */
bool block_look_holds(const struct block *block);
/* On the card, it needs no copy to leave: it was saved, or seen to be zero, and the program
 * has not run since. */
bool block_ready(const struct block *block);
/* They have just been made equal. What a running program has may change at once. */
void block_note_clean(struct block *block);
/* It stays where it is for a while, or no longer. */
void block_hold(struct block *block, bool held);
/* A new block, empty, at the end of its client's list; counted as allocated. NULL: no memory. */
struct block *block_new(struct client *client, bool managed, CUdeviceptr address, size_t size);
/* Finds a place for a block unless it has one; as take() of its tiers. If there is none, blocks on the
 * card give up the places that they keep. */
bool block_take_place(struct block *block, uint64_t allowance);
/* Gives it back if it has one. */
void block_give_place(struct block *block);
/* Blocks on the card give up places until the client holds no more host memory than `allowance`, if
 * that suffices. Service thread; may release and retake the lock. */
void blocks_give_places(struct client *client, uint64_t allowance);
/* Puts physical memory behind an EMPTY or SWAPPED block and counts it as resident; the state is the
 * caller's to set. Leaves everything as it was if the driver refuses. */
CUresult block_map(struct block *block);
/* The opposite. An error is the context's (it has failed for good): the
 * memory then stays counted, as it stays on the card. */
CUresult block_unmap(struct block *block);
/* It is on the card for good from now on, and counts as pinned. */
void block_share(struct block *block);
/* Unmaps, gives back its place and forgets it, now or, if it is on the
 * move, as soon as it has arrived. Its addresses are given back as well. */
void block_free(struct block *block);

/* Something could not be moved. If that is because the context has failed for good, all of the
 * client's memory goes. What is on the move has failed as well, and goes when that is answered.
 * Service thread, with memory_lock held. */
void release_if_context_failed(struct client *client);

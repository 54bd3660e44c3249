/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks: the unit of eviction and loading. A block is a run of whole pages at an address that
 * never changes, with one physical allocation while it is resident. memory_lock is held in all
 * functions. */
#pragma once

#include <string.h>

#include "gate/client.h"
#include "tier/tier.h"

enum block_state {
    BLOCK_EMPTY,                     /* never mapped: has no content */
    BLOCK_RESIDENT,
    BLOCK_EVICTING,                  /* being evicted; still mapped */
    BLOCK_SWAPPED,                   /* its bytes are in `place`, or all zero */
    BLOCK_LOADING,                   /* being loaded; mapped */
    BLOCK_COPYING,                   /* swapped; being copied from a lent tier to one behind it */
    BLOCK_SHARED,                    /* accessible to other processes: pinned until it is freed */
    BLOCK_LOST,                      /* its bytes are lost (context or disk failed); not counted */
};

/* The digest of a block, computed by examine.cu. */
struct content {
    uint64_t sum[4];
    uint64_t any;                    /* bitwise OR of all words: 0 if the block is all zero */
};

static inline bool content_equal(const struct content *a, const struct content *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

/* Digests of a block, computed while the block's client had no turn. */
struct reading {
    struct content part, all;        /* digests: of one word in PART (contents.c); of all words */
    bool whole;                      /* `all` is valid; false: `part` shows a change */
    uint64_t turn;                   /* the reading is valid while client->turns equals this;
                                        0: never */
};

struct block {
    CUdeviceptr address;
    size_t size;
    struct client *client;
    enum block_state state;
    bool doomed;                     /* freed by the program during a move: freed at its end */
    bool immovable;                  /* set by block_hold(): must be neither evicted nor loaded */
    bool managed;                    /* managed memory: mapped by the driver, not examined */
    struct place place;              /* where its swapped bytes are; may be kept while resident */
    struct place copy;               /* of a `place` in a lent tier: in a tier behind that one */
    CUmemGenericAllocationHandle handle;
    uint64_t clean_as_of_turn;       /* `place` has the block's bytes while client->turns
                                        equals this; 0: never */
    struct reading reading;
    struct content part;             /* `reading.part` at the last eviction, if `part_valid` */
    struct content content;          /* digest of all words: of `place`, if `known`; of the block
                                        when it was last copied there, if `content_valid` */
    bool part_valid, content_valid, known;
    bool zero;                       /* swapped without a place: a load fills it with zeros */
    bool was_read, was_zero;         /* contents.c has read it; it was all zero when last read */
    bool changed_before;             /* its bytes differed from `place` at the last eviction */
    bool writing_back;               /* EVICTING for a writeback: it stays resident */
    struct tier_write *write;        /* write of the block in flight (store.c); NULL: none */
    struct block *older, *younger;   /* links of the client's list, in order of allocation */
    uint64_t number;                 /* larger than the number of each older block */
    uint16_t fits;                   /* a bit for each search of search.c that it satisfies */
};

static inline bool block_is_moving(const struct block *block)
{
    return block->state == BLOCK_EVICTING || block->state == BLOCK_LOADING
        || block->state == BLOCK_COPYING;
}
/* Whether the block is mapped on the card, as it is also while being evicted or loaded. */
static inline bool block_is_mapped(const struct block *block)
{
    return block->state == BLOCK_RESIDENT || block->state == BLOCK_EVICTING
        || block->state == BLOCK_LOADING || block->state == BLOCK_SHARED;
}
void block_set_state(struct block *block, enum block_state state);
/* The place has the block's bytes: the client had no turn since the writeback or load. */
static inline bool block_is_clean(const struct block *block)
{
    return block->clean_as_of_turn == block->client->turns;
}
/* Whether the client had no turn since the block was read. */
static inline bool block_reading_is_valid(const struct block *block)
{
    return block->reading.turn == block->client->turns;
}
/* Marks the block clean until the client's next turn begins; not clean if the client runs. */
void block_note_clean(struct block *block);
void block_hold(struct block *block, bool held);
/* Adds an EMPTY block to its client's list, counted as allocated. NULL: out of memory. */
struct block *block_new(struct client *client, bool managed, CUdeviceptr address, size_t size);
/* Takes a place in the first of the block's tiers with space; memory.host may grow to `allowance`
 * bytes. If no tier has space, resident blocks of the client give up their places. */
bool block_take_place(struct block *block, uint64_t allowance);
/* Gives up `place` and `copy`. */
void block_give_place(struct block *block);
void block_give_copy(struct block *block);
/* Replaces `place` with `copy`, or gives up `place` if the block has no copy. */
void block_return_place(struct block *block);
/* Makes resident blocks give up places until the client holds at most `allowance` bytes of host
 * memory. For the service thread; may release memory_lock. */
void blocks_give_places(struct client *client, uint64_t allowance);
/* The access rights to the client's memory. Fills at most CLIENTS_MAX entries; returns their
 * number. */
size_t block_readers(const struct client *client, CUmemAccessDesc *access);
/* [owner][reader], devices: number of context pairs and pools that let reader access owner. */
extern unsigned block_reader_counts[CLIENTS_MAX][CLIENTS_MAX];
/* Maps an EMPTY or SWAPPED block and counts it as resident; the caller sets the state. */
CUresult block_map(struct block *block);
/* Unmaps and releases the memory. If the context has failed, the memory stays counted. */
CUresult block_unmap(struct block *block);
void block_share(struct block *block);
/* Makes a resident or swapped block LOST without saving its bytes; no effect on a moving block. */
void block_lose(struct block *block);
/* Frees the block with its addresses, now or, if it is moving, at the end of the move. */
void block_free(struct block *block);

/* Called after a failed move. If all contexts of the device stay broken, all blocks become
 * LOST, except blocks that are moving: their copies fail later. Service thread. */
void release_if_context_failed(struct client *client);

/* SPDX-License-Identifier: Apache-2.0 */
/* A program may have tens of thousands of blocks, moved one by one while memory_lock is held: each
 * search must not scan all blocks. Each block records the searches that it satisfies, and each
 * search where its next scan begins. Blocks are moved in the order of the search, so the scans of
 * one EVICT or LOAD together pass each block about once. A new turn changes conditions of all
 * blocks, so the searches of all blocks are recomputed before the first search in that turn. */
#include "block/search.h"

#include <string.h>

/* One for each client, by index. */
static struct searches {
    struct block *first[SEARCHES];   /* no block before this one, in the order of the search,
                                        satisfies the search; NULL: no block does */
    uint64_t bytes[SEARCHES];        /* sizes of all blocks that satisfy each search */
    uint64_t turn;                   /* client->turns for which `first` and `bytes` are valid */
} all[CLIENTS_MAX];

_Static_assert(SEARCHES <= 16, "a bit for each");

static enum rank rank_of(const struct block *block)
{
    if (block->was_zero)
        return RANK_ZERO;
    return block_is_clean(block) || (block->known && !block->changed_before) ? RANK_UNCHANGED
                                                                           : RANK_OTHER;
}

static uint16_t satisfied(const struct block *block)
{
    unsigned fits = 0;
    if ((block->state == BLOCK_EMPTY || block->state == BLOCK_SWAPPED) && !block->immovable)
        fits |= 1u << SEARCH_ABSENT;
    const struct tier *tier = block->place.tier;
    bool swapped = block->state == BLOCK_SWAPPED && tier != NULL;
    bool copied = block->copy.tier != NULL;
    fits |= (unsigned)(swapped && tier->readable && block->write == NULL) << SEARCH_STORABLE;
    fits |= (unsigned)(swapped && tier->lend != NULL && !copied && !block->immovable)
        << SEARCH_DIRTY;
    fits |= (unsigned)copied << SEARCH_COPIED;
    if (block->state != BLOCK_RESIDENT)
        return (uint16_t)fits;
    fits |= (unsigned)(tier != NULL && tier->cost != COSTS_NOTHING) << SEARCH_KEPT;
    fits |= (unsigned)(!block->was_read && !block->managed) << SEARCH_UNREAD;
    fits |= (unsigned)block->was_zero << SEARCH_WAS_ZERO;
    if (block->immovable)
        return (uint16_t)fits;
    bool ready = block_is_clean(block) || (block_reading_is_valid(block) && block->was_zero);
    bool unready = !block->managed && !ready;
    fits |= (unsigned)ready << SEARCH_READY;
    for (unsigned rank = rank_of(block); rank < RANKS; rank++)
        fits |= 1u << (SEARCH_VICTIM + rank) | (unsigned)unready << (SEARCH_UNREADY + rank);
    return (uint16_t)fits;
}

static bool is_before(const struct block *block, const struct block *other, unsigned search)
{
    return search < SEARCHES_OLDEST ? block->number < other->number : block->number > other->number;
}

static struct block *next_in(const struct block *block, unsigned search)
{
    return search < SEARCHES_OLDEST ? block->younger : block->older;
}

static void set(struct searches *searches, struct block *block, uint16_t fits)
{
    unsigned changed = block->fits ^ fits;
    for (unsigned i = 0; i < SEARCHES; i++) {
        bool now = fits >> i & 1;
        if (changed >> i & 1)
            searches->bytes[i] += now ? block->size : -(uint64_t)block->size;
        if (now && (searches->first[i] == NULL || is_before(block, searches->first[i], i)))
            searches->first[i] = block;
    }
    block->fits = fits;
}

static struct searches *searches_of(const struct client *client)
{
    struct searches *searches = &all[client->index];
    if (searches->turn == client->turns)
        return searches;
    memset(searches, 0, sizeof *searches);
    searches->turn = client->turns;
    for (struct block *block = client->blocks; block != NULL; block = block->younger) {
        block->fits = 0;
        set(searches, block, satisfied(block));
    }
    return searches;
}

void search_note(struct block *block)
{
    set(searches_of(block->client), block, satisfied(block));
}

void search_leave(struct block *block)
{
    struct searches *searches = searches_of(block->client);
    set(searches, block, 0);
    for (unsigned i = 0; i < SEARCHES; i++)
        if (searches->first[i] == block)
            searches->first[i] = next_in(block, i);
}

struct block *search_first(const struct client *client, enum search search)
{
    struct searches *searches = searches_of(client);
    struct block **first = &searches->first[search];
    if (searches->bytes[search] == 0)
        return NULL;
    while (((*first)->fits >> search & 1) == 0)
        *first = next_in(*first, search);
    return *first;
}

uint64_t search_bytes(const struct client *client, enum search search)
{
    return searches_of(client)->bytes[search];
}

uint64_t search_dirty_bytes(const struct client *client)
{
    return all[client->index].bytes[SEARCH_DIRTY];
}

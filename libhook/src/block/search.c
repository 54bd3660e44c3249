/* SPDX-License-Identifier: Apache-2.0 */
/* A program may have tens of thousands of blocks, moved one by one while memory_lock is held:
 * linear scans would be too slow. Each client has an array of blocks by age, and a binary tree
 * over it. A leaf has a bit for each search that its block satisfies, an inner node the union of
 * its children. When no slot is left, free slots are removed or the array is doubled. At the
 * begin of a turn the conditions that depend on the turn change for all blocks, so all leaves
 * are recomputed before the next search. */
#include "block/search.h"

#include <stdlib.h>
#include <string.h>

#define SLOTS_FIRST 64

/* One for each client, by index. */
static struct searches {
    struct block **slots;            /* the client's blocks, oldest first; NULL: a free slot */
    uint16_t *tree;                  /* the root is 1, the children of n are 2n and 2n + 1 */
    size_t room;                     /* slots; a power of two, or 0 */
    size_t used, blocks;             /* slots up to the youngest block; blocks in them */
    uint64_t bytes[SEARCHES];        /* of all blocks that satisfy each search */
    uint64_t turn;                   /* client->turns for which the leaves are valid */
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
    if (block->state == BLOCK_SWAPPED && block->place.tier == &tier_host && block->store == NULL)
        fits |= 1u << SEARCH_STORABLE;
    bool copied = block->copy.tier != NULL;
    fits |= (unsigned)(block->state == BLOCK_SWAPPED && block->place.tier == &tier_peer && !copied
                       && !block->immovable) << SEARCH_DIRTY;
    fits |= (unsigned)copied << SEARCH_COPIED;
    if (block->state != BLOCK_RESIDENT)
        return (uint16_t)fits;
    fits |= (unsigned)(block->place.tier != NULL && block->place.tier != &tier_disk)
        << SEARCH_KEPT;
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

static void count(struct searches *searches, uint16_t fits, uint64_t bytes)
{
    for (unsigned i = 0; i < SEARCHES; i++)
        if (fits >> i & 1)
            searches->bytes[i] += bytes;
}

static void set(struct searches *searches, const struct block *block, uint16_t fits)
{
    size_t node = searches->room + block->slot;
    count(searches, searches->tree[node] & (uint16_t)~fits, -(uint64_t)block->size);
    count(searches, fits & (uint16_t)~searches->tree[node], block->size);
    block->client->dirty = searches->bytes[SEARCH_DIRTY];
    while (node > 0 && searches->tree[node] != fits) {
        searches->tree[node] = fits;
        fits |= searches->tree[node ^ 1];
        node /= 2;
    }
}

static void rebuild(struct searches *searches)
{
    memset(searches->tree, 0, 2 * searches->room * sizeof *searches->tree);
    memset(searches->bytes, 0, sizeof searches->bytes);
    for (size_t i = 0; i < searches->used; i++)
        if (searches->slots[i] != NULL)
            set(searches, searches->slots[i], satisfied(searches->slots[i]));
}

static struct searches *searches_of(const struct client *client)
{
    struct searches *searches = &all[client->index];
    if (searches->turn != client->turns && searches->room > 0)
        rebuild(searches);
    searches->turn = client->turns;
    return searches;
}

/* Makes a free slot after the youngest block. False: out of memory. */
static bool make_room(struct searches *searches)
{
    if (searches->used < searches->room)
        return true;
    if (searches->blocks > searches->room / 2 || searches->room == 0) {
        size_t room = searches->room == 0 ? SLOTS_FIRST : 2 * searches->room;
        struct block **slots = realloc(searches->slots, room * sizeof(struct block *));
        if (slots == NULL)
            return false;
        searches->slots = slots;
        uint16_t *tree = realloc(searches->tree, 2 * room * sizeof *tree);
        if (tree == NULL)
            return false;
        searches->tree = tree;
        searches->room = room;
    }
    size_t kept = 0;
    for (size_t i = 0; i < searches->used; i++)
        if (searches->slots[i] != NULL) {
            searches->slots[i]->slot = kept;
            searches->slots[kept++] = searches->slots[i];
        }
    searches->used = kept;
    rebuild(searches);
    return true;
}

bool search_enter(struct block *block)
{
    struct searches *searches = searches_of(block->client);
    if (!make_room(searches))
        return false;
    block->slot = searches->used++;
    searches->slots[block->slot] = block;
    searches->blocks++;
    set(searches, block, satisfied(block));
    return true;
}

void search_note(struct block *block)
{
    set(searches_of(block->client), block, satisfied(block));
}

void search_leave(struct block *block)
{
    struct searches *searches = searches_of(block->client);
    set(searches, block, 0);
    searches->slots[block->slot] = NULL;
    searches->blocks--;
}

/* `first`: the child of each node that is searched first: 0 for the oldest block, 1: youngest. */
static struct block *find(const struct client *client, enum search search, size_t first)
{
    const struct searches *searches = searches_of(client);
    size_t node = 1;
    if (searches->room == 0 || (searches->tree[node] >> search & 1) == 0)
        return NULL;
    while (node < searches->room) {
        node = 2 * node + first;
        if ((searches->tree[node] >> search & 1) == 0)
            node ^= 1;
    }
    return searches->slots[node - searches->room];
}

struct block *search_oldest(const struct client *client, enum search search)
{
    return find(client, search, 0);
}

struct block *search_youngest(const struct client *client, enum search search)
{
    return find(client, search, 1);
}

uint64_t search_bytes(const struct client *client, enum search search)
{
    return searches_of(client)->bytes[search];
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chooses which blocks leave when not all of them must. Those that cost least go first:
 *
 *   1. what held only zeros when it was last looked at: it crosses the bus neither way;
 *   2. what came back once as it had left, and what was presaved or brought in since the program ran
 *      (out.c): it needs no copy out;
 *   3. all the rest.
 *
 * Among equals the youngest go first, so always in the same order. When a little less than all must
 * go, the same old blocks stay each time, and so do the places that the others keep.
 *
 * A program that has taken most of the card ahead of its needs has many blocks of zeros, but
 * somebody must look to know which. So where the known ones do not suffice, blocks that were never
 * looked at are looked at once, fifty times faster than the bus.
 *
 * All of it is a guess about the order. Every block is looked at again when it leaves (out.c),
 * which decides what is copied.
 */
#include "block/victim.h"

#include "block/contents.h"
#include "block/search.h"
#include "gate/client.h"

struct block *victim_next(const struct client *client, unsigned *rank, bool unready)
{
    struct block *block = NULL;
    while (*rank < RANKS
           && (block = search_youngest(client, (unready ? SEARCH_UNREADY : SEARCH_VICTIM) + *rank)) == NULL)
        ++*rank;
    return block;
}

void victim_stays(struct block *block)
{
    block_set_state(block, BLOCK_RESIDENT);
    if (block->doomed)
        block_free(block);
    pthread_cond_broadcast(&memory_changed);
}

/* From here on they do not disappear, even if they are freed. */
static size_t take_unseen(struct client *client, struct block **blocks)
{
    struct block *block;
    size_t count = 0;
    while (count < WHOLES_MAX && (block = search_youngest(client, SEARCH_UNSEEN)) != NULL) {
        block_set_state(block, BLOCK_LEAVING);
        blocks[count++] = block;
    }
    return count;
}

void victims_survey(struct client *client, uint64_t wanted)
{
    struct block *blocks[WHOLES_MAX];
    size_t count;
    bool looked = true;
    if (wanted >= client->memory.resident)
        return;
    while (looked && !client->granted && search_bytes(client, SEARCH_LIGHT) < wanted
           && (count = take_unseen(client, blocks)) > 0) {
        pthread_mutex_unlock(&memory_lock);
        looked = content_look(client, blocks, count);
        pthread_mutex_lock(&memory_lock);
        for (size_t i = 0; i < count; i++) {
            if (looked)
                victim_seen(blocks[i]);
            victim_stays(blocks[i]);
        }
    }
}

void victim_seen(struct block *block)
{
    block->seen = true;
    block->light = block->look.whole && content_is_zero(&block->look.all);
}

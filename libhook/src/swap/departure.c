/* SPDX-License-Identifier: Apache-2.0 */
#include "swap/departure.h"

#include "block/block.h"
#include "block/host_threads.h"
#include "block/store.h"
#include "client/client.h"
#include "swap/victim.h"

struct departure departure(struct client *client, const struct nvshare_order *order, bool stays)
{
    return (struct departure){
        .client = client, .order = order, .stays = stays, .limit = COPIES_IN_FLIGHT,
    };
}

/* Takes victims until they fill `wanted` bytes, `most` at most: all of them such as can be
 * looked at, or none. From here on they do not disappear, even if they are freed. */
static size_t take(const struct departure *departure, unsigned *rank, struct block **blocks,
                   size_t most, uint64_t wanted)
{
    struct block *block;
    size_t count = 0;
    uint64_t bytes = 0;
    while (bytes < wanted && count < most
           && (block = victim_next(departure->client, rank, departure->stays)) != NULL
           && (count == 0 || block->store->looks == blocks[0]->store->looks)) {
        block_set_state(block, BLOCK_LEAVING);
        blocks[count++] = block;
        bytes += block->size;
    }
    return count;
}

/* Those that need a look: what has just been copied does not. */
static size_t unsaved(struct block *const *blocks, size_t count, struct block **found)
{
    size_t kept = 0;
    for (size_t i = 0; i < count; i++)
        if (blocks[i]->store->looks && !block_presaved(blocks[i]))
            found[kept++] = blocks[i];
    return kept;
}

/* However little is looked at, whoever runs loses the card for a part of a millisecond.
 * So where there is a look and no hurry, what would leave after these is looked at with
 * them, and the orders to come find it known. */
static void look(struct departure *departure, bool further)
{
    struct client *client = departure->client;
    struct block *blocks[LOOKS_MAX], *next[LOOKS_MAX];
    size_t count = unsaved(departure->blocks, departure->count, blocks), more = 0;
    unsigned rank = departure->rank;
    bool known = true;
    departure->looked = false;
    if (count == 0)
        return;
    for (size_t i = 0; i < count; i++)
        known = known && block_look_holds(blocks[i]);
    if (further && !known) {
        more = take(departure, &rank, next, LOOKS_MAX - departure->count, UINT64_MAX);
        count += unsaved(next, more, blocks + count);
    }
    pthread_mutex_unlock(&memory_lock);
    departure->looked = content_look(client, blocks, count);
    pthread_mutex_lock(&memory_lock);
    for (size_t i = 0; i < more; i++) {
        if (departure->looked && block_look_holds(next[i]))
            victim_seen(next[i]);
        victim_stays(next[i]);
    }
}

/* If somebody waits for them, a few at first, so that the copies begin, and then more while
 * these go on. */
static void gather(struct departure *departure, uint64_t wanted)
{
    bool hurry = !departure->stays && (departure->order->flags & NVSHARE_AHEAD) == 0
        && departure->limit == COPIES_IN_FLIGHT;
    departure->count = departure->taken = 0;
    if (!departure->client->granted && departure->client->stays == NVSHARE_STAYS_NOT)
        departure->count = take(departure, &departure->rank, departure->blocks, departure->limit,
                                wanted);
    departure->limit = departure->limit * 4 < WHOLES_MAX ? departure->limit * 4 : WHOLES_MAX;
    look(departure, !hurry);
}

struct block *departure_next(struct departure *departure, uint64_t wanted)
{
    if (departure->taken == departure->count)
        gather(departure, wanted);
    return departure->taken < departure->count ? departure->blocks[departure->taken++] : NULL;
}

enum verdict departure_judge(struct departure *departure, struct block *block)
{
    if (block_presaved(block))
        return UNCHANGED;
    if (!departure->looked)
        return CHANGED;
    victim_seen(block);
    const struct look *look = &block->look;
    if (look->whole && content_is_zero(&look->all))
        return EMPTY;
    return look->whole && block->known && content_equal(&look->all, &block->content) ? UNCHANGED
                                                                                      : CHANGED;
}

bool departure_copy(struct departure *departure, struct block *block)
{
    struct client *client = departure->client;
    const struct nvshare_order *order = departure->order;
    const struct look *look = &block->look;
    block->presaving = departure->stays;
    bool has_place = store_take(block, order->host);
    block->restless = block->known;
    block->known = false;            /* the place is about to be overwritten */
    block->right = 0;
    block->looked = departure->looked && look->whole;
    block->content = look->all;
    block->parted = departure->looked;
    block->part = look->part;
    if (!has_place)
        departure->flags |= NVSHARE_NO_MEMORY;
    if (!has_place || block->doomed) {
        block->presaving = false;
        victim_stays(block);
        return has_place;
    }
    enum start started = pipeline_start(client, &departure->line, block, &departure->progress,
                                        order);
    if (started != STARTED) {
        block->presaving = false;
        departure->progress.failed |= started == NOT_STARTED;
        departure->flags |= started == YIELDED ? NVSHARE_YIELDED : 0;
        victim_stays(block);
        return false;
    }
    if (departure->line.count == pipeline_depth(order))
        pipeline_complete(client, &departure->line);
    return true;
}

void departure_end(struct departure *departure)
{
    while (departure->taken < departure->count)
        victim_stays(departure->blocks[departure->taken++]);
    while (departure->line.count > 0)
        pipeline_complete(departure->client, &departure->line);
    pthread_mutex_unlock(&memory_lock);
    host_provided(departure->client);
    pthread_mutex_lock(&memory_lock);
    if (departure->progress.failed)
        departure->flags |= NVSHARE_DRIVER_ERROR;
}

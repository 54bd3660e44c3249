/* SPDX-License-Identifier: Apache-2.0 */
#include "departure.h"

#include <pthread.h>

#include "victim.h"

struct departure departure(struct client *client, const struct nvshare_record *order, bool stays)
{
    return (struct departure){
        .client = client, .order = order, .stays = stays, .limit = COPIES_IN_FLIGHT,
    };
}

/* What has just been copied needs no look. */
static void look(struct departure *departure)
{
    struct block *blocks[LOOKS_MAX];
    size_t count = 0;
    for (size_t i = 0; i < departure->count; i++)
        if (!block_saved(departure->blocks[i]))
            blocks[count++] = departure->blocks[i];
    departure->looked = false;
    if (count == 0 || blocks[0]->managed)
        return;
    pthread_mutex_unlock(&memory_lock);
    departure->looked = content_look(departure->client, blocks, count);
    pthread_mutex_lock(&memory_lock);
}

/* Managed memory, of which nothing is looked at, or other; a few, so that the copies
 * begin, and then more while these go on. */
static void gather(struct departure *departure, uint64_t wanted)
{
    struct client *client = departure->client;
    struct block *block;
    uint64_t bytes = 0;
    departure->count = departure->taken = 0;
    while (!client->granted && bytes < wanted && departure->count < departure->limit
           && (block = victim_next(client, &departure->rank, departure->stays)) != NULL
           && (departure->count == 0 || !block->managed == !departure->blocks[0]->managed)) {
        /* From here on it does not disappear, even if it is freed. */
        block_set_state(block, BLOCK_LEAVING);
        departure->blocks[departure->count++] = block;
        bytes += block->size;
    }
    departure->limit = departure->limit * 4 < LOOKS_MAX ? departure->limit * 4 : LOOKS_MAX;
    look(departure);
}

struct block *departure_next(struct departure *departure, uint64_t wanted)
{
    if (departure->taken == departure->count)
        gather(departure, wanted);
    return departure->taken < departure->count ? departure->blocks[departure->taken++] : NULL;
}

enum verdict departure_judge(struct departure *departure, struct block *block)
{
    if (block_saved(block))
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
    const struct nvshare_record *order = departure->order;
    const struct look *look = &block->look;
    /* One that left before has its place. What is only saved has time. */
    if (departure->provision.client == NULL && !departure->stays && !block->managed
        && block->slot.slab == NULL)
        host_provide(client, order->host, &departure->provision);
    block->saving = departure->stays;
    bool has_slot = host_take(client, block, order->host);
    block->restless = block->known;
    block->known = false;            /* the slot is about to be overwritten */
    block->right = 0;
    block->looked = departure->looked && look->whole;
    block->content = look->all;
    block->parted = departure->looked;
    block->part = look->part;
    if (!has_slot)
        departure->flags |= NVSHARE_NO_HOST_MEMORY;
    if (!has_slot || block->doomed) {
        block->saving = false;
        victim_stays(block);
        return has_slot;
    }
    enum start started = pipeline_start(client, &departure->line, block, &departure->progress,
                                        order);
    if (started != STARTED) {
        block->saving = false;
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
    host_provided(&departure->provision);
    pthread_mutex_lock(&memory_lock);
    if (departure->progress.failed)
        departure->flags |= NVSHARE_DRIVER_ERROR;
}

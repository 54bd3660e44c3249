/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moving blocks between card and host.
 *
 * Copies run on a stream of our own, a few blocks in flight, so that the bus
 * never waits for a map or an unmap: while one block is copied the one before
 * it is unmapped and released. A block counts as resident from the moment its
 * memory is created to the moment it is released; its bytes exist in full in
 * at least one of the two places at every moment:
 *
 *   leaving   mapped until the copy has been seen to end; then the host slot
 *             is the only copy;
 *   coming    the host slot is kept until the copy has been seen to end.
 *
 * This file has the way out, load.c the way in, pipeline.c the copies.
 *
 * Which blocks leave is victim.c's to say. Some need no copy. One that was never
 * brought in holds nothing. And those that are to leave are looked at first
 * (content.c), a few, so that the copies begin, and then more while these go on:
 * what is all zero just goes, and is cleared when it comes back; what is as it came
 * in goes too, as its slot is still right.
 *
 * What is moved ahead of time may have to leave the bus to a program that copies
 * (traffic.c). Then the daemon sends YIELD, which is looked for before each block and
 * each piece of one (pipeline.h), and the order ends there: what has not left stays.
 */
#include <pthread.h>

#include "content.h"
#include "log.h"
#include "pipeline.h"
#include "victim.h"

static uint64_t leaving(const struct pipeline *line)
{
    uint64_t bytes = 0;
    for (unsigned i = 0; i < line->count; i++)
        bytes += line->moves[(line->first + i) % COPIES_IN_FLIGHT].block->size;
    return bytes;
}

/* Blocks that are to leave and were looked at together. */
struct batch {
    struct block *blocks[LOOKS_MAX];
    bool looked;
    size_t limit, count, taken;
    unsigned rank;                   /* of the victims so far */
};

/* The next blocks that must go to leave no more than `room` filled: managed
 * memory, of which nothing is looked at, or other. Lock held, released meanwhile. */
static bool gather(struct client *client, const struct pipeline *line, uint64_t room,
                   struct batch *batch)
{
    uint64_t filled = client->memory.resident - leaving(line) + client->memory.pinned;
    struct block *block;
    batch->count = batch->taken = 0;
    while (!client->granted && filled > room && batch->count < batch->limit
           && (block = victim_next(client, &batch->rank)) != NULL
           && (batch->count == 0 || !block->managed == !batch->blocks[0]->managed)) {
        /* From here on it does not disappear, even if it is freed. */
        block_set_state(block, BLOCK_LEAVING);
        batch->blocks[batch->count++] = block;
        filled -= block->size;
    }
    batch->limit = batch->limit * 4 < LOOKS_MAX ? batch->limit * 4 : LOOKS_MAX;
    if (batch->count == 0)
        return false;
    batch->looked = false;
    if (batch->blocks[0]->managed)
        return true;
    pthread_mutex_unlock(&memory_lock);
    batch->looked = content_look(client, batch->blocks, batch->count);
    pthread_mutex_lock(&memory_lock);
    return true;
}

/* Leaves without a copy. */
static bool vanish(struct block *block, bool zero)
{
    if (block_unmap(block) != CUDA_SUCCESS) {
        victim_stays(block);
        return false;
    }
    if (zero)
        host_give(block);
    block->zero = zero;
    block->restless = false;
    block->parted = true;
    block->part = block->look.part;
    block_set_state(block, BLOCK_SWAPPED);
    pthread_cond_broadcast(&memory_changed);
    return true;
}

/* Sends one block on its way; `looked`: its look is of now. False: no more can go now.
 * Lock held, may be released meanwhile. */
static bool leave(struct client *client, struct pipeline *line, struct progress *progress,
                  struct block *block, bool looked, struct host_provision *provision,
                  const struct nvshare_record *order, unsigned *flags)
{
    if (block->doomed) {
        victim_stays(block);
        return true;
    }
    const struct look *look = &block->look;
    bool whole = looked && look->whole, zero = whole && content_is_zero(&look->all);
    if (looked)
        victim_seen(block);
    if (zero || (whole && block->known && content_equal(&look->all, &block->content))) {
        progress->failed |= !vanish(block, zero);
        return !progress->failed;
    }
    uint64_t host = order->host;
    /* One that left before has its place. */
    if (provision->client == NULL && !block->managed && block->slot.slab == NULL)
        host_provide(client, host, provision);
    bool has_slot = host_take(client, block, host);
    block->restless = block->known;
    block->known = false;            /* the slot is about to be overwritten */
    block->looked = whole;
    block->content = look->all;
    block->parted = looked;
    block->part = look->part;
    if (!has_slot)
        *flags |= NVSHARE_NO_HOST_MEMORY;
    if (!has_slot || block->doomed) {
        victim_stays(block);
        return has_slot;
    }
    enum start started = pipeline_start(client, line, block, progress, order);
    if (started != STARTED) {
        progress->failed |= started == NOT_STARTED;
        *flags |= started == YIELDED ? NVSHARE_YIELDED : 0;
        victim_stays(block);
        return false;
    }
    if (line->count == pipeline_depth(order))
        pipeline_complete(client, line);
    return true;
}

uint64_t swap_out(struct client *client, const struct nvshare_record *order, unsigned *flags)
{
    uint64_t room = order->bytes;
    struct pipeline line = { .count = 0 };
    struct progress progress = { .failed = false };
    struct batch batch = { .limit = COPIES_IN_FLIGHT };
    bool ready = swap_enter_context(client);
    pthread_mutex_lock(&memory_lock);
    struct nvshare_memory *memory = &client->memory;
    /* From here on the program's own allocations keep to the new room. */
    uint64_t before = memory->room;
    memory->room = room;
    struct host_provision provision = { .count = 0 };
    uint64_t occupied = memory->resident + memory->pinned;
    if (ready && occupied > room)
        victims_survey(client, occupied - room);
    bool more = ready;
    while (more && (batch.taken < batch.count || gather(client, &line, room, &batch))) {
        if (service_yields(client, order)) {
            *flags |= NVSHARE_YIELDED;
            break;
        }
        size_t next = batch.taken++;
        more = leave(client, &line, &progress, batch.blocks[next],
                     batch.looked, &provision, order, flags);
    }
    while (batch.taken < batch.count)
        victim_stays(batch.blocks[batch.taken++]);
    while (line.count > 0)
        pipeline_complete(client, &line);
    pthread_mutex_unlock(&memory_lock);
    host_provided(&provision);
    pthread_mutex_lock(&memory_lock);
    /* What could not leave still fills its room. */
    uint64_t filled = memory->resident + memory->pinned + (client->granted ? memory->pending : 0);
    if (filled > before)
        filled = before;             /* a wish is no room: nobody gave it any */
    if (memory->room < filled)
        memory->room = filled;
    if (progress.failed || !ready)
        *flags |= NVSHARE_DRIVER_ERROR;
    pthread_mutex_unlock(&memory_lock);
    return progress.bytes;
}

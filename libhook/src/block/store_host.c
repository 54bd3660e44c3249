/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store of what the program gets from cuMemAlloc. It is mapped on the card, and copied to
 * slabs of host memory. A block on the card keeps its place until somebody needs that: if it
 * has not changed when it leaves, it is not copied again.
 */

#include "block/block.h"
#include "block/host_slabs.h"
#include "block/host_threads.h"
#include "block/mapped.h"
#include "block/search.h"
#include "block/store.h"
#include "client/client.h"
#include "interpose/real.h"

static bool take(struct block *block, uint64_t allowance)
{
    struct client *client = block->client;
    host_provide(client, block->size, allowance);
    if (host_place(block))
        return true;
    while (client->providers > 0) {
        pthread_cond_wait(&memory_changed, &memory_lock);
        if (host_place(block))
            return true;
    }
    if (host_grow(client, block->size, allowance) && host_place(block))
        return true;
    /* The oldest leave last, so they miss the places they keep the least. */
    for (struct block *kept = search_oldest(client, SEARCH_KEPT); kept != NULL;
         kept = kept->younger) {
        if (kept->state != BLOCK_RESIDENT || !kept->stored || !kept->store->slabs
            || (block->presaving && block_presaved(kept)))
            continue;                /* nothing is won by saving one instead of another */
        store_give(kept);
        if (host_place(block))
            return true;
    }
    while (client->early_providers > 0) {
        pthread_cond_wait(&memory_changed, &memory_lock);
        if (host_place(block))
            return true;
    }
    return false;
}

static CUresult out(struct block *block, size_t offset, size_t size, CUstream stream)
{
    bool waits = !host_slab_registered(block->place.host.slab);
    if (waits)
        pthread_mutex_unlock(&memory_lock);
    CUresult result = REAL(cuMemcpyDtoHAsync_v2)(block->place.host.address + offset,
                                                 block->address + offset, size, stream);
    if (waits)
        pthread_mutex_lock(&memory_lock);
    return result;
}

static CUresult in(struct block *block, size_t offset, size_t size, CUstream stream)
{
    bool waits = !host_slab_registered(block->place.host.slab);
    if (waits)
        pthread_mutex_unlock(&memory_lock);
    CUresult result = REAL(cuMemcpyHtoDAsync_v2)(block->address + offset,
                                                 block->place.host.address + offset, size, stream);
    if (waits)
        pthread_mutex_lock(&memory_lock);
    return result;
}

static CUresult settle(struct block *block, CUresult result)
{
    (void)block;
    return result;
}

const struct store store_host = {
    .map = mapped_map, .unmap = mapped_unmap, .open = mapped_open,
    .take = take, .give = host_unplace, .out = out, .in = in, .settle = settle,
    .looks = true, .pieces = true, .keeps = true, .slabs = true,
};

/* SPDX-License-Identifier: Apache-2.0 */
#include "block/block.h"

#include <stdlib.h>

#include "block/region.h"
#include "block/search.h"

static bool usable(enum block_state state)
{
    return state == BLOCK_RESIDENT || state == BLOCK_SHARED;
}

static bool lacking(enum block_state state)
{
    return !usable(state) && state != BLOCK_LOST;
}

void block_set_state(struct block *block, enum block_state state)
{
    if (lacking(block->state))
        block->client->absent -= block->size;
    if (lacking(state))
        block->client->absent += block->size;
    block->state = state;
    search_note(block);
}

bool block_presaved(const struct block *block)
{
    return block->right == block->client->turns;
}

bool block_look_holds(const struct block *block)
{
    return block->look.turn == block->client->turns;
}

bool block_ready(const struct block *block)
{
    return block_presaved(block) || (block_look_holds(block) && block->light);
}

void block_note_presaved(struct block *block)
{
    block->right = block->client->granted ? 0 : block->client->turns;
    search_note(block);
}

void block_hold(struct block *block, bool held)
{
    block->immovable = held;
    search_note(block);
}

static void count_allocated(struct block *block, bool counts)
{
    uint64_t bytes = counts ? block->size : -(uint64_t)block->size;
    block->client->memory.allocated += bytes;
    if (block->store->slabs)
        block->client->slab_use += bytes;
}

struct block *block_new(struct client *client, const struct store *store, CUdeviceptr address,
                        size_t size)
{
    struct block *block = malloc(sizeof *block);
    if (block == NULL)
        return NULL;
    *block = (struct block){
        .address = address,
        .size = size,
        .client = client,
        .store = store,
        .state = BLOCK_EMPTY,
        .older = client->youngest,
    };
    if (!search_enter(block)) {
        free(block);
        return NULL;
    }
    if (client->youngest != NULL)
        client->youngest->younger = block;
    else
        client->blocks = block;
    client->youngest = block;
    count_allocated(block, true);
    client->absent += size;
    return block;
}

CUresult block_map(struct block *block)
{
    CUresult result = block->store->map(block);
    if (result == CUDA_SUCCESS)
        block->client->memory.resident += block->size;
    return result;
}

CUresult block_unmap(struct block *block)
{
    CUresult result = block->store->unmap(block);
    if (result != CUDA_SUCCESS)
        return result;
    if (block->state == BLOCK_SHARED)
        block->client->memory.pinned -= block->size;
    else
        block->client->memory.resident -= block->size;
    return CUDA_SUCCESS;
}

void block_lose(struct block *block)
{
    if (block->state == BLOCK_LOST || block->state == BLOCK_SHARED
        || block->state == BLOCK_LEAVING || block->state == BLOCK_COMING
        || (block->state == BLOCK_RESIDENT && block_unmap(block) != CUDA_SUCCESS))
        return;
    store_give(block);
    block_set_state(block, BLOCK_LOST);
    count_allocated(block, false);
}

void block_share(struct block *block)
{
    store_give(block);
    block_set_state(block, BLOCK_SHARED);
    count_allocated(block, false);
    block->client->memory.pinned += block->size;
}

void block_free(struct block *block)
{
    struct client *client = block->client;
    if (block->state == BLOCK_LEAVING || block->state == BLOCK_COMING) {
        block->doomed = true;
        return;
    }
    /* What the driver does not unmap stays where it is: the address may not
     * be handed out again. */
    bool gone = !usable(block->state) || block_unmap(block) == CUDA_SUCCESS;
    if (gone && region_contains(block->address))
        region_give(block->address, block->size);
    store_give(block);
    if (lacking(block->state))
        client->absent -= block->size;
    if (block->state != BLOCK_SHARED && block->state != BLOCK_LOST)
        count_allocated(block, false);
    search_leave(block);
    if (block->older != NULL)
        block->older->younger = block->younger;
    else
        client->blocks = block->younger;
    if (block->younger != NULL)
        block->younger->older = block->older;
    else
        client->youngest = block->older;
    free(block);
}

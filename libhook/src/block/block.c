/* SPDX-License-Identifier: Apache-2.0 */
#include "block/block.h"

#include <stdlib.h>

#include "block/region.h"
#include "block/search.h"
#include "driver/log.h"
#include "driver/ops.h"
#include "flight/drain.h"
#include "gate/client.h"
#include "gate/contexts.h"
#include "tier/tier.h"

static bool is_resident(enum block_state state)
{
    return state == BLOCK_RESIDENT || state == BLOCK_SHARED;
}

static bool is_absent(enum block_state state)
{
    return !is_resident(state) && state != BLOCK_LOST;
}

void block_set_state(struct block *block, enum block_state state)
{
    if (is_absent(block->state))
        block->client->absent -= block->size;
    if (is_absent(state))
        block->client->absent += block->size;
    block->state = state;
    search_note(block);
}

void block_note_clean(struct block *block)
{
    block->clean_as_of_turn = block->client->running ? 0 : block->client->turns;
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
    if (!block->managed)
        tiers_count_blocks(block->client, block->size, counts);
}

struct block *block_new(struct client *client, bool managed, CUdeviceptr address, size_t size)
{
    static uint64_t made;
    struct block *block = malloc(sizeof *block);
    if (block == NULL)
        return NULL;
    *block = (struct block){
        .address = address,
        .size = size,
        .client = client,
        .managed = managed,
        .state = BLOCK_EMPTY,
        .older = client->youngest,
        .number = ++made,
    };
    if (client->youngest != NULL)
        client->youngest->younger = block;
    else
        client->blocks = block;
    client->youngest = block;
    search_note(block);
    count_allocated(block, true);
    client->absent += size;
    return block;
}

/* Takes a place in a tier preferred to that of block->place, or keeps block->place. False: none. */
static bool take_place(struct block *block, uint64_t allowance, bool patient)
{
    struct place place = block->place;
    EACH_TIER(tier) {
        if (tier == block->place.tier)
            return true;
        if (tier->take != NULL && tier->managed == block->managed
            && tier_take(block->client, tier, block->size, allowance, patient, &place)) {
            block_give_place(block);
            block->place = place;
            return true;
        }
    }
    return false;
}

/* The oldest resident block that could give up its place: the oldest is evicted last. The result is
 * invalid after take_place(), which may release the lock. */
static struct block *find_kept_place(const struct block *block)
{
    /* A writeback takes no place from a clean block: the number of clean blocks would not grow. */
    for (struct block *kept = search_first(block->client, SEARCH_KEPT); kept != NULL;
         kept = kept->younger)
        if (kept->state == BLOCK_RESIDENT && kept->place.tier != NULL
            && kept->place.tier->cost != COSTS_NOTHING && !(block->writing_back && block_is_clean(kept)))
            return kept;
    return NULL;
}

bool block_take_place(struct block *block, uint64_t allowance)
{
    if (block->place.tier != NULL && block->place.tier->take == NULL)
        block_give_place(block);     /* it has old bytes, and only store.c writes to such a tier */
    if (take_place(block, allowance, false))
        return true;
    if (client_must_yield(block->client))
        return false;
    struct block *copied;
    while ((copied = search_first(block->client, SEARCH_COPIED)) != NULL) {
        block_give_copy(copied);
        if (take_place(block, allowance, false))
            return true;
    }
    struct block *kept;
    while ((kept = find_kept_place(block)) != NULL) {
        block_give_place(kept);
        if (take_place(block, allowance, false))
            return true;
    }
    return take_place(block, allowance, true);
}

/* Separates the block from its write in flight, which still reads the place and then frees it. */
static void pass_place_to_write(struct block *block)
{
    block->write->place = block->place;
    block->write->block = NULL;
    block->write->cancelled = true;
    block->write = NULL;
    block->place.tier = NULL;
}

static void give(struct block *block, struct place *place)
{
    tier_give(block->client, block->size, place);
    search_note(block);
}

void block_give_copy(struct block *block)
{
    give(block, &block->copy);
}

void block_give_place(struct block *block)
{
    if (block->place.tier == NULL)
        return;
    if (block->write != NULL)
        pass_place_to_write(block);
    give(block, &block->copy);
    block->known = false;
    block->clean_as_of_turn = 0;
    give(block, &block->place);
}

void block_return_place(struct block *block)
{
    if (block->copy.tier == NULL) {
        block_give_place(block);
        return;
    }
    give(block, &block->place);
    block->place = block->copy;
    block->copy.tier = NULL;
    search_note(block);
}

void blocks_give_places(struct client *client, uint64_t allowance)
{
    tiers_trim(client, allowance);   /* releases memory that is already unused */
    if (client->memory.host <= allowance)
        return;
    struct block *block;
    while ((block = search_first(client, SEARCH_COPIED)) != NULL)
        block_give_copy(block);
    tiers_trim(client, allowance);
    while (client->memory.host > allowance
           && (block = search_first(client, SEARCH_KEPT)) != NULL)
        block_give_place(block);
    tiers_trim(client, allowance);
}

unsigned block_reader_counts[CLIENTS_MAX][CLIENTS_MAX];

size_t block_readers(const struct client *client, CUmemAccessDesc *access)
{
    size_t count = 0;
    for (int device = 0; device < CLIENTS_MAX; device++)
        if (device == client->device || block_reader_counts[client->device][device] > 0)
            access[count++] = (CUmemAccessDesc){
                .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device },
                .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            };
    return count;
}

static CUresult map(struct block *block)
{
    const CUmemAllocationProp property = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = block->client->device },
    };
    struct page_owner *owner = region_owner(block->address);
    CUmemAccessDesc access[CLIENTS_MAX];
    size_t readers = block_readers(block->client, access);
    bool special = owner != NULL && owner->properties != NULL;
    CUresult result = REAL(cuMemCreate)(&block->handle, block->size,
                                        special ? owner->properties : &property, 0);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuMemMap)(block->address, block->size, 0, block->handle, 0);
    if (result == CUDA_SUCCESS) {
        result = REAL(cuMemSetAccess)(block->address, block->size, access, readers);
        if (result == CUDA_SUCCESS && owner != NULL && owner->mappings != NULL)
            result = owner->mappings->map(owner, block);
        if (result != CUDA_SUCCESS)
            REAL(cuMemUnmap)(block->address, block->size);
    }
    if (result != CUDA_SUCCESS)
        REAL(cuMemRelease)(block->handle);
    return result;
}

static CUresult unmap(struct block *block)
{
    struct page_owner *owner = region_owner(block->address);
    CUresult result = owner == NULL || owner->mappings == NULL
        ? CUDA_SUCCESS : owner->mappings->unmap(owner, block);
    /* Releases the handle first, so that cuMemUnmap frees the memory: on an H200 this takes 48 us
     * for 64 MiB, in the other order 79 us. */
    if (result == CUDA_SUCCESS && block->handle != 0)
        result = REAL(cuMemRelease)(block->handle);
    if (result == CUDA_SUCCESS) {
        block->handle = 0;
        result = REAL(cuMemUnmap)(block->address, block->size);
    }
    if (result != CUDA_SUCCESS)
        debug("unmapping %zu bytes at %#llx failed: error %d", block->size,
              (unsigned long long)block->address, (int)result);
    return result;
}

CUresult block_map(struct block *block)
{
    CUresult result = block->managed ? CUDA_SUCCESS : map(block);
    if (result == CUDA_SUCCESS)
        block->client->memory.resident += block->size;
    return result;
}

CUresult block_unmap(struct block *block)
{
    CUresult result = block->managed ? CUDA_SUCCESS : unmap(block);
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
    if (block->state == BLOCK_LOST || block->state == BLOCK_SHARED || block_is_moving(block)
        || (block->state == BLOCK_RESIDENT && block_unmap(block) != CUDA_SUCCESS))
        return;
    block_give_place(block);
    block_set_state(block, BLOCK_LOST);
    count_allocated(block, false);
}

void block_share(struct block *block)
{
    block_give_place(block);
    block_set_state(block, BLOCK_SHARED);
    count_allocated(block, false);
    block->client->memory.pinned += block->size;
}

void block_free(struct block *block)
{
    struct client *client = block->client;
    if (block_is_moving(block)) {
        block->doomed = true;
        return;
    }
    /* If the driver cannot unmap the memory, its addresses are never given back for reuse. */
    bool gone = !is_resident(block->state) || block_unmap(block) == CUDA_SUCCESS;
    if (gone && region_contains(block->address))
        region_give(block->address, block->size);
    block_give_place(block);
    if (is_absent(block->state))
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

/* After an illegal access, an ECC error or the loss of the card, every call of the process
 * fails, in all its contexts, and memory can be neither read nor moved; but the process may live
 * for days, as a notebook does. Its resident memory would block other clients, and its swapped
 * memory would keep the process at the gate for ever. When a move fails and all contexts have
 * failed, all memory is therefore unmapped, which the driver still does, and no longer counted: the
 * client gets turns, and the program gets the driver's error. Lost memory is never mapped again, so
 * no byte can become wrong. */

/* An error of a context, if all of the device's contexts have failed; else CUDA_SUCCESS. */
static CUresult error_of_all(const struct client *client)
{
    CUresult error = CUDA_SUCCESS;
    CUcontext context;
    for (unsigned i = 0; (context = contexts_of(client->device, i)) != NULL; i++)
        if ((error = context_error(context)) == CUDA_SUCCESS)
            return CUDA_SUCCESS;
    return error;
}

void release_if_context_failed(struct client *client)
{
    CUresult error = error_of_all(client);
    if (error == CUDA_SUCCESS)
        return;
    debug("this program's GPU context has failed for good (error %d): its memory is given up",
          (int)error);
    reclaim(client, RECLAIM_ALL, 0);
    for (struct block *block = client->blocks; block != NULL; block = block->younger)
        block_lose(block);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Invariants of the hook whenever it carries out no order: its figures equal the sums over its
 * blocks; it uses no more of the GPU than it reports; the gate is closed unless the client has a
 * turn and all its memory is resident.
 */
#include "block/block.h"
#include "gate/client.h"
#include "gate/gate.h"
#include "fuzz.h"
#include "driver/real.h"

static size_t before;                /* bytes of the GPU in use before the program allocated */

static size_t in_use(void)
{
    CUcontext context;
    MUST(REAL(cuDevicePrimaryCtxRetain)(&context, 0) == CUDA_SUCCESS
         && REAL(cuCtxSetCurrent)(context) == CUDA_SUCCESS, "no context");
    size_t used = card_in_use();
    succeed(REAL(cuDevicePrimaryCtxRelease_v2)(0), "releasing the context");
    return used;
}

void state_begin(void)
{
    before = in_use();
}

static void check_tiers(const struct client *client)
{
    uint64_t useful = 0;
    for (const struct block *block = client->blocks; block != NULL; block = block->younger)
        useful += !block->managed && block->state != BLOCK_LOST ? block->size : 0;
    EACH_TIER(tier) {
        uint64_t bytes = 0, counted = tier_use(client, tier)->bytes;
        for (const struct block *block = client->blocks; block != NULL; block = block->younger)
            bytes += (block->place.tier == tier ? block->size : 0)
                + (block->copy.tier == tier ? block->size : 0);
        MUST(bytes == counted, "blocks of %llu bytes in a tier in which %llu are counted",
             (unsigned long long)bytes, (unsigned long long)counted);
        if (tier->cost != COSTS_MEMORY)
            useful += tier->cost == COSTS_PLACES ? bytes : -bytes;
    }
    MUST(useful == tiers_useful(client), "%llu bytes of host memory are of use, %llu are counted",
         (unsigned long long)useful, (unsigned long long)tiers_useful(client));
}

static void check(struct client *client)
{
    const struct nvshare_memory *memory = &client->memory;
    uint64_t resident = 0, absent = 0, kept = 0, all = 0;
    for (const struct block *block = client->blocks; block != NULL; block = block->younger) {
        bool lost = block->state == BLOCK_LOST;
        all += lost ? 0 : block->size;
        resident += block->state == BLOCK_RESIDENT ? block->size : 0;
        absent += block->state == BLOCK_EMPTY || block->state == BLOCK_SWAPPED ? block->size : 0;
        kept += block->place.tier != NULL ? block->size : 0;
        MUST(!block->writing_back && (!block_is_clean(block) || block->place.tier != NULL),
             "a block is said to be on the host, and is not");
        MUST(block->state != BLOCK_EVICTING && block->state != BLOCK_LOADING
             && block->state != BLOCK_COPYING && !block->doomed,
             "a block is on the move without an order");
        MUST(block->state != BLOCK_SWAPPED || block->place.tier != NULL,
             "a block is neither here nor there");
    }
    MUST(resident == memory->resident && absent == client->absent && all == memory->allocated,
         "blocks of %llu bytes, %llu on the card, %llu not; counted are %llu, %llu, %llu",
         (unsigned long long)all, (unsigned long long)resident, (unsigned long long)absent,
         (unsigned long long)memory->allocated, (unsigned long long)memory->resident,
         (unsigned long long)client->absent);
    check_tiers(client);
    MUST(kept <= memory->host, "%llu bytes in host memory, of which %llu are there",
         (unsigned long long)kept, (unsigned long long)memory->host);

    uint64_t closed = gate_closed;
    MUST(((closed & GATE_STOPPED(client)) == 0) == client->running,
         "the gate is %#llx, running is %d", (unsigned long long)closed, client->running);
    MUST(((closed & GATE_STARVED(client)) == 0) == !client->starved,
         "the gate is %#llx, starved is %d", (unsigned long long)closed, client->starved);
    MUST(client->starved || (absent == 0
         && resident + memory->pinned + memory->pending <= memory->room),
         "the gate is open with %llu bytes absent and %llu of %llu bytes of room filled",
         (unsigned long long)absent, (unsigned long long)(resident + memory->pinned),
         (unsigned long long)memory->room);
}

void state_check(void)
{
    pthread_mutex_lock(&service_lock);
    pthread_mutex_lock(&memory_lock);
    struct client *client = clients[0];
    check(client);
    uint64_t said = client->memory.resident + client->memory.pinned + client->memory.pending;
    size_t used = in_use();
    MUST(used <= before + said, "%zu bytes of the card are in use, of which it says %llu",
         used - before, (unsigned long long)said);
    pthread_mutex_unlock(&memory_lock);
    pthread_mutex_unlock(&service_lock);
}

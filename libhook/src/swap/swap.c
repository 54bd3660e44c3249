/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Carries out an EVICT: moves blocks from the card to the host. load.c has the way in, departure.c
 * and pipeline.c have the copies.
 *
 * Copies run on a stream of our own, a few blocks in flight, so that the bus never waits for a map
 * or an unmap: while one block is copied, the one before it is unmapped and released. A block
 * counts as resident from the creation of its memory to its release. Its bytes exist in full in at
 * least one of the two places at every moment:
 *
 *   leaving   mapped until the copy has been seen to end; then its place has the only copy;
 *   coming    the place is kept until the copy has been seen to end.
 *
 * victim.c says which blocks leave. Some need no copy: one that was never brought in holds nothing.
 * The others are looked at first (content.c). One that is all zero just goes, and is cleared when
 * it comes back. One that is as it came in just goes too, as its place still has it. One that was
 * presaved or brought in since the program ran (presave.c) goes without a look.
 *
 * A move ahead of time may have to leave the bus to a program that copies (bus_sharing.c). Then the
 * daemon sends YIELD. We look for it before each block and each piece of one (pipeline.h), and the
 * order ends there: what has not left stays.
 */
#include "swap/swap.h"

#include "block/block.h"
#include "block/host_threads.h"
#include "block/store.h"
#include "client/client.h"
#include "swap/context_failed.h"
#include "swap/departure.h"
#include "swap/pipeline.h"
#include "swap/victim.h"
#include "swap/yield.h"

static uint64_t leaving(const struct pipeline *line)
{
    uint64_t bytes = 0;
    for (unsigned i = 0; i < line->count; i++)
        if (line->moves[(line->first + i) % COPIES_IN_FLIGHT].last)
            bytes += line->moves[(line->first + i) % COPIES_IN_FLIGHT].block->size;
    return bytes;
}

/* Bytes that must go still to leave no more than the order's room filled. */
static uint64_t surplus(const struct departure *departure)
{
    const struct nvshare_memory *memory = &departure->client->memory;
    uint64_t filled = memory->resident - leaving(&departure->line) + memory->pinned;
    return filled > departure->order->room ? filled - departure->order->room : 0;
}

/* Leaves without a copy. */
static bool vanish(struct block *block)
{
    if (block_unmap(block) != CUDA_SUCCESS) {
        victim_stays(block);
        return false;
    }
    block_set_state(block, BLOCK_SWAPPED);
    pthread_cond_broadcast(&memory_changed);
    return true;
}

/* The same, after a look. */
static bool vanish_seen(struct block *block, bool zero)
{
    if (!vanish(block))
        return false;
    if (zero)
        store_give(block);
    block->zero = zero;
    block->restless = false;
    block->parted = true;
    block->part = block->look.part;
    return true;
}

/* Sends one block on its way. False: no more can go now. Lock held, may be released
 * meanwhile. */
static bool leave(struct departure *departure, struct block *block)
{
    if (block->doomed || departure->client->stays != NVSHARE_STAYS_NOT) {
        victim_stays(block);
        return true;
    }
    bool saved = block_presaved(block), gone;
    enum verdict verdict = departure_judge(departure, block);
    if (verdict == CHANGED)
        return departure_copy(departure, block);
    gone = saved ? vanish(block) : vanish_seen(block, verdict == EMPTY);
    departure->progress.failed |= !gone;
    return gone;
}

uint64_t swap_out(struct client *client, const struct nvshare_order *order, unsigned *flags)
{
    uint64_t room = order->room, held_since = 0;
    struct departure departing = departure(client, order, false);
    bool ready = swap_enter_context(client);
    LOCKED(memory_lock);
    bool more = ready && client->stays == NVSHARE_STAYS_NOT;
    struct nvshare_memory *memory = &client->memory;
    /* From here on the program's own allocations keep to the new room. */
    uint64_t before = memory->room;
    memory->room = room;
    departing.progress.failed = !ready;
    uint64_t occupied = memory->resident + memory->pinned;
    if (more && occupied > room) {
        host_expect(client, occupied - room);
        victims_survey(client, occupied - room);
    }
    struct block *block;
    while (more && !departing.progress.failed
           && (block = departure_next(&departing, surplus(&departing))) != NULL) {
        if (order_yields(client, order)) {
            departing.flags |= NVSHARE_YIELDED;
            victim_stays(block);
            break;
        }
        more = leave(&departing, block);
        memory_lock_yields(&held_since);
    }
    departure_end(&departing);
    if ((departing.flags & (NVSHARE_DRIVER_ERROR | NVSHARE_NO_MEMORY)) != 0)
        release_if_context_failed(client);
    /* What could not leave still fills its room. */
    uint64_t filled = memory->resident + memory->pinned + (client->granted ? memory->pending : 0);
    if (filled > before)
        filled = before;             /* a wish is no room: nobody gave it any */
    if (memory->room < filled)
        memory->room = filled;
    *flags = departing.flags;
    return departing.progress.bytes;
}

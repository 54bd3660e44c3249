/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Presaving: copies blocks of an idle program to the host and leaves them on the card. If
 * somebody needs the room, they leave as fast as memory can be unmapped; if the program runs
 * again first, nothing is lost but the copy.
 *
 * The daemon orders it while the program is idle and so is the bus
 * (nvshared/scheduler/presave.py).
 *
 * A copy is right until the program runs. A block notes the turn before which its place was made
 * equal to it (block_presaved()), and so does a block that was loaded. The next turn ends that,
 * whatever the program does in it. The blocks need no look: while the gate is shut and all has
 * drained, nobody writes.
 *
 * Such an order is cut short by YIELD, like all that is done ahead of time, so a program that
 * wants to run again does not wait for it: hardly a millisecond, or, the first time, until one
 * slab of host memory is made. For that reason host memory is made slab by slab here and not by
 * several threads.
 */
#include "swap/presave.h"

#include "block/search.h"
#include "client/client.h"
#include "swap/departure.h"
#include "swap/pipeline.h"
#include "swap/victim.h"
#include "swap/yield.h"

/* False: no more can be saved now. */
static bool save(struct departure *departure, struct block *block)
{
    if (!block->doomed) {
        switch (departure_judge(departure, block)) {
        case CHANGED:
            return departure_copy(departure, block);
        case UNCHANGED:
            block->restless = false;
            block_note_presaved(block);
            break;
        case EMPTY:
            break;
        }
    }
    victim_stays(block);
    return true;
}

uint64_t swap_presave(struct client *client, const struct nvshare_order *order, unsigned *flags)
{
    struct departure departing = departure(client, order, true);
    bool more = swap_enter_context(client);
    LOCKED(memory_lock);
    departing.progress.failed = !more;
    more = more && !client->granted;
    if (more)
        victims_survey(client, order->presaved);
    uint64_t ready = search_bytes(client, SEARCH_READY), held_since = 0;
    while (more && ready < order->presaved) {
        struct block *block = departure_next(&departing, order->presaved - ready);
        if (block == NULL)
            break;
        ready += block->size;
        bool yields = order_yields(client, order);
        if (yields) {
            departing.flags |= NVSHARE_YIELDED;
            victim_stays(block);
        }
        more = !yields && save(&departing, block) && !departing.progress.failed;
        memory_lock_yields(&held_since);
    }
    departure_end(&departing);
    ready = search_bytes(client, SEARCH_READY);
    *flags = departing.flags;
    return ready;
}

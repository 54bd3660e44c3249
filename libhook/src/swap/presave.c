/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saving: blocks are copied to the host and stay on the card.
 *
 * A notebook lies idle for minutes between two cells, and the bus with it. When
 * somebody comes who needs its room, all of it has to cross the bus first; and the
 * first time, host memory has to be made, which is slower still. So while a program
 * is idle and the card nearly full, the daemon has it copy what would leave first.
 * If it runs again before anybody came, nothing is lost but the copy; if somebody
 * comes, it leaves as fast as memory can be unmapped.
 *
 * What was saved is right as long as the program has not run, and no longer: a block
 * notes the turn before which its place was made equal to it (block_presaved()), and so
 * does what was brought in. A turn ends that at once, whatever the program then does.
 * No look is needed, for while the gate is shut and all has drained nobody writes.
 *
 * An order of this kind is cut short by YIELD like all that is done ahead of time, so
 * that a program which wants to run again does not wait for it: hardly a millisecond, or
 * until one slab is there, the first time, when host memory is made. For the same reason
 * that is done slab by slab as it goes, and not with several threads.
 */
#include "swap/presave.h"

#include <pthread.h>

#include "block/block.h"
#include "client/client.h"
#include "swap/departure.h"
#include "swap/pipeline.h"
#include "swap/victim.h"
#include "swap/yield.h"

static uint64_t ready_bytes(const struct client *client)
{
    uint64_t bytes = 0;
    for (const struct block *block = client->blocks; block != NULL; block = block->younger)
        if (block->state == BLOCK_RESIDENT && !block->immovable && victim_is_ready(block))
            bytes += block->size;
    return bytes;
}

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
    pthread_mutex_lock(&memory_lock);
    departing.progress.failed = !more;
    more = more && !client->granted;
    if (more)
        victims_survey(client, order->presaved);
    uint64_t ready = ready_bytes(client);
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
    }
    departure_end(&departing);
    ready = ready_bytes(client);
    pthread_mutex_unlock(&memory_lock);
    *flags = departing.flags;
    return ready;
}

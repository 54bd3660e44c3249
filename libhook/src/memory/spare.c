/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps memory that the program has freed for a moment, and uses it again. The program then does
 * not pay for making and unmaking the same mappings.
 *
 * Each block costs three calls of the driver when it is made and two when it goes. On an H200 these
 * take 52 and 76 us for 64 MiB, where a program's own cuMemAlloc and cuMemFree take 56 and 67.
 * While another program leaves the card, each mapping also waits about a millisecond for the page
 * tables. We cannot make these calls cheaper. But many programs allocate and free the same sizes
 * again and again: the temporary storage of Thrust and CUB, loops that allocate what they need in
 * each round.
 *
 * So freed memory becomes a spare. It keeps its address and its memory, and the next allocation of
 * as many pages in the same context gets both. Spares serve only plain allocations of more than 1
 * MiB. Small allocations have slabs (slab.c), stream-ordered ones have pools (pool.c).
 *
 * To the program a spare is freed. Its address means nothing (`freeing` stays set), and
 * cuMemGetInfo reports it as free. Nothing is refused or waits because of spares: when the commit,
 * the room or the card would not suffice for something, spares go first (client_commit(),
 * allocation_fill(), client_update()).
 *
 * To the daemon a spare is memory that the program has not freed yet, and it does lie on the card.
 * So the daemon's figures stay true, and it need not know of spares. They exist only while the
 * client runs, is connected, lacks nothing, is within its limit together with them, and nobody
 * waits for the card. When one of these ends, all spares go before anything of them is looked at,
 * copied or answered for. So all blocks of a spare are on the card, and none ever moves.
 *
 * Limits on spares:
 *
 *   - Age: a spare goes a second after it was freed (NVSHARE_KEEP_FREED_MS sets that), because
 *     programs that fit together never wait for each other.
 *   - Amount: an eighth of the card, and MOST in number. Whoever releases them waits for all.
 *   - Full cards: a program that fills the card but for a sixteenth has none, because the driver
 *     takes memory without our knowing, for modules and kernels' stacks.
 *   - Commit: the daemon counts spares as committed and may refuse others for that. So no spare
 *     stays that is more than half of what could still be committed.
 *
 * When a spare is made, its blocks give up their places and what is known of their content, as when
 * memory is freed.
 *
 * The service thread looks at the age of spares. The first spare after it had none to look at wakes
 * it. A program that frees and allocates in turn wakes it no more than once a second.
 *
 * A kernel or copy that uses a freed address succeeds while the spare exists, as it does with the
 * driver's pools and with slabs. To test a program for that, set NVSHARE_KEEP_FREED_MS=0, which
 * turns spares off.
 */
#include "memory/spare.h"

#include <stdlib.h>

#include "block/block.h"
#include "block/region.h"
#include "block/search.h"
#include "driver/log.h"
#include "driver/ring.h"
#include "driver/setting.h"
#include "flight/capture.h"
#include "gate/client.h"
#include "memory/allocation.h"
#include "memory/large.h"

#define DEFAULT_STAY_MS 1000
#define STAY_MOST_MS 3600000
#define PART_OF_CARD 8
#define PART_LEFT 16
#define MOST 1024
#define SPARE_BUCKETS 64
#define EXPIRED_AT_ONCE 16           /* others want the lock, and the daemon the service thread */

/* Each client's. Protected by memory_lock. */
static struct spares {
    uint64_t stay;                   /* us that each may stay; 0: there are none */
    struct ring order;               /* oldest first */
    struct ring alike[SPARE_BUCKETS];/* by size */
    unsigned count;
    uint64_t bytes;                  /* part of what counts as allocated and resident */
    uint64_t look;                   /* us: when the service thread looks at them; 0: it need not */
} all[CLIENTS_MAX];

static struct spares *spares_of(const struct client *client)
{
    return &all[client->index];
}

void spares_prepare(const struct client *client)
{
    struct spares *spares = spares_of(client);
    const char *text = setting("NVSHARE_KEEP_FREED_MS");
    char *end = NULL;
    unsigned long milliseconds = text == NULL ? DEFAULT_STAY_MS : strtoul(text, &end, 10);
    if (text != NULL && (end == text || *end != '\0' || milliseconds > STAY_MOST_MS)) {
        complain("NVSHARE_KEEP_FREED_MS=%s is not a number of milliseconds up to %d; it is %d",
                 text, STAY_MOST_MS, DEFAULT_STAY_MS);
        milliseconds = DEFAULT_STAY_MS;
    }
    spares->stay = milliseconds * 1000;
    ring_clear(&spares->order);
    for (size_t i = 0; i < SPARE_BUCKETS; i++)
        ring_clear(&spares->alike[i]);
}

uint64_t spares_bytes(const struct client *client)
{
    return spares_of(client)->bytes;
}

/* Not as asked for: of whole pages. */
static size_t size_of(const struct large *large)
{
    const struct block *last = large->blocks[large->block_count - 1];
    return last->address + last->size - large->base;
}

static struct ring *alike(struct client *client, size_t size)
{
    return &spares_of(client)->alike[size / PAGE % SPARE_BUCKETS];
}

static bool crowded(const struct client *client)
{
    const struct nvshare_memory *memory = &client->memory;
    uint64_t total = client->limits.total;
    return memory->resident + memory->pinned + memory->pending > total - total / PART_LEFT;
}

/* The daemon counts spares as committed: keep them only while ample commit remains. */
static bool scarce(const struct client *client, size_t size)
{
    uint64_t need = client_need(client);
    return client->limits.most < need
        || client->limits.most - need < 2 * (spares_of(client)->bytes + size);
}

static bool still(const struct large *large)
{
    for (size_t i = 0; i < large->block_count; i++) {
        const struct block *block = large->blocks[i];
        if (block->state != BLOCK_RESIDENT || block->immovable || block->doomed)
            return false;
    }
    return true;
}

bool spare_keep(struct large *large)
{
    struct client *client = large->owner.client;
    struct spares *spares = spares_of(client);
    uint64_t size = size_of(large), most = client->limits.total / PART_OF_CARD;
    /* Without a context it is a pool's or a VMM allocation's. */
    if (spares->stay == 0 || size > most || large->owner.context == NULL || large->vmm != NULL
        || !client_may_keep_freed(client) || crowded(client) || !still(large))
        return false;
    if (spares->bytes + size > most)
        spares_reclaim(client, spares->bytes + size - most, false);
    if (scarce(client, size))
        return false;
    if (spares->count == MOST)
        spares_reclaim(client, 1, false);
    for (size_t i = 0; i < large->block_count; i++) {
        struct block *block = large->blocks[i];
        block_give_place(block);
        block->seen = block->light = block->restless = block->parted = false;
        search_note(block);
    }
    large->spare = true;
    large->freed_at = now_microseconds();
    ring_append(&spares->order, &large->order);
    ring_append(alike(client, size), &large->alike);
    spares->bytes += size;
    spares->count++;
    if (spares->look == 0) {
        spares->look = large->freed_at + spares->stay;
        client_wake(client);
    }
    return true;
}

void spare_leave(struct large *large)
{
    if (!large->spare)
        return;
    struct spares *spares = spares_of(large->owner.client);
    large->spare = false;
    ring_leave(&large->order);
    ring_leave(&large->alike);
    spares->bytes -= size_of(large);
    spares->count--;
}

bool spare_take(struct client *client, CUcontext context, size_t bytes, CUdeviceptr *address)
{
    /* Less may have been granted since it was freed: then it is asked for as new memory is. */
    if (spares_of(client)->count == 0 || client_need(client) > client->limits.commit)
        return false;
    size_t size = WHOLE_PAGES(bytes);
    const struct ring *head = alike(client, size);
    /* The latest: what the program has just used. */
    for (struct ring *link = head->previous; link != head; link = link->previous) {
        struct large *large = RING_MEMBER(link, struct large, alike);
        if (size_of(large) != size || large->owner.context != context)
            continue;
        spare_leave(large);
        allocation_renew(large->base, bytes);
        *address = large->base;
        return true;
    }
    return false;
}

static struct large *oldest(const struct client *client)
{
    return RING_MEMBER(spares_of(client)->order.next, struct large, order);
}

bool spares_reclaim(struct client *client, uint64_t bytes, uint64_t until)
{
    (void)until;                     /* that costs nothing */
    const struct spares *spares = spares_of(client);
    if (spares->count == 0)
        return false;
    uint64_t before = spares->bytes;
    /* It is none of a capture's business. */
    RELAXED;
    while (spares->count > 0 && before - spares->bytes < bytes)
        large_release(oldest(client));
    client_changed(client);
    return true;
}

int64_t spares_expire(struct client *client)
{
    struct spares *spares = spares_of(client);
    uint64_t now = now_microseconds();
    if (spares->look != 0 && now >= spares->look) {
        for (unsigned i = 0; i < EXPIRED_AT_ONCE && spares->count > 0
                             && oldest(client)->freed_at + spares->stay <= now; i++)
            spares_reclaim(client, 1, false);
        spares->look = spares->count > 0 ? oldest(client)->freed_at + spares->stay : 0;
    }
    return spares->look == 0 ? NEVER : spares->look <= now ? 0 : (int64_t)(spares->look - now);
}

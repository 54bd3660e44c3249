/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps memory that the program has freed for a short time and reuses it, so that the program does
 * not pay for unmapping and mapping it again.
 *
 * Each block costs three driver calls to map and two to unmap. On an H200 these take 52 and 76 us
 * for 64 MiB, where a program's own cuMemAlloc and cuMemFree take 56 and 67. While another client
 * is evicted, each mapping also waits about a millisecond for the page tables. The library cannot
 * make these calls cheaper, but many programs allocate and free the same sizes again and again: the
 * temporary storage of Thrust and CUB, loops that allocate in each iteration.
 *
 * Freed memory therefore becomes a spare. It keeps its address and its physical memory, and the
 * next allocation of the same number of pages in the same context gets both. Spares serve only
 * plain allocations of more than 1 MiB. Small allocations use slabs (slab.c), stream-ordered ones
 * use pools (pool.c).
 *
 * For the program a spare is freed: its address is invalid (`freeing` stays set), and cuMemGetInfo
 * reports it as free. No call fails or waits because of spares: when the commit, the room or the
 * card would not suffice, spares are released first (client_commit(), allocation_fill(),
 * client_update()).
 *
 * For the daemon a spare is memory that the program has not freed yet, and it is resident. The
 * daemon's figures stay true, and the daemon need not know about spares. Spares exist only while
 * the client runs, is connected, has all its memory resident, is within its limit including them,
 * and no other client waits for the card. When one of these conditions ends, all spares are
 * released before the library evicts, copies or reports anything. All blocks of a spare are
 * therefore resident, and none is ever evicted.
 *
 * Limits on spares:
 *
 *   - Age: a spare is released a second after it was freed (NVSHARE_KEEP_FREED_MS sets that),
 *     because programs that fit together never wait for each other.
 *   - Amount: an eighth of the card, and at most MOST spares: the thread that releases them
 *     releases all of them.
 *   - Full cards: a client that fills more than fifteen sixteenths of the card keeps no spares,
 *     because the driver allocates memory unseen by the library, for modules and kernel stacks.
 *   - Commit: the daemon counts spares as committed and may refuse growth to others for them.
 *     No spare is kept that exceeds half of the commit that is still free.
 *
 * When an allocation becomes a spare, its blocks give up their places in the tiers and the record
 * of their content, as for freed memory.
 *
 * The service thread checks the age of spares. The first spare after a time without any wakes that
 * thread. A program that frees and allocates in turn wakes it at most once a second.
 *
 * A kernel or copy that uses a freed address succeeds while the spare exists, as with the driver's
 * pools and with slabs. NVSHARE_KEEP_FREED_MS=0 turns spares off, to test a program for such
 * errors.
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
#define EXPIRED_AT_ONCE 16           /* bounds how long memory_lock is held */

/* One for each client. Protected by memory_lock. */
static struct spares {
    uint64_t stay;                   /* us for which a spare is kept; 0: spares are off */
    struct ring order;               /* oldest first */
    struct ring alike[SPARE_BUCKETS];/* by size */
    unsigned count;
    uint64_t bytes;                  /* counted in the client's allocated and resident bytes */
    uint64_t look;                   /* us: next age check by the service thread; 0: none is due */
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

/* In whole pages, unlike large->size. */
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

/* The daemon counts spares as committed: they are kept only while ample commit is free. */
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
    /* Memory without a context belongs to a pool or a VMM allocation. */
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
    /* The daemon may have lowered the grant since: the allocation then asks for commit, as new
     * memory does. */
    if (spares_of(client)->count == 0 || client_need(client) > client->limits.commit)
        return false;
    size_t size = WHOLE_PAGES(bytes);
    const struct ring *head = alike(client, size);
    /* The latest first: the program has used it most recently. */
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
    (void)until;                     /* releasing spares does not wait */
    const struct spares *spares = spares_of(client);
    if (spares->count == 0)
        return false;
    uint64_t before = spares->bytes;
    /* Releasing memory must not invalidate a capture in progress. */
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

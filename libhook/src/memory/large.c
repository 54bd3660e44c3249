/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/large.h"

#include <stdlib.h>

#include "block/block.h"
#include "block/search.h"
#include "driver/log.h"
#include "driver/setting.h"
#include "flight/capture.h"
#include "gate/client.h"
#include "gate/commit.h"
#include "memory/allocation.h"

/*
 * While one client is evicted, each mapping that another client makes takes about half a
 * millisecond, whatever its size: as long as 16 to 32 MiB take on the bus. With blocks of 32 MiB,
 * loading waits for mappings a quarter of the time; with 64 MiB it does not, and is limited by the
 * bus, which the driver also uses to clear memory that the other client frees
 * (bench/handover/bus.py). Larger blocks load no faster, but new memory needs fewer mappings: 8 GiB
 * took 7 ms in blocks of 64 MiB and 3 ms in blocks of 128 MiB (all measured on an H200). Small
 * allocations and small cards use smaller blocks, so that less memory moves at a time. The daemon
 * assumes the same sizes (scheduler/settings.py).
 */
#define LARGE_FROM ((size_t)256 << 20)
#define LARGE_CARD ((uint64_t)8 << 30)
#define HUGE_CARD ((uint64_t)64 << 30)
#define WHOLE_MOST ((size_t)256 << 20) /* a larger block would need too much host memory at once */

static size_t block_most(const struct client *client, size_t size)
{
    size_t most = client->limits.total >= HUGE_CARD ? 4 * BLOCK_SIZE
                : client->limits.total >= LARGE_CARD ? 2 * BLOCK_SIZE : BLOCK_SIZE;
    return size >= LARGE_FROM || most == BLOCK_SIZE ? most : most / 2;
}

/* Frees the blocks created so far, after one of them could not be created. */
static void undo(struct large *large, size_t size)
{
    size_t made = 0;
    for (size_t i = 0; i < large->block_count && large->blocks[i] != NULL; i++) {
        made += large->blocks[i]->size;
        block_free(large->blocks[i]);
    }
    if (made < size)
        region_give(large->base + made, size - made);
    free(large);
}

static bool describe(struct page_owner *owner, CUdeviceptr address,
                     struct memory_description *description)
{
    const struct large *large = (const struct large *)owner;
    if (large->freeing || address - large->base >= large->size)
        return false;
    *description = (struct memory_description){
        .base = large->base,
        .size = large->size,
        .context = owner->context,
        .device = owner->client->device,
        .id = large->id,
        .sync_memops = large->sync_memops,
        .ipc = owner->context != NULL,
    };
    return true;
}

static void set_sync_memops(struct page_owner *owner, CUdeviceptr address, bool on)
{
    (void)address;
    ((struct large *)owner)->sync_memops = on;
}

static bool retire(struct page_owner *owner, CUdeviceptr address)
{
    struct large *large = (struct large *)owner;
    if (large->base != address || large->freeing)
        return false;
    return large->freeing = true;
}

static void release(struct page_owner *owner, CUdeviceptr address)
{
    (void)address;
    large_release((struct large *)owner);
}

static void renew(struct page_owner *owner, CUdeviceptr address, size_t bytes)
{
    (void)address;
    struct large *large = (struct large *)owner;
    large->size = bytes;
    large->id = allocation_id();
    large->sync_memops = false;
    large->freeing = false;
}

static void destroy(struct page_owner *owner)
{
    large_release((struct large *)owner);
}

static struct block *const *blocks(struct page_owner *owner, size_t *count)
{
    struct large *large = (struct large *)owner;
    *count = large->block_count;
    return large->blocks;
}

static const struct owner_operations OPERATIONS = {
    describe, set_sync_memops, retire, release, renew, destroy, blocks,
};

struct large *large_of(struct page_owner *owner)
{
    return owner->operations == &OPERATIONS ? (struct large *)owner : NULL;
}

static CUresult allocate(struct client *client, CUcontext context, size_t bytes,
                         const CUmemAllocationProp *properties, CUdeviceptr *address)
{
    if (bytes > (size_t)1 << 46)
        return CUDA_ERROR_OUT_OF_MEMORY;
    size_t size = WHOLE_PAGES(bytes), most = block_most(client, size);
    if (properties != NULL && properties->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE
        && size <= WHOLE_MOST)
        most = size;
    size_t count = (size + most - 1) / most;
    if (!client_commit(client, size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct large *large = calloc(1, sizeof *large + count * sizeof large->blocks[0]);
    if (large == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    large->owner = (struct page_owner){
        .operations = &OPERATIONS, .client = client, .context = context,
        .properties = properties,
    };
    large->size = bytes;
    large->block_count = count;
    CUresult result = region_take(size, &large->base);
    if (result != CUDA_SUCCESS) {
        free(large);
        return result;
    }
    for (size_t i = 0; i < count; i++) {
        size_t offset = i * most;
        size_t length = size - offset < most ? size - offset : most;
        large->blocks[i] = block_new(client, false, large->base + offset, length);
        if (large->blocks[i] == NULL) {
            undo(large, size);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    large->id = allocation_id();
    region_set_owner(large->base, size, &large->owner);
    allocation_fill(large->blocks, count);
    *address = large->base;
    return CUDA_SUCCESS;
}

CUresult large_allocate(struct client *client, CUcontext context, size_t bytes,
                        CUdeviceptr *address)
{
    return allocate(client, context, bytes, NULL, address);
}

CUresult large_create(struct client *client, size_t bytes, const CUmemAllocationProp *properties,
                      CUdeviceptr *address)
{
    return allocate(client, NULL, bytes, properties, address);
}

/*
 * Spares: keeps memory that the program has freed for a short time and reuses it, so that the program does
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

/* In whole pages. Unlike large->size, which a reused spare may have smaller than its blocks. */
static size_t size_of(const struct large *large)
{
    const struct block *last = large->blocks[large->block_count - 1];
    return last->address + last->size - large->base;
}

/* Removes an allocation that is being released from the spares; no-op for all other memory. */
static void leave_spares(struct large *large)
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

void large_release(struct large *large)
{
    leave_spares(large);
    region_set_owner(large->base, size_of(large), NULL);
    for (size_t i = 0; i < large->block_count; i++)
        block_free(large->blocks[i]);
    free(large);
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
        leave_spares(large);
        renew(&large->owner, large->base, bytes);
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

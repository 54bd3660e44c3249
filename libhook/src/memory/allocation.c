/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocates and frees device memory for the wrappers. Allocation does not wait for the GPU: without
 * room for the memory the gate closes until there is room (client_update()). Allocations above
 * 1 MiB own their blocks (`struct large`); smaller allocations share a slab.
 */
#include "memory/allocation.h"

#include <stdlib.h>
#include <string.h>

#include "block/block.h"
#include "block/search.h"
#include "driver/setting.h"
#include "flight/capture.h"
#include "flight/drain.h"
#include "gate/client.h"
#include "gate/contexts.h"
#include "gate/gate.h"
#include "memory/extents.h"
#include "memory/managed.h"
#include "memory/vmm.h"

/* The object that contains `address`, retired or not; *base: its first address. NULL: none. */
static struct object *find(CUdeviceptr address, CUdeviceptr *base)
{
    struct page_owner *owner = region_owner(address);
    return owner == NULL || owner->operations->object == NULL
        ? NULL : owner->operations->object(owner, address, base);
}

/* The program's object that contains `address`; NULL: none. */
static struct object *object_at(CUdeviceptr address, CUdeviceptr *base)
{
    struct object *object = find(address, base);
    return object != NULL && !object->retired && address - *base < object->size ? object : NULL;
}

bool allocation_describe(CUdeviceptr address, struct memory_description *description)
{
    struct page_owner *owner = region_owner(address);
    CUdeviceptr base;
    if (owner != NULL && owner->operations->describe != NULL)
        return owner->operations->describe(owner, address, description);
    const struct object *object = object_at(address, &base);
    if (object == NULL)
        return false;
    *description = (struct memory_description){
        .base = base, .size = object->size, .context = owner->context,
        .device = owner->client->device, .id = object->id, .sync_memops = object->sync_memops,
        .ipc = owner->context != NULL,
    };
    return true;
}

struct object *allocation_at(CUdeviceptr address)
{
    CUdeviceptr base;
    struct object *object = find(address, &base);
    return object != NULL && base == address && object->size > 0 ? object : NULL;
}

void allocation_release(CUdeviceptr address)
{
    struct page_owner *owner = region_owner(address);
    struct client *client = owner->client;
    if (owner->operations->release != NULL)
        owner->operations->release(owner, address);
    else
        owner->operations->destroy(owner);
    client_update(client);
}

static struct object new_object(size_t bytes)
{
    static unsigned long long last;
    return (struct object){ .id = ++last, .size = bytes };
}

void allocation_renew(CUdeviceptr address, size_t bytes)
{
    struct object *object = allocation_at(address);
    struct async_allocation *async = object->async;
    *object = new_object(bytes);
    object->async = async;
    extents_set(region_owner(address)->extents, address, bytes);
}

void allocations_context_ends(const struct client *client, CUcontext context)
{
    struct block *block = client->blocks;
    while (block != NULL) {
        struct page_owner *owner = region_owner(block->address);
        struct block *next = block->younger;
        if (owner != NULL && owner->context == context) {
            /* The owner's blocks are neighbours in the list: one call has created all of them. */
            while (next != NULL && region_owner(next->address) == owner)
                next = next->younger;
            owner->operations->destroy(owner);
        }
        block = next;
    }
}

unsigned long long allocation_id(void)
{
    return new_object(0).id;
}

static bool fill(struct block *block)
{
    struct client *client = block->client;
    CUresult result;
    do
        result = client_free_room(client) < block->size
            ? CUDA_ERROR_OUT_OF_MEMORY : block_map(block);
    while (result == CUDA_ERROR_OUT_OF_MEMORY && reclaim(client, block->size, 0));
    /* If the card has less free memory than the client's room, the block stays EMPTY, and the
     * client counts as starved until a LOAD maps the block. */
    if (result == CUDA_SUCCESS)
        block_set_state(block, BLOCK_RESIDENT);
    return result == CUDA_SUCCESS;
}

void allocation_fill(struct block *const *blocks, size_t count)
{
    for (size_t i = 0; i < count && fill(blocks[i]); i++)
        continue;
}

static void owner_free(struct page_owner *owner)
{
    extents_free(owner->extents);
    free(owner);
}

/* Creates an owner's blocks at new addresses, `most` bytes each but the last, and maps as many as
 * fit the room. On failure frees the owner. */
static CUresult make_blocks(struct page_owner *owner, struct block **blocks, size_t size,
                            size_t most, CUdeviceptr *base)
{
    CUresult result = region_take(size, base);
    if (result != CUDA_SUCCESS) {
        owner_free(owner);
        return result;
    }
    extents_begin(owner->extents, *base);
    for (size_t i = 0, made = 0; made < size; i++) {
        size_t length = size - made < most ? size - made : most;
        blocks[i] = block_new(owner->client, false, *base + made, length);
        if (blocks[i] == NULL) {
            region_give(*base + made, size - made);
            while (i-- > 0)
                block_free(blocks[i]);
            owner_free(owner);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        made += length;
    }
    region_set_owner(*base, size, owner);
    allocation_fill(blocks, owner->block_count);
    return CUDA_SUCCESS;
}

#define LARGE_EXTENTS SLAB_CLASSES   /* the class of the extents of an allocation above 1 MiB */
_Static_assert(LARGE_EXTENTS < EXTENTS_CLASSES, "each class of slabs has a class of extents");

#define GRAIN 512                    /* bytes: the driver's alignment */

/* One block of 2 MiB, divided into slots of one size for small allocations. */

struct slab {
    struct page_owner owner;
    struct block *block;
    unsigned class;
    size_t slot_size;                /* bytes */
    uint32_t count, used;
    uint32_t first_free;             /* no slot before this one is free */
    struct ring alike;               /* in the client's list of this class */
    struct object objects[];         /* `size` 0: the slot is free */
};

/* Four sizes to each power of two, so that at most a quarter of a slot is lost. */
size_t slab_slot_size(size_t bytes, unsigned *class)
{
    uint32_t grains = (uint32_t)((bytes + GRAIN - 1) / GRAIN);
    if (grains <= 8) {
        *class = grains - 1;
        return grains * GRAIN;
    }
    unsigned power = 31 - (unsigned)__builtin_clz(grains - 1);
    uint32_t step = (uint32_t)1 << (power - 2);
    uint32_t steps = (grains - ((uint32_t)1 << power) + step - 1) / step;
    *class = 8 + (power - 3) * 4 + steps - 1;
    return (((uint32_t)1 << power) + steps * step) * GRAIN;
}

/* By client index and class: all slabs with a free slot. */
static struct ring slabs[CLIENTS_MAX][SLAB_CLASSES];

static struct ring *list_of(const struct client *client, unsigned class)
{
    return ring_ready(&slabs[client->index][class]);
}

static struct object *slab_object(struct page_owner *owner, CUdeviceptr address, CUdeviceptr *base)
{
    struct slab *slab = (struct slab *)owner;
    size_t index = (address - slab->block->address) / slab->slot_size;
    *base = slab->block->address + index * slab->slot_size;
    /* The bytes behind the last slot belong to no object. */
    return index < slab->count ? &slab->objects[index] : NULL;
}

static void slab_destroy(struct page_owner *owner)
{
    struct slab *slab = (struct slab *)owner;
    ring_leave(&slab->alike);
    region_set_owner(slab->block->address, PAGE, NULL);
    block_free(slab->block);
    owner_free(owner);
}

static void slab_release(struct page_owner *owner, CUdeviceptr address)
{
    struct slab *slab = (struct slab *)owner;
    size_t index = (address - slab->block->address) / slab->slot_size;
    slab->objects[index] = (struct object){ .size = 0 };
    extents_set(owner->extents, address, 0);
    slab->first_free = index < slab->first_free ? (uint32_t)index : slab->first_free;
    slab->used--;
    struct ring *list = list_of(owner->client, slab->class);
    if (ring_empty(&slab->alike))
        ring_append(list, &slab->alike);
    /* A class's last slab with a free slot stays, for programs that allocate and free in turn. */
    if (slab->used == 0 && list->next != list->previous)
        slab_destroy(owner);
}

static const struct owner_operations SLAB_OPERATIONS = {
    .object = slab_object, .release = slab_release, .destroy = slab_destroy,
};

static CUresult new_slab(struct client *client, CUcontext context, unsigned class,
                         size_t slot_size, struct slab **made)
{
    uint32_t count = (uint32_t)(PAGE / slot_size);
    if (!client_commit(client, PAGE))
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct slab *slab = calloc(1, sizeof *slab + count * sizeof slab->objects[0]);
    if (slab == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *slab = (struct slab){
        .owner = {
            .operations = &SLAB_OPERATIONS, .client = client, .context = context,
            .extents = extents_new(class, slot_size, count),
            .blocks = &slab->block, .block_count = 1,
        },
        .class = class, .slot_size = slot_size, .count = count,
    };
    CUdeviceptr address;
    CUresult result = make_blocks(&slab->owner, &slab->block, PAGE, PAGE, &address);
    if (result != CUDA_SUCCESS)
        return result;
    ring_append(list_of(client, class), &slab->alike);
    *made = slab;
    return CUDA_SUCCESS;
}

static CUresult slab_allocate(struct client *client, CUcontext context, size_t bytes,
                              CUdeviceptr *address)
{
    unsigned class;
    size_t slot_size = slab_slot_size(bytes, &class);
    const struct ring *list = list_of(client, class), *link = list->previous;
    /* Contexts do not share slabs, because the end of a context frees its memory. */
    while (link != list && RING_MEMBER(link, struct slab, alike)->owner.context != context)
        link = link->previous;
    struct slab *slab = RING_MEMBER(link, struct slab, alike);
    CUresult result = link == list ? new_slab(client, context, class, slot_size, &slab)
                                   : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS)
        return result;
    while (slab->objects[slab->first_free].size > 0)
        slab->first_free++;
    uint32_t index = slab->first_free++;
    slab->objects[index] = new_object(bytes);
    if (++slab->used == slab->count)
        ring_leave(&slab->alike);
    *address = slab->block->address + index * slab->slot_size;
    extents_set(slab->owner.extents, *address, bytes);
    return CUDA_SUCCESS;
}

/*
 * While one client is evicted, each mapping that another client makes takes about half a
 * millisecond, whatever its size. With blocks of 64 MiB only the bus limits loading; 128 MiB need
 * fewer mappings (both measured on an H200, bench/handover/bus.py). Small allocations and cards use
 * smaller blocks, so that less memory moves. The daemon assumes these sizes (scheduler/events.py).
 */
#define LARGE_FROM ((size_t)256 << 20)
#define LARGE_CARD ((uint64_t)8 << 30)
#define HUGE_CARD ((uint64_t)64 << 30)
/* Evicting a larger block would need too much host memory at once. */
#define WHOLE_MOST ((size_t)256 << 20)

static size_t block_most(const struct client *client, size_t size)
{
    size_t most = client->limits.total >= HUGE_CARD ? 4 * BLOCK_SIZE
                : client->limits.total >= LARGE_CARD ? 2 * BLOCK_SIZE : BLOCK_SIZE;
    return size >= LARGE_FROM || most == BLOCK_SIZE ? most : most / 2;
}

static struct object *large_object(struct page_owner *owner, CUdeviceptr address, CUdeviceptr *base)
{
    (void)address;
    struct large *large = (struct large *)owner;
    *base = large->base;
    return &large->object;
}

static const struct owner_operations LARGE_OPERATIONS = {
    .object = large_object, .destroy = large_release,
};

CUresult large_create(struct client *client, CUcontext context, size_t bytes,
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
        .operations = &LARGE_OPERATIONS, .client = client, .context = context,
        .extents = extents_new(LARGE_EXTENTS, 0, 1),
        .properties = properties, .blocks = large->blocks, .block_count = count,
    };
    large->object = new_object(bytes);
    CUresult result = make_blocks(&large->owner, large->blocks, size, most, address);
    if (result == CUDA_SUCCESS) {
        large->base = *address;
        extents_set(large->owner.extents, *address, bytes);
    }
    return result;
}

/*
 * Spares: memory that the program has freed, kept mapped for a short time and reused by the next
 * allocation of as many pages in the same context, because mapping may take a millisecond while
 * another client is evicted (measured on an H200). A kernel that uses a freed address
 * succeeds; NVSHARE_KEEP_FREED_MS=0 turns spares off, to find such errors.
 *
 * For the daemon a spare is resident memory. Spares are released before anything is refused
 * (reclaim()), and before the library evicts, copies or reports anything (client_may_keep_freed()).
 * Their age is limited because no turn ends while all programs fit the card; their amount, because
 * the daemon may refuse memory to other clients for spares, and the driver needs some for modules.
 */

#define DEFAULT_STAY_MS 1000
#define STAY_MOST_MS 3600000
#define PART_OF_CARD 8               /* spares take at most the card's size divided by this */
#define PART_LEFT 16                 /* no spare if the client leaves less than 1/16 of the card */
#define MOST 1024                    /* most spares: one thread may have to release all spares */
#define EXPIRED_AT_ONCE 16           /* most spares released in one step, as memory_lock is held */

/* One for each client, by index. Protected by memory_lock. */
static struct spares {
    uint64_t stay;                   /* us for which a spare is kept; 0: spares are off */
    struct ring order;               /* all spares, the oldest first */
    unsigned count;
    uint64_t bytes;                  /* counted in the client's allocated and resident bytes */
    uint64_t next_check;             /* us: next check of the spares' ages; 0: no spare exists */
} all[CLIENTS_MAX];

static struct spares *spares_of(const struct client *client)
{
    return &all[client->index];
}

/* Bytes of the blocks: object.size, the bytes that the program requested, rounded up. */
static size_t size_of(const struct large *large)
{
    const struct block *last = large->blocks[large->owner.block_count - 1];
    return last->address + last->size - large->base;
}

/* Takes an allocation out of the lists of spares; no-op if it is no spare. */
static void leave_spares(struct large *large)
{
    if (!large->spare)
        return;
    struct spares *spares = spares_of(large->owner.client);
    large->spare = false;
    ring_leave(&large->order);
    spares->bytes -= size_of(large);
    spares->count--;
}

void large_release(struct page_owner *owner)
{
    struct large *large = (struct large *)owner;
    leave_spares(large);
    region_set_owner(large->base, size_of(large), NULL);
    for (size_t i = 0; i < large->owner.block_count; i++)
        block_free(large->blocks[i]);
    owner_free(owner);
}

void spares_prepare(const struct client *client)
{
    spares_of(client)->stay = 1000 * setting_milliseconds("NVSHARE_KEEP_FREED_MS",
                                                          DEFAULT_STAY_MS, STAY_MOST_MS);
}

/* Makes a spare of a freed allocation that no work uses. False: the caller must release it. */
static bool spare_keep(struct large *large)
{
    struct client *client = large->owner.client;
    struct spares *spares = spares_of(client);
    const struct nvshare_memory *memory = &client->memory;
    uint64_t total = client->limits.total, size = size_of(large), most = total / PART_OF_CARD;
    bool card_is_full = memory->resident + memory->pinned + memory->pending
        > total - total / PART_LEFT;
    /* Memory without a context belongs to a pool or a VMM allocation. */
    if (spares->stay == 0 || size > most || large->owner.context == NULL || large->vmm != NULL
        || !client_may_keep_freed(client) || card_is_full)
        return false;
    for (size_t i = 0; i < large->owner.block_count; i++)
        if (large->blocks[i]->state != BLOCK_RESIDENT || large->blocks[i]->immovable
            || large->blocks[i]->doomed)
            return false;
    if (spares->bytes + size > most)
        spares_reclaim(client, spares->bytes + size - most, 0);
    uint64_t need = client_need(client);
    /* Spares take at most half of what the daemon would still let the client allocate. */
    if (client->limits.most < need
        || client->limits.most - need < 2 * (spares->bytes + size))
        return false;
    if (spares->count == MOST)
        spares_reclaim(client, 1, 0);
    for (size_t i = 0; i < large->owner.block_count; i++) {
        struct block *block = large->blocks[i];
        block_give_place(block);
        block->was_read = block->was_zero = block->changed_before = block->part_valid = false;
        search_note(block);
    }
    large->spare = true;
    large->freed_at = now_microseconds();
    ring_append(ring_ready(&spares->order), &large->order);
    spares->bytes += size;
    spares->count++;
    if (spares->next_check == 0) {
        spares->next_check = large->freed_at + spares->stay;
        client_wake(client);
    }
    return true;
}

static bool spare_take(struct client *client, CUcontext context, size_t bytes, CUdeviceptr *address)
{
    const struct spares *spares = spares_of(client);
    /* If limits.commit is below the client's need, the daemon must decide about the request. */
    if (spares->count == 0 || client_need(client) > client->limits.commit)
        return false;
    size_t size = WHOLE_PAGES(bytes);
    for (struct ring *link = spares->order.previous; link != &spares->order;
         link = link->previous) {
        struct large *large = RING_MEMBER(link, struct large, order);
        if (size_of(large) != size || large->owner.context != context)
            continue;
        leave_spares(large);
        large->object = new_object(bytes);
        *address = large->base;
        extents_set(large->owner.extents, *address, bytes);
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
    RELAXED;
    while (spares->count > 0 && before - spares->bytes < bytes)
        large_release(&oldest(client)->owner);
    client_changed(client);
    return true;
}

int64_t spares_expire(struct client *client)
{
    struct spares *spares = spares_of(client);
    uint64_t now = now_microseconds();
    if (spares->next_check != 0 && now >= spares->next_check) {
        for (unsigned i = 0; i < EXPIRED_AT_ONCE && spares->count > 0
                             && oldest(client)->freed_at + spares->stay <= now; i++)
            spares_reclaim(client, 1, 0);
        spares->next_check = spares->count > 0 ? oldest(client)->freed_at + spares->stay : 0;
    }
    if (spares->next_check == 0)
        return NEVER;
    return spares->next_check <= now ? 0 : (int64_t)(spares->next_check - now);
}

/* us of one wait for a context's work; the wait delays the destruction of that context */
#define SLICE_US 1000

/* Memory freed during a capture, when no thread may wait for work in flight: kept until a thread
 * later waits for the context's work, at the latest when memory is short. Listed latest first. */
struct deferred {
    CUdeviceptr address;
    CUcontext context;
    uint64_t number;                 /* rises with each deferred free */
    struct deferred *next;
};
static struct deferred *deferred;    /* memory_lock protects deferred, deferrals, waited_in */
static uint64_t deferrals;           /* `number` of the latest deferred free */
static CUcontext waited_in;          /* context in which deferred_frees_reclaim() waits now */

/* Releases the context's deferred frees up to `number`: work in flight may use later frees. */
static void deferred_frees_waited(CUcontext context, uint64_t number)
{
    EACH_LISTED(struct deferred, one, deferred)
        if (one->context == context && one->number <= number) {
            LIST_REMOVE(deferred, one);
            allocation_release(one->address);
            free(one);
        }
}

static const struct deferred *first_of(const struct client *client)
{
    const struct deferred *one = deferred;
    while (one != NULL && region_owner(one->address)->client != client)
        one = one->next;
    return one;
}

static void end_wait(void *unused, uint64_t zero)
{
    (void)unused, (void)zero;
    LOCKED(memory_lock);
    waited_in = NULL;
    memory_notify();
}

/* Waits for the context's work, with memory_lock released. False: not done within SLICE_US. */
static bool wait_in(CUcontext context)
{
    CUresult ignored_as_work_that_failed_is_done;
    uint64_t earlier = deferrals;
    waited_in = context;
    UNLESS_LEFT(end_wait, NULL, 0);
    mutex_unlock(&memory_lock);
    bool waited = drain_context(context, SLICE_US, &ignored_as_work_that_failed_is_done);
    mutex_lock(&memory_lock);
    if (waited)
        deferred_frees_waited(context, earlier);
    end_wait(NULL, 0);
    return waited;
}

bool deferred_frees_reclaim(struct client *client, uint64_t bytes, uint64_t until)
{
    (void)bytes;
    BLOCKED;
    const struct deferred *one;
    while (now_microseconds() < until && (one = first_of(client)) != NULL) {
        if (waited_in != NULL)
            memory_wait();
        else if (wait_in(one->context))
            return true;
        else if (capture_going_on())
            return false;
    }
    return false;
}

void deferred_frees_context_end(CUcontext context)
{
    while (waited_in == context)
        memory_wait();
    deferred_frees_waited(context, deferrals);
}

CUresult allocation_make(struct client *client, CUcontext context, size_t bytes,
                         CUdeviceptr *address)
{
    return bytes <= SMALL_MAX ? slab_allocate(client, context, bytes, address)
                              : large_create(client, context, bytes, NULL, address);
}

bool memory_allocate(size_t bytes, CUdeviceptr *address, CUresult *result)
{
    struct client *client = client_current();
    CUcontext context = NULL;
    if (client == NULL || contexts_current(&context) != CUDA_SUCCESS)
        return false;
    if (capture_refuses(result))
        return true;
    if (bytes == 0 || address == NULL) {
        *result = CUDA_ERROR_INVALID_VALUE;
        return true;
    }
    *result = CUDA_SUCCESS;
    mutex_lock(&memory_lock);
    /* Reusing a spare changes no figure of the client: it needs no client_update(). */
    if (bytes <= SMALL_MAX || !spare_take(client, context, bytes, address)) {
        *result = allocation_make(client, context, bytes, address);
        client_update(client);
    }
    mutex_unlock(&memory_lock);
    if (*result == CUDA_ERROR_OUT_OF_MEMORY && managed_beyond(address, bytes))
        *result = CUDA_SUCCESS;
    return true;
}

static void defer_free(void *new, uint64_t unused)
{
    struct deferred *one = new;
    (void)unused;
    if (one == NULL)
        return;                      /* out of memory: the allocation stays until its context ends */
    LOCKED(memory_lock);
    const struct object *object = allocation_at(one->address);
    if (object != NULL && object->retired && region_owner(one->address)->context == one->context) {
        one->number = ++deferrals;
        one->next = deferred;
        deferred = one;
    } else {                         /* the context has ended, which freed the memory */
        free(one);
    }
}

/* Waits for the work that may use a retired allocation. False: it has not ended. Then, and if the
 * thread leaves, the allocation is released once a thread has waited for the context's work.
 * Returns within defer_begin(). */
static bool wait_before_free(CUdeviceptr address, CUcontext context, CUresult *result)
{
    bool waited;
    struct deferred *one = malloc(sizeof *one);
    if (one != NULL)
        *one = (struct deferred){ .address = address, .context = context };
    {
        UNLESS_LEFT(defer_free, one, 0);
        waited = drain_context(context, UINT64_MAX, result);
        defer_begin();
    }
    if (waited)
        free(one);
    else
        defer_free(one, 0);
    return waited;
}

/* Frees a retired allocation after its context's work. `earlier`: the last free that was deferred
 * before. `keep`: it may become a spare. */
static void free_waited(CUdeviceptr address, struct page_owner *owner, uint64_t earlier, bool keep)
{
    LOCKED(memory_lock);
    if (region_owner(address) != owner)
        return;                      /* the context has ended meanwhile, which freed the memory */
    deferred_frees_waited(owner->context, earlier);
    bool is_large = owner->operations == &LARGE_OPERATIONS;
    if (!keep || !is_large || !spare_keep((struct large *)owner))
        allocation_release(address);
}

bool memory_free(CUdeviceptr address, CUresult *result)
{
    if (client_none())
        return false;
    if (capture_refuses(result))
        return true;
    mutex_lock(&memory_lock);
    struct object *object = allocation_at(address);
    struct page_owner *owner = region_owner(address);
    bool ours = region_contains(address), retired = object != NULL && !object->retired;
    if (retired)
        object->retired = true;
    CUcontext context = retired ? owner->context : NULL;
    bool idle = retired && owner->client->drained;
    uint64_t earlier = deferrals;
    mutex_unlock(&memory_lock);
    *result = CUDA_ERROR_INVALID_VALUE;
    if (!retired)
        return ours;

    *result = CUDA_SUCCESS;
    if (idle)
        defer_begin();
    if (idle || wait_before_free(address, context, result))
        free_waited(address, owner, earlier, *result == CUDA_SUCCESS);
    else
        *result = CUDA_SUCCESS;      /* deferred_frees_waited() will free the memory */
    defer_end();
    return true;
}

bool memory_describe(CUdeviceptr address, struct memory_description *description)
{
    READING_OR_RETURN(false);
    return allocation_describe(address, description) || vmm_describe(address, description)
        || managed_describe(address, description);
}

bool memory_set_sync_memops(CUdeviceptr address, bool on)
{
    struct memory_description description;
    if (!memory_describe(address, &description))
        return false;
    LOCKED(memory_lock);
    CUdeviceptr base;
    struct object *object = object_at(address, &base);
    if (object != NULL)
        object->sync_memops = on;
    return true;
}

bool memory_is_ours(CUdeviceptr address)
{
    READING_OR_RETURN(false);
    return region_contains(address);
}

bool memory_information(size_t *free_bytes, size_t *total_bytes)
{
    struct client *client = client_here();
    if (client == NULL || !client_may_lock_memory())
        return false;
    LOCKED_TO_READ(memory_lock);
    uint64_t used = client->memory.allocated - spares_of(client)->bytes + client->memory.pinned;
    *total_bytes = client->limits.total;
    *free_bytes = client->limits.most > used ? client->limits.most - used : 0;
    return true;
}

bool memory_total(CUdevice device, size_t *total_bytes)
{
    READING_OR_RETURN(false);
    const struct client *client = client_on(device);
    if (client != NULL)
        *total_bytes = client->limits.total;
    return client != NULL;
}

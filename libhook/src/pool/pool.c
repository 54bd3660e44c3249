/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream-ordered allocation and freeing, from evictable memory of the library. Pools that other
 * processes may hold, and pools of other than device memory, stay with the driver: driver_pools.c.
 *
 * Until an event signals that the stream has reached a free, the allocation is in the stream's
 * pending list; then it is idle in its pool. An allocation uses
 *   1. a free allocation that fits and was freed in the same stream (the stream's order separates
 *      the uses), or is idle and in a pool for which the program has not forbidden reuse;
 *   2. else new memory, after the pool has released idle allocations beyond its threshold;
 *   3. else a pending allocation, if the pool lets the stream wait for the work that uses it.
 * Before a client is evicted, all idle memory is released: that costs less than to copy it once.
 */
#include "pool/pool.h"

#include <limits.h>
#include <stdlib.h>

#include "block/block.h"
#include "block/region.h"
#include "driver/ops.h"
#include "driver/ring.h"
#include "flight/capture.h"
#include "flight/drain.h"
#include "flight/streams.h"
#include "gate/client.h"
#include "gate/contexts.h"
#include "memory/allocation.h"
#include "memory/peers.h"

#define ASYNC_CLASSES (SLAB_CLASSES + 32)
#define MOST ((size_t)1 << 46)       /* upper limit, bytes of one allocation */
#define SEARCHED 256                 /* most free allocations that one search looks at */
#define QUERIED 16                   /* most streams in a row that one allocation finds busy */
#define BUCKETS 1024

struct pool {
    CUmemoryPool handle;
    CUdevice device;
    size_t most;                     /* maximum bytes; 0: no maximum */
    uint32_t readers;                /* a bit for each other device with access */
    bool destroyed;                  /* destroyed by the program; the last user frees the struct */
    unsigned users;                  /* number of its allocations plus calls in progress */
    uint64_t threshold;              /* bytes up to which it keeps idle memory */
    bool opportunistic;              /* CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC */
    bool dependencies;               /* CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES */
    uint64_t used, used_high;        /* bytes in use, as requested; highest since a reset */
    uint64_t lost;                   /* bytes freed by cuMemFree, still reported as used */
    uint64_t reserved, reserved_high; /* bytes of card memory; highest since a reset */
    uint64_t peak;                   /* highest `used`; the program cannot reset it */
    struct ring idle;                /* free allocations that no work touches, oldest first */
    struct ring freed[ASYNC_CLASSES];/* all free allocations, by size class */
    struct pool *next;
};

struct async_allocation {
    CUdeviceptr address;
    size_t size;                     /* bytes as requested */
    size_t room;                     /* bytes of card memory that it occupies */
    unsigned class;
    struct pool *pool;               /* NULL: memory of cuMemAlloc, freed by cuMemFreeAsync */
    uint64_t stream;                 /* stream_name() of the stream of the free; 0: unknown */
    CUcontext context;               /* the context in which `stream` is unique */
    struct marker *marker;           /* after all work that may use the memory; NULL: no work */
    struct ring order;               /* in a pending list, or in the pool's idle list */
    struct ring alike;               /* in the list of free allocations of its class */
};

/* A position in a stream, after all work submitted to the stream so far. The event is reused while
 * its context lives. */
struct marker {
    CUevent event;
    CUcontext context;
    uint64_t stream;                 /* stream_name() of the stream */
    struct marker *next;             /* in the list of unused markers */
};

/* Allocations freed in one stream that earlier work of the stream may still use. */
struct pending_frees {
    CUcontext context;
    uint64_t stream;                 /* stream_name(), unique in the context */
    struct ring allocations;         /* sorted by event, the oldest first */
    struct ring alike;               /* in the list of its bucket */
    struct ring order;               /* in the list of all, those queried last at the end */
};

/* Protected by memory_lock, which static functions hold unless stated otherwise. */
static struct pool *pools;
static struct marker *unused_markers[BUCKETS];     /* by context */
static struct ring pending_lists, pending_buckets[BUCKETS];    /* of pending_frees */

/* The library's pool with this handle. NULL: only the driver uses the pool. */
static struct pool *pool_named(CUmemoryPool handle)
{
    struct pool *pool = pools;
    while (pool != NULL && (pool->handle != handle || pool->destroyed))
        pool = pool->next;
    return pool;
}

static struct pool *add(CUmemoryPool handle, CUdevice device, size_t most)
{
    struct pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL)
        return NULL;
    *pool = (struct pool){
        .handle = handle, .device = device, .most = most, .opportunistic = true,
        .dependencies = true, .next = pools,
    };
    ring_clear(&pool->idle);
    for (unsigned i = 0; i < ASYNC_CLASSES; i++)
        ring_clear(&pool->freed[i]);
    return pools = pool;
}

static void pool_leave(struct pool *pool)
{
    if (--pool->users > 0 || !pool->destroyed)
        return;
    LIST_REMOVE(pools, pool);
    free(pool);
}

/* The allocation that begins at `address`, freed or not; NULL: none. */
static struct async_allocation *async_at(CUdeviceptr address)
{
    const struct object *object = allocation_at(address);
    return object == NULL ? NULL : object->async;
}

static size_t room_of(size_t bytes, unsigned *class)
{
    if (bytes <= SMALL_MAX)
        return slab_slot_size(bytes, class);
    size_t room = WHOLE_PAGES(bytes);
    *class = SLAB_CLASSES + 63 - (unsigned)__builtin_clzl(room / PAGE);
    return room;
}

static struct async_allocation *new_async(CUdeviceptr address, struct pool *pool)
{
    struct async_allocation *async = calloc(1, sizeof *async);
    if (async == NULL)
        return NULL;
    async->address = address;
    async->pool = pool;
    ring_clear(&async->order);
    ring_clear(&async->alike);
    return allocation_at(address)->async = async;
}

static void release(struct async_allocation *async)
{
    struct pool *pool = async->pool;
    ring_leave(&async->order);
    ring_leave(&async->alike);
    allocation_release(async->address);
    if (pool != NULL) {
        pool->reserved -= async->room;
        pool_leave(pool);
    }
    free(async);
}

/* Releases idle allocations until the pool holds at most `keep` bytes. True if it released any. */
static bool pool_shrink(struct pool *pool, uint64_t keep)
{
    if (ring_empty(&pool->idle) || pool->reserved <= keep)
        return false;
    RELAXED;
    pool->users++;
    while (!ring_empty(&pool->idle) && pool->reserved > keep)
        release(RING_MEMBER(pool->idle.next, struct async_allocation, order));
    pool_leave(pool);
    return true;
}

/* No work touches the allocation any more: makes it idle in its pool, or frees it. */
static void async_idle(struct async_allocation *async)
{
    if (async->pool == NULL || async->pool->destroyed)
        release(async);
    else
        ring_append(&async->pool->idle, &async->order);
}

/* Makes the program's address invalid. NULL: no allocation, or no host memory to record it. */
static struct async_allocation *async_retire(CUdeviceptr address)
{
    struct object *object = allocation_at(address);
    if (object == NULL || object->retired
        || (object->async == NULL && new_async(address, NULL) == NULL))
        return NULL;
    struct async_allocation *async = object->async;
    object->retired = true;
    if (async->pool != NULL) {
        async->pool->used -= async->size;
        ring_append(&async->pool->freed[async->class], &async->alike);
    }
    return async;
}

/*
 * Pending frees. Events of a stream complete in order, so only each stream's oldest event is
 * queried. No thread waits for an event, because the work may wait for that thread. The driver does
 * the same (measured on an H100, driver 580).
 */

static size_t bucket(CUcontext context, uint64_t stream)
{
    uint64_t hash = ((uint64_t)(uintptr_t)context ^ stream) * 0x9e3779b97f4a7c15;
    return hash >> 32 & (BUCKETS - 1);
}

static struct pending_frees *pending_frees_of(CUcontext context, uint64_t stream)
{
    struct ring *head = ring_ready(&pending_buckets[bucket(context, stream)]);
    for (struct ring *link = head->next; link != head; link = link->next) {
        struct pending_frees *pending = RING_MEMBER(link, struct pending_frees, alike);
        if (pending->stream == stream && pending->context == context)
            return pending;
    }
    struct pending_frees *pending = malloc(sizeof *pending);
    if (pending == NULL)
        return NULL;
    *pending = (struct pending_frees){ .context = context, .stream = stream };
    ring_clear(&pending->allocations);
    ring_append(head, &pending->alike);
    ring_append(ring_ready(&pending_lists), &pending->order);
    return pending;
}

static void forget(struct pending_frees *pending)
{
    ring_leave(&pending->alike);
    ring_leave(&pending->order);
    free(pending);
}

/* An unused marker of the context, or a new one. NULL: out of memory. */
static struct marker *take_marker(CUcontext context)
{
    struct marker **unused = &unused_markers[bucket(context, 0)], *marker = *unused;
    while (marker != NULL && marker->context != context)
        marker = marker->next;
    if (marker != NULL)
        LIST_REMOVE(*unused, marker);
    else if ((marker = calloc(1, sizeof *marker)) != NULL)
        marker->context = context;
    return marker;
}

static void give_marker(struct marker *marker)
{
    if (marker->event == NULL) {
        free(marker);
        return;
    }
    struct marker **unused = &unused_markers[bucket(marker->context, 0)];
    marker->next = *unused;
    *unused = marker;
}

/* Records the marker's event in the stream. The stream's context is current. */
static CUresult record(CUstream stream, struct marker *marker)
{
    CUresult result = CUDA_SUCCESS;
    if (marker->event == NULL)
        result = REAL(cuEventCreate)(&marker->event,
                                     CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC);
    return result != CUDA_SUCCESS ? result : REAL(cuEventRecord)(marker->event, stream);
}

/* Records a marker behind the stream's last work, without memory_lock. On error *made is void. */
static CUresult mark(CUstream stream, struct marker **made)
{
    CUcontext context, current = NULL;
    CUdevice device;
    CUresult result = stream_device(stream, &context, &device);
    if (result != CUDA_SUCCESS)
        return result;
    uint64_t name = stream_name(stream);
    mutex_lock(&memory_lock);
    struct marker *marker = take_marker(context);
    mutex_unlock(&memory_lock);
    if (marker == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    marker->stream = name;
    contexts_current(&current);
    RELAXED;
    if (context != current)
        result = REAL(cuCtxPushCurrent_v2)(context);
    if (result == CUDA_SUCCESS) {
        result = record(stream, marker);
        if (context != current)
            REAL(cuCtxPopCurrent_v2)(&current);
    }
    if (result != CUDA_SUCCESS) {
        LOCKED(memory_lock);
        give_marker(marker);
    }
    *made = marker;
    return result;
}

static void pending_frees_leave(struct async_allocation *async)
{
    ring_leave(&async->order);
    if (async->marker != NULL)
        give_marker(async->marker);
    async->marker = NULL;
}

static void complete(struct async_allocation *async)
{
    pending_frees_leave(async);
    async_idle(async);
}

static struct async_allocation *first(const struct pending_frees *pending)
{
    return RING_MEMBER(pending->allocations.next, struct async_allocation, order);
}

/* Whether the work before the free is over. After a lasting error a context runs no more work. */
static bool event_reached(const struct async_allocation *async)
{
    CUresult result = REAL(cuEventQuery)(async->marker->event);
    return result == CUDA_SUCCESS
        || (result != CUDA_ERROR_NOT_READY && context_error(async->context) != CUDA_SUCCESS);
}

/* Completes frees that their streams have reached, stream by stream, beginning with the stream not
 * queried for longest, until `queried` streams in a row have reached none. True if any. */
static bool pending_frees_poll(unsigned queried)
{
    bool any = false;
    struct ring *link = ring_ready(&pending_lists)->next, *last = pending_lists.previous;
    if (ring_empty(&pending_lists))
        return false;
    RELAXED;
    for (unsigned busy = 0; link != &pending_lists && busy < queried;) {
        struct pending_frees *pending = RING_MEMBER(link, struct pending_frees, order);
        bool ends = link == last;
        link = link->next;
        busy++;
        for (; !ring_empty(&pending->allocations) && event_reached(first(pending)); any = true) {
            complete(first(pending));
            busy = 0;
        }
        if (ring_empty(&pending->allocations)) {
            forget(pending);
        } else {
            ring_leave(&pending->order);
            ring_append(&pending_lists, &pending->order);
        }
        if (ends)
            break;
    }
    return any;
}

void pending_frees_context_ends(CUcontext context)
{
    struct ring *head = ring_ready(&pending_lists);
    for (struct ring *each = head->next, *after; each != head; each = after) {
        struct pending_frees *pending = RING_MEMBER(each, struct pending_frees, order);
        after = each->next;
        bool ends = pending->context == context;
        for (struct ring *link = pending->allocations.next, *next; link != &pending->allocations;
             link = next) {
            struct async_allocation *async = RING_MEMBER(link, struct async_allocation, order);
            next = link->next;
            /* Memory that no pool owns ends with its context, in whichever stream it was freed. */
            if (ends || (async->pool == NULL && region_owner(async->address)->context == context))
                complete(async);
        }
        if (ends)
            forget(pending);
    }
    struct marker **unused = &unused_markers[bucket(context, 0)];
    EACH_LISTED(struct marker, marker, *unused)
        if (marker->context == context) {
            LIST_REMOVE(*unused, marker);
            free(marker);
        }
}

static bool usable(const struct async_allocation *async, CUcontext context, uint64_t stream)
{
    return (async->marker == NULL && (async->stream == 0 || async->pool->opportunistic))
        || (async->stream == stream && stream != 0 && async->context == context);
}

/* The smallest free allocation that fits; of equal sizes, the latest freed. `early`: also an
 * allocation that work in another stream may still use. */
static struct async_allocation *fitting(const struct pool *pool, size_t room, unsigned class,
                                        CUcontext context, uint64_t stream, bool early)
{
    size_t most = room + (class < SLAB_CLASSES ? 0 : room / 8);
    struct async_allocation *best = NULL;
    unsigned last = class < SLAB_CLASSES ? class : class + 1, searched = 0;
    for (; class <= last && class < ASYNC_CLASSES; class++) {
        const struct ring *head = &pool->freed[class];
        for (struct ring *link = head->previous; link != head && searched++ < SEARCHED;
             link = link->previous) {
            struct async_allocation *async = RING_MEMBER(link, struct async_allocation, alike);
            if (async->room < room || async->room > most
                || !(usable(async, context, stream) || (early && async->marker != NULL))
                || (best != NULL && best->room <= async->room))
                continue;
            best = async;
            if (async->room == room)
                return async;
        }
    }
    return best;
}

/* Before the pool grows by `room` bytes, releases idle memory beyond its threshold or beyond 1.25
 * times its peak use plus 64 MiB. False: the growth would exceed the pool's maximum. */
static bool shrink_before_growth(struct pool *pool, size_t room)
{
    uint64_t plenty = pool->peak + pool->peak / 4 + 2 * BLOCK_SIZE;
    uint64_t keep = pool->threshold < plenty ? pool->threshold : plenty;
    if (pool->most != 0 && (room > pool->most || pool->reserved + room > pool->most))
        pool_shrink(pool, room > pool->most ? 0 : pool->most - room);
    pool_shrink(pool, keep > room ? keep - room : 0);
    return pool->most == 0 || pool->reserved + room <= pool->most;
}

static void undo_reserve(void *pool, uint64_t room)
{
    LOCKED(memory_lock);
    ((struct pool *)pool)->reserved -= room;
}

static CUresult make(struct pool *pool, struct client *client, size_t bytes, size_t room,
                     unsigned class, struct async_allocation **async)
{
    CUdeviceptr address;
    if (!shrink_before_growth(pool, room))
        return CUDA_ERROR_OUT_OF_MEMORY;
    pool->reserved += room;          /* before allocation_make(), which may release memory_lock */
    UNLESS_LEFT(undo_reserve, pool, room);
    /* The context is NULL, because pools, and so their memory, outlive contexts. */
    CUresult result = allocation_make(client, NULL, bytes, &address);
    *async = result == CUDA_SUCCESS ? new_async(address, pool) : NULL;
    if (*async == NULL) {
        pool->reserved -= room;
        if (result == CUDA_SUCCESS)
            allocation_release(address);
        return result == CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : result;
    }
    pool->users++;
    (*async)->size = bytes;
    (*async)->room = room;
    (*async)->class = class;
    if (pool->reserved > pool->reserved_high)
        pool->reserved_high = pool->reserved;
    return CUDA_SUCCESS;
}

/* `name`: stream_name() of `stream`. May release memory_lock and take it again. */
static CUresult async_take(struct pool *pool, struct client *client, size_t bytes,
                           CUcontext context, CUstream stream, uint64_t name, CUdeviceptr *address)
{
    unsigned class;
    if (bytes > MOST)
        return CUDA_ERROR_OUT_OF_MEMORY;
    size_t room = room_of(bytes, &class);
    struct async_allocation *async = fitting(pool, room, class, context, name, false);
    if (async == NULL && pending_frees_poll(QUERIED))
        async = fitting(pool, room, class, context, name, false);
    bool made = async == NULL;
    CUresult result = made ? make(pool, client, bytes, room, class, &async) : CUDA_SUCCESS;
    if (result == CUDA_ERROR_OUT_OF_MEMORY && pool->dependencies
        && (async = fitting(pool, room, class, context, name, true)) != NULL) {
        made = false;
        RELAXED;
        result = async->marker == NULL
            ? CUDA_SUCCESS : REAL(cuStreamWaitEvent)(stream, async->marker->event, 0);
    }
    if (result != CUDA_SUCCESS)
        return result;
    if (!made) {
        pending_frees_leave(async);
        ring_leave(&async->alike);
        async->size = bytes;
        allocation_renew(async->address, bytes);
    }
    *address = async->address;
    pool->used += bytes;
    if (pool->used + pool->lost > pool->used_high)
        pool->used_high = pool->used + pool->lost;
    if (pool->used > pool->peak)
        pool->peak = pool->used;
    client_update(client);
    return CUDA_SUCCESS;
}

/* In a tool's callback this thread may have locked memory_lock, and be in a loop over the pools, or
 * use one. There pools are only added or marked as destroyed, and nothing is released or granted. */
void pool_add(CUmemoryPool handle, CUdevice device, size_t most)
{
    LOCKED(memory_lock);
    add(handle, device, most);       /* if that fails, the pool stays with the driver */
}

uint64_t pool_attribute(CUmemoryPool handle, CUmemPool_attribute attribute, uint64_t otherwise)
{
    cuuint64_t value = 0;            /* the driver writes only the lower half of an option */
    return REAL(cuMemPoolGetAttribute)(handle, attribute, &value) == CUDA_SUCCESS
        ? value : otherwise;
}

/* Lists the device's default pool. NULL: that is not `handle`, or other devices have access. */
static struct pool *of_device(CUmemoryPool handle, CUdevice device)
{
    CUmemoryPool usual;
    int devices;
    if (REAL(cuDeviceGetDefaultMemPool)(&usual, device) != CUDA_SUCCESS || usual != handle
        || REAL(cuDeviceGetCount)(&devices) != CUDA_SUCCESS)
        return NULL;
    for (int other = 0; other < devices; other++) {
        CUmemLocation location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = other };
        CUmemAccess_flags flags;
        if (other != device && REAL(cuMemPoolGetAccess)(&flags, handle, &location) == CUDA_SUCCESS
            && flags != CU_MEM_ACCESS_FLAGS_PROT_NONE)
            return NULL;
    }
    struct pool *pool = add(handle, device, 0);
    if (pool == NULL)
        return NULL;
    pool->threshold = pool_attribute(handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 0);
    pool->opportunistic = pool_attribute(handle, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, 1);
    pool->dependencies = pool_attribute(handle, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
                                        1);
    return pool;
}

/* The library's pool for `handle`; lists it first if it is a client device's default pool. */
static struct pool *pool_adopted(CUmemoryPool handle)
{
    struct pool *pool = pool_named(handle);
    EACH_CLIENT(client)
        if (pool == NULL)
            pool = of_device(handle, client->device);
    return pool;
}

/* Grants or withdraws access for `readers`; clears a bit when done. Called without memory_lock. */
static CUresult open_to(CUdevice device, uint32_t *readers, bool open)
{
    CUresult result = CUDA_SUCCESS;
    for (; *readers != 0; *readers &= *readers - 1) {
        CUresult next = memory_open_to_peer(device, __builtin_ctz(*readers), open);
        result = result == CUDA_SUCCESS ? next : result;
        if (open && result != CUDA_SUCCESS)
            break;
    }
    return result;
}

bool pool_destroy(CUmemoryPool handle, CUresult *result)
{
    CUdevice device = 0;
    uint32_t readers = 0;
    bool first = client_none();      /* maybe a forked child, where memory_lock stays locked */
    if (first && (*result = REAL(cuMemPoolDestroy)(handle)) != CUDA_SUCCESS)
        return true;
    if (locked_here(&memory_lock)) {
        struct pool *own = pool_named(handle);
        if (own != NULL)
            own->destroyed = true;
        return true;
    }
    mutex_lock(&memory_lock);
    struct pool *pool = pool_named(handle);
    bool ours = pool != NULL;
    if (ours && !first)              /* under the lock, as the driver may reuse the handle */
        *result = REAL(cuMemPoolDestroy)(handle);
    if (ours && *result == CUDA_SUCCESS) {
        device = pool->device;
        readers = pool->readers;
        pool->users++;
        pool->destroyed = true;      /* from now on memory freed to the pool is released at once */
        pool_shrink(pool, 0);
        pool_leave(pool);
    }
    mutex_unlock(&memory_lock);
    open_to(device, &readers, false);
    return ours || first;
}

CUresult pool_set_access(CUmemoryPool handle, const CUmemAccessDesc *access, size_t count)
{
    if (!client_none()) {
        LOCKED(memory_lock);
        pool_adopted(handle);        /* so that the library records the access */
    }
    CUresult result = REAL(cuMemPoolSetAccess)(handle, access, count);
    if (result != CUDA_SUCCESS || locked_here(&memory_lock))
        return result;
    mutex_lock(&memory_lock);
    struct pool *pool = pool_named(handle);
    CUdevice device = pool == NULL ? CU_DEVICE_INVALID : pool->device;
    uint32_t before = pool == NULL ? 0 : pool->readers;
    for (size_t i = 0; i < count && pool != NULL; i++) {
        int reader = access[i].location.id;
        if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || reader == pool->device
            || reader < 0 || reader >= CLIENTS_MAX)
            continue;
        if (access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE)
            pool->readers &= ~((uint32_t)1 << reader);
        else
            pool->readers |= (uint32_t)1 << reader;
    }
    uint32_t after = pool == NULL ? 0 : pool->readers;
    mutex_unlock(&memory_lock);
    uint32_t opened = after & ~before, closed = before & ~after;
    result = open_to(device, &opened, true);
    CUresult closing = open_to(device, &closed, false);
    mutex_lock(&memory_lock);
    if ((pool = pool_named(handle)) != NULL)
        pool->readers &= ~opened;
    mutex_unlock(&memory_lock);
    return result == CUDA_SUCCESS ? closing : result;
}

void pool_trim(CUmemoryPool handle, size_t keep)
{
    LOCKED_OR_RETURN();
    pending_frees_poll(UINT_MAX);
    struct pool *pool = pool_named(handle);
    if (pool != NULL)
        pool_shrink(pool, keep);
}

static void settle(void)
{
    pending_frees_poll(UINT_MAX);
    EACH_LISTED(struct pool, pool, pools) {
        pool->users++;
        pool_shrink(pool, pool->destroyed ? 0 : pool->threshold);
        pool_leave(pool);            /* destroyed in a tool's callback: nothing may have used it */
    }
}

void pools_settle(void)
{
    LOCKED(memory_lock);
    settle();
}

void pool_add_figures(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
    bool called_back = client_is_called_back();
    if (!client_may_lock_memory())
        return;
    LOCKED(memory_lock);
    if (!called_back)
        settle();
    const struct pool *pool = pool_named(handle);
    uint64_t added = pool == NULL ? 0
        : attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT ? pool->reserved
        : attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH ? pool->reserved_high
        : attribute == CU_MEMPOOL_ATTR_USED_MEM_CURRENT ? pool->used + pool->lost
        : attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH ? pool->used_high : 0;
    if (added != 0)                  /* other attributes are ints that the driver reports right */
        *(cuuint64_t *)value += added;
}

void pool_set(CUmemoryPool handle, CUmemPool_attribute attribute, const void *value)
{
    bool called_back = client_is_called_back();
    LOCKED(memory_lock);
    if (!called_back)
        settle();
    struct pool *pool = pool_named(handle);
    if (pool == NULL)
        return;
    if (attribute == CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC)
        pool->opportunistic = *(const int *)value != 0;
    else if (attribute == CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES)
        pool->dependencies = *(const int *)value != 0;
    else if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        pool->threshold = *(const cuuint64_t *)value;
    else if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)
        pool->reserved_high = pool->reserved;
    else if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
        pool->used_high = pool->used + pool->lost;
}

bool pools_yield(const struct client *client)
{
    bool any = false;
    pending_frees_poll(UINT_MAX);
    EACH_LISTED(struct pool, pool, pools)
        if (pool->device == client->device)
            any |= pool_shrink(pool, 0);
    return any;
}

bool pools_reclaim(struct client *client, uint64_t bytes, uint64_t until)
{
    (void)bytes;
    return until != 0 && pools_yield(client);
}

static void undo_use(void *pool, uint64_t unused)
{
    (void)unused;
    LOCKED(memory_lock);
    pool_leave(pool);
}

bool pool_allocate(CUmemoryPool handle, size_t bytes, CUstream stream, CUdeviceptr *address,
                   CUresult *result)
{
    CUcontext context;
    CUdevice device;
    bool ours = false;
    if (capture_refuses(result))
        return true;
    RELAXED;
    if (stream_device(stream, &context, &device) == CUDA_SUCCESS
        && (handle != NULL || REAL(cuDeviceGetMemPool)(&handle, device) == CUDA_SUCCESS)) {
        uint64_t name = stream_name(stream);
        mutex_lock(&memory_lock);
        struct pool *pool = pool_adopted(handle);
        struct client *client = pool == NULL ? NULL : client_on(pool->device);
        ours = client != NULL;
        if (ours) {
            pool->users++;
            UNLESS_LEFT(undo_use, pool, 0);
            *result = async_take(pool, client, bytes, context, stream, name, address);
            pool_leave(pool);
        }
        mutex_unlock(&memory_lock);
    }
    return ours;
}

bool pool_free_async(CUdeviceptr address, CUstream stream, CUresult *result)
{
    struct marker *marker;
    if (!memory_is_ours(address))
        return false;
    if (capture_refuses(result) || (*result = mark(stream, &marker)) != CUDA_SUCCESS)
        return true;
    LOCKED(memory_lock);
    struct pending_frees *pending = pending_frees_of(marker->context, marker->stream);
    struct async_allocation *async = pending == NULL ? NULL : async_retire(address);
    if (async != NULL) {
        async->marker = marker;
        async->stream = marker->stream;
        async->context = marker->context;
        ring_append(&pending->allocations, &async->order);
        /* No pool reuses this memory, so no later allocation polls the pending lists for it. */
        if (async->pool == NULL || async->pool->destroyed)
            pending_frees_poll(QUERIED);
    } else {
        give_marker(marker);
        *result = pending == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    }
    return true;
}

bool pool_free(CUdeviceptr address, CUresult *result)
{
    if (client_none())
        return false;
    if (capture_refuses(result))
        return true;
    LOCKED(memory_lock);
    struct async_allocation *async = async_at(address);
    if (async == NULL)
        return false;
    *result = async_retire(address) != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (*result == CUDA_SUCCESS) {
        struct pool *pool = async->pool;
        pool->users++;
        pool->lost += async->size;
        async->stream = 0;
        async_idle(async);
        pool_shrink(pool, pool->threshold);
        pool_leave(pool);
    }
    return true;
}

CUmemoryPool pool_of(CUdeviceptr address)
{
    LOCKED(memory_lock);
    const struct async_allocation *async = async_at(address);
    return async == NULL || async->pool == NULL ? NULL : async->pool->handle;
}

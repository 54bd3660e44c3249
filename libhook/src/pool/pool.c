/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library's pools: their creation and end, their figures, and the attributes that the program
 * reads and sets. Figures are the sum of the library's and the driver's. A new attribute value goes
 * to the driver first, which validates it. See ordered.c.
 */
#include "pool/pool.h"

#include <stdlib.h>

#include "driver/ops.h"
#include "gate/client.h"
#include "memory/peers.h"
#include "pool/async_allocation.h"
#include "pool/pending_frees.h"

static struct pool *pools;           /* this and the following are protected by memory_lock */

struct pool *pool_named(CUmemoryPool handle)
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

static void drop_unused(struct pool *pool)
{
    if (!pool->destroyed || pool->users > 0)
        return;
    struct pool **link = &pools;
    while (*link != pool)
        link = &(*link)->next;
    *link = pool->next;
    free(pool);
}

void pool_leave(struct pool *pool)
{
    pool->users--;
    drop_unused(pool);
}

void pool_add(CUmemoryPool handle, CUdevice device, size_t most)
{
    LOCKED(memory_lock);
    add(handle, device, most);       /* if that fails, the pool stays with the driver */
}

/* The device's default pool, whose memory no other process can hold. */
static struct pool *of_device(CUmemoryPool handle, CUdevice device)
{
    CUmemoryPool usual;
    int devices, option = 1;
    cuuint64_t threshold = 0;
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
    if (pool != NULL && REAL(cuMemPoolGetAttribute)(handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                                                    &threshold) == CUDA_SUCCESS)
        pool->threshold = threshold;
    if (pool != NULL
        && REAL(cuMemPoolGetAttribute)(handle, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &option)
               == CUDA_SUCCESS)
        pool->opportunistic = option != 0;
    if (pool != NULL && REAL(cuMemPoolGetAttribute)(
            handle, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, &option) == CUDA_SUCCESS)
        pool->dependencies = option != 0;
    return pool;
}

struct pool *pool_adopted(CUmemoryPool handle)
{
    struct pool *pool = pool_named(handle);
    for (unsigned i = 0; i < CLIENTS_MAX && pool == NULL; i++)
        if (clients[i] != NULL)
            pool = of_device(handle, clients[i]->device);
    return pool;
}

/* From now on the pool releases freed memory at once. */
static void end(struct pool *pool)
{
    pool->users++;
    pool->destroyed = true;
    pool_shrink(pool, 0);
    pool_leave(pool);
}

static void close_to(CUdevice device, uint32_t readers)
{
    for (; readers != 0; readers &= readers - 1)
        memory_open_to_peer(device, __builtin_ctz(readers), false);
}

bool pool_destroy(CUmemoryPool handle, CUresult *result)
{
    CUdevice device = 0;
    uint32_t readers = 0;
    bool first = client_none();      /* in a forked child the lock may never be released */
    if (first && (*result = REAL(cuMemPoolDestroy)(handle)) != CUDA_SUCCESS)
        return true;
    pthread_mutex_lock(&memory_lock);
    struct pool *pool = pool_named(handle);
    bool ours = pool != NULL;
    if (ours && !first)              /* under the lock, before the driver reuses the handle */
        *result = REAL(cuMemPoolDestroy)(handle);
    if (ours && *result == CUDA_SUCCESS) {
        device = pool->device;
        readers = pool->opened;
        end(pool);
    }
    pthread_mutex_unlock(&memory_lock);
    close_to(device, readers);
    return ours || first;
}

/* Takes one device whose access is still to be granted or revoked; -1: there is none. The device
 * then counts as done. */
static int take_reader(CUmemoryPool handle, CUdevice *device, bool *open)
{
    int reader = -1;
    LOCKED(memory_lock);
    struct pool *pool = pool_named(handle);
    if (pool != NULL && pool_is_opening(pool)) {
        reader = __builtin_ctz(pool->readers ^ pool->opened);
        pool->opened ^= (uint32_t)1 << reader;
        *device = pool->device;
        *open = pool->opened >> reader & 1;
    }
    return reader;
}

bool pool_is_opening(const struct pool *pool)
{
    return pool->readers != pool->opened && pool->device >= 0 && pool->device < CLIENTS_MAX
        && clients[pool->device] != NULL;
}

CUresult pool_open(CUmemoryPool handle)
{
    CUdevice device = 0;
    bool open = false;
    int reader;
    CUresult result = CUDA_SUCCESS;
    while (result == CUDA_SUCCESS && (reader = take_reader(handle, &device, &open)) >= 0)
        result = memory_open_to_peer(device, reader, open);
    return result;
}

CUresult pool_set_access(CUmemoryPool handle, const CUmemAccessDesc *access, size_t count)
{
    if (!client_none()) {
        LOCKED(memory_lock);
        pool_adopted(handle);        /* before the first allocation from it */
    }
    CUresult result = REAL(cuMemPoolSetAccess)(handle, access, count);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&memory_lock);
    struct pool *pool = pool_named(handle);
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
    pthread_mutex_unlock(&memory_lock);
    return pool_open(handle);
}

void pool_trim(CUmemoryPool handle, size_t keep)
{
    LOCKED(memory_lock);
    pending_frees_look();
    struct pool *pool = pool_named(handle);
    if (pool != NULL)
        pool_shrink(pool, keep);
}

static void settle(void)
{
    pending_frees_look();
    for (struct pool *pool = pools, *next; pool != NULL; pool = next) {
        next = pool->next;
        pool_shrink(pool, pool->threshold);
    }
}

void pools_settle(void)
{
    if (client_none())
        return;
    LOCKED(memory_lock);
    settle();
}

void pool_tell(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
    cuuint64_t *bytes = value;
    LOCKED(memory_lock);
    settle();
    const struct pool *pool = pool_named(handle);
    if (pool != NULL) {
        switch (attribute) {
        case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
            *bytes += pool->reserved;
            break;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
            *bytes += pool->reserved_high;
            break;
        case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
            *bytes += pool->used + pool->lost;
            break;
        case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
            *bytes += pool->used_high;
            break;
        default:
            break;                   /* same value as in the driver */
        }
    }
}

void pool_set(CUmemoryPool handle, CUmemPool_attribute attribute, const void *value)
{
    LOCKED(memory_lock);
    settle();
    struct pool *pool = pool_named(handle);
    if (pool != NULL) {
        switch (attribute) {
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
            pool->opportunistic = *(const int *)value != 0;
            break;
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
            pool->dependencies = *(const int *)value != 0;
            break;
        case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
            pool->threshold = *(const cuuint64_t *)value;
            break;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
            pool->reserved_high = pool->reserved;
            break;
        case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
            pool->used_high = pool->used + pool->lost;
            break;
        default:
            break;                   /* a figure of the driver alone */
        }
    }
}

/* Releases idle allocations of the client's pools. */
static bool give_back(const struct client *client)
{
    bool any = false;
    for (struct pool *pool = pools, *next; pool != NULL; pool = next) {
        next = pool->next;
        if (pool->device == client->device)
            any |= pool_shrink(pool, 0);
    }
    return any;
}

bool pools_yield(const struct client *client)
{
    pending_frees_look();
    return give_back(client);
}

bool pools_reclaim(struct client *client, uint64_t bytes, uint64_t until)
{
    (void)bytes;
    return until != 0 && pools_yield(client);
}

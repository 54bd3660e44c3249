/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Managed memory. It stays the driver's: it lies at the driver's address, and
 * what the program asks about it the driver answers. It counts in blocks as
 * other memory does, but a block of it comes and goes by being prefetched, to
 * the card and to the host, instead of being mapped and copied; the bytes are
 * the driver's care all the while. So nothing can go wrong that is worse than a
 * late page: the processor may touch it at any time, resident or not, and work
 * that finds a page on the host waits for it to be brought.
 *
 * The figures are bounds. Pages that no work has touched yet, that the processor
 * has called back, or that the program prefers on the host count as on the card
 * while their block does; nothing but submitted work brings any of them there, so
 * of a block that has left, while the gate is shut, none is. The host's memory
 * counts while the block is away; the driver keeps it longer than that, for the
 * next time.
 *
 * What is mostly read is not sent away by a prefetch, only copied. So that advice
 * is taken back for the time of its departure.
 *
 * Beyond the card. With NVSHARE_ENABLE_SINGLE_OVERSUB=1 a program may have more
 * than the card could ever hold, of cuMemAlloc too. What goes beyond is managed
 * memory that is told to lie on the host, where the card reaches it over the bus.
 * It never comes to the card, so that the rest keeps what the daemon has given
 * it, and leaves and comes as ever; nor does it have blocks. The daemon is asked
 * whether the host has room for it.
 *
 * Devices without concurrent access to managed memory keep it on the card
 * themselves while work runs; there it is counted as pinned (unified.c).
 */
#include "managed.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "allocation.h"
#include "client.h"
#include "log.h"
#include "memory.h"
#include "prefetches.h"
#include "real.h"

#define GRAIN ((size_t)64 << 10)     /* in which the driver gives pages of the card */
#define ATTACH_GLOBAL 1u

struct managed {
    CUdeviceptr base;
    size_t size;                     /* as asked for */
    struct client *client;
    CUcontext context;               /* it goes with this; NULL: which has gone */
    struct managed *next_freed;
    struct prefetches prefetches;    /* the program's own */
    size_t beyond;                   /* bytes that it counts beyond the card; 0: it has blocks */
    bool plain;                      /* to the program it is cuMemAlloc's, with this id */
    unsigned long long id;
    size_t block_count;
    struct block *blocks[];
};

/* By address, with room for those promised a place; protected by memory_lock. */
static struct managed **table;
static size_t table_count, table_promised, table_room;
/* Those that the driver is being asked to free. Not in the table: before it has
 * answered, the same addresses may be somebody else's. */
static struct managed *freed;

/* The place of the first that begins behind `address`. */
static size_t place_behind(CUdeviceptr address)
{
    size_t low = 0, high = table_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (table[middle]->base <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The one that contains `address`, or NULL. */
static struct managed *find(CUdeviceptr address)
{
    size_t behind = place_behind(address);
    struct managed *managed = behind == 0 ? NULL : table[behind - 1];
    return managed != NULL && address - managed->base < managed->size ? managed : NULL;
}

static bool promise(void)
{
    if (table_count + table_promised == table_room) {
        size_t room = table_room == 0 ? 64 : table_room * 2;
        struct managed **larger = realloc(table, room * sizeof *table);
        if (larger == NULL)
            return false;
        table = larger;
        table_room = room;
    }
    table_promised++;
    return true;
}

static void enter(struct managed *managed)
{
    size_t place = place_behind(managed->base);
    memmove(&table[place + 1], &table[place], (table_count - place) * sizeof *table);
    table[place] = managed;
    table_count++;
}

static void strike(struct managed *managed)
{
    size_t place = place_behind(managed->base) - 1;
    table_count--;
    memmove(&table[place], &table[place + 1], (table_count - place) * sizeof *table);
}

static void hold(struct managed *managed, bool held)
{
    for (size_t i = 0; i < managed->block_count; i++)
        managed->blocks[i]->held = held;
}

static void discard(struct managed *managed)
{
    for (size_t i = 0; i < managed->block_count; i++)
        block_free(managed->blocks[i]);
    managed->client->beyond -= managed->beyond;
    prefetches_forget(&managed->prefetches);
    free(managed);
}

/* Counted, and nowhere yet. NULL: no memory. */
static struct managed *reserve(struct client *client, CUcontext context, size_t bytes)
{
    size_t count = (bytes + BLOCK_SIZE - 1) / BLOCK_SIZE;
    struct managed *managed = calloc(1, sizeof *managed + count * sizeof managed->blocks[0]);
    if (managed == NULL)
        return NULL;
    *managed = (struct managed){ .size = bytes, .client = client, .context = context };
    for (size_t left = bytes; managed->block_count < count; managed->block_count++) {
        size_t length = left < BLOCK_SIZE ? left : BLOCK_SIZE;
        struct block *block = block_new(client, 0, (length + GRAIN - 1) / GRAIN * GRAIN);
        if (block == NULL) {
            discard(managed);
            return NULL;
        }
        block->managed = length;
        block->held = true;
        client->managed += block->size;
        managed->blocks[managed->block_count] = block;
        left -= length;
    }
    if (!promise()) {
        discard(managed);
        return NULL;
    }
    return managed;
}

static void place(struct managed *managed, CUdeviceptr address)
{
    managed->base = address;
    for (size_t i = 0; i < managed->block_count; i++)
        managed->blocks[i]->address = address + i * BLOCK_SIZE;
    hold(managed, false);
    enter(managed);
}

static bool can_be_sent(CUdevice device)
{
    int concurrent = 0;
    return (HAVE_REAL(cuMemPrefetchAsync) || HAVE_REAL(cuMemPrefetchAsync_v2))
           && REAL(cuDeviceGetAttribute)(&concurrent,
                  CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, device) == CUDA_SUCCESS
           && concurrent;
}

/* May be called with memory_lock held: it only reads. */
static bool may_go_beyond(void)
{
    const char *text = setting("NVSHARE_ENABLE_SINGLE_OVERSUB");
    return text != NULL && strcmp(text, "1") == 0;
}

/* NULL: not allowed, or no memory. Lock held, released meanwhile. */
static struct managed *reserve_beyond(struct client *client, CUcontext context, size_t bytes)
{
    size_t size = (bytes + GRAIN - 1) / GRAIN * GRAIN;
    struct managed *managed = may_go_beyond() ? calloc(1, sizeof *managed) : NULL;
    if (managed == NULL || !client_go_beyond(client, size)) {
        free(managed);
        return NULL;
    }
    *managed = (struct managed){
        .size = bytes, .client = client, .context = context, .beyond = size,
    };
    if (!promise()) {
        discard(managed);
        return NULL;
    }
    return managed;
}

/* Calls the driver for what has been reserved. */
static CUresult make(const struct managed *managed, unsigned int flags, CUdeviceptr *address)
{
    CUdevice device = managed->client->device;
    CUresult result = REAL(cuMemAllocManaged)(address, managed->size, flags);
    if (result != CUDA_SUCCESS || managed->beyond == 0)
        return result;
    result = REAL(cuMemAdvise)(*address, managed->size, CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
                               CU_DEVICE_CPU);
    if (result == CUDA_SUCCESS)
        result = REAL(cuMemAdvise)(*address, managed->size, CU_MEM_ADVISE_SET_ACCESSED_BY, device);
    if (result != CUDA_SUCCESS) {
        debug("managed memory cannot be kept on the host: error %d", (int)result);
        REAL(cuMemFree_v2)(*address);
    }
    return result;
}

static bool has_context(struct client *client, CUcontext *context)
{
    return client != NULL && can_be_sent(client->device)
           && REAL(cuCtxGetCurrent)(context) == CUDA_SUCCESS;
}

/* `plain`: beyond the card, and cuMemAlloc's to the program. */
static CUresult take(struct client *client, CUcontext context, size_t bytes, unsigned int flags,
                     bool plain, CUdeviceptr *address)
{
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    int cancel;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    pthread_mutex_lock(&memory_lock);
    struct managed *managed =
        !plain && client_commit(client, (bytes + GRAIN - 1) / GRAIN * GRAIN)
            ? reserve(client, context, bytes) : reserve_beyond(client, context, bytes);
    if (managed != NULL) {
        managed->plain = plain;
        managed->id = allocation_id();
        /* It counts as there, or as lacking, from now on: the gate must know which. */
        allocation_fill(managed->blocks, managed->block_count);
        client_update(client);
        pthread_mutex_unlock(&memory_lock);
        CUdeviceptr made = 0;
        result = make(managed, flags, &made);
        pthread_mutex_lock(&memory_lock);
        table_promised--;
        if (result == CUDA_SUCCESS) {
            place(managed, made);
            *address = made;
        } else {
            discard(managed);
        }
    }
    client_update(client);
    pthread_mutex_unlock(&memory_lock);
    pthread_setcancelstate(cancel, NULL);
    return result;
}

bool managed_allocate(CUdeviceptr *address, size_t bytes, unsigned int flags, CUresult *result)
{
    struct client *client = client_current();
    CUcontext context;
    if (address == NULL || bytes == 0 || bytes > (size_t)1 << 46 || !has_context(client, &context))
        return false;
    *result = take(client, context, bytes, flags, false, address);
    return true;
}

bool managed_beyond(CUdeviceptr *address, size_t bytes)
{
    struct client *client = client_current();
    CUcontext context;
    return may_go_beyond() && bytes <= (size_t)1 << 46 && has_context(client, &context)
           && take(client, context, bytes, ATTACH_GLOBAL, true, address) == CUDA_SUCCESS;
}

bool managed_describe(CUdeviceptr address, struct memory_description *description)
{
    const struct managed *managed = find(address);
    if (managed == NULL || !managed->plain)
        return false;
    *description = (struct memory_description){
        .base = managed->base,
        .size = managed->size,
        .context = managed->context,
        .device = managed->client->device,
        .id = managed->id,
    };
    return true;
}

static bool moving(const struct managed *managed)
{
    for (size_t i = 0; i < managed->block_count; i++)
        if (managed->blocks[i]->state == BLOCK_LEAVING || managed->blocks[i]->state == BLOCK_COMING)
            return true;
    return false;
}

/* The driver waits for the work in flight, which may use it: until then it counts. */
bool managed_free(CUdeviceptr address, bool plain, CUresult *result)
{
    if (client_none())
        return false;
    int cancel;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    pthread_mutex_lock(&memory_lock);
    struct managed *managed = find(address);
    bool ours = managed != NULL && managed->base == address && (managed->plain || !plain);
    if (ours) {
        strike(managed);
        table_promised++;            /* should it have to go back */
        managed->next_freed = freed;
        freed = managed;
        hold(managed, true);
        while (moving(managed))
            pthread_cond_wait(&memory_changed, &memory_lock);
        pthread_mutex_unlock(&memory_lock);
        *result = REAL(cuMemFree_v2)(address);
        pthread_mutex_lock(&memory_lock);
        struct client *client = managed->client;
        struct managed **link = &freed;
        while (*link != managed)
            link = &(*link)->next_freed;
        *link = managed->next_freed;
        hold(managed, false);
        table_promised--;
        if (*result == CUDA_SUCCESS || managed->context == NULL)
            discard(managed);
        else
            enter(managed);
        client_update(client);
        pthread_cond_broadcast(&memory_changed);
    }
    pthread_mutex_unlock(&memory_lock);
    pthread_setcancelstate(cancel, NULL);
    return ours;
}

void managed_context_ends(CUcontext context)
{
    for (size_t i = table_count; i > 0; i--) {
        struct managed *managed = table[i - 1];
        if (managed->context != context)
            continue;
        strike(managed);
        discard(managed);
    }
    for (struct managed *managed = freed; managed != NULL; managed = managed->next_freed)
        if (managed->context == context)
            managed->context = NULL; /* for the thread that frees it to find */
}

void managed_prefetched(CUdeviceptr address, size_t size, CUmemLocation place)
{
    if (client_none())
        return;
    pthread_mutex_lock(&memory_lock);
    struct managed *managed = find(address);
    if (managed != NULL)
        prefetches_note(&managed->prefetches, address, size, place);
    pthread_mutex_unlock(&memory_lock);
}

bool managed_last_prefetch(CUdeviceptr address, size_t size, CUmemLocation *place)
{
    if (client_none())
        return false;
    pthread_mutex_lock(&memory_lock);
    const struct managed *managed = find(address);
    bool differs = false;
    for (size_t i = 0; managed != NULL && i < managed->block_count; i++)
        differs |= managed->blocks[i]->sent;
    if (differs)
        *place = prefetches_last(&managed->prefetches, address, size);
    pthread_mutex_unlock(&memory_lock);
    return differs;
}

static CUresult prefetch(const struct block *block, CUdevice to, CUstream stream)
{
    if (HAVE_REAL(cuMemPrefetchAsync))
        return REAL(cuMemPrefetchAsync)(block->address, block->managed, to, stream);
    CUmemLocation location = { .type = CU_MEM_LOCATION_TYPE_HOST };
    if (to != CU_DEVICE_CPU)
        location = (CUmemLocation){ .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = to };
    return REAL(cuMemPrefetchAsync_v2)(block->address, block->managed, location, 0, stream);
}

static int said(const struct block *block, CUmem_range_attribute attribute, int otherwise)
{
    int value;
    return REAL(cuMemRangeGetAttribute)(&value, sizeof value, attribute, block->address,
                                        block->managed) == CUDA_SUCCESS ? value : otherwise;
}

static CUresult advise(const struct block *block, CUmem_advise advice)
{
    CUresult result = REAL(cuMemAdvise)(block->address, block->managed, advice,
                                        block->client->device);
    if (result != CUDA_SUCCESS)
        debug("advice %d on managed memory failed: error %d", (int)advice, (int)result);
    return result;
}

CUresult managed_send(struct block *block, CUstream stream)
{
    pthread_mutex_lock(&memory_lock);
    block->sent = true;
    pthread_mutex_unlock(&memory_lock);
    if (block->state == BLOCK_COMING)
        return said(block, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, CU_DEVICE_INVALID)
                       == CU_DEVICE_CPU
                   ? CUDA_SUCCESS : prefetch(block, block->client->device, stream);
    if (said(block, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 0) == 1)
        block->mostly_read = advise(block, CU_MEM_ADVISE_UNSET_READ_MOSTLY) == CUDA_SUCCESS;
    return prefetch(block, CU_DEVICE_CPU, stream);
}

void managed_sent(struct block *block)
{
    if (block->mostly_read)
        advise(block, CU_MEM_ADVISE_SET_READ_MOSTLY);
    block->mostly_read = false;
}

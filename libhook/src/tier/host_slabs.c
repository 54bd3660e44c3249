/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps host memory for swapped blocks, in slabs of about a hundred MiB. A slab is allocated with
 * huge pages, registered with the driver once, and kept.
 *
 * A registration ends with the context in which it was made, but the memory does not: it may hold
 * bytes that outlive that context. Before a context ends its slabs are therefore unregistered, and
 * each is registered again before its next copy. A slab that is not registered can be released
 * without the driver, even when no context is left.
 */
#include "tier/host_slabs.h"

#include <stdlib.h>
#include <string.h>

#include "driver/ops.h"
#include "gate/client.h"
#include "tier/host_memory.h"

#define DEFAULT_SLAB ((uint64_t)128 << 20)
#define LARGEST_SLAB ((uint64_t)1 << 30)

struct host_slab *host_slab_new(const struct client *client, char *memory, uint64_t size)
{
    struct host_slab *slab = calloc(1, sizeof *slab + size / PAGE);
    if (memory == NULL)
        memory = host_memory_map(size, client->node);
    if (slab == NULL || memory == NULL) {
        if (memory != NULL)
            host_memory_unmap(memory, size);
        free(slab);
        return NULL;
    }
    slab->memory = memory;
    slab->size = size;
    slab->pages = slab->run = size / PAGE;
    return slab;
}

static bool place_in(struct host_slab *slab, struct client *client, size_t size,
                     struct place *place)
{
    uint64_t wanted = size / PAGE, run = 0, longest = 0;
    if (slab->run < wanted)
        return false;
    for (uint64_t page = 0; page < slab->pages; page++) {
        run = slab->taken[page] ? 0 : run + 1;
        longest = run > longest ? run : longest;
        if (run < wanted)
            continue;
        memset(&slab->taken[page + 1 - wanted], true, wanted);
        client->host_empty -= slab->used == 0;
        slab->used += size;
        place->host.slab = slab;
        place->host.address = slab->memory + (page + 1 - wanted) * PAGE;
        return true;
    }
    slab->run = longest;
    return false;
}

/* Full slabs at the head are skipped once and for all: host_room then begins after them. */
bool host_place(struct client *client, size_t size, struct place *place)
{
    struct host_slab **first = &client->host_room;
    while (*first != NULL && (*first)->used == (*first)->size)
        *first = (*first)->next;
    for (struct host_slab *slab = *first; slab != NULL; slab = slab->next)
        if (place_in(slab, client, size, place))
            return true;
    return false;
}

static void note_room(struct client *client, struct host_slab *slab)
{
    client->host_empty += slab->used == 0;
    if (client->host_room == NULL || client->host_room->number < slab->number)
        client->host_room = slab;
}

void host_unplace(struct client *client, size_t size, struct place *place)
{
    struct host_slab *slab = place->host.slab;
    memset(&slab->taken[(place->host.address - slab->memory) / (ptrdiff_t)PAGE], false, size / PAGE);
    slab->used -= size;
    slab->run = (slab->size - slab->used) / PAGE;
    note_room(client, slab);
}

uint64_t host_slab_size(const struct client *client, uint64_t block_size, uint64_t allowance)
{
    uint64_t size = client->limits.host_slab != 0 ? client->limits.host_slab : DEFAULT_SLAB;
    if (size > LARGEST_SLAB)
        size = LARGEST_SLAB;
    uint64_t left = allowance > client->memory.host ? allowance - client->memory.host : 0;
    if (size > left)
        size = left;
    size = size / PAGE * PAGE;
    uint64_t least = block_size > BLOCK_SIZE ? block_size : BLOCK_SIZE;
    if (size < least && block_size <= left)
        size = least <= left ? least : block_size;
    return size >= block_size ? size : 0;
}

bool host_slab_enlist(struct client *client, struct host_slab *slab)
{
    pthread_mutex_unlock(&memory_lock);
    bool usable = host_memory_register(slab->memory, slab->size);
    if (!usable)
        host_memory_unmap(slab->memory, slab->size);
    pthread_mutex_lock(&memory_lock);
    if (!usable) {
        client->memory.host -= slab->size;
        free(slab);
        return false;
    }
    slab->state = REGISTERED;
    host_slab_add(client, slab);
    return true;
}

void host_slab_add(struct client *client, struct host_slab *slab)
{
    slab->number = ++client->host_slabs_made;
    slab->next = client->host_slabs;
    client->host_slabs = slab;
    note_room(client, slab);
    pthread_cond_broadcast(&memory_changed);
}

bool host_grow(struct client *client, uint64_t block_size, uint64_t allowance)
{
    uint64_t size = host_slab_size(client, block_size, allowance);
    if (size == 0)
        return false;
    client->memory.host += size;
    pthread_mutex_unlock(&memory_lock);
    struct host_slab *slab = host_slab_new(client, NULL, size);
    if (slab != NULL)
        host_memory_fill(slab->memory, size);
    pthread_mutex_lock(&memory_lock);
    if (slab == NULL) {
        client->memory.host -= size;
        return false;
    }
    return host_slab_enlist(client, slab);
}

static void enregister(struct host_slab *slab)
{
    slab->state = REGISTERING;
    pthread_mutex_unlock(&memory_lock);
    bool done = host_memory_register_again(slab->memory, slab->size);
    pthread_mutex_lock(&memory_lock);
    slab->state = done ? REGISTERED : REFUSED;
    pthread_cond_broadcast(&memory_changed);
}

bool host_slab_registered(struct host_slab *slab)
{
    while (slab->state == REGISTERING)
        pthread_cond_wait(&memory_changed, &memory_lock);
    if (slab->state == UNREGISTERED)
        enregister(slab);
    return slab->state == REGISTERED;
}

uint64_t host_free(const struct client *client)
{
    uint64_t free = 0;
    for (const struct host_slab *slab = client->host_slabs; slab != NULL; slab = slab->next)
        free += slab->size - slab->used;
    return free;
}

struct host_slab *host_registrable(const struct client *client, uint64_t wanted)
{
    struct host_slab *first = NULL;
    uint64_t known = 0;
    for (struct host_slab *slab = client->host_slabs; slab != NULL; slab = slab->next) {
        if (slab->state != UNREGISTERED)
            known += slab->size - slab->used;
        else if (first == NULL && slab->used < slab->size)
            first = slab;
    }
    return known < wanted ? first : NULL;
}

bool host_register_next(struct client *client, uint64_t wanted)
{
    struct host_slab *slab = host_registrable(client, wanted);
    if (slab != NULL)
        enregister(slab);
    return slab != NULL;
}

uint64_t host_useful(const struct client *client)
{
    return client->slab_use - client->stored + client->managed_away + client->borrowed;
}

void host_leave_context(struct client *client, bool drained)
{
    struct host_slab *first = client->host_slabs;   /* slabs made from now on are not registered */
    if (first == NULL)
        return;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUcontext same;
    /* The driver may wait for work in flight, which may wait for a thread at the gate, and the gate
     * opens under service_lock. In that case, or if the driver refuses, the context's end
     * unregisters them. */
    pthread_mutex_unlock(&memory_lock);
    bool entered = drained && REAL(cuCtxPushCurrent_v2)(client->copy_context) == CUDA_SUCCESS;
    if (entered)
        REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    for (struct host_slab *slab = first; slab != NULL; slab = slab->next) {
        if (entered && slab->state == REGISTERED)
            host_memory_unregister(slab->memory);
        slab->state = UNREGISTERED;
    }
    if (entered) {
        REAL(cuThreadExchangeStreamCaptureMode)(&mode);
        REAL(cuCtxPopCurrent_v2)(&same);
    }
    pthread_mutex_lock(&memory_lock);
}

/* Releases the memory of an empty slab. False: the driver keeps it, so it stays counted.
 * memory_lock is held, and released meanwhile; no other thread removes slabs then. */
static bool let_go(struct client *client, struct host_slab *slab)
{
    struct host_slab **link = &client->host_slabs;
    pthread_mutex_unlock(&memory_lock);
    bool free_of_driver = slab->state != REGISTERED || host_memory_unregister(slab->memory);
    if (free_of_driver)
        host_memory_unmap(slab->memory, slab->size);
    pthread_mutex_lock(&memory_lock);
    if (!free_of_driver)
        return false;
    while (*link != slab)
        link = &(*link)->next;
    *link = slab->next;
    if (client->host_room == slab)
        client->host_room = slab->next;
    client->host_empty--;
    client->memory.host -= slab->size;
    free(slab);
    return true;
}

void host_trim(struct client *client, uint64_t allowance)
{
    struct host_slab *slab = client->host_slabs;
    while (slab != NULL && client->host_empty > 0 && client->memory.host > allowance)
        slab = slab->used == 0 && let_go(client, slab) ? client->host_slabs : slab->next;
}

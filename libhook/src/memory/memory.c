/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocates and frees device memory for the wrappers.
 *
 * Allocation does not wait for the GPU. It reserves addresses; if the client has room, the memory
 * is mapped at once, otherwise the gate closes until there is room (client_update). Freeing waits
 * for work in flight, as the driver does, unless nothing can be in flight. During a stream capture
 * a thread must not wait, so the memory is freed later (first section).
 */
#include "memory/memory.h"

#include <stdlib.h>

#include "block/region.h"
#include "flight/capture.h"
#include "flight/drain.h"
#include "gate/client.h"
#include "gate/contexts.h"
#include "gate/gate.h"
#include "memory/allocation.h"
#include "memory/large.h"
#include "memory/managed.h"
#include "memory/slab.h"
#include "memory/vmm.h"

/*
 * Memory that was freed during a stream capture.
 *
 * Freeing waits for work in flight, which is not allowed during a capture. The memory is therefore
 * kept until a later wait in the same context has ended, at the latest until its bytes are needed.
 */

#define SLICE_US 1000                /* of a wait: a context's end must not wait for its work */

/* A list, the latest free first. */
struct deferred {
    CUdeviceptr address;
    CUcontext context;
    uint64_t number;                 /* position in the sequence of all deferred frees */
    struct deferred *next;
};
static struct deferred *deferred;    /* these three are protected by memory_lock */
static uint64_t deferrals;
static CUcontext waited_in;          /* context in which deferred_frees_reclaim() waits now */

/* The number of deferred frees so far. */
static uint64_t deferred_frees_so_far(void)
{
    return deferrals;
}

/* Defers the release of a retired allocation until the work of its context has been waited for. */
static void deferred_frees_add(CUdeviceptr address, CUcontext context)
{
    struct deferred *one = malloc(sizeof *one);
    if (one == NULL)
        return;                      /* the memory stays until its context ends */
    *one = (struct deferred){ address, context, ++deferrals, deferred };
    deferred = one;
}

static bool deferred_by(const struct deferred *one, const struct client *client)
{
    return region_owner(one->address)->client == client;
}

/* To be called when a context has done all work that it had when the deferred frees up to `number`
 * were made: releases these. Memory that was freed later may still be in use. */
static void deferred_frees_waited(CUcontext context, uint64_t number)
{
    for (struct deferred **link = &deferred, *one; (one = *link) != NULL;) {
        if (one->context != context || one->number > number) {
            link = &one->next;
            continue;
        }
        *link = one->next;
        allocation_release(one->address);
        free(one);
    }
}

static const struct deferred *first_of(const struct client *client)
{
    const struct deferred *one = deferred;
    while (one != NULL && !deferred_by(one, client))
        one = one->next;
    return one;
}

/* memory_lock is held, and released meanwhile. */
static bool wait_in(CUcontext context)
{
    CUresult ignored_as_work_that_failed_is_done;
    uint64_t earlier = deferrals;
    waited_in = context;
    pthread_mutex_unlock(&memory_lock);
    bool waited = drain_context(context, SLICE_US, &ignored_as_work_that_failed_is_done);
    pthread_mutex_lock(&memory_lock);
    if (waited)
        deferred_frees_waited(context, earlier);
    waited_in = NULL;
    pthread_cond_broadcast(&memory_changed);
    return waited;
}

bool deferred_frees_reclaim(struct client *client, uint64_t bytes, uint64_t until)
{
    (void)bytes;
    BLOCKED;
    const struct deferred *one;
    while (now_microseconds() < until && (one = first_of(client)) != NULL) {
        if (waited_in != NULL)
            pthread_cond_wait(&memory_changed, &memory_lock);
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
        pthread_cond_wait(&memory_changed, &memory_lock);
    deferred_frees_waited(context, deferrals);
}

/* No work uses the memory any more. The program may soon allocate the same size again. memory_lock
 * is held. */
static void release_or_keep(CUdeviceptr address)
{
    struct large *large = large_of(region_owner(address));
    if (large == NULL || !spare_keep(large))
        allocation_release(address);
}

static CUresult allocate(struct client *client, CUcontext context, size_t bytes,
                         CUdeviceptr *address)
{
    CUresult result = CUDA_SUCCESS;
    LOCKED(memory_lock);
    /* Reusing a spare changes no figure. */
    if (bytes <= SMALL_MAX || !spare_take(client, context, bytes, address)) {
        result = bytes <= SMALL_MAX ? slab_allocate(client, context, bytes, address)
                                    : large_allocate(client, context, bytes, address);
        client_update(client);
    }
    return result;
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
    *result = allocate(client, context, bytes, address);
    if (*result == CUDA_ERROR_OUT_OF_MEMORY && managed_beyond(address, bytes))
        *result = CUDA_SUCCESS;
    return true;
}

bool memory_free(CUdeviceptr address, CUresult *result)
{
    if (client_none())
        return false;
    if (capture_refuses(result))
        return true;
    pthread_mutex_lock(&memory_lock);
    if (!region_contains(address)) {
        pthread_mutex_unlock(&memory_lock);
        return false;
    }
    struct page_owner *owner = region_owner(address);
    if (!allocation_retire(address)) {
        pthread_mutex_unlock(&memory_lock);
        *result = CUDA_ERROR_INVALID_VALUE;
        return true;
    }
    CUcontext context = owner->context;
    bool idle = owner->client->drained;
    uint64_t earlier = deferred_frees_so_far();
    pthread_mutex_unlock(&memory_lock);

    *result = CUDA_SUCCESS;
    bool waited = idle || drain_context(context, UINT64_MAX, result);
    if (!waited)
        *result = CUDA_SUCCESS;      /* deferred_frees_waited() frees it */

    LOCKED(memory_lock);
    bool gone = region_owner(address) != owner; /* freed with its context */
    if (!gone && waited) {
        deferred_frees_waited(context, earlier);
        if (*result == CUDA_SUCCESS)
            release_or_keep(address);
        else
            allocation_release(address);
    } else if (!gone) {
        deferred_frees_add(address, context);
    }
    return true;
}

bool memory_describe(CUdeviceptr address, struct memory_description *description)
{
    if (client_none())
        return false;
    LOCKED(memory_lock);
    return allocation_describe(address, description) || vmm_describe(address, description)
        || managed_describe(address, description);
}

bool memory_set_sync_memops(CUdeviceptr address, bool on)
{
    struct memory_description description;
    if (!memory_describe(address, &description))
        return false;
    LOCKED(memory_lock);
    allocation_set_sync_memops(address, on);
    return true;
}

bool memory_is_ours(CUdeviceptr address)
{
    if (client_none())
        return false;
    LOCKED(memory_lock);
    return region_contains(address);
}

static void information(const struct client *client, size_t *free_bytes, size_t *total_bytes)
{
    uint64_t used = client->memory.allocated - spares_bytes(client) + client->memory.pinned;
    *total_bytes = client->limits.total;
    *free_bytes = client->limits.most > used ? client->limits.most - used : 0;
}

bool memory_information(size_t *free_bytes, size_t *total_bytes)
{
    struct client *client = client_here();
    if (client == NULL)
        return false;
    bool called_back = locked_here(&memory_lock);
    if (!called_back)
        pthread_mutex_lock(&memory_lock);
    information(client, free_bytes, total_bytes);
    if (!called_back)
        pthread_mutex_unlock(&memory_lock);
    return true;
}

bool memory_total(CUdevice device, size_t *total_bytes)
{
    if (client_none() || device < 0 || device >= CLIENTS_MAX)
        return false;
    LOCKED(memory_lock);
    struct client *client = clients[device];
    size_t free_bytes;
    if (client != NULL)
        information(client, &free_bytes, total_bytes);
    return client != NULL;
}

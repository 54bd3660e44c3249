/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocates and frees device memory for the wrappers.
 *
 * Allocating does not wait for the GPU. It takes addresses; if the card has room for us the memory
 * is mapped at once, otherwise the gate shuts until there is room (client_update). Freeing waits
 * for the work in flight, as the driver does, unless nothing can be in flight. While a stream is
 * being captured nobody may wait, so the memory is freed later (deferred_free.c).
 */
#include "memory/memory.h"

#include "block/region.h"
#include "flight/capture.h"
#include "flight/drain.h"
#include "gate/client.h"
#include "gate/contexts.h"
#include "memory/alias.h"
#include "memory/allocation.h"
#include "memory/deferred_free.h"
#include "memory/large.h"
#include "memory/managed.h"
#include "memory/slab.h"
#include "memory/spare.h"

/* Nothing uses it any more. The program may soon want it again. Lock held. */
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
    /* A spare changes no figure. */
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
        *result = CUDA_SUCCESS;      /* it is freed later */

    LOCKED(memory_lock);
    bool gone = region_owner(address) != owner; /* with its context */
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

/* Of memory that the program has mapped itself, and that may be away just now. */
static bool describe_alias(CUdeviceptr address, struct memory_description *description)
{
    const struct alias *alias = alias_at(address);
    if (alias == NULL || alias->vmm->memory == NULL)
        return false;
    *description = (struct memory_description){
        .base = alias->address,
        .size = alias->size,
        .device = alias->vmm->client->device,
        .id = alias->vmm->memory->id,
        .handle_types = alias->vmm->properties.requestedHandleTypes,
    };
    return true;
}

bool memory_describe(CUdeviceptr address, struct memory_description *description)
{
    if (client_none())
        return false;
    LOCKED(memory_lock);
    return allocation_describe(address, description) || describe_alias(address, description)
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

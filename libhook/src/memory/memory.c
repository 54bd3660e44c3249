/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program's allocations, as the wrappers ask for them.
 *
 * Allocating does not wait for the GPU: addresses are taken, and if the card
 * has room for us the memory is mapped at once, otherwise the gate shuts until
 * there is (client_update). Freeing waits for the work in flight, as the
 * driver does, unless nothing can be in flight; while a stream is being
 * captured waiting is not possible, and what is freed then is kept until somebody
 * has waited who began to after that, at the latest when it is needed.
 */
#include "memory/memory.h"

#include <pthread.h>
#include <stdlib.h>

#include "block/alias.h"
#include "block/block.h"
#include "block/region.h"
#include "client/client.h"
#include "flight/capture.h"
#include "flight/drain.h"
#include "interpose/real.h"
#include "ipc/ipc_import.h"
#include "memory/allocation.h"
#include "memory/large.h"
#include "memory/managed.h"
#include "memory/pinned.h"
#include "memory/slab.h"
#include "memory/spare.h"
#include "memory/vmm_allocation.h"
#include "pool/pending_frees.h"
#include "pool/pool.h"
#include "swap/pipeline.h"

/* What was freed during a capture: the latest first. */
struct deferred {
    CUdeviceptr address;
    CUcontext context;
    uint64_t number;                 /* which of all that were it is */
    struct deferred *next;
};
static struct deferred *deferred;    /* protected by memory_lock, as is the next */
static uint64_t deferrals;
static CUcontext waited_in;          /* by memory_yield(), which is one thread's at a time */

/* Second half of freeing: nothing uses it any more. Lock held. */
void allocation_release(CUdeviceptr address)
{
    struct page_owner *owner = region_owner(address);
    struct client *client = owner->client;
    if (owner->kind == OWNER_SLAB)
        slab_release((struct slab *)owner, address);
    else
        large_release((struct large *)owner);
    client_update(client);
}

/* The same of what the program may soon want again. */
static void release_or_keep(CUdeviceptr address)
{
    struct page_owner *owner = region_owner(address);
    if (owner->kind != OWNER_LARGE || !spare_keep((struct large *)owner))
        allocation_release(address);
}

static bool deferred_by(const struct deferred *one, const struct client *client)
{
    const struct page_owner *owner = region_owner(one->address);
    return owner->client == client;
}

/* Of what was freed in this context those up to `number`: all work of the context from
 * before that is done. What was freed later may be used by work that came later. */
static void release_deferred(CUcontext context, uint64_t number)
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

bool memory_yield(const struct client *client)
{
    const struct deferred *one = deferred;
    while (one != NULL && !deferred_by(one, client))
        one = one->next;
    if (one == NULL)
        return false;
    if (waited_in != NULL) {
        pthread_cond_wait(&memory_changed, &memory_lock);
        return true;                 /* perhaps that was enough */
    }
    CUcontext context = waited_in = one->context;
    uint64_t earlier = deferrals;
    pthread_mutex_unlock(&memory_lock);
    CUresult ignored_as_work_that_failed_is_done;
    bool waited = drain_context(context, &ignored_as_work_that_failed_is_done);
    pthread_mutex_lock(&memory_lock);
    if (waited)
        release_deferred(context, earlier);
    waited_in = NULL;
    pthread_cond_broadcast(&memory_changed);
    return waited;
}

static CUresult allocate(struct client *client, CUcontext context, size_t bytes,
                         CUdeviceptr *address)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&memory_lock);
    /* A spare changes no figure. */
    if (bytes <= SMALL_MAX || !spare_take(client, context, bytes, address)) {
        result = bytes <= SMALL_MAX ? slab_allocate(client, context, bytes, address)
                                    : large_allocate(client, context, bytes, address);
        client_update(client);
    }
    pthread_mutex_unlock(&memory_lock);
    return result;
}

bool memory_allocate(size_t bytes, CUdeviceptr *address, CUresult *result)
{
    struct client *client = client_current();
    CUcontext context = NULL;
    if (client == NULL || REAL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS)
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

/* First half: from now on the address means nothing. Lock held. */
static bool retire(struct page_owner *owner, CUdeviceptr address)
{
    if (owner->kind == OWNER_SLAB)
        return slab_retire((struct slab *)owner, address);
    if (owner->kind == OWNER_IMPORT)
        return false;
    struct large *large = (struct large *)owner;
    if (large->base != address || large->freeing)
        return false;
    return large->freeing = true;
}

bool allocation_retire(CUdeviceptr address)
{
    struct page_owner *owner = region_owner(address);
    return owner != NULL && retire(owner, address);
}

void allocation_renew(CUdeviceptr address, size_t bytes)
{
    struct page_owner *owner = region_owner(address);
    if (owner->kind == OWNER_SLAB) {
        slab_renew((struct slab *)owner, address, bytes);
        return;
    }
    struct large *large = (struct large *)owner;
    large->size = bytes;
    large->id = allocation_id();
    large->sync_memops = false;
    large->freeing = false;
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
    if (owner == NULL || !retire(owner, address)) {
        pthread_mutex_unlock(&memory_lock);
        *result = CUDA_ERROR_INVALID_VALUE;
        return true;
    }
    CUcontext context = owner->context;
    bool idle = owner->client->drained;
    uint64_t earlier = deferrals;
    pthread_mutex_unlock(&memory_lock);

    *result = CUDA_SUCCESS;
    bool waited = idle || drain_context(context, result);
    struct deferred *later = waited ? NULL : malloc(sizeof *later);

    pthread_mutex_lock(&memory_lock);
    if (region_owner(address) != owner) {
        free(later);                 /* it went with its context */
    } else if (waited) {
        release_deferred(context, earlier);
        if (*result == CUDA_SUCCESS)
            release_or_keep(address);
        else
            allocation_release(address);
    } else if (later != NULL) {
        *later = (struct deferred){ address, context, ++deferrals, deferred };
        deferred = later;
    }
    pthread_mutex_unlock(&memory_lock);
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

bool allocation_describe(CUdeviceptr address, struct memory_description *description)
{
    struct page_owner *owner = region_owner(address);
    if (owner == NULL)
        return describe_alias(address, description) || managed_describe(address, description);
    if (owner->kind == OWNER_SLAB)
        return slab_find((struct slab *)owner, address, description);
    if (owner->kind == OWNER_IMPORT)
        return ipc_import_describe((struct ipc_import *)owner, address, description);
    const struct large *large = (struct large *)owner;
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

bool memory_describe(CUdeviceptr address, struct memory_description *description)
{
    if (client_none())
        return false;
    pthread_mutex_lock(&memory_lock);
    bool found = allocation_describe(address, description);
    pthread_mutex_unlock(&memory_lock);
    return found;
}

bool memory_set_sync_memops(CUdeviceptr address, bool on)
{
    struct memory_description description;
    if (!memory_describe(address, &description))
        return false;
    pthread_mutex_lock(&memory_lock);
    struct page_owner *owner = region_owner(address);
    if (owner != NULL && owner->kind == OWNER_SLAB)
        slab_set_sync_memops((struct slab *)owner, address, on);
    else if (owner != NULL && owner->kind == OWNER_LARGE)
        ((struct large *)owner)->sync_memops = on;
    pthread_mutex_unlock(&memory_lock);
    return true;
}

bool memory_is_ours(CUdeviceptr address)
{
    if (client_none())
        return false;
    pthread_mutex_lock(&memory_lock);
    bool ours = region_contains(address);
    pthread_mutex_unlock(&memory_lock);
    return ours;
}

static void information(const struct client *client, size_t *free_bytes, size_t *total_bytes)
{
    uint64_t used = client->memory.allocated - spares_bytes(client) + client->memory.pinned;
    *total_bytes = client->limits.total;
    *free_bytes = client->limits.most > used ? client->limits.most - used : 0;
}

bool memory_information(size_t *free_bytes, size_t *total_bytes)
{
    struct client *client = client_current();
    if (client == NULL)
        return false;
    pools_settle();
    pthread_mutex_lock(&memory_lock);
    information(client, free_bytes, total_bytes);
    pthread_mutex_unlock(&memory_lock);
    return true;
}

bool memory_total(CUdevice device, size_t *total_bytes)
{
    if (client_none() || device < 0 || device >= CLIENTS_MAX)
        return false;
    pthread_mutex_lock(&memory_lock);
    struct client *client = clients[device];
    size_t free_bytes;
    if (client != NULL)
        information(client, &free_bytes, total_bytes);
    pthread_mutex_unlock(&memory_lock);
    return client != NULL;
}

/* The memory goes with its context: whatever is left of it, in use or not. */
static void free_all_of(struct client *client, CUcontext context)
{
    struct block *block = client->blocks;
    while (block != NULL) {
        struct page_owner *owner = region_owner(block->address);
        struct block *next = block->younger;
        if (owner != NULL && owner->context == context) {
            /* Its blocks follow one another in the list, as they were made at once. */
            while (next != NULL && region_owner(next->address) == (void *)owner)
                next = next->younger;
            if (owner->kind == OWNER_SLAB)
                slab_destroy((struct slab *)owner);
            else
                large_release((struct large *)owner);
        }
        block = next;
    }
}

void memory_context_ends(CUcontext context)
{
    if (client_none())
        return;
    int cancel;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    bool drained = drain_ending(context);
    pthread_mutex_lock(&service_lock);
    pthread_mutex_lock(&memory_lock);
    while (waited_in == context)
        pthread_cond_wait(&memory_changed, &memory_lock);
    release_deferred(context, deferrals);
    ipc_import_context_ends(context);
    managed_context_ends(context);
    pinned_context_ends(context);
    pending_frees_context_ends(context);
    for (unsigned i = 0; i < CLIENTS_MAX; i++) {
        struct client *client = clients[i];
        if (client == NULL)
            continue;
        unsigned kept = 0;
        for (unsigned c = 0; c < client->context_count; c++)
            if (client->contexts[c] != context)
                client->contexts[kept++] = client->contexts[c];
        bool had_it = kept != client->context_count;
        client->context_count = kept;
        if (!had_it)
            continue;
        client->contexts_ended++;
        free_all_of(client, context);
        swap_leave_context(client, context, drained);
        client_update(client);
    }
    pthread_mutex_unlock(&memory_lock);
    pthread_mutex_unlock(&service_lock);
    pthread_setcancelstate(cancel, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/allocation.h"

#include "block/block.h"
#include "block/region.h"
#include "gate/client.h"

bool allocation_describe(CUdeviceptr address, struct memory_description *description)
{
    struct page_owner *owner = region_owner(address);
    return owner != NULL && owner->operations->describe(owner, address, description);
}

void allocation_set_sync_memops(CUdeviceptr address, bool on)
{
    struct page_owner *owner = region_owner(address);
    if (owner != NULL && owner->operations->set_sync_memops != NULL)
        owner->operations->set_sync_memops(owner, address, on);
}

bool allocation_retire(CUdeviceptr address)
{
    struct page_owner *owner = region_owner(address);
    return owner != NULL && owner->operations->retire != NULL
        && owner->operations->retire(owner, address);
}

void allocation_release(CUdeviceptr address)
{
    struct page_owner *owner = region_owner(address);
    struct client *client = owner->client;
    owner->operations->release(owner, address);
    client_update(client);
}

void allocation_renew(CUdeviceptr address, size_t bytes)
{
    struct page_owner *owner = region_owner(address);
    owner->operations->renew(owner, address, bytes);
}

void allocations_context_ends(const struct client *client, CUcontext context)
{
    struct block *block = client->blocks;
    while (block != NULL) {
        struct page_owner *owner = region_owner(block->address);
        struct block *next = block->younger;
        if (owner != NULL && owner->context == context) {
            /* The owner's blocks are neighbours in the list, because they were created in one
             * go. */
            while (next != NULL && region_owner(next->address) == owner)
                next = next->younger;
            owner->operations->destroy(owner);
        }
        block = next;
    }
}

unsigned long long allocation_id(void)
{
    static unsigned long long last;
    return ++last;
}

static bool fill(struct block *block)
{
    struct client *client = block->client;
    while (client_free_room(client) < block->size)
        if (!reclaim(client, block->size, false))
            return false;
    CUresult result;
    while ((result = block_map(block)) == CUDA_ERROR_OUT_OF_MEMORY
           && reclaim(client, block->size, false))
        continue;
    /* If the card has less free memory than the client was granted, the daemon makes room: the
     * block stays empty and is requested with the others. */
    if (result != CUDA_SUCCESS)
        return false;
    block_set_state(block, BLOCK_RESIDENT);
    return true;
}

void allocation_fill(struct block *const *blocks, size_t count)
{
    for (size_t i = 0; i < count && fill(blocks[i]); i++)
        continue;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/large.h"

#include <stdlib.h>

#include "block/block.h"
#include "gate/client.h"
#include "gate/commit.h"
#include "memory/allocation.h"
#include "memory/spare.h"

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

void large_release(struct large *large)
{
    spare_leave(large);
    /* Not large->size: a renewed spare may have a smaller size than its blocks. */
    const struct block *last = large->blocks[large->block_count - 1];
    region_set_owner(large->base, last->address + last->size - large->base, NULL);
    for (size_t i = 0; i < large->block_count; i++)
        block_free(large->blocks[i]);
    free(large);
}

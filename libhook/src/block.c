/* SPDX-License-Identifier: Apache-2.0 */
#include "block.h"

#include <stdlib.h>

#include "log.h"
#include "real.h"
#include "region.h"

void block_set_state(struct block *block, enum block_state state)
{
    if (block->state == BLOCK_RESIDENT)
        block->client->absent += block->size;
    if (state == BLOCK_RESIDENT)
        block->client->absent -= block->size;
    block->state = state;
}

struct block *block_new(struct client *client, CUdeviceptr address, size_t size)
{
    struct block *block = malloc(sizeof *block);
    if (block == NULL)
        return NULL;
    *block = (struct block){
        .address = address,
        .size = size,
        .client = client,
        .state = BLOCK_EMPTY,
        .older = client->youngest,
    };
    if (client->youngest != NULL)
        client->youngest->younger = block;
    else
        client->blocks = block;
    client->youngest = block;
    client->memory.allocated += size;
    client->absent += size;
    return block;
}

CUresult block_map(struct block *block)
{
    const CUmemAllocationProp property = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = block->client->device },
    };
    const CUmemAccessDesc access = {
        .location = property.location,
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    CUresult result = REAL(cuMemCreate)(&block->handle, block->size, &property, 0);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuMemMap)(block->address, block->size, 0, block->handle, 0);
    if (result == CUDA_SUCCESS) {
        result = REAL(cuMemSetAccess)(block->address, block->size, &access, 1);
        if (result == CUDA_SUCCESS)
            result = block_map_aliases(block);
        if (result != CUDA_SUCCESS)
            REAL(cuMemUnmap)(block->address, block->size);
    }
    if (result != CUDA_SUCCESS) {
        REAL(cuMemRelease)(block->handle);
        return result;
    }
    block->client->memory.resident += block->size;
    return CUDA_SUCCESS;
}

CUresult block_unmap(struct block *block)
{
    CUresult result = block_unmap_aliases(block);
    if (result == CUDA_SUCCESS)
        result = REAL(cuMemUnmap)(block->address, block->size);
    if (result == CUDA_SUCCESS)
        result = REAL(cuMemRelease)(block->handle);
    if (result != CUDA_SUCCESS) {
        debug("unmapping %zu bytes at %#llx failed: error %d", block->size,
              (unsigned long long)block->address, (int)result);
        return result;
    }
    block->client->memory.resident -= block->size;
    return CUDA_SUCCESS;
}

void block_free(struct block *block)
{
    struct client *client = block->client;
    if (block->state == BLOCK_LEAVING || block->state == BLOCK_COMING) {
        block->doomed = true;
        return;
    }
    /* What the driver does not unmap stays where it is: the address may not
     * be handed out again. */
    if (block->state != BLOCK_RESIDENT || block_unmap(block) == CUDA_SUCCESS)
        region_give(block->address, block->size);
    host_give(block);
    if (block->state != BLOCK_RESIDENT)
        client->absent -= block->size;
    client->memory.allocated -= block->size;
    if (block->older != NULL)
        block->older->younger = block->younger;
    else
        client->blocks = block->younger;
    if (block->younger != NULL)
        block->younger->older = block->older;
    else
        client->youngest = block->older;
    free(block);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "block/block.h"

#include <stdlib.h>

#include "block/region.h"
#include "interpose/log.h"
#include "interpose/real.h"

static bool usable(enum block_state state)
{
    return state == BLOCK_RESIDENT || state == BLOCK_SHARED;
}

static bool lacking(enum block_state state)
{
    return !usable(state) && state != BLOCK_LOST;
}

void block_set_state(struct block *block, enum block_state state)
{
    if (lacking(block->state))
        block->client->absent -= block->size;
    if (lacking(state))
        block->client->absent += block->size;
    block->state = state;
}

bool block_presaved(const struct block *block)
{
    return block->right == block->client->turns;
}

void block_note_presaved(struct block *block)
{
    block->right = block->client->granted ? 0 : block->client->turns;
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

size_t block_access(const struct client *client, CUmemAccessDesc *access)
{
    size_t count = 0;
    for (int device = 0; device < CLIENTS_MAX; device++)
        if (device == client->device || client->readers[device] > 0)
            access[count++] = (CUmemAccessDesc){
                .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device },
                .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            };
    return count;
}

CUresult block_map(struct block *block)
{
    if (block->managed) {
        block->client->memory.resident += block->size;
        return CUDA_SUCCESS;
    }
    const CUmemAllocationProp property = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = block->client->device },
    };
    CUmemAccessDesc access[CLIENTS_MAX];
    size_t readers = block_access(block->client, access);
    CUresult result = REAL(cuMemCreate)(&block->handle, block->size, &property, 0);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuMemMap)(block->address, block->size, 0, block->handle, 0);
    if (result == CUDA_SUCCESS) {
        result = REAL(cuMemSetAccess)(block->address, block->size, access, readers);
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
    if (block->managed) {
        block->client->memory.resident -= block->size;
        return CUDA_SUCCESS;
    }
    CUresult result = block_unmap_aliases(block);
    /* In this order, as the memory then goes with its last mapping: on an H200 that takes
     * 48 us for 64 MiB, and the other way round 79. */
    if (result == CUDA_SUCCESS && block->handle != 0)
        result = REAL(cuMemRelease)(block->handle);
    if (result == CUDA_SUCCESS) {
        block->handle = 0;
        result = REAL(cuMemUnmap)(block->address, block->size);
    }
    if (result != CUDA_SUCCESS) {
        debug("unmapping %zu bytes at %#llx failed: error %d", block->size,
              (unsigned long long)block->address, (int)result);
        return result;
    }
    if (block->state == BLOCK_SHARED)
        block->client->memory.pinned -= block->size;
    else
        block->client->memory.resident -= block->size;
    return CUDA_SUCCESS;
}

void block_lose(struct block *block)
{
    struct client *client = block->client;
    if (block->state == BLOCK_LOST || block->state == BLOCK_SHARED
        || block->state == BLOCK_LEAVING || block->state == BLOCK_COMING
        || (block->state == BLOCK_RESIDENT && block_unmap(block) != CUDA_SUCCESS))
        return;
    host_give(block);
    block_set_state(block, BLOCK_LOST);
    client->memory.allocated -= block->size;
    if (block->managed)
        client->managed -= block->size;
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
    bool gone = !usable(block->state) || block_unmap(block) == CUDA_SUCCESS;
    if (gone && !block->managed)
        region_give(block->address, block->size);
    host_give(block);
    if (block->managed && block->state != BLOCK_LOST)
        client->managed -= block->size;
    if (lacking(block->state))
        client->absent -= block->size;
    if (block->state != BLOCK_SHARED && block->state != BLOCK_LOST)
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

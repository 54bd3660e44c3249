/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks that must stay on the card, in one piece and under a handle of the
 * driver's. Such memory is made beside the chunk, the content copied, and then
 * mapped in its place, while nothing runs that could touch either.
 *
 * Nothing has changed until the copy is complete. Only then is the old memory
 * unmapped, in steps that fail only with the context itself.
 */
#include "memory/pin_in_place.h"

#include <pthread.h>

#include "swap/exclusive.h"
#include "interpose/log.h"
#include "interpose/real.h"
#include "block/region.h"

/* The driver's memory for the copy, mapped where only we know. */
struct copy {
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address;
};

/* memory_lock is held by all these, and nothing moves. */

static void unmake(struct chunk *chunk, struct copy *copy, bool mapped)
{
    if (!mapped || REAL(cuMemUnmap)(copy->address, chunk->size) == CUDA_SUCCESS)
        region_give(copy->address, chunk->size);
}

static CUresult make(struct chunk *chunk, struct copy *copy)
{
    const CUmemAccessDesc access = {
        .location = chunk->properties.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    CUresult result = region_take(chunk->size, &copy->address);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuMemCreate)(&copy->handle, chunk->size, &chunk->properties, 0);
    if (result != CUDA_SUCCESS) {
        unmake(chunk, copy, false);
        return result;
    }
    result = REAL(cuMemMap)(copy->address, chunk->size, 0, copy->handle, 0);
    bool mapped = result == CUDA_SUCCESS;
    if (mapped)
        result = REAL(cuMemSetAccess)(copy->address, chunk->size, &access, 1);
    if (result != CUDA_SUCCESS) {
        unmake(chunk, copy, mapped);
        REAL(cuMemRelease)(copy->handle);
    }
    return result;
}

/* Releases memory_lock while the card copies. */
static CUresult fill(struct chunk *chunk, const struct copy *copy)
{
    const struct large *memory = chunk->memory;
    CUstream stream = chunk->client->copy_stream;
    pthread_mutex_unlock(&memory_lock);
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < memory->block_count && result == CUDA_SUCCESS; i++) {
        const struct block *block = memory->blocks[i];
        result = REAL(cuMemcpyDtoDAsync_v2)(copy->address + (block->address - memory->base),
                                            block->address, block->size, stream);
    }
    CUresult ended = REAL(cuStreamSynchronize)(stream);
    pthread_mutex_lock(&memory_lock);
    return result != CUDA_SUCCESS ? result : ended;
}

static CUresult put_in_place(struct chunk *chunk, const struct copy *copy)
{
    struct large *memory = chunk->memory;
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < memory->block_count && result == CUDA_SUCCESS; i++)
        result = block_unmap_aliases(memory->blocks[i]);
    chunk->memory = NULL;
    chunk->real = copy->handle;
    chunk->client->memory.pinned += chunk->size;
    large_release(memory);
    return result == CUDA_SUCCESS ? alias_map_anchored(chunk) : result;
}

static CUresult replace(void *argument)
{
    struct chunk *chunk = argument;
    struct copy copy;
    CUresult result = make(chunk, &copy);
    if (result != CUDA_SUCCESS)
        return result;
    if (chunk->written)
        result = fill(chunk, &copy);
    unmake(chunk, &copy, true);
    if (result != CUDA_SUCCESS) {
        REAL(cuMemRelease)(copy.handle);
        return result;
    }
    result = put_in_place(chunk, &copy);
    if (result != CUDA_SUCCESS)
        debug("memory that was to stay on the card is lost: error %d", (int)result);
    return result;
}

CUresult anchor(struct chunk *chunk)
{
    int cancel;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    while (chunk->anchoring)
        pthread_cond_wait(&memory_changed, &memory_lock);
    pthread_setcancelstate(cancel, NULL);
    if (chunk->memory == NULL)
        return CUDA_SUCCESS;
    chunk->anchoring = true;
    CUresult result = exclusively(chunk->client, chunk->size, chunk->size, replace, chunk);
    chunk->anchoring = false;
    pthread_cond_broadcast(&memory_changed);
    return result;
}

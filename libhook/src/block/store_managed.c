/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store of managed memory. The driver keeps its bytes, and a block of it comes and goes
 * by being prefetched; what is here only counts the host memory that it takes meanwhile.
 *
 * What is mostly read is not sent away by a prefetch, only copied. So that advice
 * is taken back for the time of its departure.
 */

#include "block/block.h"
#include "block/host_slabs.h"
#include "block/store.h"
#include "client/client.h"
#include "interpose/log.h"
#include "interpose/real.h"

/* The driver makes its memory, and opens it to peers. */
static CUresult map(struct block *block)
{
    (void)block;
    return CUDA_SUCCESS;
}

static CUresult open(struct block *block, const CUmemAccessDesc *access)
{
    (void)block, (void)access;
    return CUDA_SUCCESS;
}

/* The slots that others keep make place for it. */
static bool take(struct block *block, uint64_t allowance)
{
    struct client *client = block->client;
    if (allowance < block->size)
        return false;
    uint64_t most = allowance - block->size;
    while (client->memory.host > most && client->providers > 0)
        pthread_cond_wait(&memory_changed, &memory_lock);
    host_shrink(client, most);
    if (client->memory.host > most)
        return false;
    client->memory.host += block->size;
    client->managed_away += block->size;
    return true;
}

static void give(struct block *block)
{
    block->client->memory.host -= block->size;
    block->client->managed_away -= block->size;
}

static CUresult prefetch(const struct block *block, CUdevice to, CUstream stream)
{
    size_t bytes = block->place.managed.bytes;
    if (HAVE_REAL(cuMemPrefetchAsync))
        return REAL(cuMemPrefetchAsync)(block->address, bytes, to, stream);
    CUmemLocation location = { .type = CU_MEM_LOCATION_TYPE_HOST };
    if (to != CU_DEVICE_CPU)
        location = (CUmemLocation){ .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = to };
    return REAL(cuMemPrefetchAsync_v2)(block->address, bytes, location, 0, stream);
}

static int said(const struct block *block, CUmem_range_attribute attribute, int otherwise)
{
    int value;
    return REAL(cuMemRangeGetAttribute)(&value, sizeof value, attribute, block->address,
                                        block->place.managed.bytes) == CUDA_SUCCESS
               ? value : otherwise;
}

static CUresult advise(const struct block *block, CUmem_advise advice)
{
    CUresult result = REAL(cuMemAdvise)(block->address, block->place.managed.bytes, advice,
                                        block->client->device);
    if (result != CUDA_SUCCESS)
        debug("advice %d on managed memory failed: error %d", (int)advice, (int)result);
    return result;
}

/* The driver may be done with the bus when a prefetch returns. */
static CUresult out(struct block *block, size_t offset, size_t size, CUstream stream)
{
    (void)offset, (void)size;
    block->place.managed.sent = true;
    pthread_mutex_unlock(&memory_lock);
    if (said(block, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 0) == 1)
        block->place.managed.mostly_read =
            advise(block, CU_MEM_ADVISE_UNSET_READ_MOSTLY) == CUDA_SUCCESS;
    CUresult result = prefetch(block, CU_DEVICE_CPU, stream);
    pthread_mutex_lock(&memory_lock);
    return result;
}

/* What the program prefers on the host stays there. */
static CUresult in(struct block *block, size_t offset, size_t size, CUstream stream)
{
    CUresult result = CUDA_SUCCESS;
    (void)offset, (void)size;
    block->place.managed.sent = true;
    pthread_mutex_unlock(&memory_lock);
    if (said(block, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, CU_DEVICE_INVALID) != CU_DEVICE_CPU)
        result = prefetch(block, block->client->device, stream);
    pthread_mutex_lock(&memory_lock);
    return result;
}

static CUresult settle(struct block *block, CUresult result)
{
    if (block->place.managed.mostly_read)
        advise(block, CU_MEM_ADVISE_SET_READ_MOSTLY);
    block->place.managed.mostly_read = false;
    return result;
}

const struct store store_managed = {
    .map = map, .unmap = map, .open = open,
    .take = take, .give = give, .out = out, .in = in, .settle = settle,
};

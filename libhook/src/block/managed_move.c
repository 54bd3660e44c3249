/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks of managed memory come and go by being prefetched.
 *
 * What is mostly read is not sent away by a prefetch, only copied. So that advice
 * is taken back for the time of its departure.
 */
#include <pthread.h>

#include "block/block.h"
#include "interpose/log.h"
#include "interpose/real.h"

static CUresult prefetch(const struct block *block, CUdevice to, CUstream stream)
{
    if (HAVE_REAL(cuMemPrefetchAsync))
        return REAL(cuMemPrefetchAsync)(block->address, block->managed, to, stream);
    CUmemLocation location = { .type = CU_MEM_LOCATION_TYPE_HOST };
    if (to != CU_DEVICE_CPU)
        location = (CUmemLocation){ .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = to };
    return REAL(cuMemPrefetchAsync_v2)(block->address, block->managed, location, 0, stream);
}

static int said(const struct block *block, CUmem_range_attribute attribute, int otherwise)
{
    int value;
    return REAL(cuMemRangeGetAttribute)(&value, sizeof value, attribute, block->address,
                                        block->managed) == CUDA_SUCCESS ? value : otherwise;
}

static CUresult advise(const struct block *block, CUmem_advise advice)
{
    CUresult result = REAL(cuMemAdvise)(block->address, block->managed, advice,
                                        block->client->device);
    if (result != CUDA_SUCCESS)
        debug("advice %d on managed memory failed: error %d", (int)advice, (int)result);
    return result;
}

CUresult managed_send(struct block *block, CUstream stream)
{
    pthread_mutex_lock(&memory_lock);
    block->sent = true;
    pthread_mutex_unlock(&memory_lock);
    if (block->state == BLOCK_COMING)
        return said(block, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, CU_DEVICE_INVALID)
                       == CU_DEVICE_CPU
                   ? CUDA_SUCCESS : prefetch(block, block->client->device, stream);
    if (said(block, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 0) == 1)
        block->mostly_read = advise(block, CU_MEM_ADVISE_UNSET_READ_MOSTLY) == CUDA_SUCCESS;
    return prefetch(block, CU_DEVICE_CPU, stream);
}

void managed_sent(struct block *block)
{
    if (block->mostly_read)
        advise(block, CU_MEM_ADVISE_SET_READ_MOSTLY);
    block->mostly_read = false;
}

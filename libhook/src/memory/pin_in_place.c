/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes a VMM allocation stay on the card, in one piece and under a handle of the driver's. New
 * memory is made beside it, the content copied, and the new memory mapped in its place, while
 * nothing runs that could touch either.
 *
 * Nothing has changed until the copy is complete. Only then is the old memory unmapped, in steps
 * that fail only with the context itself.
 *
 * One that is a single block has a handle of the driver's already, with the properties that the
 * program asked for. Once it is on the card it only counts as pinned: work in flight, which may wait
 * for the calling thread, is not waited for. A larger one (WHOLE_MOST in large.c) is made of blocks,
 * and a handle is of one piece: it is copied, for which the program's work must be over. Where that
 * takes longer than DRAIN_PATIENCE_US, the call fails.
 */
#include "memory/pin_in_place.h"

#include "block/block.h"
#include "block/exclusive.h"
#include "block/region.h"
#include "driver/log.h"
#include "driver/ops.h"
#include "flight/drain.h"
#include "gate/client.h"
#include "gate/commit.h"
#include "gate/gate.h"
#include "memory/alias.h"
#include "memory/large.h"

/* The driver's memory for the copy, mapped where only we know. */
struct copy {
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address;
};

/* memory_lock is held by all these, and nothing moves. */

static void unmake(struct vmm_allocation *vmm, struct copy *copy, bool mapped)
{
    if (!mapped || REAL(cuMemUnmap)(copy->address, vmm->size) == CUDA_SUCCESS)
        region_give(copy->address, vmm->size);
}

static CUresult make(struct vmm_allocation *vmm, struct copy *copy)
{
    const CUmemAccessDesc access = {
        .location = vmm->properties.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    CUresult result = region_take(vmm->size, &copy->address);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuMemCreate)(&copy->handle, vmm->size, &vmm->properties, 0);
    if (result != CUDA_SUCCESS) {
        unmake(vmm, copy, false);
        return result;
    }
    result = REAL(cuMemMap)(copy->address, vmm->size, 0, copy->handle, 0);
    bool mapped = result == CUDA_SUCCESS;
    if (mapped)
        result = REAL(cuMemSetAccess)(copy->address, vmm->size, &access, 1);
    if (result != CUDA_SUCCESS) {
        unmake(vmm, copy, mapped);
        REAL(cuMemRelease)(copy->handle);
    }
    return result;
}

/* Releases memory_lock while the card copies. */
static CUresult fill(struct vmm_allocation *vmm, const struct copy *copy)
{
    const struct large *memory = vmm->memory;
    CUstream stream = vmm->client->copy_stream;
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

static CUresult put_in_place(struct vmm_allocation *vmm, const struct copy *copy)
{
    struct large *memory = vmm->memory;
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < memory->block_count && result == CUDA_SUCCESS; i++)
        result = alias_unmap_block(vmm, memory->blocks[i]);
    vmm->memory = NULL;
    vmm->real = copy->handle;
    vmm->client->memory.pinned += vmm->size;
    large_release(memory);
    return result == CUDA_SUCCESS ? alias_map_pinned(vmm) : result;
}

static CUresult replace(void *argument)
{
    struct vmm_allocation *vmm = argument;
    struct copy copy;
    CUresult result = make(vmm, &copy);
    if (result != CUDA_SUCCESS)
        return result;
    if (vmm->written)
        result = fill(vmm, &copy);
    unmake(vmm, &copy, true);
    if (result != CUDA_SUCCESS) {
        REAL(cuMemRelease)(copy.handle);
        return result;
    }
    result = put_in_place(vmm, &copy);
    if (result != CUDA_SUCCESS)
        debug("memory that was to stay on the card is lost: error %d", (int)result);
    return result;
}

static bool is_resident(const struct vmm_allocation *vmm)
{
    return vmm->memory->blocks[0]->state == BLOCK_RESIDENT;
}

/* The block's handle becomes the allocation's. Its home goes; where the program has mapped it, it
 * stays. */
static void take_over(struct vmm_allocation *vmm)
{
    struct large *memory = vmm->memory;
    vmm->real = memory->blocks[0]->handle;
    memory->blocks[0]->handle = 0;
    memory->owner.mappings = NULL;
    vmm->memory = NULL;
    vmm->client->memory.pinned += vmm->size;
    large_release(memory);
}

/* Lock held, released meanwhile. */
static CUresult pin_whole(struct vmm_allocation *vmm)
{
    struct client *client = vmm->client;
    if (!client_commit_pinned(client, 0, vmm->size, client_patience_ends()))
        return CUDA_ERROR_OUT_OF_MEMORY;
    bool inside = !is_resident(vmm);
    if (inside) {
        pthread_mutex_unlock(&memory_lock);
        gate_enter(GATE_NO_STREAM);  /* until the program runs, with all that it has */
        pthread_mutex_lock(&memory_lock);
    }
    bool ready = is_resident(vmm);
    if (ready)
        take_over(vmm);
    client_settle();
    client_update(client);
    if (inside)
        gate_leave();
    return ready ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult pin_in_place(struct vmm_allocation *vmm)
{
    UNCANCELLED;
    while (vmm->pinning)
        pthread_cond_wait(&memory_changed, &memory_lock);
    if (vmm->memory == NULL)
        return CUDA_SUCCESS;
    vmm->pinning = true;
    CUresult result = CUDA_ERROR_NOT_READY;
    if (vmm->memory->block_count == 1)
        result = pin_whole(vmm);
    if (result == CUDA_ERROR_NOT_READY)
        result = exclusively(vmm->client, vmm->size, vmm->size, DRAIN_PATIENCE_US,
                                  replace, vmm);
    vmm->pinning = false;
    pthread_cond_broadcast(&memory_changed);
    return result;
}

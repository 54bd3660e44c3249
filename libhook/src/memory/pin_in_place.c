/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pins a VMM allocation: it stays on the card from now on, in one piece and under a handle of the
 * driver. New memory is created, the content copied, and the new memory mapped at the allocation's
 * addresses, while no work runs that could touch either.
 *
 * Nothing changes until the copy is complete. Only then is the old memory unmapped, in steps that
 * fail only if the context fails.
 *
 * An allocation of a single block already has a driver handle with the properties that the program
 * asked for. Once the block is resident, the allocation is only counted as pinned: no wait for work
 * in flight, which may itself wait for the calling thread. A larger allocation (WHOLE_MOST in
 * large.c) consists of several blocks, but a handle must be one piece: the allocation is copied,
 * after the program's work has drained. If the drain takes longer than DRAIN_PATIENCE_US, the call
 * fails.
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

/* The memory that becomes the pinned allocation, mapped at a private address for the copy. */
struct copy {
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address;
};

/* The following functions are called with memory_lock held while no block moves. */

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

/* The block's handle becomes the allocation's. The home mapping is removed; the program's own
 * mappings stay. */
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

/* memory_lock is held, and released meanwhile. */
static CUresult pin_whole(struct vmm_allocation *vmm)
{
    struct client *client = vmm->client;
    if (!client_commit_pinned(client, 0, vmm->size, client_patience_ends()))
        return CUDA_ERROR_OUT_OF_MEMORY;
    bool inside = !is_resident(vmm);
    if (inside) {
        pthread_mutex_unlock(&memory_lock);
        gate_enter(GATE_NO_STREAM);  /* until the client runs with all its memory resident */
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

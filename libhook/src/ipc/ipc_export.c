/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exports memory to other processes by legacy IPC. The driver gives no such handle for mapped
 * memory. The library therefore exports the blocks as file descriptors, and its handle says where
 * to fetch them.
 *
 * Exported memory must stay where it is. A block becomes shared by a copy into exportable memory,
 * which replaces it at the same address and is never evicted. One block is copied at a time, so
 * that the card needs room for one additional block only. ipc_server.c sends the descriptors.
 *
 * No work may run meanwhile, and work in flight may wait for the thread that requests the handle.
 * That thread therefore waits only briefly; blocks that are not shared by then are shared when
 * another process first requests them.
 */
#include "ipc/ipc_export.h"

#include <string.h>

#include "block/block.h"
#include "block/exclusive.h"
#include "block/region.h"
#include "driver/forked.h"
#include "driver/ops.h"
#include "driver/own_file.h"
#include "driver/stubs.h"
#include "flight/drain.h"
#include "gate/client.h"
#include "ipc/ipc.h"
#include "ipc/ipc_server.h"
#include "memory/allocation.h"
#include "memory/managed.h"
#include "memory/memory.h"

#define HANDLE_PATIENCE_US 250000    /* most work ends soon, and a later attempt may be too late */

/* The requested allocation, or NULL. memory_lock is held. */
static struct page_owner *find(const struct ipc_request *request,
                               struct memory_description *description)
{
    bool found = allocation_describe(request->address, description)
        && description->id == request->id;
    struct page_owner *owner = found ? region_owner(request->address) : NULL;
    return owner != NULL && owner->client != NULL ? owner : NULL;
}

static struct block *const *blocks_of(struct page_owner *owner, size_t *count)
{
    return owner->operations->blocks(owner, count);
}

static int export(const struct block *block)
{
    int file;
    stubs_await();                   /* a thread that waits there must not delay others */
    UNFORKED;
    return REAL(cuMemExportToShareableHandle)(&file, block->handle,
               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_SUCCESS
        ? own_file_add(file) : -1;
}

/* Replaces the block's memory by exportable or registrable memory with the same bytes. No work
 * runs, and no block moves. */
static CUresult share_block(struct block *block)
{
    struct client *client = block->client;
    int by_network = 0;              /* network cards may access it, too, as memory of cuMemAlloc */
    REAL(cuDeviceGetAttribute)(&by_network,
        CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, client->device);
    const CUmemAllocationProp property = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = client->device },
        .allocFlags.gpuDirectRDMACapable = by_network != 0,
    };
    CUmemAccessDesc access[CLIENTS_MAX];
    size_t readers = block_readers(client, access);
    CUmemGenericAllocationHandle handle;
    CUdeviceptr beside;
    CUresult result = region_take(block->size, &beside);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuMemCreate)(&handle, block->size, &property, 0);
    if (result != CUDA_SUCCESS) {
        region_give(beside, block->size);
        return result;
    }
    result = REAL(cuMemMap)(beside, block->size, 0, handle, 0);
    if (result == CUDA_SUCCESS) {
        result = REAL(cuMemSetAccess)(beside, block->size, access, readers);
        if (result == CUDA_SUCCESS)
            result = REAL(cuMemcpyDtoDAsync_v2)(beside, block->address, block->size,
                                                client->copy_stream);
        if (result == CUDA_SUCCESS)
            result = REAL(cuStreamSynchronize)(client->copy_stream);
        REAL(cuMemUnmap)(beside, block->size);
    }
    region_give(beside, block->size);
    if (result != CUDA_SUCCESS) {
        REAL(cuMemRelease)(handle);
        return result;
    }
    /* From here on the driver's calls fail only if the context has failed for good. */
    result = block_unmap(block);
    block->handle = handle;
    if (result == CUDA_SUCCESS)
        result = REAL(cuMemMap)(block->address, block->size, 0, handle, 0);
    if (result == CUDA_SUCCESS)
        result = REAL(cuMemSetAccess)(block->address, block->size, access, readers);
    block_share(block);
    return result;
}

/* All blocks of the requested allocation. */
static CUresult share_all(void *argument)
{
    struct memory_description description;
    struct page_owner *owner = find(argument, &description);
    if (owner == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_SUCCESS;
    size_t count;
    struct block *const *blocks = blocks_of(owner, &count);
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        if (blocks[i]->state == BLOCK_RESIDENT)
            result = share_block(blocks[i]);
    return result;
}

static uint64_t not_shared(struct page_owner *owner)
{
    uint64_t bytes = 0;
    size_t count;
    struct block *const *blocks = blocks_of(owner, &count);
    for (size_t i = 0; i < count; i++)
        if (blocks[i]->state != BLOCK_SHARED)
            bytes += blocks[i]->size;
    return bytes;
}

static CUresult share(const struct ipc_request *request, uint64_t patience)
{
    struct memory_description description;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    LOCKED(memory_lock);
    struct page_owner *owner = find(request, &description);
    if (owner != NULL) {
        size_t count;
        size_t largest = blocks_of(owner, &count)[0]->size; /* the first block is the largest */
        result = not_shared(owner) == 0
            ? CUDA_SUCCESS
            : exclusively(owner->client, largest, not_shared(owner), patience, share_all,
                          (void *)request);
    }
    return result;
}

int ipc_export_part(const struct ipc_request *request, size_t index, struct ipc_part *part)
{
    struct memory_description description;
    int file = -1;
    if (index == 0)
        share(request, DRAIN_PATIENCE_US);         /* if that failed when the handle was created */
    LOCKED(memory_lock);
    struct page_owner *owner = find(request, &description);
    size_t count = 0;
    struct block *const *blocks = owner == NULL ? NULL : blocks_of(owner, &count);
    *part = (struct ipc_part){ .left = 0 };
    if (index < count) {
        const struct block *block = blocks[index], *last = blocks[count - 1];
        part->left = last->address + last->size - block->address;
        part->size = block->size;
        part->offset = request->address - blocks[0]->address;
        part->bytes = description.size;
        if (block->state == BLOCK_SHARED)
            file = export(block);
    }
    return file;
}

CUresult ipc_export_pin(CUdeviceptr address)
{
    struct memory_description description;
    if (!memory_describe(address, &description) || !description.ipc)
        return CUDA_ERROR_NOT_SUPPORTED;
    return share(&(struct ipc_request){ .address = description.base, .id = description.id },
                 DRAIN_PATIENCE_US);
}

bool ipc_export(CUdeviceptr address, CUipcMemHandle *handle, CUresult *result)
{
    struct memory_description description;
    if (!memory_is_ours(address)) {
        /* Memory beyond the card cannot be pinned there. */
        pthread_mutex_lock(&memory_lock);
        bool beyond = managed_describe(address, &description);
        pthread_mutex_unlock(&memory_lock);
        *result = CUDA_ERROR_OUT_OF_MEMORY;
        return beyond;
    }
    *result = CUDA_ERROR_INVALID_VALUE;
    if (!memory_describe(address, &description) || !description.ipc)
        return true;
    struct ipc_ticket ticket = {
        .magic = IPC_MAGIC,
        .request = { .address = description.base, .id = description.id },
    };
    if (!ipc_server_open(&ticket)) {
        *result = CUDA_ERROR_OPERATING_SYSTEM;
        return true;
    }
    *result = share(&ticket.request, HANDLE_PATIENCE_US);
    if (*result == CUDA_ERROR_NOT_READY || *result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
        *result = CUDA_SUCCESS;      /* it will be shared on the first request */
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &ticket, sizeof ticket);
    return true;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "space/graph_memory.h"

#include "space/space.h"

CUresult graph_memory_new(struct context *context, size_t size, CUdeviceptr *address)
{
    graph_memory_trim(context->device);
    TRY(device_allocate(context, size, ALLOCATED, NULL, address));
    SPACE_LOCKED(write);
    struct allocation *allocation = allocation_at(*address);
    allocation->graphs = true;
    allocation->references = 1;
    return CUDA_SUCCESS;
}

void graph_memory_count(CUdeviceptr address, int change)
{
    SPACE_LOCKED(write);
    struct allocation *allocation = allocation_at(address);
    if (allocation != NULL && allocation->graphs)    /* otherwise it was freed with its context */
        allocation->references += (unsigned)change;
}

void graph_memory_trim(const struct device *device)
{
    SPACE_LOCKED(write);
    for (struct allocation *allocation = allocation_after(0), *next; allocation != NULL;
         allocation = next) {
        next = allocation_after(allocation->base);
        if (allocation->graphs && allocation->references == 0 && allocation->device == device)
            allocation_free(allocation);
    }
}

uint64_t graph_memory_bytes(const struct device *device, bool kept)
{
    uint64_t bytes = 0;
    SPACE_LOCKED(read);
    for (const struct allocation *allocation = allocation_after(0); allocation != NULL;
         allocation = allocation_after(allocation->base))
        if (allocation->graphs && allocation->device == device
            && (kept || allocation->references > 0))
            bytes += allocation->size;
    return bytes;
}

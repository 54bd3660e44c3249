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

bool graph_memory_is_launched(CUdeviceptr address)
{
    SPACE_LOCKED(read);
    const struct allocation *allocation = allocation_at(address);
    return allocation != NULL && allocation->graphs && allocation->launched;
}

void graph_memory_launch(CUdeviceptr address, bool allocated)
{
    SPACE_LOCKED(write);
    struct allocation *allocation = allocation_at(address);
    if (allocation != NULL && allocation->graphs)
        allocation->launched = allocated;
}

static bool is_used(const struct allocation *allocation)
{
    return allocation->references > 0 || allocation->launched;
}

void graph_memory_trim(const struct device *device)
{
    SPACE_LOCKED(write);
    for (struct allocation *allocation = allocation_after(0), *next; allocation != NULL;
         allocation = next) {
        next = allocation_after(allocation->base);
        if (allocation->graphs && !is_used(allocation) && allocation->device == device)
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
            && (kept || is_used(allocation)))
            bytes += allocation->size;
    return bytes;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "space/graph_memory.h"

#include <stdlib.h>

#include "space/allocation.h"

static struct graph_memory *all;

CUresult graph_memory_new(struct context *context, size_t size, struct graph_memory **result)
{
    struct graph_memory *memory = checked(calloc(1, sizeof *memory));
    graph_memory_trim(context->device);
    *memory = (struct graph_memory){
        .references = 1, .size = size, .device = context->device, .next = all,
    };
    CUresult failed = device_allocate(context, size, ALLOCATED, NULL, &memory->address);
    if (failed != CUDA_SUCCESS) {
        free(memory);
        return failed;
    }
    *result = all = memory;
    LOCKED(allocations_lock);
    allocation_at(memory->address)->graphs = true;
    return CUDA_SUCCESS;
}

void graph_memory_hold(struct graph_memory *memory)
{
    memory->references++;
}

void graph_memory_drop(struct graph_memory *memory)
{
    memory->references--;
}

/* NULL: the memory was freed with its context. */
static struct allocation *allocation_of(const struct graph_memory *memory)
{
    struct allocation *allocation = allocation_at(memory->address);
    return allocation != NULL && allocation->graphs ? allocation : NULL;
}

void graph_memory_trim(const struct device *device)
{
    LOCKED(allocations_lock);
    for (struct graph_memory **link = &all, *memory; (memory = *link) != NULL;) {
        if (memory->references > 0 || memory->device != device) {
            link = &memory->next;
            continue;
        }
        struct allocation *allocation = allocation_of(memory);
        if (allocation != NULL)
            device_free(allocation);
        *link = memory->next;
        free(memory);
    }
}

uint64_t graph_memory_bytes(const struct device *device, bool kept)
{
    uint64_t bytes = 0;
    LOCKED(allocations_lock);
    for (const struct graph_memory *memory = all; memory != NULL; memory = memory->next)
        if (memory->device == device && (kept || memory->references > 0)
            && allocation_of(memory) != NULL)
            bytes += memory->size;
    return bytes;
}

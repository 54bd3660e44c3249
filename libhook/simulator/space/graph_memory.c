/* SPDX-License-Identifier: Apache-2.0 */
#include "space/graph_memory.h"

#include <stdlib.h>

#include "space/allocation.h"

CUresult graph_memory_new(struct context *context, size_t size, struct graph_memory **result)
{
    struct graph_memory *memory = calloc(1, sizeof *memory);
    if (memory == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memory->references = 1;
    CUresult failed = device_allocate(context, size, ALLOCATED, NULL, &memory->address);
    if (failed != CUDA_SUCCESS) {
        free(memory);
        return failed;
    }
    allocations_lock();
    allocation_find(memory->address)->graphs = true;
    allocations_unlock();
    *result = memory;
    return CUDA_SUCCESS;
}

void graph_memory_hold(struct graph_memory *memory)
{
    memory->references++;
}

void graph_memory_drop(struct graph_memory *memory)
{
    if (--memory->references > 0)
        return;
    allocations_lock();
    struct allocation *allocation = allocation_find(memory->address);
    if (allocation != NULL && allocation->base == memory->address)
        device_free(allocation);     /* else it went with its context */
    allocations_unlock();
    free(memory);
}

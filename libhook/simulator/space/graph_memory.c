/* SPDX-License-Identifier: Apache-2.0 */
#include "space/graph_memory.h"

#include <stdlib.h>

#include "space/allocation.h"
#include "stream/capture.h"

struct graph_memory {
    unsigned references;
    CUdeviceptr address;
};

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

CUresult graph_memory_capture(struct stream *stream, size_t size, CUdeviceptr *address)
{
    struct graph_memory *memory = calloc(1, sizeof *memory);
    if (memory == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memory->references = 1;
    CUresult result = device_allocate(stream->context, size, ALLOCATED, NULL, &memory->address);
    if (result != CUDA_SUCCESS) {
        free(memory);
        return result;
    }
    allocations_lock();
    allocation_find(memory->address)->graphs = true;
    allocations_unlock();
    struct work work = {.kind = WORK_GRAPH_MEMORY, .memory = memory};
    result = capture_add(stream, &work);
    if (result == CUDA_SUCCESS)
        *address = memory->address;
    graph_memory_drop(memory);       /* the node holds it now */
    return result;
}

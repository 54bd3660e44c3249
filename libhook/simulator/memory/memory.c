/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory of cuMemAlloc, and the figures of the GPU. */
#include "driver/entry.h"
#include "engine/queue.h"
#include "space/space.h"
#include "space/pool.h"

static CUresult allocate(CUdeviceptr *address, size_t size)
{
    FAIL_IF(address == NULL || size == 0, CUDA_ERROR_INVALID_VALUE);
    struct context *context = context_current();
    CUresult result = device_allocate(context, size, ALLOCATED, NULL, address);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && pools_trim(context->device))
        result = device_allocate(context, size, ALLOCATED, NULL, address);
    return result;
}

FORWARD(cuMemAlloc_v2, (CUdeviceptr *address, size_t size), ENTRY_CONTEXT | ENTRY_UNSAFE,
        allocate(address, size))

API(cuMemAllocPitch_v2, CUdeviceptr *address, size_t *pitch, size_t width, size_t height,
    unsigned int element)
{
    ENTER(ENTRY_CONTEXT | ENTRY_UNSAFE);
    FAIL_IF(pitch == NULL || width == 0 || height == 0
            || (element != 4 && element != 8 && element != 16), CUDA_ERROR_INVALID_VALUE);
    size_t row = (width + 511) / 512 * 512;
    FAIL_IF(row < width || height > SIZE_MAX / row, CUDA_ERROR_OUT_OF_MEMORY);
    TRY(allocate(address, row * height));
    *pitch = row;
    return CUDA_SUCCESS;
}

API(cuMemFree_v2, CUdeviceptr address)
{
    ENTER(ENTRY_INIT | ENTRY_UNSAFE);
    if (address == 0)
        return CUDA_SUCCESS;
    space_lock_to_write();
    struct allocation *allocation = allocation_at(address);
    bool ours = allocation != NULL && !allocation->hidden
        && (allocation->kind == ALLOCATED || allocation->kind == ALLOCATED_POOL
            || allocation->kind == ALLOCATED_MANAGED)
        && (!allocation->graphs || allocation->launched);
    struct context *context = ours ? allocation->context : NULL;
    bool pooled = ours && allocation->kind == ALLOCATED_POOL;
    ours = ours && !allocation->freeing;
    if (ours && pooled)
        allocation->freeing = allocation->lost = true;
    space_unlock();
    FAIL_IF(!ours, CUDA_ERROR_INVALID_VALUE);
    TRY(context_check(context));
    if (pooled) {
        /* Frees without a wait, at the end of all work submitted so far. Memory of a pool belongs
         * to no context: the caller's context has the work that may use it. */
        LOCKED(engine_lock);
        context_queue(context_current() != NULL ? context_current() : context,
                      &(struct work){.kind = WORK_FREE, .freed = address});
        return CUDA_SUCCESS;
    }
    TRY(context_drain(context));     /* as the driver: work in flight may use the memory */
    SPACE_LOCKED(write);
    allocation = allocation_at(address);
    FAIL_IF(allocation == NULL, CUDA_ERROR_INVALID_VALUE);   /* another thread has freed it */
    if (allocation->graphs)
        allocation->launched = false;        /* the graph's next launch uses the memory again */
    else
        allocation_free(allocation);
    return CUDA_SUCCESS;
}

API(cuMemGetInfo_v2, size_t *free_bytes, size_t *total_bytes)
{
    ENTER(ENTRY_CONTEXT);
    int gpu = context_current()->device->gpu;
    uint64_t total = shared_total(gpu), used = shared_used(gpu);
    GIVE_IF(free_bytes, total - used);
    GIVE_IF(total_bytes, total);
    return CUDA_SUCCESS;
}

static bool find_range(CUdeviceptr address, CUdeviceptr *base, size_t *size)
{
    SPACE_LOCKED(read);
    const struct allocation *allocation = allocation_find(address);
    const struct mapping *mapping = space_find(address);
    if (allocation != NULL && !allocation->hidden) {
        *base = allocation->base;
        *size = allocation->size;
        return true;
    }
    if (mapping == NULL || mapping->allocation != NULL)
        return false;
    *base = mapping->base;
    *size = mapping->size;
    return true;
}

API(cuMemGetAddressRange_v2, CUdeviceptr *base, size_t *size, CUdeviceptr address)
{
    ENTER(ENTRY_CONTEXT);
    CUdeviceptr found_base = 0;
    size_t found_size = 0;
    bool found = find_range(address, &found_base, &found_size);
    GIVE_IF(base, found_base);
    GIVE_IF(size, found_size);
    return found ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/work.h"

#include <string.h>
#include <time.h>

#include "driver/entry.h"
#include "driver/failure.h"
#include "engine/stream.h"
#include "space/graph_memory.h"
#include "space/pool.h"
#include "space/space.h"

#define PIECE ((size_t)1 << 20)      /* bytes per step; between two steps mappings may change */

/* The host address for the copy engine of `side->device` or, if that is NULL, of `device`. */
static char *resolve(const struct side *side, struct device *device, CUdeviceptr address,
                     enum access access, size_t *size)
{
    if (side->host)
        return (char *)(uintptr_t)address;
    bool overwrite = access == ACCESS_WRITE;
    char *memory = space_resolve(side->device != NULL ? side->device : device, address, access,
                                 overwrite, size);
    if (memory != NULL)
        return memory;
    const struct mapping *mapping = space_find(address);
    if (mapping == NULL || mapping->physical == NULL)
        return NULL;
    return space_resolve(mapping->physical->device, address, access, overwrite, size);
}

static bool on_device(const struct side *side, CUdeviceptr address)
{
    return !side->host && space_is_device(address);
}

static bool elsewhere(const struct device *device, CUdeviceptr address)
{
    const struct mapping *mapping = space_find(address);
    return mapping != NULL && mapping->physical != NULL && mapping->physical->device != device;
}

static CUresult copy_row(struct device *device, const struct work *work, CUdeviceptr to,
                         CUdeviceptr from, const _Atomic bool *doomed)
{
    const struct side *to_side = &work->copy.to, *from_side = &work->copy.from;
    bool to_device = on_device(to_side, to), from_device = on_device(from_side, from);
    for (size_t left = work->copy.width, size; left > 0; left -= size, to += size, from += size) {
        size = left < PIECE ? left : PIECE;
        space_lock_to_read();
        char *source = resolve(from_side, device, from, ACCESS_READ, &size);
        char *target = source != NULL ? resolve(to_side, device, to, ACCESS_WRITE, &size) : NULL;
        bool to_peer = to_device && elsewhere(device, to);
        bool peer = to_device && from_device && to_peer != elsewhere(device, from);
        CUresult result = peer ? injected_failure("nvlink") : CUDA_SUCCESS;
        if (target != NULL && result == CUDA_SUCCESS)
            memmove(target, source, size);
        space_unlock();
        FAIL_IF(target == NULL || atomic_load(doomed), CUDA_ERROR_ILLEGAL_ADDRESS);
        if (result != CUDA_SUCCESS)
            return result;
        if (peer)
            wait_for_copy(device->gpu, to_peer ? TO_PEER : FROM_PEER, size);
        else if (to_device != from_device)
            wait_for_copy(device->gpu, to_device ? TO_DEVICE : FROM_DEVICE, size);
    }
    return CUDA_SUCCESS;
}

static CUresult run_copy(struct device *device, const struct work *work,
                         const _Atomic bool *doomed)
{
    CUresult result = CUDA_SUCCESS;
    for (size_t z = 0; z < work->copy.depth; z++)
        for (size_t y = 0; y < work->copy.height && result == CUDA_SUCCESS; y++) {
            CUdeviceptr from = work->copy.staged != NULL ? (uintptr_t)work->copy.staged
                                                         : work->copy.from.address;
            result = copy_row(device, work,
                              work->copy.to.address + z * work->copy.to.layer
                                  + y * work->copy.to.pitch,
                              from + z * work->copy.from.layer + y * work->copy.from.pitch,
                              doomed);
        }
    return result;
}

static void set_elements(char *memory, size_t bytes, uint32_t value, unsigned element)
{
    if (element == 1)
        memset(memory, (int)value, bytes);
    for (size_t i = 0; element != 1 && i < bytes; i += element)
        memcpy(memory + i, &value, element);         /* little-endian: the low bytes of the value */
}

static CUresult run_set(struct device *device, const struct work *work,
                        const _Atomic bool *doomed)
{
    for (size_t y = 0; y < work->set.height; y++) {
        CUdeviceptr address = work->set.address + y * work->set.pitch;
        size_t left = work->set.width * work->set.element;
        for (size_t size; left > 0; left -= size, address += size) {
            size = left < PIECE ? left : PIECE;
            space_lock_to_read();
            char *memory = space_resolve(device, address, ACCESS_WRITE, true, &size);
            if (memory != NULL)
                set_elements(memory, size, work->set.value, work->set.element);
            space_unlock();
            FAIL_IF(memory == NULL || atomic_load(doomed), CUDA_ERROR_ILLEGAL_ADDRESS);
        }
    }
    return CUDA_SUCCESS;
}

static bool satisfied(uint64_t now, const struct work *work)
{
    uint64_t value = work->value.value;
    bool wide = work->value.bytes == 8;
    switch (work->value.flags & 3) {
    case CU_STREAM_WAIT_VALUE_GEQ:
        return wide ? (int64_t)(now - value) >= 0 : (int32_t)(uint32_t)(now - value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
        return wide ? now == value : (uint32_t)now == (uint32_t)value;
    case CU_STREAM_WAIT_VALUE_AND:
        return (now & value) != 0;
    default:
        return (~(now | value) & (wide ? UINT64_MAX : UINT32_MAX)) != 0;
    }
}

/* False: the word is not mapped. */
static bool reach_value(struct device *device, const struct work *work, bool write,
                        uint64_t *value)
{
    size_t size = work->value.bytes;
    SPACE_LOCKED(read);
    char *memory = space_resolve(device, work->value.address,
                                 write ? ACCESS_WRITE : ACCESS_READ, false, &size);
    bool mapped = memory != NULL && size == work->value.bytes;
    if (mapped && size == 8 && write)
        __atomic_store_n((uint64_t *)memory, *value, __ATOMIC_RELEASE);
    else if (mapped && size == 8)
        *value = __atomic_load_n((uint64_t *)memory, __ATOMIC_ACQUIRE);
    else if (mapped && write)
        __atomic_store_n((uint32_t *)memory, (uint32_t)*value, __ATOMIC_RELEASE);
    else if (mapped)
        *value = __atomic_load_n((uint32_t *)memory, __ATOMIC_ACQUIRE);
    return mapped;
}

static CUresult run_value(struct device *device, const struct work *work,
                          const _Atomic bool *doomed)
{
    bool write = work->kind == WORK_WRITE_VALUE;
    for (long nap = 1000; driver_running(); nap = nap < 500000 ? nap * 2 : 500000) {
        uint64_t value = work->value.value;
        if (!reach_value(device, work, write, &value) || atomic_load(doomed))
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        if (write || satisfied(value, work))
            return CUDA_SUCCESS;
        nanosleep(&(struct timespec){.tv_nsec = nap}, NULL);
    }
    return CUDA_SUCCESS;
}

static void run_prefetch(struct device *device, const struct work *work)
{
    CUdeviceptr address = work->prefetch.address;
    size_t left = work->prefetch.size;
    for (size_t size; left > 0; left -= size, address += size) {
        size = left < PIECE ? left : PIECE;
        space_lock_to_read();
        const struct mapping *mapping = space_find(address);
        size_t moved = mapping == NULL || mapping->residency == NULL
            ? 0 : residency_move(mapping->residency, work->prefetch.gpu, address, size);
        space_unlock();
        if (moved != 0)
            wait_for_copy(device->gpu, work->prefetch.gpu != RESIDENCY_HOST, moved);
    }
}

CUresult work_run(struct context *context, const struct work *work,
                  const _Atomic bool *doomed)
{
    struct device *device = context->device;
    uint64_t began = monotonic_nanoseconds();
    CUresult result = CUDA_SUCCESS;
    switch (work->kind) {
    case WORK_KERNEL:
        result = work->launch.kernel->run(device, work->launch.arguments, doomed);
        shared_add_busy(device->gpu, monotonic_nanoseconds() - began);
        return result;
    case WORK_COPY:
        return run_copy(device, work, doomed);
    case WORK_SET:
        return run_set(device, work, doomed);
    case WORK_WRITE_VALUE:
    case WORK_WAIT_VALUE:
        return run_value(device, work, doomed);
    case WORK_HOST:
        entry_in_callback(true);
        work->host.function(work->host.data);
        entry_in_callback(false);
        return CUDA_SUCCESS;
    case WORK_RECORD:
        atomic_store(&work->event->time, began);
        return CUDA_SUCCESS;
    case WORK_FREE:
        pool_give_back(work->freed);
        return CUDA_SUCCESS;
    case WORK_PREFETCH:
        run_prefetch(device, work);
        return CUDA_SUCCESS;
    case WORK_NOTHING:
    case WORK_WAIT_EVENT:            /* the operation has waited for the position before */
    case WORK_GRAPH_MEMORY:          /* the memory exists as long as the graph */
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_UNKNOWN;
}

void work_hold(const struct work *work)
{
    if (work->kind == WORK_RECORD || work->kind == WORK_WAIT_EVENT)
        event_hold(work->event);
    if (work->kind == WORK_GRAPH_MEMORY)
        graph_memory_count(work->memory, 1);
}

void work_drop(const struct work *work)
{
    if (work->kind == WORK_RECORD || work->kind == WORK_WAIT_EVENT)
        event_drop(work->event);
    if (work->kind == WORK_GRAPH_MEMORY)
        graph_memory_count(work->memory, -1);
}

static bool overlaps(CUdeviceptr base, size_t size, CUdeviceptr other, size_t other_size)
{
    return other_size != 0 && base < other + other_size && other < base + size;
}

static bool side_touches(const struct side *side, const struct work *work, CUdeviceptr base,
                         size_t size)
{
    if (side->host || work->copy.width == 0 || work->copy.height == 0 || work->copy.depth == 0)
        return false;
    size_t reach = (work->copy.depth - 1) * side->layer + (work->copy.height - 1) * side->pitch
        + work->copy.width;
    return overlaps(base, size, side->address, reach);
}

bool work_touches(const struct work *work, CUdeviceptr base, size_t size)
{
    switch (work->kind) {
    case WORK_KERNEL:
        for (int i = 0; i < work->launch.kernel->parameters; i++)
            if (overlaps(base, size, work->launch.arguments[i],
                         kernel_reach(work->launch.kernel, work->launch.arguments, i)))
                return true;
        return false;
    case WORK_COPY:
        return side_touches(&work->copy.to, work, base, size)
            || side_touches(&work->copy.from, work, base, size);
    case WORK_SET:
        return work->set.width != 0 && work->set.height != 0
            && overlaps(base, size, work->set.address,
                        (work->set.height - 1) * work->set.pitch
                            + work->set.width * work->set.element);
    case WORK_WRITE_VALUE:
    case WORK_WAIT_VALUE:
        return overlaps(base, size, work->value.address, work->value.bytes);
    default:
        return false;
    }
}

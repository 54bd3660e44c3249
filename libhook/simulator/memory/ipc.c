/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shares memory of cuMemAlloc between processes of one user. A handle identifies the file to which
 * the memory is moved, through the process that created the handle. Memory that a program has
 * mapped itself has no such handle, as with the driver.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "driver/entry.h"
#include "engine/queue.h"
#include "space/allocation.h"

#define HANDLE_MAGIC 0x6e76736861726531ull

struct handle {
    uint64_t magic;
    int32_t pid, file;
    uint64_t offset, size;           /* of the allocation inside its physical memory */
};

_Static_assert(sizeof(struct handle) <= sizeof(CUipcMemHandle), "it must fit");

API(cuIpcGetMemHandle, CUipcMemHandle *result, CUdeviceptr address)
{
    ENTER(ENTRY_CONTEXT);
    FAIL_IF(result == NULL, CUDA_ERROR_INVALID_VALUE);
    struct handle handle = {.magic = HANDLE_MAGIC, .pid = getpid()};
    CUresult found = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&allocations_lock);
    const struct allocation *allocation = allocation_find(address);
    if (allocation != NULL && allocation->kind == ALLOCATED && !allocation->hidden) {
        space_lock_to_write();
        const struct mapping *mapping = space_find(allocation->base);
        found = physical_publish(mapping->physical);
        handle.file = mapping->physical->file;
        handle.offset = allocation->base - mapping->base;
        handle.size = allocation->size;
        space_unlock();
    }
    pthread_mutex_unlock(&allocations_lock);
    memset(result, 0, sizeof *result);
    memcpy(result, &handle, sizeof handle);
    return found;
}

static CUresult open_handle(CUdeviceptr *address, CUipcMemHandle given)
{
    struct handle handle;
    struct physical *physical;
    char path[64];
    memcpy(&handle, &given, sizeof handle);
    FAIL_IF(handle.magic != HANDLE_MAGIC, CUDA_ERROR_INVALID_VALUE);
    FAIL_IF(handle.pid == getpid(), CUDA_ERROR_INVALID_CONTEXT);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)handle.pid, (int)handle.file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    FAIL_IF(file < 0, CUDA_ERROR_INVALID_VALUE);
    CUdeviceptr base;
    CUresult result = physical_import(file, &physical);
    close(file);
    TRY(result);
    TRY(device_map(context_current()->device, physical, &base));
    *address = base + handle.offset;
    LOCKED(allocations_lock);
    allocation_add(*address, handle.size, ALLOCATED_IMPORT, context_current());
    return CUDA_SUCCESS;
}

API(cuIpcOpenMemHandle, CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags)
{
    ENTER(ENTRY_CONTEXT);
    return address == NULL || flags > 1 ? CUDA_ERROR_INVALID_VALUE : open_handle(address, handle);
}

API(cuIpcOpenMemHandle_v2, CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags)
{
    ENTER(ENTRY_CONTEXT);
    return address == NULL || flags != 1 /* 1: enable peer access when needed */
        ? CUDA_ERROR_INVALID_VALUE : open_handle(address, handle);
}

API(cuIpcCloseMemHandle, CUdeviceptr address)
{
    ENTER(ENTRY_CONTEXT);
    TRY(context_drain(context_current()));
    LOCKED(allocations_lock);
    struct allocation *allocation = allocation_at(address);
    bool ours = allocation != NULL && allocation->kind == ALLOCATED_IMPORT;
    if (ours)
        device_free(allocation);
    return ours ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

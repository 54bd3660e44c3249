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
#include "space/space.h"

#define HANDLE_MAGIC 0x6e76736861726531ull

struct handle {
    uint64_t magic;
    int32_t pid, file;
    uint64_t size;                   /* of the allocation in bytes, as requested */
};

_Static_assert(sizeof(struct handle) <= sizeof(CUipcMemHandle), "it must fit");

API(cuIpcGetMemHandle, CUipcMemHandle *result, CUdeviceptr address)
{
    ENTER(ENTRY_CONTEXT);
    FAIL_IF(result == NULL, CUDA_ERROR_INVALID_VALUE);
    struct handle handle = {.magic = HANDLE_MAGIC, .pid = getpid()};
    memset(result, 0, sizeof *result);
    SPACE_LOCKED(write);
    const struct allocation *allocation = allocation_find(address);
    FAIL_IF(allocation == NULL || allocation->kind != ALLOCATED || allocation->hidden,
            CUDA_ERROR_INVALID_VALUE);
    struct physical *physical = space_find(address)->physical;
    TRY(physical_publish(physical));
    handle.file = physical->file;
    handle.size = allocation->size;
    memcpy(result, &handle, sizeof handle);
    return CUDA_SUCCESS;
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
    CUresult result = physical_import(file, &physical);
    close(file);
    TRY(result);
    return device_map(context_current(), physical, handle.size, ALLOCATED_IMPORT, NULL, address);
}

FORWARD(cuIpcOpenMemHandle, (CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags),
        ENTRY_CONTEXT,
        address == NULL || flags > 1 ? CUDA_ERROR_INVALID_VALUE : open_handle(address, handle))
/* The flag 1 enables peer access when needed. */
FORWARD(cuIpcOpenMemHandle_v2, (CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags),
        ENTRY_CONTEXT,
        address == NULL || flags != 1 ? CUDA_ERROR_INVALID_VALUE : open_handle(address, handle))

API(cuIpcCloseMemHandle, CUdeviceptr address)
{
    ENTER(ENTRY_CONTEXT);
    TRY(context_drain(context_current()));
    SPACE_LOCKED(write);
    struct allocation *allocation = allocation_at(address);
    bool ours = allocation != NULL && allocation->kind == ALLOCATED_IMPORT;
    if (ours)
        allocation_free(allocation);
    return ours ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host memory that GPUs can access: page-locked, registered and managed memory. Its device address
 * equals its host address.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver/entry.h"
#include "engine/queue.h"
#include "space/space.h"

static CUresult allocate(void **memory, size_t size, enum allocation_kind kind, unsigned flags)
{
    FAIL_IF(memory == NULL || size == 0, CUDA_ERROR_INVALID_VALUE);
    FAIL_IF(whole_pages(size) < size, CUDA_ERROR_OUT_OF_MEMORY);
    void *mapped = mmap(NULL, whole_pages(size), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    FAIL_IF(mapped == MAP_FAILED, CUDA_ERROR_OUT_OF_MEMORY);
    struct residency *residency = kind != ALLOCATED_MANAGED ? NULL
        : residency_new((uintptr_t)mapped, size);
    *memory = mapped;
    SPACE_LOCKED(write);
    FIND(struct allocation, allocation,
         host_map(mapped, size, residency, kind, context_current()), CUDA_ERROR_OPERATING_SYSTEM);
    allocation->flags = flags;
    return CUDA_SUCCESS;
}

API(cuMemHostAlloc, void **memory, size_t size, unsigned int flags)
{
    ENTER(ENTRY_CONTEXT | ENTRY_UNSAFE);
    FAIL_IF(flags > 7, CUDA_ERROR_INVALID_VALUE);
    if (memory != NULL && size == 0) {
        *memory = NULL;
        return CUDA_SUCCESS;
    }
    /* With unified addresses all memory is portable, so the flag is not stored. */
    return allocate(memory, size, ALLOCATED_HOST,
                    (flags & ~(unsigned)CU_MEMHOSTALLOC_PORTABLE) | CU_MEMHOSTALLOC_DEVICEMAP);
}

FORWARD(cuMemAllocHost_v2, (void **memory, size_t size), ENTRY_CONTEXT | ENTRY_UNSAFE,
        allocate(memory, size, ALLOCATED_HOST, CU_MEMHOSTALLOC_DEVICEMAP))

API(cuMemAllocManaged, CUdeviceptr *address, size_t size, unsigned int flags)
{
    ENTER(ENTRY_CONTEXT | ENTRY_UNSAFE);
    if (address == NULL || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
        return CUDA_ERROR_INVALID_VALUE;
    void *memory;
    CUresult result = allocate(&memory, size, ALLOCATED_MANAGED, flags);
    if (result == CUDA_SUCCESS) {
        *address = (uintptr_t)memory;
        shared_has_managed();
    }
    return result;
}

/* Work in flight may access the memory: like the real driver, wait for the context. */
static CUresult release(void *memory, enum allocation_kind kind, CUresult unknown)
{
    struct context *context;
    {
        SPACE_LOCKED(read);
        const struct allocation *allocation = allocation_find((uintptr_t)memory);
        FAIL_IF(allocation == NULL || allocation->kind != kind, unknown);
        FAIL_IF(allocation->base != (uintptr_t)memory, CUDA_ERROR_INVALID_VALUE);
        context = allocation->context;
    }
    TRY(context_drain_alone(context->owner));
    SPACE_LOCKED(write);
    struct allocation *allocation = allocation_at((uintptr_t)memory);
    if (allocation != NULL)
        allocation_free(allocation);
    return CUDA_SUCCESS;
}

API(cuMemFreeHost, void *memory)
{
    ENTER(ENTRY_CONTEXT | ENTRY_UNSAFE);
    if (memory == NULL)
        return CUDA_SUCCESS;
    return release(memory, ALLOCATED_HOST, CUDA_ERROR_INVALID_VALUE);
}

/* Whether all pages are mapped, which locking them would require. */
static bool is_mapped(void *memory, size_t size)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = (uintptr_t)memory / page * page;
    size_t length = (uintptr_t)memory + size - first;
    return madvise((void *)first, whole_pages(length), MADV_NORMAL) == 0 || errno != ENOMEM;
}

static CUresult register_memory(void *memory, size_t size, unsigned flags)
{
    FAIL_IF(memory == NULL || size == 0 || flags > 15, CUDA_ERROR_INVALID_VALUE);
    FAIL_IF((flags & CU_MEMHOSTREGISTER_IOMEMORY) != 0, CUDA_ERROR_NOT_SUPPORTED);
    if (!is_mapped(memory, size) || space_is_device((uintptr_t)memory))
        return CUDA_ERROR_INVALID_VALUE;
    SPACE_LOCKED(write);
    FIND(struct allocation, allocation,
         host_map(memory, size, NULL, REGISTERED_HOST, context_current()),
         CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    allocation->flags = CU_MEMHOSTREGISTER_DEVICEMAP;
    return CUDA_SUCCESS;
}

FORWARD_BOTH(cuMemHostRegister, _v2, (void *memory, size_t size, unsigned int flags),
             ENTRY_CONTEXT | ENTRY_UNSAFE, register_memory(memory, size, flags))

/* Memory of a mapping by the program: the driver reports it as its own host memory. */
static bool is_mapped_by_program(CUdeviceptr address)
{
    const struct mapping *mapping = space_find(address);
    return mapping != NULL && mapping->allocation == NULL;
}

static bool is_known(CUdeviceptr address)
{
    SPACE_LOCKED(read);
    const struct allocation *allocation = allocation_find(address);
    return (allocation != NULL && !allocation->hidden) || is_mapped_by_program(address);
}

API(cuMemHostUnregister, void *memory)
{
    ENTER(ENTRY_CONTEXT | ENTRY_UNSAFE);
    FAIL_IF(memory == NULL, CUDA_ERROR_INVALID_VALUE);
    /* Memory that the driver knows by other means cannot be registered. */
    return release(memory, REGISTERED_HOST, is_known((uintptr_t)memory)
                   ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

static bool is_locked(const struct allocation *allocation)
{
    return allocation != NULL
        && (allocation->kind == ALLOCATED_HOST || allocation->kind == REGISTERED_HOST);
}

API(cuMemHostGetDevicePointer_v2, CUdeviceptr *address, void *memory, unsigned int flags)
{
    ENTER(ENTRY_CONTEXT);
    FAIL_IF(address == NULL || flags != 0, CUDA_ERROR_INVALID_VALUE);
    SPACE_LOCKED(read);
    FAIL_IF(!is_locked(allocation_find((uintptr_t)memory))
            && !is_mapped_by_program((uintptr_t)memory), CUDA_ERROR_INVALID_VALUE);
    *address = (uintptr_t)memory;
    return CUDA_SUCCESS;
}

API(cuMemHostGetFlags, unsigned int *flags, void *memory)
{
    ENTER(ENTRY_CONTEXT);
    FAIL_IF(flags == NULL, CUDA_ERROR_INVALID_VALUE);
    SPACE_LOCKED(read);
    const struct allocation *allocation = allocation_find((uintptr_t)memory);
    if (is_locked(allocation))
        *flags = allocation->flags;
    else if (is_mapped_by_program((uintptr_t)memory))
        *flags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
    else
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

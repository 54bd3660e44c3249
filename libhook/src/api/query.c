/* SPDX-License-Identifier: Apache-2.0 */
/* Answers queries about the library's memory, resident or not, as the driver does for memory of
 * cuMemAlloc (seen on an H200, driver 580). Functions that export memory pin it. */
#include "api/wrapper.h"
#include "flight/capture.h"
#include "gate/client.h"
#include "ipc/ipc_export.h"
#include "ipc/ipc_import.h"
#include "memory/allocation.h"
#include "memory/vmm.h"
#include "pool/pool.h"

/* Set in the library's ids of buffers and memory blocks, which thus differ from the driver's. */
#define OUR_ID (1ull << 62)

/* Describes an address outside all allocations. */
static const struct memory_description nothing = { .device = CU_DEVICE_INVALID };

/* `memory`: size 0 means an address outside all allocations. */
static CUresult store_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr address,
                                const struct memory_description *memory)
{
#define ANSWER(name, type, value)                                                  \
    case CU_POINTER_ATTRIBUTE_##name:                                              \
        *(type *)data = (type)(value);                                             \
        return CUDA_SUCCESS;
    bool here = memory->size != 0;
    bool reserved = memory->range != 0;          /* the program reserved the address itself */
    switch (attribute) {
    ANSWER(CONTEXT, CUcontext, memory->context)
    ANSWER(MEMORY_TYPE, unsigned int, here ? CU_MEMORYTYPE_DEVICE : 0)
    ANSWER(DEVICE_POINTER, CUdeviceptr, here ? address : 0)
    ANSWER(HOST_POINTER, CUdeviceptr, here ? 0 : address)
    ANSWER(SYNC_MEMOPS, unsigned int, memory->sync_memops)
    ANSWER(BUFFER_ID, unsigned long long, here ? memory->id | OUR_ID : 0)
    ANSWER(MEMORY_BLOCK_ID, unsigned long long, here ? memory->id | OUR_ID : 0)
    ANSWER(DEVICE_ORDINAL, int, memory->device)
    ANSWER(MAPPED, unsigned int, here)
    ANSWER(MAPPING_BASE_ADDR, CUdeviceptr, memory->base)
    ANSWER(MAPPING_SIZE, size_t, memory->size)
    ANSWER(ACCESS_FLAGS, unsigned int, here ? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE : 0)
    ANSWER(ALLOWED_HANDLE_TYPES, unsigned long long, memory->handle_types)
    ANSWER(MEMPOOL_HANDLE, CUmemoryPool, here ? pool_of(memory->base) : NULL)
    ANSWER(IS_LEGACY_CUDA_IPC_CAPABLE, unsigned int, memory->ipc)
    ANSWER(IS_MANAGED, unsigned int, 0)
    ANSWER(IS_GPU_DIRECT_RDMA_CAPABLE, unsigned int, 0)
    ANSWER(IS_HW_DECOMPRESS_CAPABLE, unsigned int, 0)
#undef ANSWER
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        if (here)
            *(CUdeviceptr *)data = reserved ? memory->range : memory->base;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        if (here)
            *(size_t *)data = reserved ? memory->range_size : memory->size;
        return CUDA_SUCCESS;
    default:
        /* also for P2P_TOKENS, by which a network card's driver would pin the memory */
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static bool describe(CUdeviceptr address, struct memory_description *memory)
{
    if (memory_describe(address, memory))
        return true;
    *memory = nothing;
    return memory_is_ours(address);
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute,
                                      CUdeviceptr address)
{
    struct memory_description memory;
    if (data == NULL || !describe(address, &memory))
        return REAL(cuPointerGetAttribute)(data, attribute, address);
    if (memory.size == 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = store_attribute(data, attribute, address, &memory);
    /* cuPointerGetAttributes, unlike this function, must not fail for a missing host pointer. */
    return attribute == CU_POINTER_ATTRIBUTE_HOST_POINTER ? CUDA_ERROR_INVALID_VALUE : result;
}

CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes,
                                       void **data, CUdeviceptr address)
{
    struct memory_description memory;
    if (attributes == NULL || data == NULL || count == 0 || !describe(address, &memory))
        return REAL(cuPointerGetAttributes)(count, attributes, data, address);
    CUresult result = CUDA_SUCCESS;
    for (unsigned int i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = data[i] == NULL ? CUDA_ERROR_INVALID_VALUE
                                 : store_attribute(data[i], attributes[i], address, &memory);
    return result;
}

CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute,
                                      CUdeviceptr address)
{
    if (value == NULL || !memory_is_ours(address)) {
        /* Programs set SYNC_MEMOPS where another device will access the memory: pin it. */
        CUresult result = vmm_pin_range_in_place(address, 1);
        return result != CUDA_SUCCESS ? result
                                      : REAL(cuPointerSetAttribute)(value, attribute, address);
    }
    CUresult refused;
    if (capture_refuses(&refused))
        return refused;
    if (attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
        || !memory_set_sync_memops(address, *(const unsigned int *)value != 0))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address)
{
    struct memory_description memory;
    if (!describe(address, &memory))
        return REAL(cuMemGetAddressRange_v2)(base, size, address);
    /* memory.base and memory.size are 0 if no allocation contains the address. */
    if (base != NULL)
        *base = memory.base;
    if (size != NULL)
        *size = memory.size;
    return memory.size == 0 ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location,
                               CUdeviceptr address)
{
    struct memory_description memory;
    if (flags != NULL && location != NULL && vmm_access_of(address, location, flags))
        return CUDA_SUCCESS;
    if (flags == NULL || location == NULL || !describe(address, &memory))
        return REAL(cuMemGetAccess)(flags, location, address);
    if (memory.size == 0)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = location->type == CU_MEM_LOCATION_TYPE_DEVICE && location->id == memory.device
                 ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}

/* Functions for host memory. The driver refuses memory of cuMemAlloc here, but answers as for
 * portable host memory where the program has mapped memory itself (seen on an H200, driver 580). */

static bool is_mapped_by_program(const void *memory)
{
    return vmm_mapped_in((uintptr_t)memory, 1);
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *address, void *memory, unsigned int flags)
{
    if (memory_is_ours((uintptr_t)memory))
        return CUDA_ERROR_INVALID_VALUE;
    if (address == NULL || flags != 0 || !is_mapped_by_program(memory))
        return REAL(cuMemHostGetDevicePointer_v2)(address, memory, flags);
    *address = (uintptr_t)memory;
    return CUDA_SUCCESS;
}

CUresult cuMemHostGetFlags(unsigned int *flags, void *memory)
{
    if (memory_is_ours((uintptr_t)memory))
        return CUDA_ERROR_INVALID_VALUE;
    if (flags == NULL || !is_mapped_by_program(memory))
        return REAL(cuMemHostGetFlags)(flags, memory);
    *flags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
    return CUDA_SUCCESS;
}

/* INVALID_VALUE as from the driver: HOST_MEMORY_NOT_REGISTERED is only for unknown memory. */
SERVED(cuMemHostUnregister, INVALID_IF(memory_is_ours((uintptr_t)p1) || is_mapped_by_program(p1)),
    (void *))

SERVED(cuIpcGetMemHandle, p1 != NULL && ipc_export(p2, p1, &result),
    (CUipcMemHandle *, CUdeviceptr))
SERVED(cuIpcOpenMemHandle, p1 != NULL && ipc_import_open(&p2, p1, &result),
    (CUdeviceptr *, CUipcMemHandle, unsigned int))
SERVED(cuIpcOpenMemHandle_v2, p1 != NULL && ipc_import_open(&p2, p1, &result),
    (CUdeviceptr *, CUipcMemHandle, unsigned int))
SERVED(cuIpcCloseMemHandle, ipc_import_close(p1, &result), (CUdeviceptr))
SERVED(cuMemGetHandleForAddressRange,
    FAILED(memory_is_ours(p2) ? ipc_export_pin(p2) : vmm_pin_range_in_place(p2, p3)),
    (void *, CUdeviceptr, size_t, CUmemRangeHandleType, unsigned long long))

static bool get_information(size_t *available, size_t *total)
{
    if (!client_none())
        pools_settle();
    return memory_information(available, total);
}

SERVED(cuMemGetInfo_v2, p1 != NULL && p2 != NULL && get_information(p1, p2), (size_t *, size_t *))
SERVED(cuDeviceTotalMem_v2, p1 != NULL && memory_total(p2, p1), (size_t *, CUdevice))

static unsigned int narrow(size_t bytes)
{
    return bytes < UINT32_MAX ? (unsigned int)bytes : UINT32_MAX;
}

CUresult cuMemGetInfo(unsigned int *available, unsigned int *total)
{
    size_t wide_available, wide_total;
    if (available == NULL || total == NULL || !get_information(&wide_available, &wide_total))
        return REAL(cuMemGetInfo)(available, total);
    *available = narrow(wide_available);
    *total = narrow(wide_total);
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice device)
{
    size_t wide;
    if (bytes == NULL || !memory_total(device, &wide))
        return REAL(cuDeviceTotalMem)(bytes, device);
    *bytes = narrow(wide);
    return CUDA_SUCCESS;
}

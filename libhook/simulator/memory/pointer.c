/* SPDX-License-Identifier: Apache-2.0 */
/* Attributes of pointers. */
#include <string.h>

#include "driver/entry.h"
#include "space/space.h"
#include "space/pool.h"

struct known {
    CUdeviceptr base, mapping_base;
    size_t size, mapping_size;
    CUmemorytype type;
    struct context *context;
    struct device *device;
    struct pool *pool;
    unsigned long long id;
    CUmemAllocationHandleType handle_types;
    bool managed, ipc, host, sync_memops;
};

/* Value of CU_POINTER_ATTRIBUTE_P2P_TOKENS, with which the driver of a NIC accesses the memory. */
struct tokens {
    unsigned long long token;
    unsigned space;
};

static struct known from_allocation(const struct allocation *allocation)
{
    bool managed = allocation->kind == ALLOCATED_MANAGED;
    bool device = allocation->kind == ALLOCATED || allocation->kind == ALLOCATED_POOL
        || allocation->kind == ALLOCATED_IMPORT || allocation->kind == ALLOCATED_VARIABLE;
    size_t grain = allocation->kind == REGISTERED_HOST ? 4096 : PHYSICAL_GRAIN;
    const struct pool *pool = allocation->pool;
    return (struct known){
        .base = allocation->base, .mapping_base = allocation->base, .size = allocation->size,
        .mapping_size = (allocation->size + grain - 1) / grain * grain,
        .type = device || managed ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST,
        .context = pool == NULL ? allocation->context : NULL, .device = allocation->device,
        .pool = allocation->pool, .id = allocation->id,
        .handle_types = pool == NULL ? CU_MEM_HANDLE_TYPE_NONE : pool->handle_types,
        .managed = managed, .ipc = allocation->kind == ALLOCATED, .host = !device,
        .sync_memops = allocation->sync_memops};
}

/* Finds the memory of an address. False: the driver does not know the address. */
static bool look_up(CUdeviceptr address, struct known *known)
{
    SPACE_LOCKED(read);
    const struct mapping *mapping = space_find(address);
    const struct allocation *allocation = allocation_find(address);
    if (allocation != NULL && !allocation->hidden) {
        *known = from_allocation(allocation);
        return true;
    }
    if (mapping == NULL || mapping->allocation != NULL)
        return false;
    /* Memory that the program has mapped has no context; its range is the whole reservation. */
    *known = (struct known){
        .mapping_base = mapping->base, .mapping_size = mapping->size,
        .type = CU_MEMORYTYPE_DEVICE, .device = mapping->physical->device,
        .id = mapping->base / PHYSICAL_GRAIN, .handle_types = mapping->physical->handle_types};
    return space_reservation(address, &known->base, &known->size);
}

/* Attributes that every known address has: name, type, value. */
#define ATTRIBUTES(X)                                                                    \
    X(CONTEXT, CUcontext, (CUcontext)known->context)                                     \
    X(MEMORY_TYPE, unsigned, known->type)                                                \
    X(DEVICE_POINTER, CUdeviceptr, address)                                              \
    X(SYNC_MEMOPS, bool, known->sync_memops)                                             \
    X(BUFFER_ID, unsigned long long, known->id)                                          \
    X(IS_MANAGED, bool, known->managed)                                                  \
    X(DEVICE_ORDINAL, int, known->device->ordinal)                                       \
    X(IS_LEGACY_CUDA_IPC_CAPABLE, bool, known->ipc)                                      \
    X(RANGE_START_ADDR, CUdeviceptr, known->base)                                        \
    X(RANGE_SIZE, size_t, known->size)                                                   \
    X(MAPPED, bool, true)                                                                \
    X(ALLOWED_HANDLE_TYPES, cuuint64_t, known->handle_types)                             \
    X(IS_GPU_DIRECT_RDMA_CAPABLE, bool, false)                                           \
    X(IS_HW_DECOMPRESS_CAPABLE, bool, false)                                             \
    X(ACCESS_FLAGS, unsigned, CU_MEM_ACCESS_FLAGS_PROT_READWRITE)                        \
    X(MEMPOOL_HANDLE, CUmemoryPool, (CUmemoryPool)known->pool)                           \
    X(MAPPING_SIZE, size_t, known->mapping_size)                                         \
    X(MAPPING_BASE_ADDR, CUdeviceptr, known->mapping_base)                               \
    X(MEMORY_BLOCK_ID, unsigned long long, known->id)

static CUresult store_attribute(const struct known *known, CUpointer_attribute attribute,
                                CUdeviceptr address, void *value)
{
    switch ((int)attribute) {
#define STORE(name, type, is)                                                            \
    case CU_POINTER_ATTRIBUTE_##name: *(type *)value = (is); return CUDA_SUCCESS;
    ATTRIBUTES(STORE)
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        *(void **)value = known->host ? (void *)(uintptr_t)address : NULL;
        return known->host ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
        /* No NIC can access this memory; the driver reports that for managed memory only. */
        if (known->managed)
            *(struct tokens *)value = (struct tokens){0};
        return known->managed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult attribute_of(void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
    struct known known;
    if (value == NULL || !look_up(address, &known))
        return CUDA_ERROR_INVALID_VALUE;
    return store_attribute(&known, attribute, address, value);
}

FORWARD(cuPointerGetAttribute, (void *value, CUpointer_attribute attribute, CUdeviceptr address),
        ENTRY_INIT, attribute_of(value, attribute, address))

static size_t width_of(CUpointer_attribute attribute)
{
    switch ((int)attribute) {
#define WIDTH(name, type, is) case CU_POINTER_ATTRIBUTE_##name: return sizeof(type);
    ATTRIBUTES(WIDTH)
    default:
        return 8;
    }
}

/* True: `address` is in a range that the program has reserved, mapped or not, now in *known. */
static bool from_reservation(CUdeviceptr address, struct known *known)
{
    SPACE_LOCKED(read);
    return space_is_reserved(address, 1)
        && space_reservation(address, &known->base, &known->size);
}

/* The values that cuPointerGetAttributes stores for an unknown address. */
static void store_unknown(void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
    struct known known;
    bool unknown = !look_up(address, &known);
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)value = CU_DEVICE_INVALID;
        return;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        *(CUdeviceptr *)value = unknown ? address : 0;       /* it may be a host address */
        return;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        if (from_reservation(address, &known))
            *(CUdeviceptr *)value = known.base;
        return;                              /* the value stays unchanged */
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        if (from_reservation(address, &known))
            *(size_t *)value = known.size;
        return;
    default:
        memset(value, 0, width_of(attribute));
    }
}

/* Unlike cuPointerGetAttribute, this function succeeds for unknown addresses. */
API(cuPointerGetAttributes, unsigned int count, CUpointer_attribute *attributes, void **values,
    CUdeviceptr address)
{
    ENTER(ENTRY_INIT);
    FAIL_IF(attributes == NULL || values == NULL, CUDA_ERROR_INVALID_VALUE);
    for (unsigned i = 0; i < count; i++) {
        FAIL_IF(values[i] == NULL, CUDA_ERROR_INVALID_VALUE);
        if (attribute_of(values[i], attributes[i], address) != CUDA_SUCCESS)
            store_unknown(values[i], attributes[i], address);
    }
    return CUDA_SUCCESS;
}

API(cuPointerSetAttribute, const void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
    ENTER(ENTRY_INIT | ENTRY_UNSAFE);
    FAIL_IF(value == NULL, CUDA_ERROR_INVALID_VALUE);
    SPACE_LOCKED(write);
    const struct mapping *mapping = space_find(address);
    struct allocation *allocation = allocation_find(address);
    FAIL_IF(mapping != NULL && mapping->allocation == NULL, CUDA_ERROR_NOT_SUPPORTED);
    FAIL_IF(attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, CUDA_ERROR_INVALID_VALUE);
    if (allocation != NULL)
        allocation->sync_memops = *(const unsigned *)value != 0;
    return allocation != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Advice on managed memory. Nothing here changes a byte: the card and the
 * processor see the same memory. Advice about other memory is refused, as by
 * the driver.
 */
#include <string.h>

#include "allocation.h"
#include "entry.h"
#include "stream.h"

static bool is_managed(CUdeviceptr address, size_t size)
{
    allocations_lock();
    const struct allocation *allocation = allocation_find(address);
    bool managed = allocation != NULL && allocation->kind == ALLOCATED_MANAGED
        && size <= allocation->base + allocation->size - address;
    allocations_unlock();
    return managed;
}

static CUresult check_device(int type, int id)
{
    if (type == CU_MEM_LOCATION_TYPE_DEVICE && device_at(id) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    return type >= CU_MEM_LOCATION_TYPE_DEVICE && type <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT
        ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static int type_of(CUdevice device)
{
    return device == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE;
}

static CUresult advise(CUdeviceptr address, size_t size, CUmem_advise advice, int type, int id)
{
    if (!is_managed(address, size) || size == 0 || advice < CU_MEM_ADVISE_SET_READ_MOSTLY
        || advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY)
        return CUDA_ERROR_INVALID_VALUE;
    /* Whether something is mostly read is no matter of a place. */
    return advice <= CU_MEM_ADVISE_UNSET_READ_MOSTLY || check_device(type, id) == CUDA_SUCCESS
        ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API(cuMemAdvise, CUdeviceptr address, size_t size, CUmem_advise advice, CUdevice device)
{
    ENTER(ENTRY_CONTEXT);
    return advise(address, size, advice, type_of(device), device);
}

API(cuMemAdvise_v2, CUdeviceptr address, size_t size, CUmem_advise advice,
    CUmemLocation location)
{
    ENTER(ENTRY_CONTEXT);
    return advise(address, size, advice, (int)location.type, location.id);
}

static CUresult prefetch(CUdeviceptr address, size_t size, int type, int id, CUstream handle)
{
    struct stream *stream;
    CUresult result = stream_from(handle, context_current(), &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (size == 0 || !is_managed(address, size))
        return CUDA_ERROR_INVALID_VALUE;
    result = check_device(type, id);
    if (result != CUDA_SUCCESS)
        return result;
    struct work work = {.kind = WORK_NOTHING};
    pthread_mutex_lock(&engine_lock);
    result = stream_submit(stream, &work);
    pthread_mutex_unlock(&engine_lock);
    return result;
}

API(cuMemPrefetchAsync, CUdeviceptr address, size_t size, CUdevice device, CUstream stream)
{
    ENTER(ENTRY_CONTEXT);
    return prefetch(address, size, type_of(device), device, stream);
}

API(cuMemPrefetchAsync_ptsz, CUdeviceptr address, size_t size, CUdevice device, CUstream stream)
{
    ENTER(ENTRY_CONTEXT);
    return prefetch(address, size, type_of(device), device,
                    stream == NULL ? CU_STREAM_PER_THREAD : stream);
}

API(cuMemPrefetchAsync_v2, CUdeviceptr address, size_t size, CUmemLocation location,
    unsigned int flags, CUstream stream)
{
    ENTER(ENTRY_CONTEXT);
    return flags != 0 ? CUDA_ERROR_INVALID_VALUE
                      : prefetch(address, size, (int)location.type, location.id, stream);
}

API(cuMemPrefetchAsync_v2_ptsz, CUdeviceptr address, size_t size, CUmemLocation location,
    unsigned int flags, CUstream stream)
{
    ENTER(ENTRY_CONTEXT);
    return flags != 0 ? CUDA_ERROR_INVALID_VALUE
                      : prefetch(address, size, (int)location.type, location.id,
                                 stream == NULL ? CU_STREAM_PER_THREAD : stream);
}

API(cuMemRangeGetAttribute, void *data, size_t room, CUmem_range_attribute attribute,
    CUdeviceptr address, size_t size)
{
    ENTER(ENTRY_CONTEXT);
    if (data == NULL || room < sizeof(int) || room % sizeof(int) != 0
        || !is_managed(address, size) || (int)attribute < 1 || (int)attribute > 8)
        return CUDA_ERROR_INVALID_VALUE;
    memset(data, 0, room);
    if (attribute != CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY
        && attribute <= CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION)
        for (size_t i = 0; i < room / sizeof(int); i++)
            ((int *)data)[i] = CU_DEVICE_INVALID;
    return CUDA_SUCCESS;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arrays lie row after row in memory of their own, which counts against the
 * card and has no address that a program could know.
 */
#include "memory/array.h"

#include <stdlib.h>

#include "driver/entry.h"
#include "driver/object.h"
#include "engine/queue.h"
#include "space/allocation.h"

struct array {
    struct context *context;
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
    CUdeviceptr memory;
    size_t pitch, rows, layers;
    bool level;                      /* of a mipmapped array, with which alone it goes */
};

static size_t format_bytes(CUarray_format format)
{
    switch ((int)format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
        return 4;
    }
    return 0;
}

static struct array *array_from(CUarray handle)
{
    return object_is(handle, OBJECT_ARRAY) ? (struct array *)handle : NULL;
}

bool array_side(CUarray handle, struct side *side)
{
    struct array *array = array_from(handle);
    if (array == NULL)
        return false;
    *side = (struct side){.address = array->memory, .pitch = array->pitch,
                          .layer = array->pitch * array->rows};
    return true;
}

CUresult array_make(CUarray *handle, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, bool level)
{
    size_t element = descriptor != NULL ? format_bytes(descriptor->Format) : 0;
    unsigned channels = descriptor != NULL ? descriptor->NumChannels : 0;
    if (handle == NULL || element == 0 || descriptor->Width == 0
        || (channels != 1 && channels != 2 && channels != 4))
        return CUDA_ERROR_INVALID_VALUE;
    struct array *array = calloc(1, sizeof *array);
    if (array == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *array = (struct array){
        .context = context_current()->owner, .descriptor = *descriptor, .level = level,
        .pitch = (descriptor->Width * element * channels + 511) / 512 * 512,
        .rows = descriptor->Height != 0 ? descriptor->Height : 1,
        .layers = descriptor->Depth != 0 ? descriptor->Depth : 1};
    CUresult result = device_allocate(array->context, array->pitch * array->rows * array->layers,
                                      ALLOCATED, NULL, &array->memory);
    if (result != CUDA_SUCCESS) {
        free(array);
        return result;
    }
    allocations_lock();
    allocation_find(array->memory)->hidden = true;
    allocations_unlock();
    object_add(array, OBJECT_ARRAY);
    *handle = (CUarray)array;
    return CUDA_SUCCESS;
}

API(cuArrayCreate_v2, CUarray *handle, const CUDA_ARRAY_DESCRIPTOR *descriptor)
{
    ENTER(ENTRY_CONTEXT | ENTRY_UNSAFE);
    if (descriptor == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_ARRAY3D_DESCRIPTOR whole = {.Width = descriptor->Width, .Height = descriptor->Height,
                                     .Format = descriptor->Format,
                                     .NumChannels = descriptor->NumChannels};
    return array_make(handle, &whole, false);
}

API(cuArray3DCreate_v2, CUarray *handle, const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
    ENTER(ENTRY_CONTEXT | ENTRY_UNSAFE);
    return array_make(handle, descriptor, false);
}

API(cuArray3DGetDescriptor_v2, CUDA_ARRAY3D_DESCRIPTOR *descriptor, CUarray handle)
{
    ENTER(ENTRY_CONTEXT);
    if (descriptor == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (array_from(handle) == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    *descriptor = array_from(handle)->descriptor;
    return CUDA_SUCCESS;
}

CUresult array_end(CUarray handle)
{
    struct array *array = array_from(handle);
    pthread_mutex_lock(&engine_lock);
    CUresult result = context_wait(array->context);
    pthread_mutex_unlock(&engine_lock);
    if (result != CUDA_SUCCESS)
        return result;
    object_remove(array);
    allocations_lock();
    struct allocation *allocation = allocation_find(array->memory);
    if (allocation != NULL && allocation->base == array->memory)
        device_free(allocation);
    allocations_unlock();
    free(array);
    return CUDA_SUCCESS;
}

API(cuArrayDestroy, CUarray handle)
{
    ENTER(ENTRY_INIT | ENTRY_UNSAFE);
    return array_from(handle) == NULL || array_from(handle)->level ? CUDA_ERROR_INVALID_HANDLE
                                                                   : array_end(handle);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arrays are stored row by row in device memory that counts against the GPU. The program cannot
 * query the address of that memory.
 */
#include "memory/array.h"

#include <stdlib.h>

#include "driver/entry.h"
#include "driver/object.h"
#include "engine/queue.h"
#include "space/space.h"

struct array {
    struct context *context;
    CUdeviceptr memory;
    size_t pitch, rows;
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

OBJECT_FROM(array_from, struct array, CUarray, OBJECT_ARRAY)

bool array_side(CUarray handle, struct side *side)
{
    struct array *array = array_from(handle);
    if (array == NULL)
        return false;
    *side = (struct side){.address = array->memory, .pitch = array->pitch,
                          .layer = array->pitch * array->rows};
    return true;
}

/* Creates an array in the current context. */
static CUresult array_make(CUarray *handle, const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
    size_t element = descriptor != NULL ? format_bytes(descriptor->Format) : 0;
    unsigned channels = descriptor != NULL ? descriptor->NumChannels : 0;
    FAIL_IF(handle == NULL || element == 0 || descriptor->Width == 0
            || (channels != 1 && channels != 2 && channels != 4), CUDA_ERROR_INVALID_VALUE);
    struct array *array = checked(calloc(1, sizeof *array));
    *array = (struct array){
        .context = context_current()->owner,
        .pitch = (descriptor->Width * element * channels + 511) / 512 * 512,
        .rows = descriptor->Height != 0 ? descriptor->Height : 1};
    size_t layers = descriptor->Depth != 0 ? descriptor->Depth : 1;
    CUresult result = device_allocate(array->context, array->pitch * array->rows * layers,
                                      ALLOCATED, NULL, &array->memory);
    if (result != CUDA_SUCCESS) {
        free(array);
        return result;
    }
    object_add(array, OBJECT_ARRAY);
    *handle = (CUarray)array;
    SPACE_LOCKED(write);
    allocation_at(array->memory)->hidden = true;
    return CUDA_SUCCESS;
}

API(cuArrayCreate_v2, CUarray *handle, const CUDA_ARRAY_DESCRIPTOR *descriptor)
{
    ENTER(ENTRY_CONTEXT | ENTRY_UNSAFE);
    FAIL_IF(descriptor == NULL, CUDA_ERROR_INVALID_VALUE);
    CUDA_ARRAY3D_DESCRIPTOR whole = {.Width = descriptor->Width, .Height = descriptor->Height,
                                     .Format = descriptor->Format,
                                     .NumChannels = descriptor->NumChannels};
    return array_make(handle, &whole);
}

FORWARD(cuArray3DCreate_v2, (CUarray *handle, const CUDA_ARRAY3D_DESCRIPTOR *descriptor),
        ENTRY_CONTEXT | ENTRY_UNSAFE, array_make(handle, descriptor))

/* Frees an existing array after the work of its context. */
static CUresult array_end(CUarray handle)
{
    struct array *array = array_from(handle);
    TRY(context_drain(array->context));
    object_remove(array);
    SPACE_LOCKED(write);
    struct allocation *allocation = allocation_at(array->memory);
    if (allocation != NULL)
        allocation_free(allocation);
    free(array);
    return CUDA_SUCCESS;
}

API(cuArrayDestroy, CUarray handle)
{
    ENTER(ENTRY_INIT | ENTRY_UNSAFE);
    return array_from(handle) == NULL ? CUDA_ERROR_INVALID_HANDLE : array_end(handle);
}

/* Mipmapped arrays: an array for each level, half the previous level's length in each direction. */

#define LEVELS 32

struct mipmap {
    unsigned count;
    CUarray levels[LEVELS];
};

OBJECT_FROM(mipmap_from, struct mipmap, CUmipmappedArray, OBJECT_MIPMAP)

static size_t half(size_t length)
{
    return length > 1 ? length / 2 : length;
}

/* The number of layers stays the same. */
static CUDA_ARRAY3D_DESCRIPTOR next_level(CUDA_ARRAY3D_DESCRIPTOR level)
{
    level.Width = half(level.Width);
    level.Height = half(level.Height);
    if ((level.Flags & CUDA_ARRAY3D_LAYERED) == 0)
        level.Depth = half(level.Depth);
    return level;
}

static bool is_last(const CUDA_ARRAY3D_DESCRIPTOR *level)
{
    return level->Width <= 1 && level->Height <= 1
        && (level->Depth <= 1 || (level->Flags & CUDA_ARRAY3D_LAYERED) != 0);
}

static CUresult end(struct mipmap *mipmap)
{
    CUresult result = CUDA_SUCCESS;
    while (mipmap->count > 0 && result == CUDA_SUCCESS) {
        result = array_end(mipmap->levels[mipmap->count - 1]);
        mipmap->count -= result == CUDA_SUCCESS;
    }
    if (result == CUDA_SUCCESS)
        free(mipmap);
    return result;
}

/* Creates the requested number of levels, but none after the level with a single element. */
API(cuMipmappedArrayCreate, CUmipmappedArray *handle, const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
    unsigned int count)
{
    ENTER(ENTRY_CONTEXT | ENTRY_UNSAFE);
    FAIL_IF(handle == NULL || descriptor == NULL, CUDA_ERROR_INVALID_VALUE);
    struct mipmap *mipmap = checked(calloc(1, sizeof *mipmap));
    CUDA_ARRAY3D_DESCRIPTOR level = *descriptor;
    CUresult result = array_make(&mipmap->levels[0], &level);
    mipmap->count = result == CUDA_SUCCESS;
    while (result == CUDA_SUCCESS && mipmap->count < count && mipmap->count < LEVELS
           && !is_last(&level)) {
        level = next_level(level);
        result = array_make(&mipmap->levels[mipmap->count], &level);
        mipmap->count += result == CUDA_SUCCESS;
    }
    if (result != CUDA_SUCCESS) {
        end(mipmap);
        return result;
    }
    object_add(mipmap, OBJECT_MIPMAP);
    *handle = (CUmipmappedArray)mipmap;
    return CUDA_SUCCESS;
}

API(cuMipmappedArrayDestroy, CUmipmappedArray handle)
{
    ENTER(ENTRY_INIT | ENTRY_UNSAFE);
    FIND(struct mipmap, mipmap, mipmap_from(handle), CUDA_ERROR_INVALID_HANDLE);
    object_remove(mipmap);
    return end(mipmap);
}

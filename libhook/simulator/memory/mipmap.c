/* SPDX-License-Identifier: Apache-2.0 */
/* Mipmapped arrays: an array for each level, half as long in each direction as the one before. */
#include <stdlib.h>

#include "driver/entry.h"
#include "driver/object.h"
#include "memory/array.h"

#define LEVELS 32

struct mipmap {
    unsigned count;
    CUarray levels[LEVELS];
};

static struct mipmap *mipmap_from(CUmipmappedArray handle)
{
    return object_is(handle, OBJECT_MIPMAP) ? (struct mipmap *)handle : NULL;
}

static size_t half(size_t length)
{
    return length > 1 ? length / 2 : length;
}

/* Layers do not get fewer. */
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

/* As many levels as are asked for, but none behind that of a single element. */
API(cuMipmappedArrayCreate, CUmipmappedArray *handle, const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
    unsigned int count)
{
    ENTER(ENTRY_CONTEXT | ENTRY_UNSAFE);
    if (handle == NULL || descriptor == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    struct mipmap *mipmap = calloc(1, sizeof *mipmap);
    if (mipmap == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUDA_ARRAY3D_DESCRIPTOR level = *descriptor;
    CUresult result = array_make(&mipmap->levels[0], &level, true);
    mipmap->count = result == CUDA_SUCCESS;
    while (result == CUDA_SUCCESS && mipmap->count < count && mipmap->count < LEVELS
           && !is_last(&level)) {
        level = next_level(level);
        result = array_make(&mipmap->levels[mipmap->count], &level, true);
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

API(cuMipmappedArrayGetLevel, CUarray *array, CUmipmappedArray handle, unsigned int level)
{
    ENTER(ENTRY_CONTEXT);
    struct mipmap *mipmap = mipmap_from(handle);
    if (array == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (mipmap == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (level >= mipmap->count)
        return CUDA_ERROR_INVALID_VALUE;
    *array = mipmap->levels[level];
    return CUDA_SUCCESS;
}

API(cuMipmappedArrayDestroy, CUmipmappedArray handle)
{
    ENTER(ENTRY_INIT | ENTRY_UNSAFE);
    struct mipmap *mipmap = mipmap_from(handle);
    if (mipmap == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    object_remove(mipmap);
    return end(mipmap);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Counts the memory of arrays as pinned: the driver lays arrays out for textures, so they cannot be
 * swapped. Sizes are computed (confirmed on an H200): each row is a multiple of 64 bytes, in groups
 * of 8 rows (16 to 128 for higher arrays); small arrays share units of 64 KiB (assumed). */
#include "api/wrapper.h"

#define UNIT ((size_t)64 << 10)

static size_t element_size(CUarray_format format, unsigned int channels)
{
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        return channels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        return (size_t)2 * channels;
    default:
        return (size_t)4 * channels;     /* bytes of the widest formats; compressed formats: less */
    }
}

static size_t level_size(const CUDA_ARRAY3D_DESCRIPTOR *description, unsigned int level)
{
    size_t width = description->Width >> level, height = description->Height >> level;
    size_t depth = description->Depth;
    if ((description->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) == 0)
        depth >>= level;                 /* layers are not halved: each level has all */
    size_t row = counted_round((width ? width : 1)
                               * element_size(description->Format, description->NumChannels), 64);
    size_t group = 8;
    while (height > group && group < 128)
        group *= 2;
    return row * (height == 0 ? 1 : counted_round(height, group)) * (depth ? depth : 1);
}

static size_t array_size(const CUDA_ARRAY3D_DESCRIPTOR *description, unsigned int levels)
{
    size_t bytes = 0;
    /* The program maps its own memory into sparse and deferred arrays (cuMemMapArrayAsync). */
    if (description == NULL
        || (description->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0)
        return 0;
    for (unsigned int level = 0; level < levels && level < 32; level++)
        bytes += level_size(description, level);
    return counted_round(bytes, UNIT);
}

/* Bytes of an array with a two-dimensional or 32-bit description. */
#define PLAIN_SIZE(like, depth, flags)                                              \
    ((like) == NULL ? 0                                                             \
     : array_size(&(const CUDA_ARRAY3D_DESCRIPTOR){                                 \
           (like)->Width, (like)->Height, depth, (like)->Format, (like)->NumChannels, flags }, 1))

COUNTED(cuArray3DCreate_v2, array_size(p2, 1), COUNTED_ARRAY,
    (CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *))
COUNTED(cuArrayCreate_v2, PLAIN_SIZE(p2, 0, 0), COUNTED_ARRAY,
    (CUarray *, const CUDA_ARRAY_DESCRIPTOR *))
COUNTED(cuArray3DCreate, PLAIN_SIZE(p2, p2->Depth, p2->Flags), COUNTED_ARRAY,
    (CUarray *, const CUDA_ARRAY3D_DESCRIPTOR_v1 *))
COUNTED(cuArrayCreate, PLAIN_SIZE(p2, 0, 0), COUNTED_ARRAY,
    (CUarray *, const CUDA_ARRAY_DESCRIPTOR_v1 *))
COUNTED(cuMipmappedArrayCreate, array_size(p2, p3), COUNTED_MIPMAP,
    (CUmipmappedArray *, const CUDA_ARRAY3D_DESCRIPTOR *, unsigned int))
COUNTED_DESTROY(cuArrayDestroy, COUNTED_ARRAY, CUarray)
COUNTED_DESTROY(cuMipmappedArrayDestroy, COUNTED_MIPMAP, CUmipmappedArray)

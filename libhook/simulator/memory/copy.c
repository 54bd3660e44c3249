/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/copy.h"

#include "driver/context.h"
#include "memory/array.h"
#include "space/space.h"

struct side side_host(const void *pointer)
{
    return (struct side){.address = (uintptr_t)pointer, .host = true};
}

struct side side_device(CUdeviceptr address)
{
    return (struct side){.address = address};
}

/* An address that is neither device memory nor registered is a host address, as for the driver. */
struct side side_unified(CUdeviceptr address)
{
    SPACE_LOCKED(read);
    return space_find(address) != NULL ? side_device(address)
                                       : side_host((const void *)(uintptr_t)address);
}

struct work copy_line(struct side to, struct side from, size_t bytes)
{
    return (struct work){.kind = WORK_COPY,
                         .copy = {.to = to, .from = from, .width = bytes, .height = 1,
                                  .depth = 1}};
}

static bool side_is_valid(const struct side *side, const struct work *work,
                          const struct device *device)
{
    size_t reach = (work->copy.depth - 1) * side->layer + (work->copy.height - 1) * side->pitch
        + work->copy.width;
    return side->host || range_is_valid(device, side->address, reach);
}

bool work_is_valid(const struct work *work, const struct device *device)
{
    if (work->kind == WORK_COPY)
        return work->copy.width * work->copy.height * work->copy.depth == 0
            || (side_is_valid(&work->copy.to, work, device)
                && side_is_valid(&work->copy.from, work, device));
    size_t reach = (work->set.height - 1) * work->set.pitch + work->set.width * work->set.element;
    return work->kind != WORK_SET || work->set.width * work->set.height == 0
        || range_is_valid(device, work->set.address, reach);
}

/* One side of a 2D or 3D copy, without its offsets. */
struct block {
    CUmemorytype type;
    const void *host;
    CUdeviceptr device;
    CUarray array;
    size_t x, y, z, pitch, height;
};

static CUresult side_from(const struct block *block, const struct work *work, struct side *side)
{
    size_t pitch = block->pitch != 0 ? block->pitch : work->copy.width;
    size_t height = block->height != 0 ? block->height : work->copy.height;
    switch ((int)block->type) {
    case CU_MEMORYTYPE_HOST:
        *side = side_host(block->host);
        break;
    case CU_MEMORYTYPE_DEVICE:
        *side = side_device(block->device);
        break;
    case CU_MEMORYTYPE_UNIFIED:
        *side = side_unified(block->device);
        break;
    case CU_MEMORYTYPE_ARRAY:
        FAIL_IF(!array_side(block->array, side), CUDA_ERROR_INVALID_HANDLE);
        pitch = side->pitch;
        height = side->layer / (pitch != 0 ? pitch : 1);
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (pitch < work->copy.width && (work->copy.height > 1 || work->copy.depth > 1))
        return CUDA_ERROR_INVALID_VALUE;
    if (height < work->copy.height && work->copy.depth > 1)
        return CUDA_ERROR_INVALID_VALUE;
    side->pitch = pitch;
    side->layer = pitch * height;
    side->address += block->x + block->y * pitch + block->z * side->layer;
    return CUDA_SUCCESS;
}

static CUresult from_blocks(const struct block *to, const struct block *from, size_t width,
                            size_t height, size_t depth, struct work *work)
{
    *work = (struct work){.kind = WORK_COPY,
                          .copy = {.width = width, .height = height, .depth = depth}};
    CUresult result = side_from(to, work, &work->copy.to);
    return result == CUDA_SUCCESS ? side_from(from, work, &work->copy.from) : result;
}

CUresult copy_from_2d(const CUDA_MEMCPY2D *copy, struct work *work)
{
    FAIL_IF(copy == NULL, CUDA_ERROR_INVALID_VALUE);
    struct block to = {copy->dstMemoryType, copy->dstHost, copy->dstDevice, copy->dstArray,
                       copy->dstXInBytes, copy->dstY, 0, copy->dstPitch, 0};
    struct block from = {copy->srcMemoryType, copy->srcHost, copy->srcDevice, copy->srcArray,
                         copy->srcXInBytes, copy->srcY, 0, copy->srcPitch, 0};
    return from_blocks(&to, &from, copy->WidthInBytes, copy->Height, 1, work);
}

#define BLOCK_3D(copy, s)                                                                \
    {(copy)->s##MemoryType, (copy)->s##Host, (copy)->s##Device, (copy)->s##Array,        \
     (copy)->s##XInBytes, (copy)->s##Y, (copy)->s##Z, (copy)->s##Pitch, (copy)->s##Height}

CUresult copy_from_3d(const CUDA_MEMCPY3D *copy, struct work *work)
{
    FAIL_IF(copy == NULL, CUDA_ERROR_INVALID_VALUE);
    struct block to = BLOCK_3D(copy, dst), from = BLOCK_3D(copy, src);
    return from_blocks(&to, &from, copy->WidthInBytes, copy->Height, copy->Depth, work);
}

CUresult copy_from_peer(const CUDA_MEMCPY3D_PEER *copy, struct work *work)
{
    FAIL_IF(copy == NULL, CUDA_ERROR_INVALID_VALUE);
    struct block to = BLOCK_3D(copy, dst), from = BLOCK_3D(copy, src);
    struct context *to_context = context_from(copy->dstContext);
    struct context *from_context = context_from(copy->srcContext);
    FAIL_IF(to_context == NULL || from_context == NULL, CUDA_ERROR_INVALID_CONTEXT);
    CUresult result = from_blocks(&to, &from, copy->WidthInBytes, copy->Height, copy->Depth, work);
    if (!work->copy.to.host)
        work->copy.to.device = to_context->device;
    if (!work->copy.from.host)
        work->copy.from.device = from_context->device;
    return result;
}

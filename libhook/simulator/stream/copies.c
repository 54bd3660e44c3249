/* SPDX-License-Identifier: Apache-2.0 */
/* Copies. A copy from page-locked memory or within the card is only queued by a call with a
 * stream. From pageable memory the driver first moves the bytes into memory of its own: the call
 * returns at once for a small source, else when the source has been read. A copy into pageable
 * memory returns when it is done. */
#include <stdlib.h>
#include <string.h>

#include "memory/array.h"
#include "memory/copy.h"
#include "space/space.h"
#include "stream/capture.h"
#include "stream/submit.h"

enum copy_wait {
    COPY_ASYNC,                      /* the call returns as early as the driver's, see above */
    COPY_SYNC,                       /* the call returns when the bytes are copied */
};

#define STAGED ((size_t)64 << 10)

static bool is_pageable(const struct side *side)
{
    if (!side->host)
        return false;
    SPACE_LOCKED(read);
    return space_find(side->address) == NULL;
}

/* Between devices without peer access the driver copies plain memory, mapped memory only between
 * named contexts (measured on two H200). */
static bool is_apart(const struct work *work)
{
    const struct side *to = &work->copy.to, *from = &work->copy.from;
    return !to->host && !from->host && to->device == NULL && from->device == NULL
        && space_is_apart(to->address, from->address);
}

static CUresult copy_submit(CUstream handle, struct work work, enum copy_wait wait)
{
    FIND_STREAM(handle);
    size_t size = work.copy.width * work.copy.height * work.copy.depth;
    if (size == 0)
        return CUDA_SUCCESS;
    if (!work_is_valid(&work, stream->context->device) || is_apart(&work))
        return CUDA_ERROR_INVALID_VALUE;
    bool from_pageable = is_pageable(&work.copy.from), to_pageable = is_pageable(&work.copy.to);
    LOCKED(engine_lock);
    bool capturing = stream->capture != NULL;
    bool line = work.copy.height == 1 && work.copy.depth == 1;
    if (capturing && wait == COPY_SYNC)
        result = capture_forbids_stream(stream);
    bool staged = !capturing && wait == COPY_ASYNC && from_pageable && !to_pageable && line
        && size <= STAGED;
    if (result == CUDA_SUCCESS && staged) {
        work.copy.staged = checked(malloc(size));
        memcpy(work.copy.staged, (const void *)(uintptr_t)work.copy.from.address, size);
    }
    if (result == CUDA_SUCCESS)
        result = stream_submit(stream, &work);
    if (result != CUDA_SUCCESS)
        free(work.copy.staged);
    bool waits = wait == COPY_SYNC
        ? work.copy.from.host || work.copy.to.host || from_pageable || to_pageable
        : (from_pageable || to_pageable) && !staged;
    if (result == CUDA_SUCCESS && waits && !capturing)
        result = stream_wait(stream, stream->submitted);
    return result;
}

#define LINE(to, from, wait) return copy_submit(on, copy_line(to, from, bytes), wait);

API_PTDS(cuMemcpy, (CUdeviceptr to, CUdeviceptr from, size_t bytes),
         LINE(side_unified(to), side_unified(from), COPY_SYNC))
API_PTDS(cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t bytes),
         LINE(side_device(to), side_host(from), COPY_SYNC))
API_PTDS(cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t bytes),
         LINE(side_host(to), side_device(from), COPY_SYNC))
API_PTDS(cuMemcpyDtoD_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes),
         LINE(side_device(to), side_device(from), COPY_SYNC))
API_PTSZ(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
         LINE(side_unified(to), side_unified(from), COPY_ASYNC))
API_PTSZ(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream),
         LINE(side_device(to), side_host(from), COPY_ASYNC))
API_PTSZ(cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t bytes, CUstream stream),
         LINE(side_host(to), side_device(from), COPY_ASYNC))
API_PTSZ(cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
         LINE(side_device(to), side_device(from), COPY_ASYNC))

static CUresult copy_peer(CUdeviceptr to, CUcontext to_handle, CUdeviceptr from,
                          CUcontext from_handle, size_t bytes, CUstream stream,
                          enum copy_wait wait)
{
    struct context *to_context = context_from(to_handle), *from_context = context_from(from_handle);
    FAIL_IF(to_context == NULL || from_context == NULL, CUDA_ERROR_INVALID_CONTEXT);
    struct side to_side = side_unified(to), from_side = side_unified(from);
    to_side.device = to_context->device;
    from_side.device = from_context->device;
    return copy_submit(stream, copy_line(to_side, from_side, bytes), wait);
}

API_PTDS(cuMemcpyPeer,
         (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
          size_t bytes),
         return copy_peer(to, to_context, from, from_context, bytes, on, COPY_SYNC);)

API_PTSZ(cuMemcpyPeerAsync,
         (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
          size_t bytes, CUstream stream),
         return copy_peer(to, to_context, from, from_context, bytes, on, COPY_ASYNC);)

#define SUBMIT(convert, wait)                                                            \
    struct work work;                                                                    \
    CUresult result = convert(copy, &work);                                              \
    return result == CUDA_SUCCESS ? copy_submit(on, work, wait) : result;

API_PTDS(cuMemcpy2D_v2, (const CUDA_MEMCPY2D *copy), SUBMIT(copy_from_2d, COPY_SYNC))
API_PTDS(cuMemcpy2DUnaligned_v2, (const CUDA_MEMCPY2D *copy), SUBMIT(copy_from_2d, COPY_SYNC))
API_PTDS(cuMemcpy3D_v2, (const CUDA_MEMCPY3D *copy), SUBMIT(copy_from_3d, COPY_SYNC))
API_PTDS(cuMemcpy3DPeer, (const CUDA_MEMCPY3D_PEER *copy), SUBMIT(copy_from_peer, COPY_SYNC))
API_PTSZ(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *copy, CUstream stream),
         SUBMIT(copy_from_2d, COPY_ASYNC))
API_PTSZ(cuMemcpy3DAsync_v2, (const CUDA_MEMCPY3D *copy, CUstream stream),
         SUBMIT(copy_from_3d, COPY_ASYNC))
API_PTSZ(cuMemcpy3DPeerAsync, (const CUDA_MEMCPY3D_PEER *copy, CUstream stream),
         SUBMIT(copy_from_peer, COPY_ASYNC))

/* Copies from and to arrays; offsets count bytes from the first one. */

#define ARRAY_SIDE(name, handle, offset)                                                 \
    struct side name;                                                                    \
    if (!array_side(handle, &name))                                                      \
        return CUDA_ERROR_INVALID_HANDLE;                                                \
    name.address += (offset);

API_PTDS(cuMemcpyDtoA_v2, (CUarray to, size_t offset, CUdeviceptr from, size_t bytes),
         ARRAY_SIDE(side, to, offset) LINE(side, side_device(from), COPY_SYNC))
API_PTDS(cuMemcpyAtoD_v2, (CUdeviceptr to, CUarray from, size_t offset, size_t bytes),
         ARRAY_SIDE(side, from, offset) LINE(side_device(to), side, COPY_SYNC))
API_PTDS(cuMemcpyHtoA_v2, (CUarray to, size_t offset, const void *from, size_t bytes),
         ARRAY_SIDE(side, to, offset) LINE(side, side_host(from), COPY_SYNC))
API_PTDS(cuMemcpyAtoH_v2, (void *to, CUarray from, size_t offset, size_t bytes),
         ARRAY_SIDE(side, from, offset) LINE(side_host(to), side, COPY_SYNC))
API_PTDS(cuMemcpyAtoA_v2,
         (CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes),
         ARRAY_SIDE(to_side, to, to_offset) ARRAY_SIDE(from_side, from, from_offset)
         LINE(to_side, from_side, COPY_SYNC))
API_PTSZ(cuMemcpyHtoAAsync_v2,
         (CUarray to, size_t offset, const void *from, size_t bytes, CUstream stream),
         ARRAY_SIDE(side, to, offset) LINE(side, side_host(from), COPY_ASYNC))
API_PTSZ(cuMemcpyAtoHAsync_v2,
         (void *to, CUarray from, size_t offset, size_t bytes, CUstream stream),
         ARRAY_SIDE(side, from, offset) LINE(side_host(to), side, COPY_ASYNC))

/* Batches, which the driver may execute in any order. */

#define LINES CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,           \
              CUmemcpyAttributes *attributes, size_t *indices, size_t attribute_count

/* *failed, unless NULL: the index of the refused copy; SIZE_MAX: no single copy is the reason. */
static CUresult copy_lines(LINES, size_t *failed, CUstream stream)
{
    GIVE_IF(failed, SIZE_MAX);
    FAIL_IF(count == 0 || to == NULL || from == NULL || sizes == NULL || attributes == NULL
            || indices == NULL || attribute_count == 0 || attribute_count > count
            || indices[0] != 0, CUDA_ERROR_INVALID_VALUE);
    FAIL_IF(stream == NULL || stream == CU_STREAM_LEGACY, CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < count; i++) {
        CUresult result = sizes[i] == 0 ? CUDA_ERROR_INVALID_VALUE
            : copy_submit(stream, copy_line(side_unified(to[i]), side_unified(from[i]), sizes[i]),
                          COPY_ASYNC);
        if (result != CUDA_SUCCESS) {
            GIVE_IF(failed, i);
            return result;
        }
    }
    return CUDA_SUCCESS;
}

API_PTSZ(cuMemcpyBatchAsync, (LINES, size_t *failed, CUstream stream),
         return copy_lines(to, from, sizes, count, attributes, indices, attribute_count, failed,
                           on);)
API_PTSZ(cuMemcpyBatchAsync_v2, (LINES, CUstream stream),
         return copy_lines(to, from, sizes, count, attributes, indices, attribute_count, NULL, on);)

/* The offset in an array counts bytes here; elements wider than a byte are not supported. */
static CUresult operand(const CUmemcpy3DOperand *operand, size_t width, size_t height,
                        struct side *side)
{
    if (operand->type == CU_MEMCPY_OPERAND_TYPE_ARRAY) {
        FAIL_IF(!array_side(operand->op.array.array, side), CUDA_ERROR_INVALID_HANDLE);
        side->address += operand->op.array.offset.x + operand->op.array.offset.y * side->pitch
            + operand->op.array.offset.z * side->layer;
        return CUDA_SUCCESS;
    }
    FAIL_IF(operand->type != CU_MEMCPY_OPERAND_TYPE_POINTER, CUDA_ERROR_INVALID_VALUE);
    *side = side_unified(operand->op.ptr.ptr);
    side->pitch = operand->op.ptr.rowLength != 0 ? operand->op.ptr.rowLength : width;
    side->layer = side->pitch
        * (operand->op.ptr.layerHeight != 0 ? operand->op.ptr.layerHeight : height);
    return CUDA_SUCCESS;
}

static CUresult copy_blocks(size_t count, const CUDA_MEMCPY3D_BATCH_OP *list, size_t *failed,
                            unsigned long long flags, CUstream stream)
{
    GIVE_IF(failed, SIZE_MAX);
    FAIL_IF(count == 0 || list == NULL || flags != 0, CUDA_ERROR_INVALID_VALUE);
    FAIL_IF(stream == NULL || stream == CU_STREAM_LEGACY, CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < count; i++) {
        struct work work = {.kind = WORK_COPY,
                            .copy = {.width = list[i].extent.width,
                                     .height = list[i].extent.height,
                                     .depth = list[i].extent.depth}};
        CUresult result = operand(&list[i].dst, work.copy.width, work.copy.height,
                                  &work.copy.to);
        if (result == CUDA_SUCCESS)
            result = operand(&list[i].src, work.copy.width, work.copy.height, &work.copy.from);
        if (result == CUDA_SUCCESS)
            result = copy_submit(stream, work, COPY_ASYNC);
        if (result != CUDA_SUCCESS) {
            GIVE_IF(failed, i);
            return result;
        }
    }
    return CUDA_SUCCESS;
}

API_PTSZ(cuMemcpy3DBatchAsync,
         (size_t count, CUDA_MEMCPY3D_BATCH_OP *list, size_t *failed, unsigned long long flags,
          CUstream stream),
         return copy_blocks(count, list, failed, flags, on);)

API_PTSZ(cuMemcpy3DBatchAsync_v2,
         (size_t count, CUDA_MEMCPY3D_BATCH_OP *list, unsigned long long flags,
          CUstream stream),
         return copy_blocks(count, list, NULL, flags, on);)

static CUresult set(CUstream handle, CUdeviceptr address, size_t pitch, uint32_t value,
                    unsigned element, size_t width, size_t height, bool async)
{
    FIND_STREAM(handle);
    if (address % element != 0 || (height > 1 && pitch < width * element))
        return CUDA_ERROR_INVALID_VALUE;
    if (width == 0 || height == 0)
        return CUDA_SUCCESS;
    struct work work = {.kind = WORK_SET,
                        .set = {.address = address, .pitch = pitch, .value = value,
                                .element = element, .width = width, .height = height}};
    bool valid = work_is_valid(&work, stream->context->device);
    LOCKED(engine_lock);
    /* The driver looks up the address of a captured fill when the graph is instantiated. */
    FAIL_IF(!valid && stream->capture == NULL, CUDA_ERROR_INVALID_VALUE);
    if (!async && stream->capture != NULL)
        result = capture_forbids_stream(stream);
    if (result == CUDA_SUCCESS)
        result = stream_submit(stream, &work);
    return result;
}

/* Fills of a line and of a rectangle, each with and without a stream. */
#define SET(bits, type, element)                                                         \
    API_PTDS(cuMemsetD##bits##_v2, (CUdeviceptr address, type value, size_t count),      \
             return set(on, address, 0, value, element, count, 1, false);)               \
    API_PTDS(cuMemsetD2D##bits##_v2, (CUdeviceptr address, size_t pitch, type value,     \
                                      size_t width, size_t height),                      \
             return set(on, address, pitch, value, element, width, height, false);)      \
    API_PTSZ(cuMemsetD##bits##Async, (CUdeviceptr address, type value, size_t count,     \
                                      CUstream stream),                                  \
             return set(on, address, 0, value, element, count, 1, true);)                \
    API_PTSZ(cuMemsetD2D##bits##Async, (CUdeviceptr address, size_t pitch, type value,   \
                                        size_t width, size_t height, CUstream stream),   \
             return set(on, address, pitch, value, element, width, height, true);)

SET(8, unsigned char, 1)
SET(16, unsigned short, 2)
SET(32, unsigned int, 4)

/* SPDX-License-Identifier: Apache-2.0 */
/* Many copies in one call. They may be done in any order; here, in theirs. */
#include "memory/array.h"
#include "stream/copy_submit.h"
#include "stream/submit.h"

struct batch {
    CUdeviceptr *to, *from;
    size_t *sizes;
    size_t count;
    const CUmemcpyAttributes *attributes;
    const size_t *attribute_indices;
    size_t attribute_count;
    CUstream stream;
};

/* `failed` may be NULL; it is all ones where no single copy is to blame. */
static CUresult copy_lines(const struct batch *batch, size_t *failed)
{
    if (failed != NULL)
        *failed = SIZE_MAX;
    if (batch->count == 0 || batch->to == NULL || batch->from == NULL || batch->sizes == NULL
        || batch->attributes == NULL || batch->attribute_indices == NULL
        || batch->attribute_count == 0 || batch->attribute_count > batch->count
        || batch->attribute_indices[0] != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (batch->stream == NULL || batch->stream == CU_STREAM_LEGACY)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < batch->count; i++) {
        CUresult result = batch->sizes[i] == 0 ? CUDA_ERROR_INVALID_VALUE
            : copy_submit(batch->stream,
                          copy_line(side_unified(batch->to[i]), side_unified(batch->from[i]),
                                    batch->sizes[i]), COPY_ASYNC);
        if (result != CUDA_SUCCESS) {
            if (failed != NULL)
                *failed = i;
            return result;
        }
    }
    return CUDA_SUCCESS;
}

#define LINES CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,           \
              CUmemcpyAttributes *attributes, size_t *indices, size_t attribute_count
#define LINES_TO(stream) (&(struct batch){to, from, sizes, count, attributes, indices,   \
                                          attribute_count, stream})

API_PTSZ(cuMemcpyBatchAsync, (LINES, size_t *failed, CUstream stream),
         return copy_lines(LINES_TO(on), failed);)

API_PTSZ(cuMemcpyBatchAsync_v2, (LINES, CUstream stream),
         return copy_lines(LINES_TO(on), NULL);)

/* An array's offset counts bytes here; formats wider than one are not looked at. */
static CUresult operand(const CUmemcpy3DOperand *operand, size_t width, size_t height,
                        struct side *side)
{
    if (operand->type == CU_MEMCPY_OPERAND_TYPE_ARRAY) {
        if (!array_side(operand->op.array.array, side))
            return CUDA_ERROR_INVALID_HANDLE;
        side->address += operand->op.array.offset.x + operand->op.array.offset.y * side->pitch
            + operand->op.array.offset.z * side->layer;
        return CUDA_SUCCESS;
    }
    if (operand->type != CU_MEMCPY_OPERAND_TYPE_POINTER)
        return CUDA_ERROR_INVALID_VALUE;
    *side = side_unified(operand->op.ptr.ptr);
    side->pitch = operand->op.ptr.rowLength != 0 ? operand->op.ptr.rowLength : width;
    side->layer = side->pitch
        * (operand->op.ptr.layerHeight != 0 ? operand->op.ptr.layerHeight : height);
    return CUDA_SUCCESS;
}

static CUresult copy_blocks(size_t count, const CUDA_MEMCPY3D_BATCH_OP *list, size_t *failed,
                            unsigned long long flags, CUstream stream)
{
    if (failed != NULL)
        *failed = SIZE_MAX;
    if (count == 0 || list == NULL || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream == NULL || stream == CU_STREAM_LEGACY)
        return CUDA_ERROR_INVALID_VALUE;
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
            if (failed != NULL)
                *failed = i;
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

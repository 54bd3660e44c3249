/* SPDX-License-Identifier: Apache-2.0 */
#include "api/apart.h"

#include "driver/real.h"
#include "gate/gate.h"
#include "memory/peers.h"

static bool is_on_device(CUmemorytype type)
{
    return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED;
}

bool apart_3d(const CUDA_MEMCPY3D *copy, CUDA_MEMCPY3D_PEER *peer)
{
    CUcontext to_context, from_context;
    if (copy == NULL || !is_on_device(copy->srcMemoryType) || !is_on_device(copy->dstMemoryType)
        || !memory_apart(copy->dstDevice, copy->srcDevice, &to_context, &from_context))
        return false;
    *peer = (CUDA_MEMCPY3D_PEER){
        .srcXInBytes = copy->srcXInBytes, .srcY = copy->srcY, .srcZ = copy->srcZ,
        .srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = copy->srcDevice,
        .srcContext = from_context, .srcPitch = copy->srcPitch, .srcHeight = copy->srcHeight,
        .dstXInBytes = copy->dstXInBytes, .dstY = copy->dstY, .dstZ = copy->dstZ,
        .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = copy->dstDevice,
        .dstContext = to_context, .dstPitch = copy->dstPitch, .dstHeight = copy->dstHeight,
        .WidthInBytes = copy->WidthInBytes, .Height = copy->Height, .Depth = copy->Depth,
    };
    return true;
}

bool apart_2d(const CUDA_MEMCPY2D *copy, CUDA_MEMCPY3D_PEER *peer)
{
    if (copy == NULL)
        return false;
    const CUDA_MEMCPY3D shape = {
        .srcXInBytes = copy->srcXInBytes, .srcY = copy->srcY,
        .srcMemoryType = copy->srcMemoryType, .srcDevice = copy->srcDevice,
        .srcPitch = copy->srcPitch, .srcHeight = copy->srcY + copy->Height,
        .dstXInBytes = copy->dstXInBytes, .dstY = copy->dstY,
        .dstMemoryType = copy->dstMemoryType, .dstDevice = copy->dstDevice,
        .dstPitch = copy->dstPitch, .dstHeight = copy->dstY + copy->Height,
        .WidthInBytes = copy->WidthInBytes, .Height = copy->Height, .Depth = 1,
    };
    return apart_3d(&shape, peer);
}

/* Zero means the length of the copy. */
static size_t length(size_t given, size_t copied)
{
    return given != 0 ? given : copied;
}

static bool apart_operation(const CUDA_MEMCPY3D_BATCH_OP *operation, CUDA_MEMCPY3D_PEER *peer)
{
    if (operation == NULL || operation->src.type != CU_MEMCPY_OPERAND_TYPE_POINTER
        || operation->dst.type != CU_MEMCPY_OPERAND_TYPE_POINTER)
        return false;
    const size_t width = operation->extent.width, height = operation->extent.height;
    const CUDA_MEMCPY3D shape = {
        .srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = operation->src.op.ptr.ptr,
        .srcPitch = length(operation->src.op.ptr.rowLength, width),
        .srcHeight = length(operation->src.op.ptr.layerHeight, height),
        .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = operation->dst.op.ptr.ptr,
        .dstPitch = length(operation->dst.op.ptr.rowLength, width),
        .dstHeight = length(operation->dst.op.ptr.layerHeight, height),
        .WidthInBytes = width, .Height = height, .Depth = operation->extent.depth,
    };
    return apart_3d(&shape, peer);
}

static bool is_apart(CUdeviceptr to, CUdeviceptr from)
{
    CUcontext unused;
    return memory_apart(to, from, &unused, &unused);
}

/* False for a stream that the driver rejects at once: the wrapper then calls the driver. */
static bool has_stream(CUstream stream)
{
    return stream != NULL && stream != CU_STREAM_LEGACY;
}

bool apart_lines(const struct apart_batch *batch)
{
    bool apart = false;
    if (!memory_never_apart() && has_stream(batch->stream) && batch->to != NULL && batch->from != NULL
        && batch->sizes != NULL && batch->attributes != NULL && batch->indices != NULL
        && batch->attribute_count > 0 && batch->attribute_count <= batch->count
        && batch->indices[0] == 0)
        for (size_t i = 0; i < batch->count; i++) {
            if (batch->sizes[i] == 0)
                return false;
            apart = apart || is_apart(batch->to[i], batch->from[i]);
        }
    return apart;
}

bool apart_operations(size_t count, const CUDA_MEMCPY3D_BATCH_OP *operations,
                      unsigned long long flags, CUstream stream)
{
    bool apart = false;
    CUDA_MEMCPY3D_PEER unused;
    if (!memory_never_apart() && has_stream(stream) && flags == 0 && operations != NULL)
        for (size_t i = 0; i < count && !apart; i++)
            apart = apart_operation(&operations[i], &unused);
    return apart;
}

/* A source between the cards that may be read during the call only is still read after the stream's
 * earlier work. That work may wait for this thread: without the library the driver might read such
 * a source out of stream order. */
static CUresult finish(CUresult result, bool during_call, size_t done, size_t *failed,
                       CUstream stream)
{
    BLOCKED;
    if (failed != NULL)
        *failed = result == CUDA_SUCCESS ? SIZE_MAX : done - 1;
    return result == CUDA_SUCCESS && during_call ? REAL(cuStreamSynchronize)(stream) : result;
}

static bool is_during_call(CUmemcpySrcAccessOrder order)
{
    return order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
}

/* Copies a line within one card. The driver reads its source. */
static CUresult copy_line(const struct apart_batch *batch, size_t i, CUmemcpyAttributes attributes)
{
    CUdeviceptr to = batch->to[i], from = batch->from[i];
    size_t size = batch->sizes[i], first = 0, unused;
    return HAVE_REAL(cuMemcpyBatchAsync_v2)
        ? REAL(cuMemcpyBatchAsync_v2)(&to, &from, &size, 1, &attributes, &first, 1, batch->stream)
        : REAL(cuMemcpyBatchAsync)(&to, &from, &size, 1, &attributes, &first, 1, &unused,
                                   batch->stream);
}

CUresult apart_copy_lines(const struct apart_batch *batch, size_t *failed)
{
    CUresult result = CUDA_SUCCESS;
    bool during_call = false;
    size_t i = 0, k = 0;
    for (; i < batch->count && result == CUDA_SUCCESS; i++) {
        CUcontext to_context, from_context;
        CUdeviceptr to = batch->to[i], from = batch->from[i];
        while (k + 1 < batch->attribute_count && batch->indices[k + 1] <= i)
            k++;
        if (memory_apart(to, from, &to_context, &from_context)) {
            result = REAL(cuMemcpyPeerAsync)(to, to_context, from, from_context, batch->sizes[i],
                                             batch->stream);
            during_call |= is_during_call(batch->attributes[k].srcAccessOrder);
        } else {
            result = copy_line(batch, i, batch->attributes[k]);
        }
    }
    return finish(result, during_call, i, failed, batch->stream);
}

static CUresult copy_operation(CUDA_MEMCPY3D_BATCH_OP *operation, CUstream stream,
                               bool *during_call)
{
    CUDA_MEMCPY3D_PEER peer;
    size_t unused;
    if (apart_operation(operation, &peer)) {
        *during_call |= is_during_call(operation->srcAccessOrder);
        return REAL(cuMemcpy3DPeerAsync)(&peer, stream);
    }
    return HAVE_REAL(cuMemcpy3DBatchAsync_v2)
               ? REAL(cuMemcpy3DBatchAsync_v2)(1, operation, 0, stream)
               : REAL(cuMemcpy3DBatchAsync)(1, operation, &unused, 0, stream);
}

CUresult apart_copy_operations(size_t count, CUDA_MEMCPY3D_BATCH_OP *operations, size_t *failed,
                               CUstream stream)
{
    CUresult result = CUDA_SUCCESS;
    bool during_call = false;
    size_t i = 0;
    for (; i < count && result == CUDA_SUCCESS; i++)
        result = copy_operation(&operations[i], stream, &during_call);
    return finish(result, during_call, i, failed, stream);
}

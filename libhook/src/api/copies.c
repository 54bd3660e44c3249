/* SPDX-License-Identifier: Apache-2.0 */
/* Wraps all copies. A copy waits at a closed gate even during a capture: the driver looks up the
 * addresses when it records a copy. Where no memory is mapped it fails (cuMemcpyDtoDAsync) or takes
 * the address for host memory (cuMemcpyAsync; driver 580). */
#include "api/wrapper.h"
#include "flight/bus_sharing.h"
#include "memory/peers.h"

/* Copies between the library's memory on two cards without access to each other (peers.h) must name
 * both contexts. */

static bool is_on_device(CUmemorytype type)
{
    return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED;
}

/* Whether `copy` is such a copy; *peer then describes it for cuMemcpy3DPeer. */
static bool apart_3d(const CUDA_MEMCPY3D *copy, CUDA_MEMCPY3D_PEER *peer)
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

static bool apart_2d(const CUDA_MEMCPY2D *copy, CUDA_MEMCPY3D_PEER *peer)
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

/* A row length or layer height; 0: that of the copy. */
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

/* Parameters of cuMemcpyBatchAsync(). */
struct apart_batch {
    const CUdeviceptr *to, *from;
    const size_t *sizes;
    size_t count;
    const CUmemcpyAttributes *attributes;
    const size_t *indices;
    size_t attribute_count;
    CUstream stream;
};

static bool has_stream(CUstream stream)      /* or the driver rejects the batch at once */
{
    return stream != NULL && stream != CU_STREAM_LEGACY;
}

/* Whether a batch contains a copy between such cards. Its copies are then submitted one by one: the
 * driver guarantees no order among them. */
static bool apart_lines(const struct apart_batch *batch)
{
    bool apart = false;
    if (!memory_never_apart() && has_stream(batch->stream) && batch->to != NULL
        && batch->from != NULL && batch->sizes != NULL && batch->attributes != NULL
        && batch->indices != NULL
        && batch->attribute_count > 0 && batch->attribute_count <= batch->count
        && batch->indices[0] == 0)
        for (size_t i = 0; i < batch->count; i++) {
            if (batch->sizes[i] == 0)
                return false;
            apart = apart || is_apart(batch->to[i], batch->from[i]);
        }
    return apart;
}

static bool apart_operations(size_t count, const CUDA_MEMCPY3D_BATCH_OP *operations,
                             unsigned long long flags, CUstream stream)
{
    bool apart = false;
    CUDA_MEMCPY3D_PEER unused;
    if (!memory_never_apart() && has_stream(stream) && flags == 0 && operations != NULL)
        for (size_t i = 0; i < count && !apart; i++)
            apart = apart_operation(&operations[i], &unused);
    return apart;
}

/* Ends a batch. *failed: index of the failed copy, as from the driver. `during_call`: the source of
 * a copy between cards may be read only until the call returns, so this waits for the stream, whose
 * earlier work may depend on this thread: BLOCKED. */
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

/* Copy `i`, within a card, as a batch of one copy. */
static CUresult copy_line(const struct apart_batch *batch, size_t i, CUmemcpyAttributes attributes)
{
    CUdeviceptr to = batch->to[i], from = batch->from[i];
    size_t size = batch->sizes[i], first = 0, unused;
    return HAVE_REAL(cuMemcpyBatchAsync_v2)
        ? REAL(cuMemcpyBatchAsync_v2)(&to, &from, &size, 1, &attributes, &first, 1, batch->stream)
        : REAL(cuMemcpyBatchAsync)(&to, &from, &size, 1, &attributes, &first, 1, &unused,
                                   batch->stream);
}

static CUresult apart_copy_lines(const struct apart_batch *batch, size_t *failed)
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

static CUresult apart_copy_operations(size_t count, CUDA_MEMCPY3D_BATCH_OP *operations,
                                      size_t *failed, CUstream stream)
{
    CUresult result = CUDA_SUCCESS;
    bool during_call = false;
    size_t i = 0;
    for (; i < count && result == CUDA_SUCCESS; i++)
        result = copy_operation(&operations[i], stream, &during_call);
    return finish(result, during_call, i, failed, stream);
}

/* The wrapper passes the gate and records the bytes and direction of the bus load (bus_sharing.h).
 * `waits`: the call returns after the copy. If `apart`, the copy is made by `instead`. */
#define COPYING_APART(name, direction, loads, waits, parameters, arguments, apart, instead) \
    EXPORT CUresult name parameters                                                         \
    {                                                                                       \
        CUcontext to_context, from_context;                                                 \
        CUDA_MEMCPY3D_PEER shape;                                                           \
        (void)to_context, (void)from_context, (void)shape;                                  \
        gate_enter(GATE_NO_STREAM);                                                         \
        BUS_COPY_BEGINS(copied, direction, loads, waits);                                   \
        CUresult result = (apart) ? (instead) : REAL(name) arguments;                       \
        BUS_COPY_ENDS(copied);                                                              \
        gate_leave();                                                                       \
        return result;                                                                      \
    }
#define COPYING(name, direction, loads, waits, parameters, arguments)              \
    COPYING_APART(name, direction, loads, waits, parameters, arguments, false, CUDA_SUCCESS)
#define COPYING_PTSZ(name, direction, loads, parameters, arguments)                \
    COPYING(name, direction, loads, false, parameters, arguments)                  \
    COPYING(name##_ptsz, direction, loads, false, parameters, arguments)
#define COPYING_PTDS(name, direction, loads, parameters, arguments)                \
    COPYING(name, direction, loads, true, parameters, arguments)                   \
    COPYING(name##_ptds, direction, loads, true, parameters, arguments)
#define LINE_APART memory_apart(to, from, &to_context, &from_context)
#define BETWEEN(name, peer, direction, loads)                                      \
    COPYING_APART(name, direction, loads, true,                                    \
        (CUdeviceptr to, CUdeviceptr from, size_t bytes), (to, from, bytes),       \
        LINE_APART, REAL(peer)(to, to_context, from, from_context, bytes))
#define BETWEEN_ASYNC(name, peer, direction, loads)                                \
    COPYING_APART(name, direction, loads, false,                                   \
        (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),         \
        (to, from, bytes, stream),                                                 \
        LINE_APART, REAL(peer)(to, to_context, from, from_context, bytes, stream))
#define BETWEEN_PTDS(name, direction, loads)                                       \
    BETWEEN(name, cuMemcpyPeer, direction, loads)                                  \
    BETWEEN(name##_ptds, cuMemcpyPeer_ptds, direction, loads)
#define BETWEEN_PTSZ(name, direction, loads)                                       \
    BETWEEN_ASYNC(name, cuMemcpyPeerAsync, direction, loads)                       \
    BETWEEN_ASYNC(name##_ptsz, cuMemcpyPeerAsync_ptsz, direction, loads)

#define SHAPE_PTDS(name, kind, direction, loads, parameters, arguments)            \
    COPYING_APART(name, direction, loads, true, parameters, arguments,             \
        apart_##kind(copy, &shape), REAL(cuMemcpy3DPeer)(&shape))                  \
    COPYING_APART(name##_ptds, direction, loads, true, parameters, arguments,      \
        apart_##kind(copy, &shape), REAL(cuMemcpy3DPeer_ptds)(&shape))
#define SHAPE_PTSZ(name, kind, direction, loads, parameters, arguments)            \
    COPYING_APART(name, direction, loads, false, parameters, arguments,            \
        apart_##kind(copy, &shape), REAL(cuMemcpy3DPeerAsync)(&shape, stream))     \
    COPYING_APART(name##_ptsz, direction, loads, false, parameters, arguments,     \
        apart_##kind(copy, &shape), REAL(cuMemcpy3DPeerAsync_ptsz)(&shape, stream))

#define MANY_PTSZ(name, direction, loads, parameters, arguments, apart, instead)   \
    COPYING_APART(name, direction, loads, false, parameters, arguments,            \
        apart(stream), instead(stream))                                            \
    COPYING_APART(name##_ptsz, direction, loads, false, parameters, arguments,     \
        apart(PER_THREAD(stream)), instead(PER_THREAD(stream)))

/* Memory that the driver does not know is host memory. */
static bool on_host(CUmemorytype type, CUdeviceptr address)
{
    unsigned int known = CU_MEMORYTYPE_HOST;
    if (type != CU_MEMORYTYPE_UNIFIED)
        return type == CU_MEMORYTYPE_HOST;
    return REAL(cuPointerGetAttribute)(&known, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address)
               != CUDA_SUCCESS
           || known == CU_MEMORYTYPE_HOST;
}

static enum bus_direction direction_between(CUmemorytype from_type, CUdeviceptr from,
                                            CUmemorytype to_type, CUdeviceptr to)
{
    bool from_host = on_host(from_type, from), to_host = on_host(to_type, to);
    return from_host == to_host ? BUS_NONE : from_host ? BUS_IN : BUS_OUT;
}

static enum bus_direction direction_of(CUdeviceptr to, CUdeviceptr from)
{
    return direction_between(CU_MEMORYTYPE_UNIFIED, from, CU_MEMORYTYPE_UNIFIED, to);
}

#define DIRECTION_OF(copy)                                                             \
    direction_between((copy)->srcMemoryType, (copy)->srcDevice, (copy)->dstMemoryType, \
                      (copy)->dstDevice)
#define BYTES_2D(copy) ((copy) == NULL ? 0 : (copy)->WidthInBytes * (copy)->Height)
#define BYTES_3D(copy) ((copy) == NULL ? 0 : BYTES_2D(copy) * (copy)->Depth)

/* Assumed to be that of all copies. */
static enum bus_direction direction_of_first(const CUdeviceptr *to, const CUdeviceptr *from)
{
    return to == NULL || from == NULL ? BUS_NONE : direction_of(to[0], from[0]);
}

BETWEEN_PTDS(cuMemcpy, direction_of(to, from), bytes)
COPYING_PTDS(cuMemcpyHtoD_v2, BUS_IN, bytes,
    (CUdeviceptr to, const void *from, size_t bytes),
    (to, from, bytes))
COPYING_PTDS(cuMemcpyDtoH_v2, BUS_OUT, bytes,
    (void *to, CUdeviceptr from, size_t bytes),
    (to, from, bytes))
BETWEEN_PTDS(cuMemcpyDtoD_v2, BUS_NONE, 0)
COPYING_PTDS(cuMemcpyHtoA_v2, BUS_IN, bytes,
    (CUarray to, size_t to_offset, const void *from, size_t bytes),
    (to, to_offset, from, bytes))
COPYING_PTDS(cuMemcpyAtoH_v2, BUS_OUT, bytes,
    (void *to, CUarray from, size_t from_offset, size_t bytes),
    (to, from, from_offset, bytes))
SHAPE_PTDS(cuMemcpy2D_v2, 2d, DIRECTION_OF(copy), BYTES_2D(copy),
    (const CUDA_MEMCPY2D *copy), (copy))
SHAPE_PTDS(cuMemcpy2DUnaligned_v2, 2d, DIRECTION_OF(copy), BYTES_2D(copy),
    (const CUDA_MEMCPY2D *copy), (copy))
SHAPE_PTDS(cuMemcpy3D_v2, 3d, DIRECTION_OF(copy), BYTES_3D(copy),
    (const CUDA_MEMCPY3D *copy), (copy))

BETWEEN_PTSZ(cuMemcpyAsync, direction_of(to, from), bytes)
COPYING_PTSZ(cuMemcpyHtoDAsync_v2, BUS_IN, bytes,
    (CUdeviceptr to, const void *from, size_t bytes, CUstream stream),
    (to, from, bytes, stream))
COPYING_PTSZ(cuMemcpyDtoHAsync_v2, BUS_OUT, bytes,
    (void *to, CUdeviceptr from, size_t bytes, CUstream stream),
    (to, from, bytes, stream))
BETWEEN_PTSZ(cuMemcpyDtoDAsync_v2, BUS_NONE, 0)
COPYING_PTSZ(cuMemcpyHtoAAsync_v2, BUS_IN, bytes,
    (CUarray to, size_t to_offset, const void *from, size_t bytes, CUstream stream),
    (to, to_offset, from, bytes, stream))
COPYING_PTSZ(cuMemcpyAtoHAsync_v2, BUS_OUT, bytes,
    (void *to, CUarray from, size_t from_offset, size_t bytes, CUstream stream),
    (to, from, from_offset, bytes, stream))
SHAPE_PTSZ(cuMemcpy2DAsync_v2, 2d, DIRECTION_OF(copy), BYTES_2D(copy),
    (const CUDA_MEMCPY2D *copy, CUstream stream),
    (copy, stream))
SHAPE_PTSZ(cuMemcpy3DAsync_v2, 3d, DIRECTION_OF(copy), BYTES_3D(copy),
    (const CUDA_MEMCPY3D *copy, CUstream stream),
    (copy, stream))

#define LINE(stream)                                                               \
    (&(struct apart_batch){ &to, &from, &bytes, 1, attributes, &(size_t){ 0 }, 1, stream })
#define LINE_IS_APART(stream) apart_lines(LINE(stream))
#define COPY_LINE(stream) apart_copy_lines(LINE(stream), NULL)
MANY_PTSZ(cuMemcpyWithAttributesAsync, direction_of(to, from), bytes,
    (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUmemcpyAttributes *attributes,
     CUstream stream),
    (to, from, bytes, attributes, stream), LINE_IS_APART, COPY_LINE)
#define OPERATION_IS_APART(stream) apart_operations(1, operation, flags, stream)
#define COPY_OPERATION(stream) apart_copy_operations(1, operation, NULL, stream)
MANY_PTSZ(cuMemcpy3DWithAttributesAsync, BUS_NONE, 0,
    (CUDA_MEMCPY3D_BATCH_OP *operation, unsigned long long flags, CUstream stream),
    (operation, flags, stream), OPERATION_IS_APART, COPY_OPERATION)

#define LINES(stream)                                                              \
    (&(struct apart_batch){ to, from, sizes, count, attributes, attribute_indices, \
                            attribute_count, stream })
#define LINES_ARE_APART(stream) apart_lines(LINES(stream))
#define COPY_LINES(stream) apart_copy_lines(LINES(stream), failed)
#define COPY_LINES_V2(stream) apart_copy_lines(LINES(stream), NULL)
#define OPERATIONS_ARE_APART(stream) apart_operations(count, operations, flags, stream)
#define COPY_OPERATIONS(stream) apart_copy_operations(count, operations, failed, stream)
#define COPY_OPERATIONS_V2(stream) apart_copy_operations(count, operations, NULL, stream)

MANY_PTSZ(cuMemcpyBatchAsync, direction_of_first(to, from), bus_sharing_sum(sizes, count),
    (CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
     CUmemcpyAttributes *attributes, size_t *attribute_indices, size_t attribute_count,
     size_t *failed, CUstream stream),
    (to, from, sizes, count, attributes, attribute_indices, attribute_count, failed, stream),
    LINES_ARE_APART, COPY_LINES)
MANY_PTSZ(cuMemcpyBatchAsync_v2, direction_of_first(to, from), bus_sharing_sum(sizes, count),
    (CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
     CUmemcpyAttributes *attributes, size_t *attribute_indices, size_t attribute_count,
     CUstream stream),
    (to, from, sizes, count, attributes, attribute_indices, attribute_count, stream),
    LINES_ARE_APART, COPY_LINES_V2)
MANY_PTSZ(cuMemcpy3DBatchAsync, BUS_NONE, 0,
    (size_t count, CUDA_MEMCPY3D_BATCH_OP *operations, size_t *failed, unsigned long long flags,
     CUstream stream),
    (count, operations, failed, flags, stream), OPERATIONS_ARE_APART, COPY_OPERATIONS)
MANY_PTSZ(cuMemcpy3DBatchAsync_v2, BUS_NONE, 0,
    (size_t count, CUDA_MEMCPY3D_BATCH_OP *operations, unsigned long long flags, CUstream stream),
    (count, operations, flags, stream), OPERATIONS_ARE_APART, COPY_OPERATIONS_V2)

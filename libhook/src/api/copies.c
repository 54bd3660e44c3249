/* SPDX-License-Identifier: Apache-2.0 */
/* Wraps all copies and fills, also in graphs, and the single values that streams write and await. A copy waits at a
 * closed gate even during a capture: the driver looks up the addresses when it records a copy. Where
 * no memory is mapped, the copy fails (cuMemcpyDtoDAsync), or the driver takes the address for host
 * memory (cuMemcpyAsync; driver 580). */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "api/wrapper.h"
#include "flight/bus_sharing.h"
#include "memory/extents.h"
#include "memory/peers.h"

/*
 * The driver refuses copies and fills that go beyond the allocation in which they begin. It does
 * not know the library's allocations, so the wrappers ask extents_exceeded() first.
 */

static bool line_beyond(CUdeviceptr address, size_t bytes)
{
    return __builtin_expect(extents_exceeded(address, bytes), 0);
}

static bool lines_beyond(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    return line_beyond(to, bytes) || line_beyond(from, bytes);
}

/* Bytes from the first to behind the last byte of `count` pieces; SIZE_MAX: more than there are. */
static size_t reach(size_t piece, size_t count, size_t distance)
{
    size_t bytes;
    if (piece == 0 || count == 0)
        return 0;
    return __builtin_mul_overflow(count - 1, distance, &bytes)
               || __builtin_add_overflow(bytes, piece, &bytes) ? SIZE_MAX : bytes;
}

static bool fill_beyond(CUdeviceptr address, size_t pitch, size_t width, size_t height,
                        size_t element)
{
    return line_beyond(address, reach(reach(element, width, element), height, pitch));
}

/* One side of a copied shape. `pitch`, `layer`: bytes to the next row and layer, or 0. */
struct side {
    CUmemorytype type;
    CUdeviceptr device;
    size_t x, y, z, pitch, height;   /* `height`: rows of a layer, or 0 */
};

static bool side_beyond(const struct side *side, size_t width, size_t height, size_t depth)
{
    if (side->type != CU_MEMORYTYPE_DEVICE && side->type != CU_MEMORYTYPE_UNIFIED)
        return false;
    size_t pitch = side->pitch != 0 ? side->pitch : width;
    size_t layer = pitch * (side->height != 0 ? side->height : height);
    return line_beyond(side->device + side->x + side->y * pitch + side->z * layer,
                       reach(reach(width, height, pitch), depth, layer));
}

#define SIDE(copy, s, z, height)                                                           \
    (&(const struct side){ (copy)->s##MemoryType, (copy)->s##Device, (copy)->s##XInBytes,  \
                           (copy)->s##Y, z, (copy)->s##Pitch, height })

static bool beyond_2d(const CUDA_MEMCPY2D *copy)
{
    return copy != NULL
        && (side_beyond(SIDE(copy, src, 0, 0), copy->WidthInBytes, copy->Height, 1)
            || side_beyond(SIDE(copy, dst, 0, 0), copy->WidthInBytes, copy->Height, 1));
}

/* For CUDA_MEMCPY3D and CUDA_MEMCPY3D_PEER. */
#define BEYOND_3D(copy)                                                                    \
    ((copy) != NULL                                                                        \
     && (side_beyond(SIDE(copy, src, (copy)->srcZ, (copy)->srcHeight), (copy)->WidthInBytes, \
                     (copy)->Height, (copy)->Depth)                                        \
         || side_beyond(SIDE(copy, dst, (copy)->dstZ, (copy)->dstHeight),                  \
                        (copy)->WidthInBytes, (copy)->Height, (copy)->Depth)))

static bool beyond_3d(const CUDA_MEMCPY3D *copy)
{
    return BEYOND_3D(copy);
}

static bool operand_beyond(const CUmemcpy3DOperand *operand, const CUDA_MEMCPY3D_BATCH_OP *in)
{
    return operand->type == CU_MEMCPY_OPERAND_TYPE_POINTER
        && side_beyond(&(const struct side){ .type = CU_MEMORYTYPE_UNIFIED,
                                             .device = operand->op.ptr.ptr,
                                             .pitch = operand->op.ptr.rowLength,
                                             .height = operand->op.ptr.layerHeight },
                       in->extent.width, in->extent.height, in->extent.depth);
}

/* *failed, unless NULL: the index of a refused copy, as from the driver. An invalid batch is left to
 * the driver. */
static bool operations_beyond(size_t count, const CUDA_MEMCPY3D_BATCH_OP *operations,
                              size_t *failed, unsigned long long flags)
{
    for (size_t i = 0; operations != NULL && flags == 0 && i < count; i++)
        if (operand_beyond(&operations[i].src, &operations[i])
            || operand_beyond(&operations[i].dst, &operations[i])) {
            if (failed != NULL)
                *failed = i;
            return true;
        }
    return false;
}

static bool set_beyond(const CUDA_MEMSET_NODE_PARAMS *set)
{
    return set != NULL
        && fill_beyond(set->dst, set->pitch, set->width, set->height, set->elementSize);
}

_Static_assert(offsetof(CUDA_MEMSET_NODE_PARAMS_v2, height)
               == offsetof(CUDA_MEMSET_NODE_PARAMS, height), "node_beyond() reads both alike");

static bool node_beyond(const CUgraphNodeParams *node)
{
    if (node == NULL)
        return false;
    if (node->type == CU_GRAPH_NODE_TYPE_MEMCPY)
        return beyond_3d(&node->memcpy.copyParams);
    return node->type == CU_GRAPH_NODE_TYPE_MEMSET
        && set_beyond((const CUDA_MEMSET_NODE_PARAMS *)&node->memset);
}

/* Whether the program has captured a fill beyond an allocation: the driver refuses to instantiate
 * the graph. */
static _Atomic bool beyond_captured;

static bool graph_beyond(CUgraph graph)
{
    size_t count = 0;
    bool beyond = false;
    if (!beyond_captured || REAL(cuGraphGetNodes)(graph, NULL, &count) != CUDA_SUCCESS)
        return false;
    CUgraphNode *nodes = calloc(count + 1, sizeof(CUgraphNode));
    if (nodes == NULL || REAL(cuGraphGetNodes)(graph, nodes, &count) != CUDA_SUCCESS)
        count = 0;
    for (size_t i = 0; i < count && !beyond; i++) {
        CUgraphNodeType type;
        CUDA_MEMSET_NODE_PARAMS set;
        beyond = REAL(cuGraphNodeGetType)(nodes[i], &type) == CUDA_SUCCESS
            && type == CU_GRAPH_NODE_TYPE_MEMSET
            && REAL(cuGraphMemsetNodeGetParams)(nodes[i], &set) == CUDA_SUCCESS
            && set_beyond(&set);
    }
    free(nodes);
    return beyond;
}

/* Returns what the driver returns for a copy or fill that it refuses. CUDA_SUCCESS: a fill in a
 * stream that is being captured, of which the driver looks up the address later. */
static CUresult refusal(CUstream stream, bool is_copy)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (REAL(cuStreamIsCapturing)(stream, &status) == CUDA_SUCCESS
        && status != CU_STREAM_CAPTURE_STATUS_NONE) {
        beyond_captured = beyond_captured || !is_copy;
        return is_copy ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    }
    /* An empty fill fails only if the stream or the context does, which the driver reports first. */
    CUresult result = REAL(cuMemsetD8Async)(0, 0, 0, stream);
    return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
}

#define REFUSE_IF(beyond, stream, is_copy)                                                 \
    do {                                                                                   \
        CUresult refused;                                                                  \
        if ((beyond) && (refused = refusal(stream, is_copy)) != CUDA_SUCCESS)              \
            return refused;                                                                \
    } while (0)

_Static_assert(sizeof(CUDA_MEMCPY3D) == sizeof(CUDA_MEMCPY3D_PEER)
               && offsetof(CUDA_MEMCPY3D, dstPitch) == offsetof(CUDA_MEMCPY3D_PEER, dstPitch),
               "apart_3d() copies one to the other");

/* Copies between cards without access to each other (peers.h) must name both contexts. */

static bool is_on_device(CUmemorytype type)
{
    return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED;
}

/* Whether `copy` is between cards without access; *peer then describes it for cuMemcpy3DPeer. */
static bool apart_3d(const CUDA_MEMCPY3D *copy, CUDA_MEMCPY3D_PEER *peer)
{
    CUcontext to_context, from_context;
    if (copy == NULL || !is_on_device(copy->srcMemoryType) || !is_on_device(copy->dstMemoryType)
        || !memory_apart(copy->dstDevice, copy->srcDevice, &to_context, &from_context))
        return false;
    /* CUDA_MEMCPY3D has reserved fields in place of the contexts of CUDA_MEMCPY3D_PEER. */
    memcpy(peer, copy, sizeof *peer);
    peer->srcMemoryType = peer->dstMemoryType = CU_MEMORYTYPE_DEVICE;
    peer->srcContext = from_context;
    peer->dstContext = to_context;
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

/* Row length or layer height of a copy's operand: `given`, or the copied region's if that is 0. */
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

/* As operations_beyond(). The driver refuses a batch in which a size is 0. */
static bool batch_beyond(const struct apart_batch *batch, size_t *failed)
{
    for (size_t i = 0; batch->to != NULL && batch->from != NULL && batch->sizes != NULL
                       && i < batch->count && batch->sizes[i] != 0; i++)
        if (lines_beyond(batch->to[i], batch->from[i], batch->sizes[i])) {
            if (failed != NULL)
                *failed = i;
            return true;
        }
    return false;
}

static bool has_stream(CUstream stream)      /* false: the driver rejects the batch at once */
{
    return stream != NULL && stream != CU_STREAM_LEGACY;
}

/* Whether a batch contains a copy between cards without access to each other. If so, its copies are
 * submitted one by one, which is allowed: the driver guarantees no order among them. */
static bool apart_lines(const struct apart_batch *batch)
{
    bool apart = false;
    CUcontext unused;
    if (!memory_never_apart() && has_stream(batch->stream) && batch->to != NULL
        && batch->from != NULL && batch->sizes != NULL && batch->attributes != NULL
        && batch->indices != NULL && batch->attribute_count > 0
        && batch->attribute_count <= batch->count && batch->indices[0] == 0)
        for (size_t i = 0; i < batch->count; i++) {
            if (batch->sizes[i] == 0)
                return false;
            apart = apart || memory_apart(batch->to[i], batch->from[i], &unused, &unused);
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
 * a copy between cards may be read only until the call returns, so finish() waits for the stream.
 * The stream's earlier work may depend on this thread, which is therefore BLOCKED. */
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

/* Submits copy `i`, which needs no peer contexts, as a batch of one copy. */
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

static CUresult apart_copy_operations(size_t count, CUDA_MEMCPY3D_BATCH_OP *operations,
                                      size_t *failed, CUstream stream)
{
    CUresult result = CUDA_SUCCESS;
    bool during_call = false;
    CUDA_MEMCPY3D_PEER peer;
    size_t i = 0, unused;
    for (; i < count && result == CUDA_SUCCESS; i++) {
        if (apart_operation(&operations[i], &peer)) {
            result = REAL(cuMemcpy3DPeerAsync)(&peer, stream);
            during_call |= is_during_call(operations[i].srcAccessOrder);
        } else if (HAVE_REAL(cuMemcpy3DBatchAsync_v2)) {
            result = REAL(cuMemcpy3DBatchAsync_v2)(1, &operations[i], 0, stream);
        } else {
            result = REAL(cuMemcpy3DBatchAsync)(1, &operations[i], &unused, 0, stream);
        }
    }
    return finish(result, during_call, i, failed, stream);
}

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

/* The direction of the first copy, assumed for all copies of a batch. */
static enum bus_direction direction_of_first(const CUdeviceptr *to, const CUdeviceptr *from)
{
    return to == NULL || from == NULL ? BUS_NONE : direction_of(to[0], from[0]);
}

/* The kinds of wrappers of copies in hooks.def. Each passes the gate and records the bytes and the
 * direction of the bus load (bus_sharing.h). `waits`: the call returns after the copy. `beyond`: the
 * copy leaves an allocation. If `apart` is true, `instead` makes the copy; these expressions may use
 * the variables below (`stream`: that of the call). COPYING_LINE copies contiguous bytes,
 * COPYING_SHAPE a shape in a structure. */
#undef COPYING
#define COPYING(name, stream_, direction, bytes, waits, beyond, apart, instead, parameters) \
    SIGNATURE(name, parameters)                                                            \
    {                                                                                      \
        CUcontext to, from;                                                                \
        CUDA_MEMCPY3D_PEER shape;                                                          \
        const CUstream stream = stream_;                                                   \
        (void)to, (void)from, (void)shape, (void)stream;                                   \
        REFUSE_IF(beyond, stream, true);                                                   \
        gate_enter(GATE_NO_STREAM);                                                        \
        BUS_COPY_BEGINS(copied, direction, bytes, waits);                                  \
        CUresult result = (apart) ? (instead) : CALL(name, parameters);                    \
        BUS_COPY_ENDS(copied);                                                             \
        gate_leave();                                                                      \
        return result;                                                                     \
    }
#undef COPYING_LINE
#define COPYING_LINE(name, peer, stream, direction, bytes, parameters)                     \
    COPYING(name, stream, direction, bytes, true, lines_beyond(p1, p2, p3),                \
        memory_apart(p1, p2, &to, &from), REAL(peer)(p1, to, p2, from, p3), parameters)
#undef COPYING_LINE_ASYNC
#define COPYING_LINE_ASYNC(name, peer, stream, direction, bytes, parameters)               \
    COPYING(name, stream, direction, bytes, false, lines_beyond(p1, p2, p3),               \
        memory_apart(p1, p2, &to, &from), REAL(peer)(p1, to, p2, from, p3, p4), parameters)
#undef COPYING_SHAPE
#define COPYING_SHAPE(name, stream, dimensions, waits, instead, parameters)                \
    COPYING(name, stream, direction_between(p1->srcMemoryType, p1->srcDevice,              \
        p1->dstMemoryType, p1->dstDevice), BYTES_##dimensions, waits,                      \
        beyond_##dimensions(p1), apart_##dimensions(p1, &shape), instead, parameters)
#define BYTES_2d (p1 == NULL ? 0 : p1->WidthInBytes * p1->Height)
#define BYTES_3d (p1 == NULL ? 0 : p1->WidthInBytes * p1->Height * p1->Depth)
#define PEER_BEYOND BEYOND_3D(p1)
#undef FILLING
#define FILLING(name, gate, stream, beyond, parameters)                                    \
    SIGNATURE(name, parameters)                                                            \
    {                                                                                      \
        REFUSE_IF(beyond, stream, false);                                                  \
        gate_enter(gate);                                                                  \
        CUresult result = CALL(name, parameters);                                          \
        gate_leave();                                                                      \
        return result;                                                                     \
    }
/* Adds a node to a graph, or changes it. */
#undef NODE
#define NODE(name, beyond, parameters)                                                     \
    SIGNATURE(name, parameters)                                                            \
    {                                                                                      \
        if (beyond)                                                                        \
            return CUDA_ERROR_INVALID_VALUE;                                               \
        gate_enter(GATE_NO_STREAM);                                                        \
        CUresult result = CALL(name, parameters);                                          \
        gate_leave();                                                                      \
        return result;                                                                     \
    }
/* `note`: executed if the library refuses the call. */
#undef INSTANTIATING
#define INSTANTIATING(name, note, parameters)                                              \
    SIGNATURE(name, parameters)                                                            \
    {                                                                                      \
        if (graph_beyond(p2)) {                                                            \
            note;                                                                          \
            return CUDA_ERROR_INVALID_VALUE;                                               \
        }                                                                                  \
        gate_enter(GATE_NO_STREAM);                                                        \
        CUresult result = CALL(name, parameters);                                          \
        gate_leave();                                                                      \
        AGAIN_WITH_ROOM(result, CALL(name, parameters))                                    \
        return result;                                                                     \
    }
#define NOTE_REFUSAL                                                                       \
    if (p3 != NULL)                                                                        \
        p3->result_out = CUDA_GRAPH_INSTANTIATE_ERROR
#define ONE_LINE (&(struct apart_batch){ &p1, &p2, &p3, 1, p4, &(size_t){ 0 }, 1, stream })
#define LINES (&(struct apart_batch){ p1, p2, p3, p4, p5, p6, p7, stream })
#define HOOK(name, parameters)
#include "driver/hooks.def"

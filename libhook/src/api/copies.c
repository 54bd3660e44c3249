/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of every shape. They wait at a closed gate even if their stream is being captured: when
 * the driver records a copy it looks up the addresses. If nothing is mapped there, it fails
 * (cuMemcpyDtoDAsync: invalid value) or treats the address as host memory (cuMemcpyAsync), measured
 * on driver 580.
 */
#include "api/apart.h"
#include "api/wrapper.h"
#include "flight/bus_sharing.h"
#include "memory/peers.h"

/* Like GATED, and records the load on the bus and its direction (bus_sharing.h). `waits`: the call
 * returns when all bytes have been copied. */
#define COPYING(name, way, bytes, waits, parameters, arguments)  \
    EXPORT CUresult name parameters                              \
    {                                                            \
        gate_enter(GATE_NO_STREAM);                              \
        BUS_COPY_BEGINS(copied, way, bytes, waits);               \
        CUresult result = REAL(name) arguments;                  \
        BUS_COPY_ENDS(copied);                                    \
        gate_leave();                                            \
        return result;                                           \
    }
#define COPYING_PTSZ(name, way, bytes, parameters, arguments)    \
    COPYING(name, way, bytes, false, parameters, arguments)      \
    COPYING(name##_ptsz, way, bytes, false, parameters, arguments)
#define COPYING_PTDS(name, way, bytes, parameters, arguments)    \
    COPYING(name, way, bytes, true, parameters, arguments)       \
    COPYING(name##_ptds, way, bytes, true, parameters, arguments)

/* Like COPYING; between memory of two cards without peer access (`apart`: peers.c) another call
 * copies `instead`. */
#define COPYING_APART(name, way, loads, waits, parameters, arguments, apart, instead) \
    EXPORT CUresult name parameters                                                  \
    {                                                                                \
        CUcontext to_context, from_context;                                          \
        CUDA_MEMCPY3D_PEER shape;                                                    \
        (void)to_context, (void)from_context, (void)shape;                           \
        gate_enter(GATE_NO_STREAM);                                                  \
        BUS_COPY_BEGINS(copied, way, loads, waits);                                  \
        CUresult result = (apart) ? (instead) : REAL(name) arguments;                \
        BUS_COPY_ENDS(copied);                                                       \
        gate_leave();                                                                \
        return result;                                                               \
    }
#define LINE_APART memory_apart(to, from, &to_context, &from_context)
#define BETWEEN(name, peer, way, loads)                                              \
    COPYING_APART(name, way, loads, true,                                            \
        (CUdeviceptr to, CUdeviceptr from, size_t bytes), (to, from, bytes),         \
        LINE_APART, REAL(peer)(to, to_context, from, from_context, bytes))
#define BETWEEN_ASYNC(name, peer, way, loads)                                        \
    COPYING_APART(name, way, loads, false,                                           \
        (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),           \
        (to, from, bytes, stream),                                                   \
        LINE_APART, REAL(peer)(to, to_context, from, from_context, bytes, stream))
#define BETWEEN_PTDS(name, way, loads)                                               \
    BETWEEN(name, cuMemcpyPeer, way, loads)                                          \
    BETWEEN(name##_ptds, cuMemcpyPeer_ptds, way, loads)
#define BETWEEN_PTSZ(name, way, loads)                                               \
    BETWEEN_ASYNC(name, cuMemcpyPeerAsync, way, loads)                               \
    BETWEEN_ASYNC(name##_ptsz, cuMemcpyPeerAsync_ptsz, way, loads)

#define SHAPE_PTDS(name, kind, way, loads, parameters, arguments)                    \
    COPYING_APART(name, way, loads, true, parameters, arguments,                     \
        apart_##kind(copy, &shape), REAL(cuMemcpy3DPeer)(&shape))                    \
    COPYING_APART(name##_ptds, way, loads, true, parameters, arguments,              \
        apart_##kind(copy, &shape), REAL(cuMemcpy3DPeer_ptds)(&shape))
#define SHAPE_PTSZ(name, kind, way, loads, parameters, arguments)                    \
    COPYING_APART(name, way, loads, false, parameters, arguments,                    \
        apart_##kind(copy, &shape), REAL(cuMemcpy3DPeerAsync)(&shape, stream))       \
    COPYING_APART(name##_ptsz, way, loads, false, parameters, arguments,             \
        apart_##kind(copy, &shape), REAL(cuMemcpy3DPeerAsync_ptsz)(&shape, stream))

/* The names of batch functions do not say which stream NULL means. */
#define MANY_PTSZ(name, way, loads, parameters, arguments, apart, instead)           \
    COPYING_APART(name, way, loads, false, parameters, arguments,                    \
        apart(stream), instead(stream))                                              \
    COPYING_APART(name##_ptsz, way, loads, false, parameters, arguments,             \
        apart(stream != NULL ? stream : CU_STREAM_PER_THREAD),                       \
        instead(stream != NULL ? stream : CU_STREAM_PER_THREAD))

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

/* The direction of a copy. If a memory type does not determine it, the driver is queried about the
 * address. */
static enum bus_way copies_way(CUmemorytype from_type, CUdeviceptr from,
                                   CUmemorytype to_type, CUdeviceptr to)
{
    bool from_host = on_host(from_type, from), to_host = on_host(to_type, to);
    return from_host == to_host ? BUS_NONE : from_host ? BUS_IN : BUS_OUT;
}

static enum bus_way way_of(CUdeviceptr to, CUdeviceptr from)
{
    return copies_way(CU_MEMORYTYPE_UNIFIED, from, CU_MEMORYTYPE_UNIFIED, to);
}

#define WAY_OF(copy)                                                        \
    copies_way((copy)->srcMemoryType, (copy)->srcDevice, (copy)->dstMemoryType, (copy)->dstDevice)
#define BYTES_2D(copy) ((copy) == NULL ? 0 : (copy)->WidthInBytes * (copy)->Height)
#define BYTES_3D(copy) ((copy) == NULL ? 0 : BYTES_2D(copy) * (copy)->Depth)

/* All copies are assumed to go in the direction of the first. */
static enum bus_way way_of_first(const CUdeviceptr *to, const CUdeviceptr *from)
{
    return to == NULL || from == NULL ? BUS_NONE : way_of(to[0], from[0]);
}

/* Synchronous copies. */

BETWEEN_PTDS(cuMemcpy, way_of(to, from), bytes)
GATED_PTDS(cuMemcpyPeer, GATE_NO_STREAM,
    (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes),
    (to, to_context, from, from_context, bytes))
COPYING_PTDS(cuMemcpyHtoD_v2, BUS_IN, bytes,
    (CUdeviceptr to, const void *from, size_t bytes),
    (to, from, bytes))
COPYING_PTDS(cuMemcpyDtoH_v2, BUS_OUT, bytes,
    (void *to, CUdeviceptr from, size_t bytes),
    (to, from, bytes))
BETWEEN_PTDS(cuMemcpyDtoD_v2, BUS_NONE, 0)
GATED_PTDS(cuMemcpyDtoA_v2, GATE_NO_STREAM,
    (CUarray to, size_t to_offset, CUdeviceptr from, size_t bytes),
    (to, to_offset, from, bytes))
GATED_PTDS(cuMemcpyAtoD_v2, GATE_NO_STREAM,
    (CUdeviceptr to, CUarray from, size_t from_offset, size_t bytes),
    (to, from, from_offset, bytes))
COPYING_PTDS(cuMemcpyHtoA_v2, BUS_IN, bytes,
    (CUarray to, size_t to_offset, const void *from, size_t bytes),
    (to, to_offset, from, bytes))
COPYING_PTDS(cuMemcpyAtoH_v2, BUS_OUT, bytes,
    (void *to, CUarray from, size_t from_offset, size_t bytes),
    (to, from, from_offset, bytes))
GATED_PTDS(cuMemcpyAtoA_v2, GATE_NO_STREAM,
    (CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes),
    (to, to_offset, from, from_offset, bytes))
SHAPE_PTDS(cuMemcpy2D_v2, 2d, WAY_OF(copy), BYTES_2D(copy), (const CUDA_MEMCPY2D *copy), (copy))
SHAPE_PTDS(cuMemcpy2DUnaligned_v2, 2d, WAY_OF(copy), BYTES_2D(copy),
    (const CUDA_MEMCPY2D *copy), (copy))
SHAPE_PTDS(cuMemcpy3D_v2, 3d, WAY_OF(copy), BYTES_3D(copy), (const CUDA_MEMCPY3D *copy), (copy))
GATED_PTDS(cuMemcpy3DPeer, GATE_NO_STREAM, (const CUDA_MEMCPY3D_PEER *copy), (copy))

/* Copies in a stream. */

BETWEEN_PTSZ(cuMemcpyAsync, way_of(to, from), bytes)
GATED_PTSZ(cuMemcpyPeerAsync, GATE_NO_STREAM,
    (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes,
     CUstream stream),
    (to, to_context, from, from_context, bytes, stream))
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
SHAPE_PTSZ(cuMemcpy2DAsync_v2, 2d, WAY_OF(copy), BYTES_2D(copy),
    (const CUDA_MEMCPY2D *copy, CUstream stream),
    (copy, stream))
SHAPE_PTSZ(cuMemcpy3DAsync_v2, 3d, WAY_OF(copy), BYTES_3D(copy),
    (const CUDA_MEMCPY3D *copy, CUstream stream),
    (copy, stream))
GATED_PTSZ(cuMemcpy3DPeerAsync, GATE_NO_STREAM,
    (const CUDA_MEMCPY3D_PEER *copy, CUstream stream),
    (copy, stream))

#define LINE(stream)                                                                  \
    (&(struct apart_batch){ &to, &from, &bytes, 1, attributes, &(size_t){ 0 }, 1, stream })
#define LINE_IS_APART(stream) apart_lines(LINE(stream))
#define COPY_LINE(stream) apart_copy_lines(LINE(stream), NULL)
MANY_PTSZ(cuMemcpyWithAttributesAsync, way_of(to, from), bytes,
    (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUmemcpyAttributes *attributes,
     CUstream stream),
    (to, from, bytes, attributes, stream), LINE_IS_APART, COPY_LINE)
#define OPERATION_IS_APART(stream) apart_operations(1, operation, flags, stream)
#define COPY_OPERATION(stream) apart_copy_operations(1, operation, NULL, stream)
MANY_PTSZ(cuMemcpy3DWithAttributesAsync, BUS_NONE, 0,
    (CUDA_MEMCPY3D_BATCH_OP *operation, unsigned long long flags, CUstream stream),
    (operation, flags, stream), OPERATION_IS_APART, COPY_OPERATION)

/* Batches of copies. */

#define LINES(stream)                                                                 \
    (&(struct apart_batch){ to, from, sizes, count, attributes, attribute_indices,    \
                            attribute_count, stream })
#define LINES_ARE_APART(stream) apart_lines(LINES(stream))
#define COPY_LINES(stream) apart_copy_lines(LINES(stream), failed)
#define COPY_LINES_V2(stream) apart_copy_lines(LINES(stream), NULL)
#define OPERATIONS_ARE_APART(stream) apart_operations(count, operations, flags, stream)
#define COPY_OPERATIONS(stream) apart_copy_operations(count, operations, failed, stream)
#define COPY_OPERATIONS_V2(stream) apart_copy_operations(count, operations, NULL, stream)

MANY_PTSZ(cuMemcpyBatchAsync, way_of_first(to, from), bus_sharing_sum(sizes, count),
    (CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
     CUmemcpyAttributes *attributes, size_t *attribute_indices, size_t attribute_count,
     size_t *failed, CUstream stream),
    (to, from, sizes, count, attributes, attribute_indices, attribute_count, failed, stream),
    LINES_ARE_APART, COPY_LINES)
MANY_PTSZ(cuMemcpyBatchAsync_v2, way_of_first(to, from), bus_sharing_sum(sizes, count),
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
GATED_PTSZ(cuFabricCpyBatchAsync, GATE_NO_STREAM,
    (size_t count, CUDA_FABRIC_COPY_BATCH_OP *operations, unsigned long long flags,
     CUstream stream),
    (count, operations, flags, stream))
GATED_PTSZ(cuMemBatchDecompressAsync, GATE_NO_STREAM,
    (CUmemDecompressParams *parameters, size_t count, unsigned int flags, size_t *failed,
     CUstream stream),
    (parameters, count, flags, failed, stream))

/* Variants with the 32-bit addresses of CUDA 2 and 3.0. */

GATED(cuMemcpyHtoD, GATE_NO_STREAM,
    (CUdeviceptr_v1 to, const void *from, unsigned int bytes),
    (to, from, bytes))
GATED(cuMemcpyDtoH, GATE_NO_STREAM,
    (void *to, CUdeviceptr_v1 from, unsigned int bytes),
    (to, from, bytes))
GATED(cuMemcpyDtoD, GATE_NO_STREAM,
    (CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned int bytes),
    (to, from, bytes))
GATED(cuMemcpyDtoA, GATE_NO_STREAM,
    (CUarray to, unsigned int to_offset, CUdeviceptr_v1 from, unsigned int bytes),
    (to, to_offset, from, bytes))
GATED(cuMemcpyAtoD, GATE_NO_STREAM,
    (CUdeviceptr_v1 to, CUarray from, unsigned int from_offset, unsigned int bytes),
    (to, from, from_offset, bytes))
GATED(cuMemcpyHtoA, GATE_NO_STREAM,
    (CUarray to, unsigned int to_offset, const void *from, unsigned int bytes),
    (to, to_offset, from, bytes))
GATED(cuMemcpyAtoH, GATE_NO_STREAM,
    (void *to, CUarray from, unsigned int from_offset, unsigned int bytes),
    (to, from, from_offset, bytes))
GATED(cuMemcpyAtoA, GATE_NO_STREAM,
    (CUarray to, unsigned int to_offset, CUarray from, unsigned int from_offset,
     unsigned int bytes),
    (to, to_offset, from, from_offset, bytes))
GATED(cuMemcpy2D, GATE_NO_STREAM, (const CUDA_MEMCPY2D_v1 *copy), (copy))
GATED(cuMemcpy2DUnaligned, GATE_NO_STREAM, (const CUDA_MEMCPY2D_v1 *copy), (copy))
GATED(cuMemcpy3D, GATE_NO_STREAM, (const CUDA_MEMCPY3D_v1 *copy), (copy))
GATED(cuMemcpyHtoDAsync, GATE_NO_STREAM,
    (CUdeviceptr_v1 to, const void *from, unsigned int bytes, CUstream stream),
    (to, from, bytes, stream))
GATED(cuMemcpyDtoHAsync, GATE_NO_STREAM,
    (void *to, CUdeviceptr_v1 from, unsigned int bytes, CUstream stream),
    (to, from, bytes, stream))
GATED(cuMemcpyDtoDAsync, GATE_NO_STREAM,
    (CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned int bytes, CUstream stream),
    (to, from, bytes, stream))
GATED(cuMemcpyHtoAAsync, GATE_NO_STREAM,
    (CUarray to, unsigned int to_offset, const void *from, unsigned int bytes, CUstream stream),
    (to, to_offset, from, bytes, stream))
GATED(cuMemcpyAtoHAsync, GATE_NO_STREAM,
    (void *to, CUarray from, unsigned int from_offset, unsigned int bytes, CUstream stream),
    (to, from, from_offset, bytes, stream))
GATED(cuMemcpy2DAsync, GATE_NO_STREAM,
    (const CUDA_MEMCPY2D_v1 *copy, CUstream stream),
    (copy, stream))
GATED(cuMemcpy3DAsync, GATE_NO_STREAM,
    (const CUDA_MEMCPY3D_v1 *copy, CUstream stream),
    (copy, stream))

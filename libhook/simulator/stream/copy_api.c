/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The entry points that copy. Each stands here once; COPY makes of it the one
 * for the NULL stream and the one for the thread's own default stream.
 */
#include "driver/entry.h"
#include "memory/array.h"
#include "stream/copy_submit.h"

#define UNPACK(...) __VA_ARGS__

/* A copy without a stream. */
#define COPY(name, parameters, ...)                                                      \
    API(name, UNPACK parameters)                                                         \
    {                                                                                    \
        CUstream stream = CU_STREAM_LEGACY;                                              \
        ENTER(ENTRY_CONTEXT);                                                            \
        __VA_ARGS__                                                                      \
    }                                                                                    \
    API(name##_ptds, UNPACK parameters)                                            \
    {                                                                                    \
        CUstream stream = CU_STREAM_PER_THREAD;                                          \
        ENTER(ENTRY_CONTEXT);                                                            \
        __VA_ARGS__                                                                      \
    }

/* A copy with a stream, its last parameter. */
#define COPY_ASYNC_API(name, parameters, ...)                                            \
    API(name, UNPACK parameters, CUstream stream)                                        \
    {                                                                                    \
        ENTER(ENTRY_CONTEXT);                                                            \
        __VA_ARGS__                                                                      \
    }                                                                                    \
    API(name##_ptsz, UNPACK parameters, CUstream stream)                                 \
    {                                                                                    \
        ENTER(ENTRY_CONTEXT);                                                            \
        if (stream == NULL)                                                              \
            stream = CU_STREAM_PER_THREAD;                                               \
        __VA_ARGS__                                                                      \
    }

COPY(cuMemcpy, (CUdeviceptr to, CUdeviceptr from, size_t bytes),
     return copy_submit(stream, copy_line(side_unified(to), side_unified(from), bytes), COPY_SYNC);)

COPY(cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t bytes),
     return copy_submit(stream, copy_line(side_device(to), side_host(from), bytes), COPY_SYNC);)

COPY(cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t bytes),
     return copy_submit(stream, copy_line(side_host(to), side_device(from), bytes), COPY_SYNC);)

COPY(cuMemcpyDtoD_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes),
     return copy_submit(stream, copy_line(side_device(to), side_device(from), bytes), COPY_SYNC);)

COPY_ASYNC_API(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes),
    return copy_submit(stream, copy_line(side_unified(to), side_unified(from), bytes),
                       COPY_ASYNC);)

COPY_ASYNC_API(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void *from, size_t bytes),
    return copy_submit(stream, copy_line(side_device(to), side_host(from), bytes), COPY_ASYNC);)

COPY_ASYNC_API(cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t bytes),
    return copy_submit(stream, copy_line(side_host(to), side_device(from), bytes), COPY_ASYNC);)

COPY_ASYNC_API(cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes),
    return copy_submit(stream, copy_line(side_device(to), side_device(from), bytes),
                       COPY_ASYNC);)

/* Between the devices of two contexts. */
static CUresult copy_peer(CUdeviceptr to, CUcontext to_handle, CUdeviceptr from,
                          CUcontext from_handle, size_t bytes, CUstream stream,
                          enum copy_wait wait)
{
    struct context *to_context = context_from(to_handle), *from_context = context_from(from_handle);
    if (to_context == NULL || from_context == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    struct side to_side = side_unified(to), from_side = side_unified(from);
    to_side.device = to_context->device;
    from_side.device = from_context->device;
    return copy_submit(stream, copy_line(to_side, from_side, bytes), wait);
}

COPY(cuMemcpyPeer, (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
      size_t bytes),
     return copy_peer(to, to_context, from, from_context, bytes, stream, COPY_SYNC);)

COPY_ASYNC_API(cuMemcpyPeerAsync,
    (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
     size_t bytes),
    return copy_peer(to, to_context, from, from_context, bytes, stream, COPY_ASYNC);)

#define SUBMIT(convert, wait)                                                            \
    struct work work;                                                                    \
    CUresult result = convert(copy, &work);                                              \
    return result == CUDA_SUCCESS ? copy_submit(stream, work, wait) : result;

COPY(cuMemcpy2D_v2, (const CUDA_MEMCPY2D *copy),
     SUBMIT(copy_from_2d, COPY_SYNC))
COPY(cuMemcpy2DUnaligned_v2, (const CUDA_MEMCPY2D *copy),
     SUBMIT(copy_from_2d, COPY_SYNC))
COPY(cuMemcpy3D_v2, (const CUDA_MEMCPY3D *copy),
     SUBMIT(copy_from_3d, COPY_SYNC))
COPY(cuMemcpy3DPeer, (const CUDA_MEMCPY3D_PEER *copy),
     SUBMIT(copy_from_peer, COPY_SYNC))
COPY_ASYNC_API(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *copy), SUBMIT(copy_from_2d, COPY_ASYNC))
COPY_ASYNC_API(cuMemcpy3DAsync_v2, (const CUDA_MEMCPY3D *copy), SUBMIT(copy_from_3d, COPY_ASYNC))
COPY_ASYNC_API(cuMemcpy3DPeerAsync, (const CUDA_MEMCPY3D_PEER *copy),
               SUBMIT(copy_from_peer, COPY_ASYNC))

/* To and from arrays, by bytes from their beginning. */

#define ARRAY_SIDE(name, handle, offset)                                                 \
    struct side name;                                                                    \
    if (!array_side(handle, &name))                                                      \
        return CUDA_ERROR_INVALID_HANDLE;                                                \
    name.address += (offset);

COPY(cuMemcpyDtoA_v2, (CUarray to, size_t offset, CUdeviceptr from, size_t bytes),
     ARRAY_SIDE(side, to, offset)
     return copy_submit(stream, copy_line(side, side_device(from), bytes), COPY_SYNC);)

COPY(cuMemcpyAtoD_v2, (CUdeviceptr to, CUarray from, size_t offset, size_t bytes),
     ARRAY_SIDE(side, from, offset)
     return copy_submit(stream, copy_line(side_device(to), side, bytes), COPY_SYNC);)

COPY(cuMemcpyHtoA_v2, (CUarray to, size_t offset, const void *from, size_t bytes),
     ARRAY_SIDE(side, to, offset)
     return copy_submit(stream, copy_line(side, side_host(from), bytes), COPY_SYNC);)

COPY(cuMemcpyAtoH_v2, (void *to, CUarray from, size_t offset, size_t bytes),
     ARRAY_SIDE(side, from, offset)
     return copy_submit(stream, copy_line(side_host(to), side, bytes), COPY_SYNC);)

COPY(cuMemcpyAtoA_v2, (CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes),
     ARRAY_SIDE(to_side, to, to_offset)
     ARRAY_SIDE(from_side, from, from_offset)
     return copy_submit(stream, copy_line(to_side, from_side, bytes), COPY_SYNC);)

COPY_ASYNC_API(cuMemcpyHtoAAsync_v2, (CUarray to, size_t offset, const void *from, size_t bytes),
    ARRAY_SIDE(side, to, offset)
    return copy_submit(stream, copy_line(side, side_host(from), bytes), COPY_ASYNC);)

COPY_ASYNC_API(cuMemcpyAtoHAsync_v2, (void *to, CUarray from, size_t offset, size_t bytes),
    ARRAY_SIDE(side, from, offset)
    return copy_submit(stream, copy_line(side_host(to), side, bytes), COPY_ASYNC);)

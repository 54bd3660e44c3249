/* SPDX-License-Identifier: Apache-2.0 */
/* The entry points that copy. */
#include "memory/array.h"
#include "stream/copy_submit.h"
#include "stream/submit.h"

API_PTDS(cuMemcpy, (CUdeviceptr to, CUdeviceptr from, size_t bytes),
         return copy_submit(on, copy_line(side_unified(to), side_unified(from), bytes),
                            COPY_SYNC);)

API_PTDS(cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t bytes),
         return copy_submit(on, copy_line(side_device(to), side_host(from), bytes), COPY_SYNC);)

API_PTDS(cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t bytes),
         return copy_submit(on, copy_line(side_host(to), side_device(from), bytes), COPY_SYNC);)

API_PTDS(cuMemcpyDtoD_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes),
         return copy_submit(on, copy_line(side_device(to), side_device(from), bytes),
                            COPY_SYNC);)

API_PTSZ(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
         return copy_submit(on, copy_line(side_unified(to), side_unified(from), bytes),
                            COPY_ASYNC);)

API_PTSZ(cuMemcpyHtoDAsync_v2,
         (CUdeviceptr to, const void *from, size_t bytes, CUstream stream),
         return copy_submit(on, copy_line(side_device(to), side_host(from), bytes),
                            COPY_ASYNC);)

API_PTSZ(cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t bytes, CUstream stream),
         return copy_submit(on, copy_line(side_host(to), side_device(from), bytes),
                            COPY_ASYNC);)

API_PTSZ(cuMemcpyDtoDAsync_v2,
         (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
         return copy_submit(on, copy_line(side_device(to), side_device(from), bytes),
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

API_PTDS(cuMemcpy2D_v2, (const CUDA_MEMCPY2D *copy),
         SUBMIT(copy_from_2d, COPY_SYNC))
API_PTDS(cuMemcpy2DUnaligned_v2, (const CUDA_MEMCPY2D *copy),
         SUBMIT(copy_from_2d, COPY_SYNC))
API_PTDS(cuMemcpy3D_v2, (const CUDA_MEMCPY3D *copy),
         SUBMIT(copy_from_3d, COPY_SYNC))
API_PTDS(cuMemcpy3DPeer, (const CUDA_MEMCPY3D_PEER *copy),
         SUBMIT(copy_from_peer, COPY_SYNC))
API_PTSZ(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *copy, CUstream stream),
         SUBMIT(copy_from_2d, COPY_ASYNC))
API_PTSZ(cuMemcpy3DAsync_v2, (const CUDA_MEMCPY3D *copy, CUstream stream),
         SUBMIT(copy_from_3d, COPY_ASYNC))
API_PTSZ(cuMemcpy3DPeerAsync, (const CUDA_MEMCPY3D_PEER *copy, CUstream stream),
         SUBMIT(copy_from_peer, COPY_ASYNC))

/* To and from arrays, by bytes from their beginning. */

#define ARRAY_SIDE(name, handle, offset)                                                 \
    struct side name;                                                                    \
    if (!array_side(handle, &name))                                                      \
        return CUDA_ERROR_INVALID_HANDLE;                                                \
    name.address += (offset);

API_PTDS(cuMemcpyDtoA_v2, (CUarray to, size_t offset, CUdeviceptr from, size_t bytes),
         ARRAY_SIDE(side, to, offset)
         return copy_submit(on, copy_line(side, side_device(from), bytes), COPY_SYNC);)

API_PTDS(cuMemcpyAtoD_v2, (CUdeviceptr to, CUarray from, size_t offset, size_t bytes),
         ARRAY_SIDE(side, from, offset)
         return copy_submit(on, copy_line(side_device(to), side, bytes), COPY_SYNC);)

API_PTDS(cuMemcpyHtoA_v2, (CUarray to, size_t offset, const void *from, size_t bytes),
         ARRAY_SIDE(side, to, offset)
         return copy_submit(on, copy_line(side, side_host(from), bytes), COPY_SYNC);)

API_PTDS(cuMemcpyAtoH_v2, (void *to, CUarray from, size_t offset, size_t bytes),
         ARRAY_SIDE(side, from, offset)
         return copy_submit(on, copy_line(side_host(to), side, bytes), COPY_SYNC);)

API_PTDS(cuMemcpyAtoA_v2,
         (CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes),
         ARRAY_SIDE(to_side, to, to_offset)
         ARRAY_SIDE(from_side, from, from_offset)
         return copy_submit(on, copy_line(to_side, from_side, bytes), COPY_SYNC);)

API_PTSZ(cuMemcpyHtoAAsync_v2,
         (CUarray to, size_t offset, const void *from, size_t bytes, CUstream stream),
         ARRAY_SIDE(side, to, offset)
         return copy_submit(on, copy_line(side, side_host(from), bytes), COPY_ASYNC);)

API_PTSZ(cuMemcpyAtoHAsync_v2,
         (void *to, CUarray from, size_t offset, size_t bytes, CUstream stream),
         ARRAY_SIDE(side, from, offset)
         return copy_submit(on, copy_line(side_host(to), side, bytes), COPY_ASYNC);)

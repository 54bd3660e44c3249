/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream memory operations: the GPU's front end writes to an address or waits
 * for a value there. And what moves managed memory about or says where it
 * should lie.
 */
#include "interposition.h"

GATED_PTSZ(cuStreamWriteValue32, stream,
    (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags),
    (stream, address, value, flags))
GATED_PTSZ(cuStreamWriteValue32_v2, stream,
    (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags),
    (stream, address, value, flags))
GATED_PTSZ(cuStreamWriteValue64, stream,
    (CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags),
    (stream, address, value, flags))
GATED_PTSZ(cuStreamWriteValue64_v2, stream,
    (CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags),
    (stream, address, value, flags))
GATED_PTSZ(cuStreamWaitValue32, stream,
    (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags),
    (stream, address, value, flags))
GATED_PTSZ(cuStreamWaitValue32_v2, stream,
    (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags),
    (stream, address, value, flags))
GATED_PTSZ(cuStreamWaitValue64, stream,
    (CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags),
    (stream, address, value, flags))
GATED_PTSZ(cuStreamWaitValue64_v2, stream,
    (CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags),
    (stream, address, value, flags))
GATED_PTSZ(cuStreamBatchMemOp, stream,
    (CUstream stream, unsigned int count, CUstreamBatchMemOpParams *operations,
     unsigned int flags),
    (stream, count, operations, flags))
GATED_PTSZ(cuStreamBatchMemOp_v2, stream,
    (CUstream stream, unsigned int count, CUstreamBatchMemOpParams *operations,
     unsigned int flags),
    (stream, count, operations, flags))

GATED_PTSZ(cuStreamAttachMemAsync, stream,
    (CUstream stream, CUdeviceptr address, size_t length, unsigned int flags),
    (stream, address, length, flags))
GATED_PTSZ(cuMemPrefetchAsync, GATE_NO_STREAM,
    (CUdeviceptr address, size_t count, CUdevice to, CUstream stream),
    (address, count, to, stream))
GATED_PTSZ(cuMemPrefetchAsync_v2, GATE_NO_STREAM,
    (CUdeviceptr address, size_t count, CUmemLocation location, unsigned int flags,
     CUstream stream),
    (address, count, location, flags, stream))
GATED_PTSZ(cuMemPrefetchBatchAsync, GATE_NO_STREAM,
    (CUdeviceptr *addresses, size_t *sizes, size_t count, CUmemLocation *locations,
     size_t *location_indices, size_t location_count, unsigned long long flags, CUstream stream),
    (addresses, sizes, count, locations, location_indices, location_count, flags, stream))
GATED_PTSZ(cuMemDiscardBatchAsync, GATE_NO_STREAM,
    (CUdeviceptr *addresses, size_t *sizes, size_t count, unsigned long long flags,
     CUstream stream),
    (addresses, sizes, count, flags, stream))
GATED_PTSZ(cuMemDiscardAndPrefetchBatchAsync, GATE_NO_STREAM,
    (CUdeviceptr *addresses, size_t *sizes, size_t count, CUmemLocation *locations,
     size_t *location_indices, size_t location_count, unsigned long long flags, CUstream stream),
    (addresses, sizes, count, locations, location_indices, location_count, flags, stream))
GATED(cuMemAdvise, GATE_NO_STREAM,
    (CUdeviceptr address, size_t count, CUmem_advise advice, CUdevice device),
    (address, count, advice, device))
GATED(cuMemAdvise_v2, GATE_NO_STREAM,
    (CUdeviceptr address, size_t count, CUmem_advise advice, CUmemLocation location),
    (address, count, advice, location))

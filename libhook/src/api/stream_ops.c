/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream memory operations: the GPU's front end writes to an address or waits
 * for a value there.
 */
#include "api/wrapper.h"

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

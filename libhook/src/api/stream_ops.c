/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream memory operations: the GPU's front end writes to an address or waits for a value there.
 */
#include "api/wrapper.h"

#define VALUE(name, type)                                                            \
    GATED_PTSZ(name, stream,                                                         \
        (CUstream stream, CUdeviceptr address, type value, unsigned int flags),      \
        (stream, address, value, flags))

VALUE(cuStreamWriteValue32, cuuint32_t)
VALUE(cuStreamWriteValue32_v2, cuuint32_t)
VALUE(cuStreamWriteValue64, cuuint64_t)
VALUE(cuStreamWriteValue64_v2, cuuint64_t)
VALUE(cuStreamWaitValue32, cuuint32_t)
VALUE(cuStreamWaitValue32_v2, cuuint32_t)
VALUE(cuStreamWaitValue64, cuuint64_t)
VALUE(cuStreamWaitValue64_v2, cuuint64_t)

#define BATCH(name)                                                                  \
    GATED_PTSZ(name, stream,                                                         \
        (CUstream stream, unsigned int count, CUstreamBatchMemOpParams *operations,  \
         unsigned int flags),                                                        \
        (stream, count, operations, flags))

BATCH(cuStreamBatchMemOp)
BATCH(cuStreamBatchMemOp_v2)

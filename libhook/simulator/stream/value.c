/* SPDX-License-Identifier: Apache-2.0 */
/* A stream writes a word, or waits for its value. The driver supports the exported first
 * versions only with NVreg_EnableStreamMemOPs. */
#include "space/space.h"
#include "stream/submit.h"

/* Stream memory operations accept no memory of pools, and none of another device. */
static bool is_pooled(CUdeviceptr address)
{
    SPACE_LOCKED(write);
    const struct allocation *allocation = allocation_find(address);
    return allocation != NULL && allocation->kind == ALLOCATED_POOL;
}

static CUresult submit(CUstream handle, const struct work *works, size_t count)
{
    FIND_STREAM(handle);
    for (size_t i = 0; i < count; i++)
        FAIL_IF(works[i].value.address % works[i].value.bytes != 0
                || !range_is_valid(stream->context->device, works[i].value.address, 1)
                || is_pooled(works[i].value.address), CUDA_ERROR_INVALID_VALUE);
    LOCKED(engine_lock);
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = stream_submit(stream, &works[i]);
    return result;
}

#define MEMORY_OP(name, value_type, work_kind, width)                                    \
    API_PTSZ(name, (CUstream stream, CUdeviceptr address, value_type value,              \
                    unsigned int flags),                                                 \
             struct work work = {.kind = work_kind,                                      \
                                 .value = {address, value, width, flags}};               \
             return submit(on, &work, 1);)

MEMORY_OP(cuStreamWriteValue32_v2, cuuint32_t, WORK_WRITE_VALUE, 4)
MEMORY_OP(cuStreamWriteValue64_v2, cuuint64_t, WORK_WRITE_VALUE, 8)
MEMORY_OP(cuStreamWaitValue32_v2, cuuint32_t, WORK_WAIT_VALUE, 4)
MEMORY_OP(cuStreamWaitValue64_v2, cuuint64_t, WORK_WAIT_VALUE, 8)

#define BATCH 256

/* Converts one operation of a batch to `work`. False: the kind of operation does not exist. */
static bool convert(const CUstreamBatchMemOpParams *operation, struct work *work)
{
    switch (operation->operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        work->kind = WORK_WAIT_VALUE;
        break;
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        work->kind = WORK_WRITE_VALUE;
        break;
    default:
        return false;
    }
    bool wide = operation->operation == CU_STREAM_MEM_OP_WAIT_VALUE_64
        || operation->operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
    work->value.address = operation->waitValue.address;
    work->value.value = wide ? operation->waitValue.value64 : operation->waitValue.value;
    work->value.bytes = wide ? 8 : 4;
    work->value.flags = operation->waitValue.flags;
    return true;
}

static CUresult batch(CUstream stream, unsigned count, const CUstreamBatchMemOpParams *list,
                      unsigned flags)
{
    struct work works[BATCH];
    size_t number = 0;
    FAIL_IF(list == NULL || count > BATCH || flags != 0, CUDA_ERROR_INVALID_VALUE);
    for (unsigned i = 0; i < count; i++) {
        if (list[i].operation == CU_STREAM_MEM_OP_BARRIER
            || list[i].operation == CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES)
            continue;                /* barriers: all writes are visible immediately */
        FAIL_IF(!convert(&list[i], &works[number++]), CUDA_ERROR_INVALID_VALUE);
    }
    return submit(stream, works, number);
}

API_PTSZ(cuStreamBatchMemOp_v2,
         (CUstream stream, unsigned int count, CUstreamBatchMemOpParams *list, unsigned int flags),
         return batch(on, count, list, flags);)

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Identifies the stream behind a handle, and its device. The driver may reuse a handle for another
 * stream, so a stream's name is the unique id that the driver assigns; before CUDA 12, the handle
 * together with the number of streams that the program had destroyed when the handle came.
 */
#include "pool/stream.h"

#include <stdatomic.h>

#include "driver/ops.h"
#include "gate/contexts.h"

#define NO_ADDRESS ((uint64_t)1 << 47)              /* no handle has this bit set */

static _Atomic uint64_t streams_ended;

void stream_ends(void)
{
    atomic_fetch_add(&streams_ended, 1);
}

/* A number unique among all threads of the process, past and future. */
static uint64_t thread_number(void)
{
    static _Atomic uint64_t threads;
    static __thread uint64_t number;
    if (number == 0)
        number = atomic_fetch_add(&threads, 1) + 1;
    return number;
}

uint64_t stream_name(CUstream stream)
{
    unsigned long long id = 0;
    if (HAVE_REAL(cuStreamGetId))
        return REAL(cuStreamGetId)(stream, &id) == CUDA_SUCCESS ? id + 1 : 0;
    if (stream == CU_STREAM_PER_THREAD)
        return NO_ADDRESS | thread_number();
    return (uintptr_t)(stream == NULL ? CU_STREAM_LEGACY : stream)
        | atomic_load(&streams_ended) << 48;
}

CUresult stream_device(CUstream stream, CUcontext *context, CUdevice *device)
{
    CUcontext current, same;
    CUresult result = contexts_current(&current);
    if (result != CUDA_SUCCESS || current == NULL)
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_CONTEXT;
    if (REAL(cuStreamGetCtx)(stream, context) != CUDA_SUCCESS)
        *context = current;
    if (contexts_find(*context, context, device))
        return CUDA_SUCCESS;
    result = REAL(cuCtxPushCurrent_v2)(*context);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuCtxGetDevice)(device);
    *context = contexts_learn(*context, NULL);
    REAL(cuCtxPopCurrent_v2)(&same);
    return result;
}

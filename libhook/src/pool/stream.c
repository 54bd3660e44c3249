/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tells which stream a handle means, and where it is. A handle may be another stream's tomorrow, so
 * a stream's name is the number that the driver gives to only one; before CUDA 12, the handle and
 * how many streams had been destroyed when it was used.
 */
#include "pool/stream.h"

#include <stdatomic.h>

#include "driver/ops.h"
#include "gate/contexts.h"

#define NO_ADDRESS ((uint64_t)1 << 47)              /* no handle has this bit */

static _Atomic uint64_t streams_ended;

void stream_ends(void)
{
    atomic_fetch_add(&streams_ended, 1);
}

/* For each thread another, also for those that come after it. */
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

CUresult stream_place(CUstream stream, CUcontext *context, CUdevice *device)
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

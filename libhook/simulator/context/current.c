/* SPDX-License-Identifier: Apache-2.0 */
/* The calling thread's stack of contexts, from the outside. */
#include "driver/entry.h"
#include "driver/object.h"
#include "engine/queue.h"
#include "stream/capture.h"

static CUresult push(CUcontext handle)
{
    if (handle == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!object_is(handle, OBJECT_CONTEXT))
        return CUDA_ERROR_INVALID_CONTEXT;
    return context_push((struct context *)handle) ? CUDA_SUCCESS
                                                  : CUDA_ERROR_CONTEXT_ALREADY_IN_USE;
}

FORWARD_BOTH(cuCtxPushCurrent, _v2, (CUcontext context), ENTRY_INIT, push(context))
static CUresult pop(CUcontext *handle)
{
    if (context_current() == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (handle != NULL)
        *handle = (CUcontext)context_current();
    context_pop();
    return CUDA_SUCCESS;
}

FORWARD_BOTH(cuCtxPopCurrent, _v2, (CUcontext *context), ENTRY_INIT, pop(context))
/* Takes the place of the top of the stack; NULL removes it. */
API(cuCtxSetCurrent, CUcontext handle)
{
    ENTER(ENTRY_INIT);
    if (handle != NULL && !object_is(handle, OBJECT_CONTEXT))
        return CUDA_ERROR_INVALID_CONTEXT;
    context_pop();
    return handle == NULL || context_push((struct context *)handle)
        ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_ALREADY_IN_USE;
}

GETTER(cuCtxGetCurrent, (CUcontext *handle), ENTRY_INIT, handle, CUDA_SUCCESS,
       (CUcontext)context_current())

GETTER(cuCtxGetDevice, (CUdevice *device), ENTRY_INIT, device,
       context_current() == NULL ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS,
       context_current()->device->ordinal)

GETTER(cuCtxGetDevice_v2, (CUdevice *device, CUcontext handle), ENTRY_INIT, device,
       context_from(handle) == NULL ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS,
       context_from(handle)->device->ordinal)

/* Waits for everything in the context; a capture in it is broken by that. */
static CUresult synchronize(struct context *context)
{
    LOCKED(engine_lock);
    CUresult result = capture_forbids_context(context);
    if (result == CUDA_SUCCESS)
        result = context_wait(context);
    return result;
}

FORWARD(cuCtxSynchronize, (void), ENTRY_CONTEXT, synchronize(context_current()))

API(cuCtxSynchronize_v2, CUcontext handle)
{
    ENTER(ENTRY_INIT);
    struct context *context = context_from(handle);
    CUresult result = context_check(context);
    return result == CUDA_SUCCESS ? synchronize(context) : result;
}

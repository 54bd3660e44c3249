/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Green contexts: streams of their own on a part of the card's processors. Memory, events and
 * modules are the primary context's. The part is not simulated.
 */
#include <stdlib.h>

#include "context/life.h"
#include "driver/entry.h"
#include "driver/object.h"
#include "stream/submit.h"

#define SMS 132
#define SMS_LEAST 8                  /* in a part */

struct CUgreenCtx_st {
    struct context *context;
};

struct CUdevResourceDesc_st {
    unsigned sms;
};

API(cuDeviceGetDevResource, CUdevice ordinal, CUdevResource *resource, CUdevResourceType type)
{
    ENTER(ENTRY_INIT);
    if (resource == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (device_at(ordinal) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    if (type != CU_DEV_RESOURCE_TYPE_SM)
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    *resource = (CUdevResource){.type = type, .sm = {SMS, SMS_LEAST, SMS_LEAST}};
    return CUDA_SUCCESS;
}

/* As many groups as are wanted and fit; NULL `groups`: how many would fit. */
API(cuDevSmResourceSplitByCount, CUdevResource *groups, unsigned int *count,
    const CUdevResource *input, CUdevResource *remaining, unsigned int flags, unsigned int least)
{
    ENTER(ENTRY_INIT);
    if (count == NULL || input == NULL || flags > 3)
        return CUDA_ERROR_INVALID_VALUE;
    if (input->type != CU_DEV_RESOURCE_TYPE_SM)
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    unsigned size = least <= SMS_LEAST ? SMS_LEAST : (least + SMS_LEAST - 1) / SMS_LEAST * SMS_LEAST;
    unsigned fitting = input->sm.smCount / size;
    if (groups == NULL || *count > fitting)
        *count = fitting;
    for (unsigned i = 0; groups != NULL && i < *count; i++) {
        groups[i] = *input;
        groups[i].sm.smCount = size;
    }
    if (remaining != NULL) {
        *remaining = *input;
        remaining->sm.smCount -= *count * size;
    }
    return CUDA_SUCCESS;
}

API(cuDevResourceGenerateDesc, CUdevResourceDesc *handle, CUdevResource *resources,
    unsigned int count)
{
    ENTER(ENTRY_INIT);
    if (handle == NULL || resources == NULL || count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct CUdevResourceDesc_st *description = calloc(1, sizeof *description);
    if (description == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (unsigned i = 0; i < count; i++)
        description->sms += resources[i].sm.smCount;
    object_add(description, OBJECT_RESOURCES);
    *handle = description;
    return CUDA_SUCCESS;
}

static CUresult make(struct device *device, CUgreenCtx *green)
{
    CUresult result = primary_retain(device);
    if (result != CUDA_SUCCESS)
        return result;
    CUgreenCtx made = calloc(1, sizeof *made);
    struct context *context = context_make(device, false);
    if (made == NULL || context == NULL)
        abort();
    context->owner = device->primary;
    context->green = made;
    made->context = context;
    result = context_enliven(context, 0);
    if (result == CUDA_SUCCESS) {
        object_add(made, OBJECT_GREEN);
        *green = made;
    } else {
        primary_release(device);
    }
    return result;
}

API(cuGreenCtxCreate, CUgreenCtx *green, CUdevResourceDesc resources, CUdevice ordinal,
    unsigned int flags)
{
    ENTER(ENTRY_INIT);
    struct device *device = device_at(ordinal);
    if (green == NULL || flags != CU_GREEN_CTX_DEFAULT_STREAM
        || !object_is(resources, OBJECT_RESOURCES))
        return CUDA_ERROR_INVALID_VALUE;
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    LOCKED(context_lock);
    return make(device, green);
}

API(cuGreenCtxDestroy, CUgreenCtx green)
{
    ENTER(ENTRY_INIT);
    if (!object_is(green, OBJECT_GREEN))
        return CUDA_ERROR_INVALID_CONTEXT;
    struct context *context = green->context;
    if (context_current() == context)
        context_pop();
    LOCKED(context_lock);
    object_remove(green);
    if (atomic_load(&context->alive))
        context_end(context);
    primary_release(context->device);
    return CUDA_SUCCESS;
}

GETTER(cuCtxFromGreenCtx, (CUcontext *context, CUgreenCtx green), ENTRY_INIT, context,
       object_is(green, OBJECT_GREEN) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT,
       (CUcontext)green->context)

API(cuGreenCtxStreamCreate, CUstream *stream, CUgreenCtx green, unsigned int flags, int priority)
{
    ENTER(ENTRY_INIT);
    if (!object_is(green, OBJECT_GREEN))
        return CUDA_ERROR_INVALID_CONTEXT;
    return flags != CU_STREAM_NON_BLOCKING ? CUDA_ERROR_INVALID_VALUE
                                           : stream_new(green->context, flags, priority, stream);
}

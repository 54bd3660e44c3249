/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts, also primary and green contexts: their life, stacks and settings. */
#include <stdlib.h>
#include <string.h>

#include "driver/context.h"
#include "driver/entry.h"
#include "driver/object.h"
#include "engine/queue.h"
#include "space/pool.h"
#include "stream/capture.h"
#include "stream/submit.h"

static uint64_t context_cost(void)
{
    return size_setting("NVSHARE_SIM_CONTEXT", 8ull << 20);
}

/* Starts a new context, or a primary context that was reset. context_lock is held, as for all
 * functions below. */
static CUresult context_enliven(struct context *context, unsigned flags)
{
    static _Atomic unsigned long long made;
    if (context_error() != CUDA_SUCCESS)
        return context_error();
    if (context->owner == context && !shared_take(context->device->gpu, context_cost()))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (context->owner == context)
        shared_count_context(context->device->gpu, 1);
    context->flags = flags | CU_CTX_MAP_HOST;    /* always set, as the driver reports it */
    context->id = atomic_fetch_add(&made, 1) + 1;
    context->attached = 0;
    memset(context->limits, 0, sizeof context->limits);
    context->limits[CU_LIMIT_STACK_SIZE] = 1024;
    context->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = 8650752;
    context->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20;
    context->limits[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048;
    context->limits[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64;
    context->limits[CU_LIMIT_PERSISTING_L2_CACHE_SIZE] = 11796480;
    context->limits[CU_LIMIT_SHMEM_SIZE] = 232448;
    context->legacy = stream_make(context, CU_STREAM_DEFAULT, 0);
    context->recorder = stream_make(context, CU_STREAM_NON_BLOCKING, 0);
    atomic_store(&context->alive, true);
    if (!context->primary || !object_is(context, OBJECT_CONTEXT))
        object_add(context, OBJECT_CONTEXT);
    return CUDA_SUCCESS;
}

/* Creates a context, which context_enliven() must start. */
static struct context *context_make(struct device *device, bool primary)
{
    struct context *context = checked(calloc(1, sizeof *context));
    context->device = device;
    context->primary = primary;
    context->owner = context;
    LOCKED(engine_lock);
    context->next = all_contexts;
    all_contexts = context;
    return context;
}

static void free_allocations(const struct context *context)
{
    SPACE_LOCKED(write);
    for (struct allocation *allocation = allocation_after(0), *next; allocation != NULL;
         allocation = next) {
        next = allocation_after(allocation->base);
        if (allocation->context == context && allocation->kind == ALLOCATED_POOL)
            pool_loses(allocation);
        else if (allocation->context == context)
            allocation_free(allocation);
    }
}

static void context_end(struct context *context)
{
    pthread_mutex_lock(&engine_lock);
    for (struct context *green = all_contexts; green != NULL; green = green->next)
        if (green != context && green->owner == context && atomic_load(&green->alive)) {
            pthread_mutex_unlock(&engine_lock);
            context_end(green);
            pthread_mutex_lock(&engine_lock);
        }
    for (struct stream *stream = context->streams; stream != NULL; stream = stream->next)
        if (stream->capture != NULL)
            capture_leave(stream);
    context_wait(context);
    atomic_store(&context->alive, false);
    for (struct stream *stream = context->streams, *next; stream != NULL; stream = next) {
        next = stream->next;
        if (!stream->destroyed)
            stream_close(stream);
    }
    pthread_mutex_unlock(&engine_lock);
    if (!context->primary)           /* a destroyed primary context may become current */
        object_remove(context);
    if (context->owner != context)
        return;
    free_allocations(context);
    shared_count_context(context->device->gpu, -1);
    shared_give_back(context->device->gpu, context_cost());
}

static CUresult create(CUcontext *handle, unsigned flags, CUdevice ordinal)
{
    FAIL_IF(handle == NULL || (flags & ~0xffu) != 0, CUDA_ERROR_INVALID_VALUE);
    FIND_DEVICE(ordinal);
    pthread_mutex_lock(&context_lock);
    struct context *context = context_make(device, false);
    CUresult result = context_enliven(context, flags);
    pthread_mutex_unlock(&context_lock);
    if (result != CUDA_SUCCESS)
        return result;
    context_push(context);
    *handle = (CUcontext)context;
    return CUDA_SUCCESS;
}

FORWARD_BOTH(cuCtxCreate, _v2, (CUcontext *context, unsigned int flags, CUdevice device),
             ENTRY_INIT, create(context, flags, device))
API(cuCtxCreate_v3, CUcontext *context, CUexecAffinityParam *affinities, int count,
    unsigned int flags, CUdevice device)
{
    ENTER(ENTRY_INIT);
    FAIL_IF(affinities != NULL || count != 0, CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
    return create(context, flags, device);
}

API(cuCtxCreate_v4, CUcontext *context, CUctxCreateParams *parameters, unsigned int flags,
    CUdevice device)
{
    ENTER(ENTRY_INIT);
    if (parameters != NULL && parameters->numExecAffinityParams != 0)
        return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    if (parameters != NULL && parameters->cigParams != NULL)
        return CUDA_ERROR_NOT_SUPPORTED;
    return create(context, flags, device);
}

FORWARD(cuGLCtxCreate_v2, (CUcontext *context, unsigned int flags, CUdevice device), ENTRY_INIT,
        create(context, flags, device))

static CUresult destroy(CUcontext handle)
{
    FAIL_IF(!object_is(handle, OBJECT_CONTEXT), CUDA_ERROR_INVALID_CONTEXT);
    struct context *context = (struct context *)handle;
    FAIL_IF(context->primary, CUDA_ERROR_INVALID_CONTEXT);
    pthread_mutex_lock(&context_lock);
    if (atomic_load(&context->alive)) {
        /* The work of all contexts of the device (driver 580 on an H100). */
        pthread_mutex_lock(&engine_lock);
        for (struct context *one = all_contexts; one != NULL; one = one->next)
            if (one->device == context->device && atomic_load(&one->alive))
                context_wait(one);
        pthread_mutex_unlock(&engine_lock);
        context_end(context);
    }
    pthread_mutex_unlock(&context_lock);
    if (context_current() == context)
        context_pop();
    return CUDA_SUCCESS;
}

FORWARD_BOTH(cuCtxDestroy, _v2, (CUcontext context), ENTRY_INIT, destroy(context))
API(cuCtxDetach, CUcontext handle)
{
    ENTER(ENTRY_INIT);
    FAIL_IF(!object_is(handle, OBJECT_CONTEXT), CUDA_ERROR_INVALID_CONTEXT);
    struct context *context = (struct context *)handle;
    pthread_mutex_lock(&context_lock);
    bool attached = context->attached > 0;
    context->attached -= attached;
    pthread_mutex_unlock(&context_lock);
    return attached ? CUDA_SUCCESS : destroy(handle);
}

API(cuCtxAttach, CUcontext *context, unsigned int flags)
{
    ENTER(ENTRY_CONTEXT);
    FAIL_IF(context == NULL || flags != 0, CUDA_ERROR_INVALID_VALUE);
    LOCKED(context_lock);
    context_current()->attached++;
    *context = (CUcontext)context_current();
    return CUDA_SUCCESS;
}

/* Primary contexts: one for each device, shared by all threads that retain it. */

static CUresult primary_retain(struct device *device)
{
    if (device->primary == NULL)
        device->primary = context_make(device, true);
    if (!atomic_load(&device->primary->alive))
        TRY(context_enliven(device->primary, 0));
    device->retains++;
    return CUDA_SUCCESS;
}

API(cuDevicePrimaryCtxRetain, CUcontext *handle, CUdevice ordinal)
{
    ENTER(ENTRY_INIT);
    FAIL_IF(handle == NULL, CUDA_ERROR_INVALID_VALUE);
    FIND_DEVICE(ordinal);
    LOCKED(context_lock);
    TRY(primary_retain(device));
    *handle = (CUcontext)device->primary;
    return CUDA_SUCCESS;
}

/* context_lock is held. */
static void end_primary(struct device *device)
{
    if (device->primary != NULL && atomic_load(&device->primary->alive))
        context_end(device->primary);
}

/* False: no thread has retained the context. */
static bool primary_release(struct device *device)
{
    bool retained = device->retains > 0;
    device->retains -= retained;
    if (device->retains == 0)
        end_primary(device);
    return retained;
}

/* The first version of the function reports no error if there is no retain to release. */
static CUresult release(CUdevice ordinal, CUresult too_often)
{
    FIND_DEVICE(ordinal);
    LOCKED(context_lock);
    return primary_release(device) ? CUDA_SUCCESS : too_often;
}

FORWARD(cuDevicePrimaryCtxRelease, (CUdevice device), ENTRY_INIT, release(device, CUDA_SUCCESS))
FORWARD(cuDevicePrimaryCtxRelease_v2, (CUdevice device), ENTRY_INIT,
        release(device, CUDA_ERROR_INVALID_CONTEXT))

/* Ends the context's work and memory. The retains of the program still count unless `forget`. */
static CUresult reset(CUdevice ordinal, bool forget)
{
    FIND_DEVICE(ordinal);
    LOCKED(context_lock);
    if (forget)
        device->retains = 0;
    end_primary(device);
    return CUDA_SUCCESS;
}

FORWARD(cuDevicePrimaryCtxReset, (CUdevice device), ENTRY_INIT, reset(device, true))
FORWARD(cuDevicePrimaryCtxReset_v2, (CUdevice device), ENTRY_INIT, reset(device, false))

API(cuDevicePrimaryCtxGetState, CUdevice ordinal, unsigned int *flags, int *active)
{
    ENTER(ENTRY_INIT);
    FAIL_IF(flags == NULL || active == NULL, CUDA_ERROR_INVALID_VALUE);
    FIND_DEVICE(ordinal);
    LOCKED(context_lock);
    *flags = 0;
    *active = device->primary != NULL && atomic_load(&device->primary->alive);
    return CUDA_SUCCESS;
}

static CUresult push(CUcontext handle)
{
    FAIL_IF(handle == NULL, CUDA_ERROR_INVALID_VALUE);
    FAIL_IF(!object_is(handle, OBJECT_CONTEXT), CUDA_ERROR_INVALID_CONTEXT);
    return context_push((struct context *)handle) ? CUDA_SUCCESS
                                                  : CUDA_ERROR_CONTEXT_ALREADY_IN_USE;
}

FORWARD_BOTH(cuCtxPushCurrent, _v2, (CUcontext context), ENTRY_INIT, push(context))
static CUresult pop(CUcontext *handle)
{
    FAIL_IF(context_current() == NULL, CUDA_ERROR_INVALID_CONTEXT);
    GIVE_IF(handle, (CUcontext)context_current());
    context_pop();
    return CUDA_SUCCESS;
}

FORWARD_BOTH(cuCtxPopCurrent, _v2, (CUcontext *context), ENTRY_INIT, pop(context))
/* NULL removes the top of the stack. */
API(cuCtxSetCurrent, CUcontext handle)
{
    ENTER(ENTRY_INIT);
    FAIL_IF(handle != NULL && !object_is(handle, OBJECT_CONTEXT), CUDA_ERROR_INVALID_CONTEXT);
    context_pop();
    return handle == NULL || context_push((struct context *)handle)
        ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_ALREADY_IN_USE;
}

GETTER(cuCtxGetCurrent, (CUcontext *handle), ENTRY_INIT, handle, CUDA_SUCCESS,
       (CUcontext)context_current())

GETTER(cuCtxGetDevice, (CUdevice *device), ENTRY_INIT, device,
       context_current() == NULL ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS,
       context_current()->device->ordinal)

/* Waits for all work in the context, which invalidates a capture in it. */
API(cuCtxSynchronize, void)
{
    ENTER(ENTRY_CONTEXT);
    LOCKED(engine_lock);
    TRY(capture_forbids_context(context_current()));
    return context_wait(context_current());
}

/* These succeed in a context that a fault has broken. */
GETTER(cuCtxGetFlags, (unsigned int *flags), ENTRY_INIT, flags,
       context_current() == NULL ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS,
       context_current()->flags)

#define LIMITS (sizeof ((struct context *)0)->limits / sizeof(size_t))

static CUresult limit_check(CUlimit limit)
{
    FAIL_IF((size_t)limit >= LIMITS, CUDA_ERROR_INVALID_VALUE);
    /* A GPU of compute capability 9.0 has neither limit. */
    return limit == CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH || limit == CU_LIMIT_CIG_SHMEM_FALLBACK_ENABLED
        ? CUDA_ERROR_UNSUPPORTED_LIMIT : CUDA_SUCCESS;
}

API(cuCtxSetLimit, CUlimit limit, size_t value)
{
    ENTER(ENTRY_CONTEXT);
    TRY(limit_check(limit));
    context_current()->limits[limit] = value;
    return CUDA_SUCCESS;
}

GETTER(cuCtxGetLimit, (size_t *value, CUlimit limit), ENTRY_CONTEXT, value, limit_check(limit),
       context_current()->limits[limit])

GETTER(cuCtxGetApiVersion, (CUcontext handle, unsigned int *version), ENTRY_INIT, version,
       context_from(handle) == NULL ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS, 3020)

API(cuCtxEnablePeerAccess, CUcontext handle, unsigned int flags)
{
    ENTER(ENTRY_CONTEXT);
    struct context *peer = handle != NULL ? context_from(handle) : NULL;
    FAIL_IF(flags != 0, CUDA_ERROR_INVALID_VALUE);
    FAIL_IF(peer == NULL, CUDA_ERROR_INVALID_CONTEXT);
    FAIL_IF(peer->device == context_current()->device, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    uint32_t bit = 1u << peer->device->ordinal;
    uint32_t before = atomic_fetch_or(&context_current()->device->peers, bit);
    return (before & bit) == 0 ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

API(cuCtxDisablePeerAccess, CUcontext handle)
{
    ENTER(ENTRY_CONTEXT);
    struct context *peer = handle != NULL ? context_from(handle) : NULL;
    FAIL_IF(peer == NULL, CUDA_ERROR_INVALID_CONTEXT);
    uint32_t bit = 1u << peer->device->ordinal;
    uint32_t before = atomic_fetch_and(&context_current()->device->peers, ~bit);
    return (before & bit) != 0 ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}

/* Green contexts use a part of the GPU's multiprocessors, here without effect on the speed.
 * Memory, events and modules belong to the primary context. */

#define SMS 132
#define SMS_LEAST 8                  /* in one partition */

struct CUgreenCtx_st {
    struct context *context;
};

struct CUdevResourceDesc_st {
    unsigned sms;
};

API(cuDeviceGetDevResource, CUdevice ordinal, CUdevResource *resource, CUdevResourceType type)
{
    ENTER(ENTRY_INIT);
    FAIL_IF(resource == NULL, CUDA_ERROR_INVALID_VALUE);
    FAIL_IF(device_at(ordinal) == NULL, CUDA_ERROR_INVALID_DEVICE);
    FAIL_IF(type != CU_DEV_RESOURCE_TYPE_SM, CUDA_ERROR_INVALID_RESOURCE_TYPE);
    *resource = (CUdevResource){.type = type, .sm = {SMS, SMS_LEAST, SMS_LEAST}};
    return CUDA_SUCCESS;
}

/* NULL `groups`: only returns how many groups fit. */
API(cuDevSmResourceSplitByCount, CUdevResource *groups, unsigned int *count,
    const CUdevResource *input, CUdevResource *remaining, unsigned int flags, unsigned int least)
{
    ENTER(ENTRY_INIT);
    FAIL_IF(count == NULL || input == NULL || flags > 3, CUDA_ERROR_INVALID_VALUE);
    FAIL_IF(input->type != CU_DEV_RESOURCE_TYPE_SM, CUDA_ERROR_INVALID_RESOURCE_TYPE);
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
    FAIL_IF(handle == NULL || resources == NULL || count == 0, CUDA_ERROR_INVALID_VALUE);
    struct CUdevResourceDesc_st *description = checked(calloc(1, sizeof *description));
    for (unsigned i = 0; i < count; i++)
        description->sms += resources[i].sm.smCount;
    object_add(description, OBJECT_RESOURCES);
    *handle = description;
    return CUDA_SUCCESS;
}

static CUresult make(struct device *device, CUgreenCtx *green)
{
    TRY(primary_retain(device));
    CUgreenCtx made = checked(calloc(1, sizeof *made));
    struct context *context = context_make(device, false);
    context->owner = device->primary;
    context->green = made;
    made->context = context;
    CUresult result = context_enliven(context, 0);
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
    FAIL_IF(green == NULL || flags != CU_GREEN_CTX_DEFAULT_STREAM
            || !object_is(resources, OBJECT_RESOURCES), CUDA_ERROR_INVALID_VALUE);
    FIND_DEVICE(ordinal);
    LOCKED(context_lock);
    return make(device, green);
}

API(cuGreenCtxDestroy, CUgreenCtx green)
{
    ENTER(ENTRY_INIT);
    FAIL_IF(!object_is(green, OBJECT_GREEN), CUDA_ERROR_INVALID_CONTEXT);
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
    FAIL_IF(!object_is(green, OBJECT_GREEN), CUDA_ERROR_INVALID_CONTEXT);
    return flags != CU_STREAM_NON_BLOCKING ? CUDA_ERROR_INVALID_VALUE
                                           : stream_new(green->context, flags, priority, stream);
}

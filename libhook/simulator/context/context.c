/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/context.h"

#include <stdlib.h>
#include <string.h>

#include "space/allocation.h"
#include "stream/capture.h"
#include "context/current.h"
#include "driver/entry.h"
#include "driver/object.h"
#include "engine/stream.h"

pthread_mutex_t context_lock = PTHREAD_MUTEX_INITIALIZER;
struct context *all_contexts;

static uint64_t context_cost(void)
{
    return size_setting("NVSHARE_SIM_CONTEXT", 8ull << 20);
}

/* A fault spoils the whole process: all contexts that it has, on whichever device, and no other
 * comes to life in it any more. */
static _Atomic int fault;

void context_fault(CUresult error)
{
    int none = CUDA_SUCCESS;
    atomic_compare_exchange_strong(&fault, &none, (int)error);
}

CUresult context_error(void)
{
    return (CUresult)atomic_load(&fault);
}

CUresult context_check(struct context *context)
{
    if (context == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!atomic_load(&context->alive))
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return context_error();
}

struct context *context_from(CUcontext handle)
{
    if (handle == NULL)
        return context_current();
    return object_is(handle, OBJECT_CONTEXT) ? (struct context *)handle : NULL;
}

/* With context_lock held. Brings a new or dead context to life. */
static CUresult enliven(struct context *context, unsigned flags)
{
    static _Atomic unsigned long long made;
    if (context_error() != CUDA_SUCCESS)
        return context_error();
    if (!shared_take(context->device->gpu, context_cost()))
        return CUDA_ERROR_OUT_OF_MEMORY;
    shared_count_context(context->device->gpu, 1);
    context->flags = flags | CU_CTX_MAP_HOST;    /* always on, as the driver says */
    context->id = atomic_fetch_add(&made, 1) + 1;
    context->attached = 0;
    context->cache = CU_FUNC_CACHE_PREFER_NONE;
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

static struct context *new_context(struct device *device, bool primary)
{
    struct context *context = calloc(1, sizeof *context);
    if (context == NULL)
        return NULL;
    context->device = device;
    context->primary = primary;
    pthread_mutex_lock(&engine_lock);
    context->next = all_contexts;
    all_contexts = context;
    pthread_mutex_unlock(&engine_lock);
    return context;
}

/* With context_lock held: waits for its work, then frees all that it holds. */
static void end_context(struct context *context)
{
    pthread_mutex_lock(&engine_lock);
    for (struct stream *stream = context->streams; stream != NULL; stream = stream->next)
        if (stream->capture != NULL)
            capture_leave(stream);
    context_wait(context);
    atomic_store(&context->alive, false);
    if (context->gate.stream != NULL)
        stream_drop(context->gate.stream);
    context->gate.stream = NULL;
    for (struct stream *stream = context->streams, *next; stream != NULL; stream = next) {
        next = stream->next;
        if (!stream->destroyed)
            stream_close(stream);
    }
    pthread_mutex_unlock(&engine_lock);
    if (!context->primary)           /* a primary one may become current even so */
        object_remove(context);
    allocations_end(context);
    shared_count_context(context->device->gpu, -1);
    shared_give_back(context->device->gpu, context_cost());
}

static CUresult create(CUcontext *handle, unsigned flags, CUdevice ordinal)
{
    struct device *device = device_at(ordinal);
    if (handle == NULL || (flags & ~0xffu) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&context_lock);
    struct context *context = new_context(device, false);
    CUresult result = context != NULL ? enliven(context, flags) : CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_unlock(&context_lock);
    if (result != CUDA_SUCCESS)
        return result;
    current_push(context);
    *handle = (CUcontext)context;
    return CUDA_SUCCESS;
}

API(cuCtxCreate, CUcontext *context, unsigned int flags, CUdevice device)
{
    ENTER(ENTRY_INIT);
    return create(context, flags, device);
}

API(cuCtxCreate_v2, CUcontext *context, unsigned int flags, CUdevice device)
{
    ENTER(ENTRY_INIT);
    return create(context, flags, device);
}

API(cuCtxCreate_v3, CUcontext *context, CUexecAffinityParam *affinities, int count,
    unsigned int flags, CUdevice device)
{
    ENTER(ENTRY_INIT);
    if (affinities != NULL || count != 0)
        return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
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

static CUresult destroy(CUcontext handle)
{
    if (!object_is(handle, OBJECT_CONTEXT))
        return CUDA_ERROR_INVALID_CONTEXT;
    struct context *context = (struct context *)handle;
    if (context->primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&context_lock);
    if (atomic_load(&context->alive))
        end_context(context);
    pthread_mutex_unlock(&context_lock);
    if (context_current() == context)
        current_pop();
    return CUDA_SUCCESS;
}

API(cuCtxDestroy, CUcontext context)
{
    ENTER(ENTRY_INIT);
    return destroy(context);
}

API(cuCtxDestroy_v2, CUcontext context)
{
    ENTER(ENTRY_INIT);
    return destroy(context);
}

/* The reference that made it goes last, and the context with it. */
API(cuCtxDetach, CUcontext handle)
{
    ENTER(ENTRY_INIT);
    if (!object_is(handle, OBJECT_CONTEXT))
        return CUDA_ERROR_INVALID_CONTEXT;
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
    if (context == NULL || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&context_lock);
    context_current()->attached++;
    pthread_mutex_unlock(&context_lock);
    *context = (CUcontext)context_current();
    return CUDA_SUCCESS;
}

API(cuDevicePrimaryCtxRetain, CUcontext *handle, CUdevice ordinal)
{
    ENTER(ENTRY_INIT);
    struct device *device = device_at(ordinal);
    if (handle == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&context_lock);
    if (device->primary == NULL)
        device->primary = new_context(device, true);
    if (device->primary == NULL)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    else if (!atomic_load(&device->primary->alive))
        result = enliven(device->primary, device->primary_flags);
    if (result == CUDA_SUCCESS) {
        device->retains++;
        *handle = (CUcontext)device->primary;
    }
    pthread_mutex_unlock(&context_lock);
    return result;
}

/* With context_lock held. */
static void end_primary(struct device *device)
{
    if (device->primary != NULL && atomic_load(&device->primary->alive))
        end_context(device->primary);
}

/* One retain too few is what the first version says nothing of. */
static CUresult release(CUdevice ordinal, CUresult too_often)
{
    struct device *device = device_at(ordinal);
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&context_lock);
    bool retained = device->retains > 0;
    device->retains -= retained;
    if (device->retains == 0)
        end_primary(device);
    pthread_mutex_unlock(&context_lock);
    return retained ? CUDA_SUCCESS : too_often;
}

API(cuDevicePrimaryCtxRelease, CUdevice device)
{
    ENTER(ENTRY_INIT);
    return release(device, CUDA_SUCCESS);
}

API(cuDevicePrimaryCtxRelease_v2, CUdevice device)
{
    ENTER(ENTRY_INIT);
    return release(device, CUDA_ERROR_INVALID_CONTEXT);
}

/* Whoever retained it holds it still, empty; only the first version forgets them. */
static CUresult reset(CUdevice ordinal, bool forget)
{
    struct device *device = device_at(ordinal);
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&context_lock);
    if (forget)
        device->retains = 0;
    end_primary(device);
    pthread_mutex_unlock(&context_lock);
    return CUDA_SUCCESS;
}

API(cuDevicePrimaryCtxReset, CUdevice device)
{
    ENTER(ENTRY_INIT);
    return reset(device, true);
}

API(cuDevicePrimaryCtxReset_v2, CUdevice device)
{
    ENTER(ENTRY_INIT);
    return reset(device, false);
}

static CUresult set_primary_flags(CUdevice ordinal, unsigned flags)
{
    struct device *device = device_at(ordinal);
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    if ((flags & ~0xffu) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&context_lock);
    device->primary_flags = flags;
    if (device->primary != NULL)
        device->primary->flags = flags | CU_CTX_MAP_HOST;
    pthread_mutex_unlock(&context_lock);
    return CUDA_SUCCESS;
}

API(cuDevicePrimaryCtxSetFlags, CUdevice device, unsigned int flags)
{
    ENTER(ENTRY_INIT);
    return set_primary_flags(device, flags);
}

API(cuDevicePrimaryCtxSetFlags_v2, CUdevice device, unsigned int flags)
{
    ENTER(ENTRY_INIT);
    return set_primary_flags(device, flags);
}

API(cuDevicePrimaryCtxGetState, CUdevice ordinal, unsigned int *flags, int *active)
{
    ENTER(ENTRY_INIT);
    struct device *device = device_at(ordinal);
    if (flags == NULL || active == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&context_lock);
    *flags = device->primary_flags;
    *active = device->primary != NULL && atomic_load(&device->primary->alive);
    pthread_mutex_unlock(&context_lock);
    return CUDA_SUCCESS;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "context/life.h"

#include <stdlib.h>
#include <string.h>

#include "driver/entry.h"
#include "driver/object.h"
#include "engine/queue.h"
#include "space/pool.h"
#include "stream/capture.h"

static uint64_t context_cost(void)
{
    return size_setting("NVSHARE_SIM_CONTEXT", 8ull << 20);
}

CUresult context_enliven(struct context *context, unsigned flags)
{
    static _Atomic unsigned long long made;
    if (context_error() != CUDA_SUCCESS)
        return context_error();
    if (context->owner == context && !shared_take(context->device->gpu, context_cost()))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (context->owner == context)
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

struct context *context_make(struct device *device, bool primary)
{
    struct context *context = calloc(1, sizeof *context);
    if (context == NULL)
        return NULL;
    context->device = device;
    context->primary = primary;
    context->owner = context;
    LOCKED(engine_lock);
    context->next = all_contexts;
    all_contexts = context;
    return context;
}

/* With the allocations' lock held. */
static void free_allocation(struct allocation *allocation)
{
    if (allocation->kind == ALLOCATED_POOL)
        pool_loses(allocation);
    else if (allocation->kind == ALLOCATED || allocation->kind == ALLOCATED_IMPORT
             || allocation->kind == ALLOCATED_VARIABLE)
        device_free(allocation);
    else
        host_free(allocation);
}

void context_end(struct context *context)
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
    if (context->owner != context)
        return;
    pthread_mutex_lock(&allocations_lock);
    allocations_each(context, free_allocation);
    pthread_mutex_unlock(&allocations_lock);
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
    struct context *context = context_make(device, false);
    CUresult result = context != NULL ? context_enliven(context, flags) : CUDA_ERROR_OUT_OF_MEMORY;
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

/* As if OpenGL or VDPAU were there and used this device. */
#define GRAPHICS_API(name, ...)                                                          \
    API(name, CUcontext *context, unsigned int flags, CUdevice device __VA_ARGS__)       \
    {                                                                                    \
        ENTER(ENTRY_INIT);                                                               \
        return create(context, flags, device);                                           \
    }

GRAPHICS_API(cuGLCtxCreate)
GRAPHICS_API(cuGLCtxCreate_v2)
GRAPHICS_API(cuVDPAUCtxCreate, , unsigned int vdpau __attribute__((unused)),
             void *lookup __attribute__((unused)))
GRAPHICS_API(cuVDPAUCtxCreate_v2, , unsigned int vdpau __attribute__((unused)),
             void *lookup __attribute__((unused)))

static CUresult destroy(CUcontext handle)
{
    if (!object_is(handle, OBJECT_CONTEXT))
        return CUDA_ERROR_INVALID_CONTEXT;
    struct context *context = (struct context *)handle;
    if (context->primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&context_lock);
    if (atomic_load(&context->alive)) {
        /* The work of all contexts there (driver 580 on an H100). */
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

/* SPDX-License-Identifier: Apache-2.0 */
#include "module/launch.h"

#include <string.h>

#include "driver/entry.h"
#include "module/module.h"
#include "driver/object.h"
#include "engine/stream.h"

/* `extra` is a list of names and values up to the end mark: a buffer and its size. */
static CUresult from_extra(void *const *extra, const struct kernel *kernel, uint64_t *arguments)
{
    const void *buffer = NULL;
    size_t size = 0;
    for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
        if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER)
            buffer = extra[1];
        else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE)
            size = *(const size_t *)extra[1];
        else
            return CUDA_ERROR_INVALID_VALUE;
    }
    if (buffer == NULL || size < (size_t)kernel->parameters * 8)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(arguments, buffer, (size_t)kernel->parameters * 8);
    return CUDA_SUCCESS;
}

CUresult launch_work(CUfunction handle, const unsigned grid[3], const unsigned block[3],
                     void *const *parameters, void *const *extra, struct context *context,
                     struct work *work)
{
    const struct function *function = function_from(handle);
    if (function == NULL
        || (function->context != NULL && context != NULL && function->context != context))
        return CUDA_ERROR_INVALID_HANDLE;
    if ((uint64_t)block[0] * block[1] * block[2] > 1024 || grid[1] > 65535 || grid[2] > 65535
        || block[2] > 64)
        return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < 3; i++)
        if (grid[i] == 0 || block[i] == 0)
            return CUDA_ERROR_INVALID_VALUE;
    *work = (struct work){
        .kind = WORK_KERNEL,
        .launch = {.kernel = function->kernel, .function = handle,
                   .grid = {grid[0], grid[1], grid[2]}, .block = {block[0], block[1], block[2]}}};
    if (extra != NULL && parameters != NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (extra != NULL)
        return from_extra(extra, function->kernel, work->launch.arguments);
    if (parameters == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < function->kernel->parameters; i++)
        memcpy(&work->launch.arguments[i], parameters[i], sizeof(uint64_t));
    return CUDA_SUCCESS;
}

static CUresult launch(CUfunction function, const unsigned grid[3], const unsigned block[3],
                       CUstream handle, void **parameters, void **extra)
{
    struct stream *stream;
    struct work work;
    CUresult result = stream_from(handle, context_current(), &stream);
    if (result == CUDA_SUCCESS)
        result = launch_work(function, grid, block, parameters, extra, stream->context, &work);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&engine_lock);
    result = stream_submit(stream, &work);
    pthread_mutex_unlock(&engine_lock);
    return result;
}

#define GRID unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,         \
             unsigned int by, unsigned int bz, unsigned int shared
#define DIMENSIONS (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}

API(cuLaunchKernel, CUfunction function, GRID, CUstream stream, void **parameters, void **extra)
{
    ENTER(ENTRY_CONTEXT);
    (void)shared;
    return launch(function, DIMENSIONS, stream, parameters, extra);
}

API(cuLaunchKernel_ptsz, CUfunction function, GRID, CUstream stream, void **parameters,
    void **extra)
{
    ENTER(ENTRY_CONTEXT);
    (void)shared;
    return launch(function, DIMENSIONS, stream == NULL ? CU_STREAM_PER_THREAD : stream,
                  parameters, extra);
}

API(cuLaunchCooperativeKernel, CUfunction function, GRID, CUstream stream, void **parameters)
{
    ENTER(ENTRY_CONTEXT);
    (void)shared;
    return launch(function, DIMENSIONS, stream, parameters, NULL);
}

API(cuLaunchCooperativeKernel_ptsz, CUfunction function, GRID, CUstream stream,
    void **parameters)
{
    ENTER(ENTRY_CONTEXT);
    (void)shared;
    return launch(function, DIMENSIONS, stream == NULL ? CU_STREAM_PER_THREAD : stream,
                  parameters, NULL);
}

static CUresult launch_configured(const CUlaunchConfig *config, CUfunction function,
                                  void **parameters, void **extra, bool per_thread)
{
    if (config == NULL || (config->numAttrs != 0 && config->attrs == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    unsigned grid[] = {config->gridDimX, config->gridDimY, config->gridDimZ};
    unsigned block[] = {config->blockDimX, config->blockDimY, config->blockDimZ};
    CUstream stream = config->hStream == NULL && per_thread ? CU_STREAM_PER_THREAD
                                                            : config->hStream;
    return launch(function, grid, block, stream, parameters, extra);
}

API(cuLaunchKernelEx, const CUlaunchConfig *config, CUfunction function, void **parameters,
    void **extra)
{
    ENTER(ENTRY_CONTEXT);
    return launch_configured(config, function, parameters, extra, false);
}

API(cuLaunchKernelEx_ptsz, const CUlaunchConfig *config, CUfunction function, void **parameters,
    void **extra)
{
    ENTER(ENTRY_CONTEXT);
    return launch_configured(config, function, parameters, extra, true);
}

static CUresult launch_host(CUstream handle, struct work work)
{
    struct stream *stream;
    CUresult result = stream_from(handle, context_current(), &stream);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&engine_lock);
    result = stream_submit(stream, &work);
    pthread_mutex_unlock(&engine_lock);
    return result;
}

static CUresult launch_function(CUstream stream, CUhostFn function, void *data)
{
    if (function == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return launch_host(stream, (struct work){.kind = WORK_HOST, .host = {function, data}});
}

API(cuLaunchHostFunc, CUstream stream, CUhostFn function, void *data)
{
    ENTER(ENTRY_CONTEXT);
    return launch_function(stream, function, data);
}

API(cuLaunchHostFunc_ptsz, CUstream stream, CUhostFn function, void *data)
{
    ENTER(ENTRY_CONTEXT);
    return launch_function(stream == NULL ? CU_STREAM_PER_THREAD : stream, function, data);
}

static CUresult add_callback(CUstream given, CUstream stream, CUstreamCallback function,
                             void *data, unsigned flags)
{
    if (function == NULL || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    return launch_host(stream, (struct work){.kind = WORK_CALLBACK,
                                             .callback = {function, data, given}});
}

API(cuStreamAddCallback, CUstream stream, CUstreamCallback function, void *data,
    unsigned int flags)
{
    ENTER(ENTRY_CONTEXT);
    return add_callback(stream, stream, function, data, flags);
}

API(cuStreamAddCallback_ptsz, CUstream stream, CUstreamCallback function, void *data,
    unsigned int flags)
{
    ENTER(ENTRY_CONTEXT);
    return add_callback(stream, stream == NULL ? CU_STREAM_PER_THREAD : stream, function, data,
                        flags);
}

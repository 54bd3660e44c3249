/* SPDX-License-Identifier: Apache-2.0 */
/* Launches: from the arguments of any entry point to one kind of work. */
#include <string.h>

#include "module/module.h"

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
        || (function->context != NULL && context != NULL && function->context != context->owner))
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

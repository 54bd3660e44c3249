/* SPDX-License-Identifier: Apache-2.0 */
/* What functions say of themselves. */

#include "driver/entry.h"
#include "module/module.h"

static CUresult attribute_of(int *value, CUfunction_attribute attribute, CUfunction handle)
{
    const struct function *function = function_from(handle);
    if (value == NULL || (int)attribute < 0
        || attribute > CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE)
        return CUDA_ERROR_INVALID_VALUE;
    if (function == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    switch ((int)attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *value = 1024;
        break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
        *value = 16;
        break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
        *value = 90;
        break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *value = 49152;
        break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        *value = -1;
        break;
    default:
        *value = 0;
    }
    return CUDA_SUCCESS;
}

static CUresult check(CUfunction handle)
{
    return function_from(handle) != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

FORWARD(cuFuncGetAttribute, (int *value, CUfunction_attribute attribute, CUfunction function),
        ENTRY_CONTEXT, attribute_of(value, attribute, function))

API(cuFuncSetAttribute, CUfunction function, CUfunction_attribute attribute, int value)
{
    ENTER(ENTRY_CONTEXT);
    (void)attribute, (void)value;
    return check(function);
}

API(cuFuncGetName, const char **name, CUfunction function)
{
    ENTER(ENTRY_INIT);
    if (name == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (function_from(function) == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    *name = function_from(function)->kernel->name;
    return CUDA_SUCCESS;
}

API(cuFuncGetParamInfo, CUfunction handle, size_t index, size_t *offset, size_t *size)
{
    ENTER(ENTRY_INIT);
    const struct function *function = function_from(handle);
    if (function == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (offset == NULL || index >= (size_t)function->kernel->parameters)
        return CUDA_ERROR_INVALID_VALUE;
    *offset = index * 8;
    if (size != NULL)
        *size = 8;
    return CUDA_SUCCESS;
}

FORWARD(cuFuncLoad, (CUfunction function), ENTRY_CONTEXT, check(function))

API(cuKernelGetAttribute, int *value, CUfunction_attribute attribute, CUkernel kernel,
    CUdevice device)
{
    ENTER(ENTRY_INIT);
    if (device_at(device) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    return attribute_of(value, attribute, (CUfunction)kernel);
}

API(cuKernelSetAttribute, CUfunction_attribute attribute, int value, CUkernel kernel,
    CUdevice device)
{
    ENTER(ENTRY_INIT);
    (void)attribute, (void)value;
    return device_at(device) == NULL ? CUDA_ERROR_INVALID_DEVICE : check((CUfunction)kernel);
}

static CUresult blocks_per_multiprocessor(int *count, CUfunction function, int threads)
{
    if (count == NULL || threads <= 0 || threads > 1024)
        return CUDA_ERROR_INVALID_VALUE;
    *count = 2048 / threads < 32 ? 2048 / threads : 32;
    return check(function);
}

API(cuOccupancyMaxActiveBlocksPerMultiprocessor, int *count, CUfunction function, int threads,
    size_t shared)
{
    ENTER(ENTRY_CONTEXT);
    (void)shared;
    return blocks_per_multiprocessor(count, function, threads);
}

API(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, int *count, CUfunction function,
    int threads, size_t shared, unsigned int flags)
{
    ENTER(ENTRY_CONTEXT);
    (void)shared;
    return flags > 1 ? CUDA_ERROR_INVALID_VALUE
                     : blocks_per_multiprocessor(count, function, threads);
}

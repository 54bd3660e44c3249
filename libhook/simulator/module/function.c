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

FORWARD(cuFuncGetAttribute, (int *value, CUfunction_attribute attribute, CUfunction function),
        ENTRY_CONTEXT, attribute_of(value, attribute, function))

GETTER(cuFuncGetName, (const char **name, CUfunction function), ENTRY_INIT, name,
       function_from(function) == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS,
       function_from(function)->kernel->name)

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

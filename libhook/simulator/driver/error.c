/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/entry.h"

API(cuGetErrorName, CUresult error, const char **name)
{
    if (driver_ended())
        return CUDA_ERROR_DEINITIALIZED;
    if (name == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    switch ((int)error) {
#define ERROR(code, text) case code: *name = #code; return CUDA_SUCCESS;
#include "driver/errors.def"
#undef ERROR
    }
    *name = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

API(cuGetErrorString, CUresult error, const char **string)
{
    if (driver_ended())
        return CUDA_ERROR_DEINITIALIZED;
    if (string == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    switch ((int)error) {
#define ERROR(code, text) case code: *string = text; return CUDA_SUCCESS;
#include "driver/errors.def"
#undef ERROR
    }
    *string = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions that load code, and queries of functions that may load them. The driver allocates
 * memory for code; that memory belongs to no allocation of the program, and the daemon sees it only
 * when it samples the card.
 */
#include "api/loading.h"

LOADING(cuModuleLoad, (CUmodule *module, const char *file), (module, file))
LOADING(cuModuleLoadData, (CUmodule *module, const void *image), (module, image))
LOADING(cuModuleLoadDataEx,
    (CUmodule *module, const void *image, unsigned int count, CUjit_option *options,
     void **values),
    (module, image, count, options, values))
LOADING(cuModuleLoadFatBinary, (CUmodule *module, const void *image), (module, image))
LOADING(cuModuleGetFunction, (CUfunction *function, CUmodule module, const char *name),
    (function, module, name))
LOADING(cuModuleGetGlobal_v2,
    (CUdeviceptr *address, size_t *bytes, CUmodule module, const char *name),
    (address, bytes, module, name))
LOADING(cuLibraryLoadData,
    (CUlibrary *library, const void *code, CUjit_option *jit, void **jit_values,
     unsigned int jit_count, CUlibraryOption *options, void **values, unsigned int count),
    (library, code, jit, jit_values, jit_count, options, values, count))
LOADING(cuLibraryLoadFromFile,
    (CUlibrary *library, const char *file, CUjit_option *jit, void **jit_values,
     unsigned int jit_count, CUlibraryOption *options, void **values, unsigned int count),
    (library, file, jit, jit_values, jit_count, options, values, count))
LOADING(cuLibraryGetModule, (CUmodule *module, CUlibrary library), (module, library))
LOADING(cuLibraryGetGlobal,
    (CUdeviceptr *address, size_t *bytes, CUlibrary library, const char *name),
    (address, bytes, library, name))
LOADING(cuLibraryGetManaged,
    (CUdeviceptr *address, size_t *bytes, CUlibrary library, const char *name),
    (address, bytes, library, name))
LOADING(cuKernelGetFunction, (CUfunction *function, CUkernel kernel), (function, kernel))
LOADING(cuKernelGetAttribute,
    (int *value, CUfunction_attribute attribute, CUkernel kernel, CUdevice device),
    (value, attribute, kernel, device))
LOADING(cuKernelSetAttribute,
    (CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device),
    (attribute, value, kernel, device))
LOADING(cuFuncLoad, (CUfunction function), (function))
LOADING(cuFuncGetAttribute, (int *value, CUfunction_attribute attribute, CUfunction function),
    (value, attribute, function))
LOADING(cuFuncSetAttribute, (CUfunction function, CUfunction_attribute attribute, int value),
    (function, attribute, value))
LOADING(cuOccupancyMaxActiveBlocksPerMultiprocessor,
    (int *blocks, CUfunction function, int size, size_t shared),
    (blocks, function, size, shared))
LOADING(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
    (int *blocks, CUfunction function, int size, size_t shared, unsigned int flags),
    (blocks, function, size, shared, flags))

/* Memory for stacks, and for the heap and printf() of kernels. */
LOADING(cuCtxSetLimit, (CUlimit limit, size_t value), (limit, value))

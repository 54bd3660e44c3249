/* SPDX-License-Identifier: Apache-2.0 */
/* Conformance: modules. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "conformance.h"
#include "program.h"

void modules(void)
{
    begin();
    CUmodule module;
    CUfunction function;
    CUlibrary library;
    CUkernel kernel;
    CUdeviceptr p;
    size_t size;
    int value;
    unsigned count = 0;
    const char *name = "";
    ASK(cuModuleLoadData(&module, "nonsense"));
    ASK(cuModuleLoadData(&module, ".version 7.0\n.target sm_70\n.address_size 64\nnonsense"));
    ASK(cuModuleLoadData(&module, NULL));
    ASK(cuModuleLoad(&module, "/nowhere"));
    ASK(cuModuleLoadData(&module, program_text));
    ASK(cuModuleGetFunction(&function, module, "nothing"));
    ASK(cuModuleGetFunction(&function, module, "nvshare_fill"));
    ASK(cuModuleGetFunctionCount(&count, module));
    tell("functions", count);
    ASK(cuModuleGetGlobal(&p, &size, module, "nothing"));
    ASK(cuFuncGetName(&name, function));
    tell("name", strcmp(name, "nvshare_fill"));
    ASK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function));
    tell("threads", value);
    ASK(cuFuncGetAttribute(&value, 99, function));
    size_t offset = 77;
    ASK(cuFuncGetParamInfo(function, 1, &offset, &size));
    tell("offset", (long long)offset);
    tell("size", (long long)size);
    ASK(cuFuncGetParamInfo(function, 3, &offset, &size));
    ASK(cuMemAlloc(&p, 4096));
    uint64_t arguments[3] = {p, 8, 5};
    size = sizeof arguments;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, arguments, CU_LAUNCH_PARAM_BUFFER_SIZE,
                     &size, CU_LAUNCH_PARAM_END};
    void *parameters[] = {&arguments[0], &arguments[1], &arguments[2]};
    ASK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, extra));
    ASK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, extra));
    ASK(cuLaunchKernel(function, 0, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL));
    ASK(cuLaunchKernel(function, 1, 1, 1, 2048, 1, 1, 0, NULL, parameters, NULL));
    ASK(cuLaunchKernel(function, 1, 70000, 1, 32, 1, 1, 0, NULL, parameters, NULL));
    ASK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    ASK(cuLaunchKernel(NULL, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL));
    ASK(cuLaunchCooperativeKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, parameters));
    CUlaunchConfig config = {.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32,
                             .blockDimY = 1, .blockDimZ = 1};
    ASK(cuLaunchKernelEx(&config, function, parameters, NULL));
    uint64_t got[8];
    ASK(cuMemcpyDtoH(got, p, sizeof got));
    tell("filled", got[1] == 5 + 0x9E3779B97F4A7C15ull);
    ASK(cuLibraryLoadData(&library, program_text, NULL, NULL, 0, NULL, NULL, 0));
    ASK(cuLibraryGetKernel(&kernel, library, "nvshare_fill"));
    ASK(cuLibraryGetKernelCount(&count, library));
    tell("kernels", count);
    ASK(cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL));
    ASK(cuKernelGetFunction(&function, kernel));
    ASK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL));
    ASK(cuLibraryGetKernel(&kernel, library, "nothing"));
    ASK(cuLibraryGetModule(&module, library));
    ASK(cuModuleGetFunction(&function, module, "nvshare_fill"));
    ASK(cuLibraryUnload(library));
    ASK(cuCtxSynchronize());
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's functions as a program finds them that was not linked against
 * the driver: dlopen and dlsym. */
#pragma once

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "driver/driver.h"

extern const char kernels_ptx[];     /* libhook/demo/kernels.ptx */
__asm__(".section .rodata\n.global kernels_ptx\nkernels_ptx: .incbin \"" KERNELS_PTX "\"\n"
        ".byte 0\n.text\n");

/* name, parameters */
#define CALLS(X) \
    X(cuInit, (unsigned)) \
    X(cuDeviceGet, (CUdevice *, int)) \
    X(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice)) \
    X(cuDevicePrimaryCtxRelease_v2, (CUdevice)) \
    X(cuCtxSetCurrent, (CUcontext)) \
    X(cuModuleLoadData, (CUmodule *, const void *)) \
    X(cuModuleGetFunction, (CUfunction *, CUmodule, const char *)) \
    X(cuStreamCreate, (CUstream *, unsigned)) \
    X(cuStreamDestroy_v2, (CUstream)) \
    X(cuStreamSynchronize, (CUstream)) \
    X(cuMemAlloc_v2, (CUdeviceptr *, size_t)) \
    X(cuMemFree_v2, (CUdeviceptr)) \
    X(cuMemAllocManaged, (CUdeviceptr *, size_t, unsigned)) \
    X(cuMemPrefetchAsync, (CUdeviceptr, size_t, CUdevice, CUstream)) \
    X(cuMemAdvise, (CUdeviceptr, size_t, CUmem_advise, CUdevice)) \
    X(cuMemRangeGetAttribute, (void *, size_t, CUmem_range_attribute, CUdeviceptr, size_t)) \
    X(cuMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long)) \
    X(cuMemAddressFree, (CUdeviceptr, size_t)) \
    X(cuMemCreate, (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, \
                    unsigned long long)) \
    X(cuMemRelease, (CUmemGenericAllocationHandle)) \
    X(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle *, void *)) \
    X(cuMemMap, (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, \
                 unsigned long long)) \
    X(cuMemUnmap, (CUdeviceptr, size_t)) \
    X(cuMemSetAccess, (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t)) \
    X(cuMemExportToShareableHandle, (void *, CUmemGenericAllocationHandle, \
                                     CUmemAllocationHandleType, unsigned long long)) \
    X(cuIpcGetMemHandle, (CUipcMemHandle *, CUdeviceptr)) \
    X(cuMemPoolCreate, (CUmemoryPool *, const CUmemPoolProps *)) \
    X(cuMemPoolDestroy, (CUmemoryPool)) \
    X(cuMemPoolTrimTo, (CUmemoryPool, size_t)) \
    X(cuMemPoolGetAttribute, (CUmemoryPool, CUmemPool_attribute, void *)) \
    X(cuMemPoolSetAttribute, (CUmemoryPool, CUmemPool_attribute, void *)) \
    X(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream)) \
    X(cuMemAllocFromPoolAsync, (CUdeviceptr *, size_t, CUmemoryPool, CUstream)) \
    X(cuMemFreeAsync, (CUdeviceptr, CUstream)) \
    X(cuEventCreate, (CUevent *, unsigned)) \
    X(cuEventRecord, (CUevent, CUstream)) \
    X(cuEventDestroy_v2, (CUevent)) \
    X(cuStreamWaitEvent, (CUstream, CUevent, unsigned)) \
    X(cuMemcpyDtoH_v2, (void *, CUdeviceptr, size_t)) \
    X(cuMemcpyDtoHAsync_v2, (void *, CUdeviceptr, size_t, CUstream)) \
    X(cuMemcpyHtoD_v2, (CUdeviceptr, const void *, size_t)) \
    X(cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void *, size_t, CUstream)) \
    X(cuMemcpyDtoDAsync_v2, (CUdeviceptr, CUdeviceptr, size_t, CUstream)) \
    X(cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream)) \
    X(cuMemsetD32Async, (CUdeviceptr, unsigned, size_t, CUstream)) \
    X(cuMemGetAddressRange_v2, (CUdeviceptr *, size_t *, CUdeviceptr)) \
    X(cuPointerGetAttribute, (void *, CUpointer_attribute, CUdeviceptr)) \
    X(cuLaunchKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, \
                       unsigned, CUstream, void **, void **)) \
    X(cuStreamBeginCapture_v2, (CUstream, CUstreamCaptureMode)) \
    X(cuStreamEndCapture, (CUstream, CUgraph *)) \
    X(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long)) \
    X(cuGraphLaunch, (CUgraphExec, CUstream)) \
    X(cuGraphDestroy, (CUgraph)) \
    X(cuGraphExecDestroy, (CUgraphExec))

#define DECLARE(name, parameters) static CUresult (*name) parameters;
CALLS(DECLARE)
#undef DECLARE

static inline void load_calls(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL) {
        fprintf(stderr, "stress: %s\n", dlerror());
        exit(2);
    }
#define LOAD(name, parameters) \
    if ((*(void **)&name = dlsym(driver, #name)) == NULL) { \
        fprintf(stderr, "stress: no %s in the driver\n", #name); \
        exit(2); \
    }
    CALLS(LOAD)
#undef LOAD
}

static inline void check(CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "stress: %s failed: error %d\n", what, (int)result);
    exit(1);
}

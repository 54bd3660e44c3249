/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libcuda.so.1 that does nothing: the functions that libnvshare.so needs to
 * attach and to allocate, and a cuLaunchKernel and cuMemcpyDtoDAsync that return at once, so that only the time of
 * the gate is measured. `null_launch` is the same function under a name that
 * the library does not interpose.
 */
#include <string.h>

#include "../../libhook/src/driver/driver.h"

#define API __attribute__((visibility("default")))
#define LAUNCH_PARAMETERS                                                                          \
    CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,          \
        unsigned bz, unsigned shared, CUstream stream, void **parameters, void **extra

API CUresult null_launch(LAUNCH_PARAMETERS);
API CUresult cuLaunchKernel(LAUNCH_PARAMETERS) __attribute__((alias("null_launch")));
API CUresult cuInit(unsigned flags);
API CUresult cuDeviceGet(CUdevice *device, int ordinal);
API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device);
API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device);
API CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device);
API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
API CUresult cuCtxSetCurrent(CUcontext context);
API CUresult cuCtxGetCurrent(CUcontext *context);
API CUresult cuCtxGetDevice(CUdevice *device);
API CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode);
API CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size);
API CUresult cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment,
                                 CUdeviceptr hint, unsigned long long flags);
API CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                         const CUmemAllocationProp *properties, unsigned long long flags);
API CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset,
                      CUmemGenericAllocationHandle handle, unsigned long long flags);
API CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *access,
                            size_t count);
API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);

/* Neither inlined nor optimised away, because the call is measured. */
__attribute__((noinline, noclone)) CUresult null_launch(LAUNCH_PARAMETERS)
{
    (void)function, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz;
    (void)shared, (void)stream, (void)parameters, (void)extra;
    __asm__ volatile("");
    return CUDA_SUCCESS;
}

CUresult cuInit(unsigned flags)
{
    (void)flags;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    (void)device;
    memset(uuid, 0x42, sizeof *uuid);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    return cuDeviceGetUuid(uuid, device);
}

/* Each attribute is supported: the library attaches only where memory can be mapped. */
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    (void)attribute, (void)device;
    *value = 1;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    static char there_is_one;
    (void)device;
    *context = (CUcontext)(void *)&there_is_one;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    (void)context;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
    return cuDevicePrimaryCtxRetain(context, 0);
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    *device = 0;
    return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    *mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    return CUDA_SUCCESS;
}

/* Memory for which there are only addresses. */

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size)
{
    (void)address, (void)size;
    return CUDA_ERROR_OUT_OF_MEMORY;     /* only the library allocates */
}

CUresult cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment,
                             CUdeviceptr hint, unsigned long long flags)
{
    (void)size, (void)alignment, (void)hint, (void)flags;
    *address = (CUdeviceptr)1 << 44;
    return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                     const CUmemAllocationProp *properties, unsigned long long flags)
{
    (void)size, (void)properties, (void)flags;
    *handle = 1;
    return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    (void)address, (void)size, (void)offset, (void)handle, (void)flags;
    return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *access,
                        size_t count)
{
    (void)address, (void)size, (void)access, (void)count;
    return CUDA_SUCCESS;
}

__attribute__((noinline, noclone))
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    (void)to, (void)from, (void)bytes, (void)stream;
    __asm__ volatile("");
    return CUDA_SUCCESS;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Conformance: what is left of a context after a fault. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "conformance.h"

/* What every later call says once a context is broken. */
static void aftermath(void)
{
    size_t a, b;
    int value;
    unsigned flags;
    CUdeviceptr p = 0;
    CUstream stream;
    CUevent event;
    CUcontext other;
    CUdevice device;
    void *memory;
    CUmemGenericAllocationHandle handle = 0;
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    ASK(cuCtxSynchronize());
    ASK(cuCtxSynchronize());
    ASK(cuMemGetInfo(&a, &b));
    ASK(cuMemAlloc(&p, 4096));
    ASK(cuMemHostAlloc(&memory, 4096, 0));
    ASK(cuStreamCreate(&stream, 0));
    ASK(cuEventCreate(&event, 0));
    ASK(cuStreamSynchronize(NULL));
    ASK(cuStreamQuery(NULL));
    ASK(cuCtxGetCurrent(&other));
    ASK(cuCtxGetDevice(&device));
    ASK(cuCtxGetFlags(&flags));
    ASK(cuDeviceGetAttribute(&value, 1, 0));
    ASK(cuDevicePrimaryCtxRetain(&other, 0));
    ASK(cuMemCreate(&handle, BLOCK, &properties, 0));
    ASK(cuMemAddressReserve(&p, BLOCK, 0, 0, 0));
    ASK(cuMemMap(p, BLOCK, 0, handle, 0));
    ASK(open_access(p, BLOCK));
    ASK(cuMemUnmap(p, BLOCK));
    ASK(cuMemRelease(handle));
    ASK(cuMemAddressFree(p, BLOCK));
    ASK(launch_spin(1, NULL));
    ASK(cuCtxPushCurrent(context));
    ASK(cuCtxPopCurrent(&other));
    ASK(cuDevicePrimaryCtxReset(0));
    ASK(cuCtxSynchronize());
    ASK(cuDevicePrimaryCtxRetain(&other, 0));
    ASK(cuCtxSetCurrent(other));
    ASK(cuCtxSynchronize());
    ASK(cuMemAlloc(&p, 4096));
}

void fault_kernel(void)
{
    begin();
    CUstream stream;
    CUevent event;
    CUdeviceptr p;
    ASK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    ASK(cuEventCreate(&event, 0));
    ASK(cuMemAlloc(&p, 4096));
    ASK(launch_fill(reserve(BLOCK), 8, stream));
    ASK(cuEventRecord(event, stream));
    ASK(cuEventSynchronize(event));
    ASK(cuEventQuery(event));
    ASK(cuStreamQuery(stream));
    ASK(cuMemFree(p));
    ASK(cuStreamDestroy(stream));
    ASK(cuEventDestroy(event));
    aftermath();
}

void fault_access(void)
{
    begin();
    CUdeviceptr p = reserve(BLOCK);
    ASK(cuMemMap(p, BLOCK, 0, create_block(BLOCK), 0));
    ASK(launch_fill(p, 8, NULL));
    ASK(cuCtxSynchronize());
}

void fault_copy(void)
{
    begin();
    char bytes[64] = {0};
    CUdeviceptr p = reserve(BLOCK);
    ASK(cuMemcpyHtoD(p, bytes, sizeof bytes));
    ASK(cuMemcpyDtoH(bytes, p, sizeof bytes));
    ASK(cuMemcpyDtoD(p, p + 4096, 64));
    ASK(cuCtxSynchronize());
    ASK(cuMemcpyHtoD(0x1000, bytes, sizeof bytes));
    ASK(cuMemMap(p, BLOCK, 0, create_block(BLOCK), 0));
    ASK(cuMemcpyHtoD(p, bytes, sizeof bytes));
    ASK(cuCtxSynchronize());
    CUdeviceptr q = 0;
    cuMemAlloc(&q, 4096);
    ASK(cuMemcpyHtoD(q + 4096 - 32, bytes, 64));
    ASK(cuCtxSynchronize());
}

void fault_copy_async(void)
{
    begin();
    void *bytes;
    CUdeviceptr p = reserve(BLOCK);
    ASK(cuMemHostAlloc(&bytes, BLOCK, 0));
    ASK(cuMemcpyHtoDAsync(p, bytes, 64, NULL));
    ASK(cuMemcpyDtoHAsync(bytes, p, 64, NULL));
    ASK(cuMemcpyDtoDAsync(p, p + 4096, 64, NULL));
    ASK(cuCtxSynchronize());
    CUmemGenericAllocationHandle handle;
    CUdeviceptr q = mapped_block(BLOCK, &handle);
    ASK(cuMemcpyHtoDAsync(q + BLOCK - 32, bytes, 64, NULL));
    ASK(cuMemcpyAsync(q + BLOCK - 32, (uintptr_t)bytes, 64, NULL));
    ASK(cuCtxSynchronize());
    ASK(cuMemcpyHtoDAsync(q, bytes, 64, NULL));
    ASK(cuCtxSynchronize());
    ASK(cuMemUnmap(q, BLOCK));
    ASK(cuMemcpyHtoDAsync(q, bytes, 64, NULL));
    ASK(cuCtxSynchronize());
}

void fault_set(void)
{
    begin();
    CUdeviceptr p = reserve(BLOCK);
    ASK(cuMemsetD8(p, 1, 64));
    ASK(cuMemsetD8(p, 1, 0));
    ASK(cuMemsetD8Async(p, 1, 64, NULL));
    ASK(cuCtxSynchronize());
    ASK(cuMemsetD32(0x1000, 1, 64));
    ASK(cuMemsetD32(p + 1, 1, 64));
    ASK(cuStreamWriteValue32(NULL, p, 1, 0));
    ASK(cuStreamWaitValue32(NULL, p, 1, 0));
    ASK(cuCtxSynchronize());
    CUmemGenericAllocationHandle handle;
    CUdeviceptr q = mapped_block(BLOCK, &handle);
    ASK(cuMemsetD8(q + BLOCK - 32, 1, 64));
    ASK(cuCtxSynchronize());
    CUdeviceptr r = reserve(BLOCK);
    ASK(cuMemMap(r, BLOCK, 0, create_block(BLOCK), 0));
    ASK(cuMemsetD8(r, 1, 64));
    ASK(cuCtxSynchronize());
}

/* It is the whole process's: other contexts fail with it, and there are no more. */
void fault_elsewhere(void)
{
    begin();
    CUcontext first = context, second, third;
    CUstream stream;
    CUdeviceptr p;
    size_t a, b;
    char bytes[64] = {0};
    ASK(cuCtxCreate(&second, NULL, 0, 0));
    ASK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    ASK(cuMemAlloc(&p, 4096));
    ASK(cuCtxSetCurrent(first));
    ASK(launch_fill(reserve(BLOCK), 8, NULL));
    ASK(cuCtxSynchronize());
    ASK(cuCtxSetCurrent(second));
    ASK(cuCtxSynchronize());
    ASK(cuMemGetInfo(&a, &b));
    ASK(cuStreamQuery(stream));
    ASK(cuMemcpyDtoH(bytes, p, sizeof bytes));
    ASK(cuMemAlloc(&p, 4096));
    ASK(cuCtxDestroy(second));
    ASK(cuCtxCreate(&third, NULL, 0, 0));
}

void fault_peek(void)
{
    begin();
    CUdeviceptr p;
    ASK(cuMemAlloc(&p, 4096));
    volatile char *pointer = (volatile char *)(uintptr_t)p;
    tell("a device pointer on the host", *pointer);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Which calls wait for work in flight: afterwards, is the stream still busy? */
#include <stdio.h>
#include <stdlib.h>

#include "conformance.h"

static CUstream stream;

static void busy(const char *what, CUresult result)
{
    ask(what, result);
    tell("the stream is still at work", cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
    cuCtxSynchronize();
}

/* With a kernel that runs for 0.4 s in a stream of its own. */
#define WHILE_BUSY(call)                                                                 \
    do {                                                                                 \
        launch_spin(400000, stream);                                                     \
        busy(#call, call);                                                               \
    } while (0)

void waiting(void)
{
    begin();
    size_t a, b;
    CUmemGenericAllocationHandle handle, spare;
    CUdeviceptr p, q, mapped = mapped_block(BLOCK, &handle), free_range = reserve(BLOCK);
    void *pinned, *pageable = aligned_alloc(4096, 4 * MIB), *other;
    CUevent event;
    CUstream side;
    CUmodule module;
    CUarray array;
    CUDA_ARRAY_DESCRIPTOR shape = {64, 64, CU_AD_FORMAT_UNSIGNED_INT32, 1};
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    cuStreamCreate(&side, CU_STREAM_NON_BLOCKING);
    cuEventCreate(&event, 0);
    cuMemHostAlloc(&pinned, 4 * MIB, 0);
    cuMemHostAlloc(&other, 4 * MIB, 0);
    cuMemAlloc(&p, 4 * MIB);
    cuMemAlloc(&q, 4 * MIB);
    cuModuleLoadData(&module, ".version 7.0\n.target sm_70\n.address_size 64\n");
    cuArrayCreate(&array, &shape);
    for (size_t i = 0; i < 4 * MIB; i++)
        ((char *)pageable)[i] = 1;
    launch_spin(1, stream);
    cuCtxSynchronize();
    WHILE_BUSY(cuMemGetInfo(&a, &b));
    WHILE_BUSY(cuMemcpyHtoD(p, pinned, 4 * MIB));
    WHILE_BUSY(cuMemcpyHtoD(p, pageable, 4 * MIB));
    WHILE_BUSY(cuMemcpyDtoH(pageable, p, 4096));
    WHILE_BUSY(cuMemcpyDtoD(p, q, 4 * MIB));
    WHILE_BUSY(cuMemsetD8(p, 1, 4 * MIB));
    WHILE_BUSY(cuMemcpyHtoDAsync(p, pinned, 4 * MIB, stream));
    WHILE_BUSY(cuMemcpyDtoHAsync(pinned, p, 4 * MIB, stream));
    WHILE_BUSY(cuMemcpyHtoDAsync(p, pageable, 4096, stream));
    WHILE_BUSY(cuMemcpyDtoHAsync(pageable, p, 4096, stream));
    WHILE_BUSY(cuMemcpyDtoDAsync(p, q, 4 * MIB, stream));
    WHILE_BUSY(cuMemsetD8Async(p, 1, 4 * MIB, stream));
    WHILE_BUSY(cuMemCreate(&spare, BLOCK, &properties, 0));
    WHILE_BUSY(cuMemMap(free_range, BLOCK, 0, spare, 0));
    WHILE_BUSY(open_access(free_range, BLOCK));
    WHILE_BUSY(cuMemUnmap(free_range, BLOCK));
    WHILE_BUSY(cuMemRelease(spare));
    WHILE_BUSY(cuEventRecord(event, stream));
    WHILE_BUSY(cuEventRecord(event, side));
    WHILE_BUSY(cuEventSynchronize(event));
    WHILE_BUSY(cuCtxRecordEvent(context, event));
    WHILE_BUSY(cuStreamSynchronize(side));
    WHILE_BUSY(cuStreamDestroy(side));
    WHILE_BUSY(cuModuleUnload(module));
    WHILE_BUSY(cuMemHostRegister(pageable, 4 * MIB, 0));
    WHILE_BUSY(cuMemHostUnregister(pageable));
    WHILE_BUSY(cuMemFreeHost(other));
    WHILE_BUSY(cuMemAlloc(&q, 8 * MIB));
    WHILE_BUSY(cuMemFree(q));
    WHILE_BUSY(cuMemHostAlloc(&other, 4 * MIB, 0));
    WHILE_BUSY(cuMemAllocManaged(&q, 4 * MIB, CU_MEM_ATTACH_GLOBAL));
    WHILE_BUSY(cuMemFree(q));
    WHILE_BUSY(cuArrayDestroy(array));
    WHILE_BUSY(cuMemAllocAsync(&q, 4 * MIB, stream));
    WHILE_BUSY(cuMemFree(q));
    /* Unmapping what work in flight will touch. */
    launch_spin(400000, stream);
    ASK(launch_fill(mapped, 8, stream));
    ASK(cuMemUnmap(mapped, BLOCK));
    tell("the stream is still at work", cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
    ASK(cuCtxSynchronize());
}

void ending(void)
{
    begin();
    CUcontext second;
    ASK(cuCtxCreate(&second, NULL, 0, 0));
    cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    CUdeviceptr p;
    cuMemAlloc(&p, 4096);
    ASK(cuMemsetD8Async(p, 1, 10, stream));
    ASK(cuCtxDestroy(second));
    ASK(cuMemFree(p));
}

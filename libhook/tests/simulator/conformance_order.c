/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conformance.h"
#include "program.h"

void before_init(void)
{
    int count, version;
    CUcontext c;
    CUdeviceptr p;
    void *f;
    const char *text;
    ASK(cuDriverGetVersion(&version));
    ASK(cuDeviceGetCount(&count));
    ASK(cuCtxGetCurrent(&c));
    ASK(cuMemAlloc(&p, 4096));
    ASK(cuCtxSynchronize());
    ASK(cuGetErrorName(CUDA_ERROR_INVALID_VALUE, &text));
    ASK(cuGetErrorName((CUresult)12345, &text));
    ASK(cuGetErrorString((CUresult)12345, &text));
    ASK(cuGetProcAddress("cuMemAlloc", &f, 12000, 0, NULL));
    ASK(cuInit(1));
    ASK(cuInit(0));
    ASK(cuInit(0));
}

void no_context(void)
{
    size_t a, b;
    CUdeviceptr p = 0;
    CUstream stream;
    CUevent event;
    CUcontext c = (CUcontext)1;
    CUdevice device;
    CUmodule module;
    void *memory;
    char byte = 0;
    unsigned flags;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    ASK(cuInit(0));
    ASK(cuCtxGetCurrent(&c));
    tell("current", c != NULL);
    ASK(cuCtxGetDevice(&device));
    ASK(cuCtxPopCurrent(&c));
    ASK(cuCtxSynchronize());
    ASK(cuCtxGetFlags(&flags));
    ASK(cuMemGetInfo(&a, &b));
    ASK(cuMemAlloc(&p, 4096));
    ASK(cuMemFree(0));
    ASK(cuMemHostAlloc(&memory, 4096, 0));
    ASK(cuMemHostRegister(&byte, 1, 0));
    ASK(cuMemAllocManaged(&p, 4096, 1));
    ASK(cuStreamCreate(&stream, 0));
    ASK(cuStreamSynchronize(NULL));
    ASK(cuEventCreate(&event, 0));
    ASK(cuMemcpyHtoD(p, &byte, 1));
    ASK(cuMemsetD8(p, 0, 1));
    ASK(cuModuleLoadData(&module, program_text));
    ASK(cuMemAddressReserve(&p, BLOCK, 0, 0, 0));
    ASK(cuMemCreate(&handle, BLOCK, &properties, 0));
    ASK(cuMemMap(p, BLOCK, 0, handle, 0));
    ASK(open_access(p, BLOCK));
    ASK(cuMemUnmap(p, BLOCK));
    ASK(cuMemRelease(handle));
    ASK(cuMemAddressFree(p, BLOCK));
    ASK(cuDevicePrimaryCtxRelease(0));
    ASK(cuDevicePrimaryCtxReset(0));
    ASK(cuCtxSetCurrent(NULL));
    ASK(cuCtxPushCurrent(NULL));
    ASK(cuDevicePrimaryCtxRetain(&c, 0));
    ASK(cuDevicePrimaryCtxRetain(&c, 9));
    ASK(cuCtxSynchronize());
}

void contexts(void)
{
    begin();
    CUcontext c, d, again;
    CUdevice device;
    CUdeviceptr p;
    unsigned flags;
    int active;
    unsigned version;
    size_t before, after, total;
    ASK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    tell("flags", flags);
    tell("active", active);
    ASK(cuDevicePrimaryCtxSetFlags(0, CU_CTX_SCHED_BLOCKING_SYNC));
    ASK(cuCtxGetFlags(&flags));
    tell("flags", flags);
    cuMemGetInfo(&before, &total);
    ASK(cuCtxCreate(&c, NULL, 0, 0));
    ASK(cuCtxGetCurrent(&d));
    tell("current is the new one", c == d);
    cuMemGetInfo(&after, &total);
    tell("a context costs memory", before > after);
    ASK(cuCtxGetApiVersion(c, &version));
    tell("api version", version);
    ASK(cuMemAlloc(&p, 4096));
    ASK(cuCtxPopCurrent(&d));
    tell("popped", c == d);
    ASK(cuMemsetD8(p, 1, 16));
    ASK(cuCtxSynchronize());
    ASK(cuMemFree(p));
    ASK(cuCtxGetCurrent(&d));
    tell("the primary one again", d == context);
    ASK(cuCtxDestroy(c));
    ASK(cuCtxDestroy(context));
    ASK(cuCtxPushCurrent(context));
    ASK(cuCtxCreate(&c, NULL, 0, 0));
    ASK(cuCtxDestroy(c));
    ASK(cuCtxGetCurrent(&d));
    tell("the one below", d == context);
    ASK(cuCtxCreate(&c, NULL, 0x1000, 0));
    ASK(cuMemAlloc(&p, 4096));
    ASK(cuDevicePrimaryCtxRetain(&again, 0));
    tell("the same primary context", again == context);
    ASK(cuDevicePrimaryCtxRelease(0));
    ASK(cuMemsetD8(p, 1, 16));
    ASK(cuDevicePrimaryCtxRelease(0));
    ASK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    tell("active", active);
    ASK(cuMemsetD8(p, 1, 16));
    ASK(cuCtxSynchronize());
    ASK(cuCtxGetDevice(&device));
    ASK(cuCtxGetCurrent(&d));
    tell("still current", d == context);
    ASK(cuDevicePrimaryCtxRelease(0));
    ASK(cuDevicePrimaryCtxRetain(&again, 0));
    tell("the same primary context", again == context);
    ASK(cuCtxSynchronize());
    ASK(cuMemsetD8(p, 1, 16));
    ASK(cuDevicePrimaryCtxReset(0));
    ASK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    tell("active", active);
    ASK(cuCtxSynchronize());
    ASK(cuMemAlloc(&p, 4096));
    ASK(cuDevicePrimaryCtxRetain(&again, 0));
    ASK(cuCtxSynchronize());
    ASK(cuMemAlloc(&p, 4096));
}

void events(void)
{
    begin();
    CUevent a, b, timeless;
    CUstream stream;
    float ms = -1;
    ASK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    ASK(cuEventCreate(&a, 0));
    ASK(cuEventCreate(&b, CU_EVENT_BLOCKING_SYNC));
    ASK(cuEventCreate(&timeless, CU_EVENT_DISABLE_TIMING));
    ASK(cuEventCreate(&timeless, CU_EVENT_INTERPROCESS));
    ASK(cuEventCreate(&timeless, 64));
    ASK(cuEventQuery(a));
    ASK(cuEventSynchronize(a));
    ASK(cuEventElapsedTime(&ms, a, b));
    ASK(cuEventElapsedTime(&ms, a, timeless));
    ASK(cuStreamWaitEvent(stream, a, 0));
    ASK(cuStreamWaitEvent(stream, a, 7));
    ASK(cuEventRecord(a, stream));
    ASK(launch_spin(200000, stream));
    ASK(cuEventRecord(b, stream));
    ASK(cuEventQuery(b));
    ASK(cuEventElapsedTime(&ms, a, b));
    ASK(cuEventRecord(timeless, stream));
    ASK(cuEventElapsedTime(&ms, a, timeless));
    ASK(cuStreamQuery(stream));
    ASK(cuEventSynchronize(b));
    ASK(cuEventElapsedTime(&ms, a, b));
    tell("at least 200 ms", ms >= 199.0f && ms < 2000.0f);
    ASK(cuEventElapsedTime(&ms, b, a));
    tell("negative", ms < 0);
    ASK(cuEventRecordWithFlags(a, stream, CU_EVENT_RECORD_EXTERNAL));
    ASK(cuEventRecordWithFlags(a, stream, 8));
    ASK(cuStreamSynchronize(stream));
    ASK(launch_spin(200000, stream));
    ASK(cuCtxRecordEvent(context, b));
    ASK(cuEventQuery(b));
    ASK(cuCtxRecordEvent(NULL, b));
    ASK(cuEventQuery(a));
    ASK(cuEventSynchronize(b));
    ASK(cuStreamQuery(stream));
    ASK(launch_spin(200000, stream));
    ASK(cuEventRecord(b, stream));
    ASK(cuCtxWaitEvent(context, b));
    ASK(cuStreamQuery(NULL));
    ASK(cuStreamQuery(CU_STREAM_LEGACY));
    ASK(cuEventDestroy(b));
    ASK(cuCtxSynchronize());
    CUcontext other;
    ASK(cuCtxCreate(&other, NULL, 0, 0));
    ASK(cuEventRecord(a, NULL));
    ASK(cuEventRecord(a, stream));
    ASK(cuEventSynchronize(a));
    ASK(cuStreamWaitEvent(NULL, a, 0));
    ASK(cuCtxRecordEvent(other, a));
}

void streams(void)
{
    begin();
    CUstream blocking, free_stream, foreign;
    CUdevice device;
    CUcontext c;
    int priority;
    unsigned flags;
    ASK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    ASK(cuStreamCreate(&free_stream, CU_STREAM_NON_BLOCKING));
    ASK(cuStreamCreate(&foreign, 5));
    ASK(cuStreamCreateWithPriority(&foreign, 0, -100));
    ASK(cuStreamGetPriority(foreign, &priority));
    tell("priority", priority);
    ASK(cuStreamGetFlags(free_stream, &flags));
    tell("flags", flags);
    ASK(cuStreamGetFlags(NULL, &flags));
    tell("flags", flags);
    ASK(cuStreamGetFlags(CU_STREAM_PER_THREAD, &flags));
    tell("flags", flags);
    ASK(cuStreamGetDevice(free_stream, &device));
    ASK(cuStreamGetCtx(free_stream, &c));
    tell("its context", c == context);
    /* The NULL stream waits for blocking streams and they for it. */
    ASK(launch_spin(200000, free_stream));
    ASK(launch_spin(1, NULL));
    ASK(cuStreamSynchronize(NULL));
    ASK(cuStreamQuery(free_stream));
    ASK(cuStreamSynchronize(free_stream));
    ASK(launch_spin(200000, blocking));
    ASK(launch_spin(1, NULL));
    ASK(cuStreamQuery(NULL));
    ASK(cuStreamSynchronize(NULL));
    ASK(cuStreamQuery(blocking));
    ASK(launch_spin(200000, NULL));
    ASK(launch_spin(1, free_stream));
    ASK(cuStreamSynchronize(free_stream));
    ASK(cuStreamQuery(NULL));
    ASK(launch_spin(1, blocking));
    ASK(cuStreamSynchronize(blocking));
    ASK(cuStreamQuery(NULL));
    ASK(launch_spin(200000, CU_STREAM_PER_THREAD));
    ASK(launch_spin(1, blocking));
    ASK(cuStreamSynchronize(blocking));
    ASK(cuStreamQuery(CU_STREAM_PER_THREAD));
    ASK(launch_spin(1, NULL));
    ASK(cuStreamSynchronize(NULL));
    ASK(cuStreamQuery(CU_STREAM_PER_THREAD));
    /* With a blocking stream at work: is the idle NULL stream idle? */
    ASK(launch_spin(200000, blocking));
    ASK(cuStreamQuery(NULL));
    ASK(cuStreamSynchronize(NULL));
    ASK(cuStreamQuery(blocking));
    ASK(launch_spin(100000, blocking));
    ASK(cuStreamDestroy(blocking));
    ASK(cuStreamDestroy(NULL));
    ASK(cuStreamDestroy(CU_STREAM_PER_THREAD));
    ASK(cuCtxSynchronize());
    CUcontext other;
    ASK(cuCtxCreate(&other, NULL, 0, 0));
    ASK(launch_spin(1, free_stream));
    ASK(launch_spin(1, NULL));
    ASK(cuStreamSynchronize(free_stream));
    CUdeviceptr p;
    ASK(cuMemAlloc(&p, 4096));
    ASK(cuMemsetD8Async(p, 1, 10, free_stream));
    ASK(cuStreamSynchronize(free_stream));
    ASK(cuStreamDestroy(free_stream));
}

static CUresult from_callback[8];

static void host_function(void *data)
{
    int count;
    size_t a, b;
    CUdeviceptr p;
    from_callback[0] = cuDeviceGetCount(&count);
    from_callback[1] = cuMemGetInfo(&a, &b);
    from_callback[2] = cuMemAlloc(&p, 4096);
    from_callback[3] = cuStreamQuery(data);
    from_callback[4] = cuCtxSynchronize();
    from_callback[5] = cuEventQuery(NULL);
    const char *name;
    from_callback[6] = cuGetErrorName(1, &name);
    from_callback[7] = launch_spin(1, data);
}

static void stream_callback(CUstream stream, CUresult status, void *data)
{
    (void)stream;
    *(CUresult *)data = status;
}

void callbacks(void)
{
    begin();
    CUstream stream;
    CUresult status = (CUresult)77;
    ASK(cuStreamCreate(&stream, 0));
    ASK(cuLaunchHostFunc(stream, NULL, NULL));
    ASK(cuLaunchHostFunc(stream, host_function, stream));
    ASK(cuStreamSynchronize(stream));
    for (int i = 0; i < 8; i++)
        ask("from a host function", from_callback[i]);
    ASK(cuStreamAddCallback(stream, stream_callback, &status, 1));
    ASK(cuStreamAddCallback(stream, stream_callback, &status, 0));
    ASK(cuStreamSynchronize(stream));
    tell("status", status);
    status = (CUresult)77;
    from_callback[0] = (CUresult)77;
    ASK(launch_spin(300000, stream));
    ASK(launch_fill(reserve(BLOCK), 8, stream));
    ASK(cuLaunchHostFunc(stream, host_function, stream));
    ASK(cuStreamAddCallback(stream, stream_callback, &status, 0));
    ASK(cuStreamSynchronize(stream));
    while (status == (CUresult)77)
        usleep(1000);
    tell("status after a fault", status);
    tell("host function ran after a fault", from_callback[0] != 77);
}

static void find(const char *name, int version, cuuint64_t flags)
{
    void *f = (void *)1;
    CUdriverProcAddressQueryResult status = 77;
    char what[128];
    snprintf(what, sizeof what, "\"%s\" %d %llu", name, version, (unsigned long long)flags);
    ask(what, cuGetProcAddress(name, &f, version, flags, &status));
    tell("found", f != NULL && f != (void *)1);
    tell("status", status);
    f = (void *)1;
    ask("without a status", cuGetProcAddress(name, &f, version, flags, NULL));
}

static bool same(const char *name, int version, cuuint64_t flags, const char *other,
                 int other_version, cuuint64_t other_flags)
{
    void *f = (void *)1, *g = (void *)2;
    CUdriverProcAddressQueryResult status;
    cuGetProcAddress(name, &f, version, flags, &status);
    cuGetProcAddress(other, &g, other_version, other_flags, &status);
    return f == g;
}

void proc_addresses(void)
{
    cuInit(0);
    find("cuMemAlloc", 13000, 0);
    find("cuMemAlloc", 3020, 0);
    find("cuMemAlloc", 2000, 0);
    find("cuMemAlloc", 1000, 0);
    find("cuMemAlloc", 20000, 0);
    find("cuMemAlloc_v2", 13000, 0);
    find("cuNothing", 13000, 0);
    find("", 0, 0);
    find("cuInit", 13000, 3);
    find("cuInit", 13000, 4);
    find("cuInit", 13000, 2);
    find("cuLaunchKernel", 13000, 1);
    find("cuLaunchKernel", 13000, 2);
    find("cuLaunchKernel", 4000, 2);
    find("cuCtxGetDevice", 12000, 0);
    find("cuGraphInstantiate", 12000, 0);
    find("cuLaunchKernel_ptsz", 13000, 0);
    void *f;
    tell("versions differ", !same("cuMemAlloc", 13000, 0, "cuMemAlloc", 2000, 0));
    tell("default is legacy", same("cuLaunchKernel", 13000, 0, "cuLaunchKernel", 13000, 1));
    tell("per thread differs", !same("cuLaunchKernel", 13000, 0, "cuLaunchKernel", 13000, 2));
    tell("per thread before it came",
         same("cuLaunchKernel", 4000, 0, "cuLaunchKernel", 4000, 2));
    tell("no streams, no difference", same("cuMemAlloc", 13000, 0, "cuMemAlloc", 13000, 2));
    tell("contexts' device", same("cuCtxGetDevice", 12000, 0, "cuCtxGetDevice", 13000, 0));
    tell("instantiate", same("cuGraphInstantiate", 12000, 0, "cuGraphInstantiateWithFlags", 12000, 0));
    tell("symbols", same("cuMemcpyHtoD", 3020, 0, "cuMemcpyHtoD", 13000, 0));
    f = NULL;
    cuGetProcAddress("cuMemAlloc", &f, 13000, 0, NULL);
    tell("the exported one", f == (void *)cuMemAlloc);
    cuGetProcAddress("cuLaunchKernel", &f, 13000, 2, NULL);
    tell("the exported one", f == (void *)cuLaunchKernel_ptsz);
}

void forked(void)
{
    begin();
    CUdeviceptr p;
    cuMemAlloc(&p, 4096);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        int count, version;
        CUcontext c;
        CUdevice device;
        alarm(20);
        ASK(cuInit(0));
        ASK(cuDriverGetVersion(&version));
        ASK(cuDeviceGetCount(&count));
        ASK(cuCtxGetCurrent(&c));
        ASK(cuCtxGetDevice(&device));
        ASK(cuCtxSynchronize());
        ASK(cuMemFree(p));
        ASK(cuMemAlloc(&p, 4096));
        ASK(cuDevicePrimaryCtxRetain(&c, 0));
        exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    tell("the child ended", status);
    ASK(cuMemFree(p));
    ASK(cuCtxSynchronize());
}

static CUstream exit_stream;

static void after_teardown(void)
{
    int count;
    CUcontext c;
    CUdeviceptr p;
    printf(" at exit\n");
    ASK(cuDeviceGetCount(&count));
    ASK(cuCtxGetCurrent(&c));
    ASK(cuMemAlloc(&p, 4096));
    ASK(cuStreamDestroy(exit_stream));
    ASK(cuCtxSynchronize());
    ASK(cuInit(0));
}

void at_exit(void)
{
    atexit(after_teardown);
    begin();
    CUdeviceptr flag;
    ASK(cuStreamCreate(&exit_stream, 0));
    cuMemAlloc(&flag, 4096);
    cuMemsetD8(flag, 0, 4096);
    ASK(launch_spin(5000000, exit_stream));
}

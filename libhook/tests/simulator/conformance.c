/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conformance [SECTION...]: calls of the driver; the answers of a real card are recorded in
 * conformance.txt. Each section runs in a process of its own.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"

#define MIB ((size_t)1 << 20)
#define BLOCK (2 * MIB)

/* Real PTX of three of the simulated GPU's kernels, so that the same test runs on a card: what each
 * does is said in simulator/engine/kernels.h. */
static const char program_text[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry nvshare_fill(.param .b64 ptr, .param .b64 count, .param .b64 value)\n"
    "{\n"
    "  .reg .pred %p<2>; .reg .b32 %r<8>; .reg .b64 %d<12>;\n"
    "  ld.param.u64 %d1, [ptr]; ld.param.u64 %d2, [count]; ld.param.u64 %d3, [value];\n"
    "  mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;\n"
    "  mad.lo.u32 %r4, %r1, %r2, %r3; cvt.u64.u32 %d4, %r4;\n"
    "  mov.u32 %r5, %nctaid.x; mul.lo.u32 %r6, %r5, %r2; cvt.u64.u32 %d5, %r6;\n"
    "  mov.u64 %d9, 0x9E3779B97F4A7C15;\n"
    "again:\n"
    "  setp.ge.u64 %p1, %d4, %d2; @%p1 bra done;\n"
    "  mad.lo.u64 %d6, %d4, %d9, %d3;\n"
    "  shl.b64 %d7, %d4, 3; add.u64 %d8, %d1, %d7; st.global.u64 [%d8], %d6;\n"
    "  add.u64 %d4, %d4, %d5; bra again;\n"
    "done:\n"
    "  ret;\n"
    "}\n"
    ".visible .entry nvshare_spin(.param .b64 microseconds)\n"
    "{\n"
    "  .reg .pred %p<2>; .reg .b64 %d<8>;\n"
    "  ld.param.u64 %d1, [microseconds]; mul.lo.u64 %d1, %d1, 1000;\n"
    "  mov.u64 %d2, %globaltimer; add.u64 %d1, %d1, %d2;\n"
    "again:\n"
    "  mov.u64 %d3, %globaltimer; setp.lt.u64 %p1, %d3, %d1; @%p1 bra again;\n"
    "  ret;\n"
    "}\n"
    ".visible .entry nvshare_wait_flag(.param .b64 ptr, .param .b64 value)\n"
    "{\n"
    "  .reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %d<4>;\n"
    "  ld.param.u64 %d1, [ptr]; ld.param.u64 %d2, [value]; cvt.u32.u64 %r1, %d2;\n"
    "again:\n"
    "  ld.volatile.global.u32 %r2, [%d1]; setp.ne.u32 %p1, %r2, %r1; @%p1 bra again;\n"
    "  ret;\n"
    "}\n";

static const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                               .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
static CUcontext context;
static CUfunction fill, spin;

/* Prints the name of what the call returned, with what was called. */
#define ASK(call) ask(#call, call)
static void ask(const char *what, CUresult result)
{
    const char *name = NULL;
    cuGetErrorName(result, &name);
    if (name == NULL)
        printf("  %s: %d\n", what, (int)result);
    else
        printf("  %s: %s\n", what, name);
    fflush(stdout);
}

/* The same for a value that any card gives alike. */
static void tell(const char *what, long long value)
{
    printf("  %s = %lld\n", what, value);
    fflush(stdout);
}

static void require(CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS)
        return;
    ask(what, result);
    exit(1);
}

/* Most sections begin so: the primary context of device 0 is current. */
static void begin(void)
{
    CUmodule module;
    require(cuInit(0), "cuInit");
    require(cuDevicePrimaryCtxRetain(&context, 0), "retain");
    require(cuCtxSetCurrent(context), "set current");
    require(cuModuleLoadData(&module, program_text), "load");
    require(cuModuleGetFunction(&fill, module, "nvshare_fill"), "fill");
    require(cuModuleGetFunction(&spin, module, "nvshare_spin"), "spin");
}

static CUresult launch_fill(CUdeviceptr address, uint64_t words, CUstream stream)
{
    uint64_t value = 1;
    void *parameters[] = {&address, &words, &value};
    return cuLaunchKernel(fill, 8, 1, 1, 128, 1, 1, 0, stream, parameters, NULL);
}

static CUresult launch_spin(uint64_t microseconds, CUstream stream)
{
    void *parameters[] = {&microseconds};
    return cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

static CUmemGenericAllocationHandle create_block(size_t size)
{
    CUmemGenericAllocationHandle handle = 0;
    require(cuMemCreate(&handle, size, &properties, 0), "create_block");
    return handle;
}

static CUdeviceptr reserve(size_t size)
{
    CUdeviceptr address = 0;
    require(cuMemAddressReserve(&address, size, 0, 0, 0), "reserve");
    return address;
}

static CUresult open_access(CUdeviceptr address, size_t size)
{
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                              CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    return cuMemSetAccess(address, size, &access, 1);
}

static CUdeviceptr mapped_block(size_t size, CUmemGenericAllocationHandle *handle)
{
    CUdeviceptr address = reserve(size);
    *handle = create_block(size);
    require(cuMemMap(address, size, 0, *handle, 0), "map");
    require(open_access(address, size), "access");
    return address;
}

/* What is ready before any capture, for calls to be about. */
struct ready {
    CUstream stream, blocking, side, created;
    CUevent recorded, event, made, never;
    CUdeviceptr memory, mapped, reserved, fresh, spare_memory;
    CUmemGenericAllocationHandle handle, spare;
    void *host, *pinned, *spare_pinned, *registered;
    CUcontext context;
    CUmodule module;
    CUgraph graph;
    CUgraphExec exec;
    CUmemAllocationProp properties;
    size_t a, b;
    float ms;
    uint64_t word;
};
static struct ready it;

static void prepare(void)
{
    begin();
    it.properties = (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                          .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    cuStreamCreate(&it.stream, CU_STREAM_NON_BLOCKING);
    cuStreamCreate(&it.side, CU_STREAM_NON_BLOCKING);
    cuStreamCreate(&it.blocking, CU_STREAM_DEFAULT);
    cuEventCreate(&it.recorded, 0);
    cuEventCreate(&it.event, 0);
    cuEventCreate(&it.never, 0);
    cuEventRecord(it.recorded, it.side);
    cuMemAlloc(&it.memory, 4 * MIB);
    it.mapped = mapped_block(BLOCK, &it.handle);
    it.reserved = reserve(8 * BLOCK);
    it.host = aligned_alloc(4096, 65536);
    it.registered = aligned_alloc(4096, 65536);
    cuMemHostAlloc(&it.pinned, 65536, 0);
    cuGraphCreate(&it.graph, 0);
    cuGraphInstantiate(&it.exec, it.graph, 0);
    cuCtxSynchronize();
}

static void nothing(void *data)
{
    (void)data;
}

/* It must not become current, or the capture could not be ended. */
static CUresult create_context(void)
{
    CUresult result = cuCtxCreate(&it.context, NULL, 0, 0);
    if (result == CUDA_SUCCESS)
        cuCtxPopCurrent(&it.context);
    return result;
}

/* Calls that the driver may refuse during a capture. Each stands
 * after what it needs; those that free stand last. */
#define CALLS                                                                            \
    CALL(cuMemGetInfo(&it.a, &it.b))                                                     \
    CALL(cuCtxGetCurrent(&it.context))                                                   \
    CALL(cuMemAlloc(&it.spare_memory, 4096))                                             \
    CALL(cuMemAlloc(&it.spare_memory, 4 * MIB))                                          \
    CALL(cuMemFree(it.spare_memory))                                                     \
    CALL(cuMemHostAlloc(&it.spare_pinned, 65536, 0))                                     \
    CALL(cuMemFreeHost(it.spare_pinned))                                                 \
    CALL(cuMemAllocManaged(&it.fresh, 4096, CU_MEM_ATTACH_GLOBAL))                       \
    CALL(cuMemFree(it.fresh))                                                            \
    CALL(cuMemHostRegister(it.registered, 65536, 0))                                     \
    CALL(cuMemHostUnregister(it.registered))                                             \
    CALL(cuMemAddressReserve(&it.fresh, BLOCK, 0, 0, 0))                                 \
    CALL(cuMemCreate(&it.spare, BLOCK, &it.properties, 0))                               \
    CALL(cuMemMap(it.reserved, BLOCK, 0, it.spare, 0))                                   \
    CALL(open_access(it.reserved, BLOCK))                                                \
    CALL(cuMemUnmap(it.reserved, BLOCK))                                                 \
    CALL(cuMemRelease(it.spare))                                                         \
    CALL(cuMemAddressFree(it.fresh, BLOCK))                                              \
    CALL(cuStreamCreate(&it.created, CU_STREAM_NON_BLOCKING))                            \
    CALL(cuStreamQuery(it.side))                                                         \
    CALL(cuStreamSynchronize(it.side))                                                   \
    CALL(cuStreamDestroy(it.created))                                                    \
    CALL(cuEventCreate(&it.made, 0))                                                     \
    CALL(cuEventRecord(it.made, it.side))                                                \
    CALL(cuEventQuery(it.recorded))                                                      \
    CALL(cuEventSynchronize(it.recorded))                                                \
    CALL(cuEventElapsedTime(&it.ms, it.recorded, it.recorded))                           \
    CALL(cuEventDestroy(it.made))                                                        \
    CALL(launch_spin(1, it.side))                                                        \
    CALL(cuMemcpyHtoDAsync(it.memory, it.pinned, 64, it.side))                           \
    CALL(cuMemcpyHtoDAsync(it.memory, it.host, 64, it.side))                             \
    CALL(cuMemcpyHtoD(it.memory, it.host, 64))                                           \
    CALL(cuMemcpyDtoH(it.host, it.memory, 64))                                           \
    CALL(cuMemcpyDtoD(it.memory, it.memory + 4096, 64))                                  \
    CALL(cuMemsetD8(it.memory, 1, 64))                                                   \
    CALL(cuMemsetD8Async(it.memory, 1, 64, it.side))                                     \
    CALL(launch_spin(1, NULL))                                                           \
    CALL(cuStreamQuery(NULL))                                                            \
    CALL(cuStreamSynchronize(NULL))                                                      \
    CALL(launch_spin(1, it.blocking))                                                    \
    CALL(cuStreamSynchronize(it.blocking))                                               \
    CALL(cuModuleLoadData(&it.module, program_text))                                     \
    CALL(cuModuleUnload(it.module))                                                      \
    CALL(cuGraphInstantiate(&it.exec, it.graph, 0))                                      \
    CALL(cuGraphLaunch(it.exec, it.side))                                                \
    CALL(cuMemAllocAsync(&it.fresh, 4096, it.side))                                      \
    CALL(cuMemFreeAsync(it.fresh, it.side))                                              \
    CALL(cuLaunchHostFunc(it.side, nothing, NULL))                                       \
    CALL(cuCtxSynchronize())                                                             \
    CALL(cuCtxRecordEvent(context, it.event))                                            \
    CALL(cuDevicePrimaryCtxRetain(&it.context, 0))                                       \
    CALL(cuDevicePrimaryCtxRelease(0))                                                   \
    CALL(create_context())                                                               \
    CALL(cuCtxDestroy(it.context))

/* One call, from this thread or from another, and what became of the capture. */
struct question {
    int number;
    CUstreamCaptureMode thread_mode;
    CUresult result;
    const char *what;
};

static CUresult make_call(int number, const char **what)
{
    int i = 0;
#define CALL(call)                                                                       \
    if (i++ == number) {                                                                 \
        *what = #call;                                                                   \
        return call;                                                                     \
    }
    CALLS
#undef CALL
    *what = NULL;
    return CUDA_SUCCESS;
}

static void *ask_elsewhere(void *data)
{
    struct question *question = data;
    CUstreamCaptureMode mode = question->thread_mode;
    cuCtxSetCurrent(context);
    cuThreadExchangeStreamCaptureMode(&mode);
    question->result = make_call(question->number, &question->what);
    return NULL;
}

static void ask_in_capture(CUstreamCaptureMode mode, bool elsewhere, CUstream stream)
{
    for (int i = 0;; i++) {
        struct question question = {.number = i};
        CUgraph graph = NULL;
        CUresult begun = cuStreamBeginCapture(stream, mode);
        if (begun != CUDA_SUCCESS)
            ask("begin", begun);
        pthread_t thread;
        if (elsewhere) {
            pthread_create(&thread, NULL, ask_elsewhere, &question);
            pthread_join(thread, NULL);
        } else {
            question.result = make_call(i, &question.what);
        }
        CUresult ended = cuStreamEndCapture(stream, &graph);
        if (question.what == NULL)
            break;
        const char *name = "?", *end = "?";
        cuGetErrorName(question.result, &name);
        cuGetErrorName(ended, &end);
        printf("  %s: %s%s%s\n", question.what, name, ended != CUDA_SUCCESS ? ", then " : "",
               ended != CUDA_SUCCESS ? end : "");
        fflush(stdout);
        if (question.result != CUDA_SUCCESS) {       /* so that what follows finds what it needs */
            make_call(i, &question.what);
        }
        if (graph != NULL)
            cuGraphDestroy(graph);
        cuCtxSynchronize();
    }
}

#define IN_CAPTURE(name, mode, elsewhere, stream)                                        \
    static void name(void)                                                                   \
    {                                                                                    \
        prepare();                                                                       \
        ask_in_capture(CU_STREAM_CAPTURE_MODE_##mode, elsewhere, it.stream);             \
    }

IN_CAPTURE(capture_own_global, GLOBAL, false, stream)
IN_CAPTURE(capture_own_thread_local, THREAD_LOCAL, false, stream)
IN_CAPTURE(capture_own_relaxed, RELAXED, false, stream)
IN_CAPTURE(capture_other_global, GLOBAL, true, stream)
IN_CAPTURE(capture_other_thread_local, THREAD_LOCAL, true, stream)
IN_CAPTURE(capture_other_relaxed, RELAXED, true, blocking)

static void *end_elsewhere(void *data)
{
    cuCtxSetCurrent(context);
    CUgraph graph;
    ask("end in another thread", cuStreamEndCapture(data, &graph));
    return NULL;
}

static void end_in_thread(CUstream stream)
{
    pthread_t thread;
    pthread_create(&thread, NULL, end_elsewhere, stream);
    pthread_join(thread, NULL);
}

static void capture_rules(void)
{
    prepare();
    CUgraph graph = NULL;
    CUstreamCaptureStatus status;
    cuuint64_t id;
    size_t count = 77;
    ASK(cuStreamEndCapture(it.stream, &graph));
    ASK(cuStreamBeginCapture(NULL, 0));
    ASK(cuStreamBeginCapture(CU_STREAM_LEGACY, 0));
    ASK(cuStreamBeginCapture(it.stream, 7));
    ASK(cuStreamIsCapturing(it.stream, &status));
    tell("status", status);
    ASK(cuStreamBeginCapture(it.stream, 0));
    ASK(cuStreamBeginCapture(it.stream, 0));
    ASK(cuStreamIsCapturing(it.stream, &status));
    tell("status", status);
    printf(" on the captured stream\n");
    ASK(launch_spin(1, it.stream));
    ASK(cuMemcpyHtoDAsync(it.memory, it.pinned, 64, it.stream));
    ASK(cuMemcpyHtoDAsync(it.memory, it.host, 64, it.stream));
    ASK(cuMemcpyDtoHAsync(it.host, it.memory, 64, it.stream));
    ASK(cuMemsetD8Async(it.memory, 1, 64, it.stream));
    ASK(cuStreamWriteValue32(it.stream, it.memory, 1, 0));
    ASK(cuEventRecordWithFlags(it.event, it.stream, CU_EVENT_RECORD_EXTERNAL));
    ASK(cuLaunchHostFunc(it.stream, nothing, NULL));
    ASK(cuMemAllocAsync(&it.fresh, 4096, it.stream));
    ASK(cuMemFreeAsync(it.fresh, it.stream));
    ASK(cuStreamWaitEvent(it.stream, it.never, 0));
    ASK(cuStreamGetCaptureInfo(it.stream, &status, &id, &graph, NULL, NULL, &count));
    tell("status", status);
    tell("ends", (long long)count);
    ASK(cuGraphGetNodes(graph, NULL, &count));
    tell("nodes", (long long)count);
    ASK(cuStreamEndCapture(it.stream, &graph));
    tell("graph", graph != NULL);
    ASK(cuGraphInstantiate(&it.exec, graph, 0));
    ASK(cuGraphLaunch(it.exec, it.side));
    ASK(cuStreamSynchronize(it.side));
    ASK(cuEventQuery(it.event));
    CUgraph plain;
    ASK(cuStreamBeginCapture(it.stream, 0));
    ASK(launch_spin(1, it.stream));
    ASK(cuEventRecord(it.event, it.stream));
    ASK(cuStreamEndCapture(it.stream, &plain));
    ASK(cuEventQuery(it.event));
    ASK(cuEventSynchronize(it.event));
    ASK(cuStreamWaitEvent(it.side, it.event, 0));
    ASK(cuEventRecord(it.event, it.side));
    ASK(cuEventSynchronize(it.event));
    ASK(cuGraphInstantiate(&it.exec, plain, 0));
    ASK(cuStreamBeginCapture(it.stream, 0));
    ASK(cuGraphLaunch(it.exec, it.stream));
    ASK(cuStreamEndCapture(it.stream, &graph));
    printf(" breaking\n");
    ASK(cuStreamBeginCapture(it.stream, 0));
    ASK(cuStreamSynchronize(it.stream));
    ASK(cuStreamIsCapturing(it.stream, &status));
    tell("status", status);
    ASK(launch_spin(1, it.stream));
    ASK(cuMemAlloc(&it.fresh, 4096));
    ASK(cuStreamEndCapture(it.stream, &graph));
    tell("graph", graph != NULL);
    ASK(cuStreamBeginCapture(it.stream, 0));
    ASK(cuStreamQuery(it.stream));
    ASK(cuStreamEndCapture(it.stream, &graph));
    ASK(cuStreamBeginCapture(it.stream, 0));
    ASK(cuStreamWaitEvent(it.stream, it.recorded, 0));
    ASK(cuStreamEndCapture(it.stream, &graph));
    printf(" joining\n");
    ASK(cuStreamBeginCapture(it.stream, 0));
    ASK(cuEventRecord(it.event, it.stream));
    ASK(cuEventQuery(it.event));
    ASK(cuStreamEndCapture(it.stream, &graph));
    ASK(cuEventQuery(it.event));
    ASK(cuStreamWaitEvent(it.side, it.event, 0));
    ASK(cuStreamBeginCapture(it.stream, 0));
    ASK(launch_spin(1, it.stream));
    ASK(cuEventRecord(it.event, it.stream));
    ASK(cuStreamWaitEvent(it.side, it.event, 0));
    ASK(cuStreamIsCapturing(it.side, &status));
    tell("joined", status);
    ASK(launch_spin(1, it.side));
    ASK(cuStreamEndCapture(it.stream, &graph));
    ASK(cuStreamIsCapturing(it.side, &status));
    tell("after", status);
    ASK(cuStreamBeginCapture(it.stream, 0));
    ASK(launch_spin(1, it.stream));
    ASK(cuEventRecord(it.event, it.stream));
    ASK(cuStreamWaitEvent(it.side, it.event, 0));
    ASK(cuStreamEndCapture(it.stream, &graph));
    tell("joined without work, graph", graph != NULL);
    ASK(cuStreamBeginCapture(it.stream, 0));
    ASK(cuEventRecord(it.event, it.stream));
    ASK(cuStreamWaitEvent(it.side, it.event, 0));
    ASK(launch_spin(1, it.side));
    ASK(cuEventRecord(it.event, it.side));
    ASK(cuStreamWaitEvent(it.stream, it.event, 0));
    ASK(cuStreamEndCapture(it.side, &graph));
    ASK(cuStreamEndCapture(it.stream, &graph));
    ASK(cuStreamBeginCapture(it.stream, 0));
    ASK(cuStreamBeginCapture(it.side, 0));
    ASK(cuEventRecord(it.event, it.side));
    ASK(cuStreamWaitEvent(it.stream, it.event, 0));
    ASK(cuStreamEndCapture(it.stream, &graph));
    ASK(cuStreamEndCapture(it.side, &graph));
    printf(" the NULL stream\n");
    ASK(cuStreamBeginCapture(it.blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    ASK(cuStreamIsCapturing(NULL, &status));
    ASK(cuStreamIsCapturing(it.blocking, &status));
    tell("status", status);
    ASK(launch_spin(1, NULL));
    ASK(cuStreamEndCapture(it.blocking, &graph));
    ASK(cuStreamBeginCapture(it.blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    ASK(cuMemcpyHtoD(it.memory, it.host, 64));
    ASK(cuStreamEndCapture(it.blocking, &graph));
    ASK(cuStreamBeginCapture(it.blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    ASK(cuMemAlloc(&it.fresh, 4096));
    ASK(cuMemFree(it.fresh));
    ASK(cuStreamEndCapture(it.blocking, &graph));
    ASK(cuStreamBeginCapture(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_RELAXED));
    ASK(launch_spin(1, CU_STREAM_PER_THREAD));
    ASK(cuStreamEndCapture(CU_STREAM_PER_THREAD, &graph));
    printf(" threads\n");
    ASK(cuStreamBeginCapture(it.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    end_in_thread(it.stream);
    ASK(cuStreamEndCapture(it.stream, &graph));
    ASK(cuStreamBeginCapture(it.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    end_in_thread(it.stream);
    printf(" destroying\n");
    ASK(cuStreamCreate(&it.created, CU_STREAM_NON_BLOCKING));
    ASK(cuStreamBeginCapture(it.created, CU_STREAM_CAPTURE_MODE_RELAXED));
    ASK(cuStreamDestroy(it.created));
    ASK(cuMemAlloc(&it.fresh, 4096));
    CUstreamCaptureMode mode = 7;
    ASK(cuThreadExchangeStreamCaptureMode(&mode));
    mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    ASK(cuThreadExchangeStreamCaptureMode(&mode));
    tell("mode before", mode);
    ASK(cuStreamBeginCapture(it.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    ASK(cuMemAlloc(&it.fresh, 4096));
    ASK(cuMemFree(it.fresh));
    ASK(cuEventQuery(it.recorded));
    ASK(cuStreamSynchronize(it.side));
    ASK(cuCtxSynchronize());
    ASK(cuStreamEndCapture(it.stream, &graph));
}

static void capture_context(void)
{
    prepare();
    CUgraph graph = NULL;
    CUcontext other;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    ASK(cuThreadExchangeStreamCaptureMode(&mode));
    ASK(cuCtxCreate(&other, NULL, 0, 0));
    ASK(cuCtxSetCurrent(context));
    ASK(cuStreamBeginCapture(it.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    ASK(cuCtxSetCurrent(other));
    ASK(cuCtxSynchronize());
    ASK(cuStreamEndCapture(it.stream, &graph));
    ASK(cuCtxSetCurrent(context));
    ASK(cuStreamEndCapture(it.stream, &graph));
    ASK(cuStreamBeginCapture(it.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    ASK(cuCtxSynchronize());
    ASK(cuStreamEndCapture(it.stream, &graph));
    ASK(cuStreamBeginCapture(it.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    ASK(cuCtxRecordEvent(context, it.event));
    ASK(cuStreamEndCapture(it.stream, &graph));
    ASK(cuStreamBeginCapture(it.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    ASK(cuCtxWaitEvent(context, it.recorded));
    ASK(cuStreamEndCapture(it.stream, &graph));
    ASK(cuStreamBeginCapture(it.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    ASK(cuMemUnmap(it.mapped, BLOCK));
    ASK(cuMemRelease(it.handle));
    ASK(cuStreamEndCapture(it.stream, &graph));
    ASK(cuStreamBeginCapture(it.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    ASK(cuDevicePrimaryCtxReset(0));
}

/* Conformance: what is left of a context after a fault. */

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

static void fault_kernel(void)
{
    begin();
    CUstream stream;
    CUevent event;
    CUdeviceptr p;
    ASK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    ASK(cuEventCreate(&event, 0));
    ASK(cuMemAlloc(&p, 4096));
    launch_spin(200000, stream);     /* the fault comes behind cuEventRecord() */
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

static void fault_access(void)
{
    begin();
    CUdeviceptr p = reserve(BLOCK);
    ASK(cuMemMap(p, BLOCK, 0, create_block(BLOCK), 0));
    ASK(launch_fill(p, 8, NULL));
    ASK(cuCtxSynchronize());
}

static void fault_copy(void)
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

static void fault_copy_async(void)
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

static void fault_set(void)
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
static void fault_elsewhere(void)
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

static void fault_peek(void)
{
    begin();
    CUdeviceptr p;
    ASK(cuMemAlloc(&p, 4096));
    volatile char *pointer = (volatile char *)(uintptr_t)p;
    tell("a device pointer on the host", *pointer);
}

/* Conformance: graphs. */

static void graphs(void)
{
    prepare();
    CUgraph graph, child;
    CUgraphNode first, second, third, fourth, fifth, nodes[8];
    CUgraphExec exec;
    CUgraphNodeType type;
    size_t count = 8;
    uint64_t words = 512, value = 3;
    void *parameters[] = {&it.memory, &words, &value};
    CUDA_KERNEL_NODE_PARAMS kernel = {.func = fill, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1,
                                      .blockDimX = 32, .blockDimY = 1, .blockDimZ = 1,
                                      .kernelParams = parameters};
    CUDA_MEMSET_NODE_PARAMS set = {.dst = it.memory + 4096, .value = 0x55, .elementSize = 1,
                                   .width = 4096, .height = 1};
    CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = it.memory,
                          .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = it.pinned,
                          .WidthInBytes = 8192, .Height = 1, .Depth = 1};
    CUDA_HOST_NODE_PARAMS host = {nothing, NULL};
    ASK(cuGraphCreate(&graph, 1));
    ASK(cuGraphCreate(&graph, 0));
    ASK(cuGraphAddKernelNode(&first, graph, NULL, 0, &kernel));
    ASK(cuGraphAddMemsetNode(&second, graph, &first, 1, &set, context));
    ASK(cuGraphAddMemcpyNode(&third, graph, &second, 1, &copy, context));
    ASK(cuGraphAddHostNode(&fourth, graph, &third, 1, &host));
    ASK(cuGraphAddEmptyNode(&fifth, graph, NULL, 0));
    ASK(cuGraphGetNodes(graph, nodes, &count));
    tell("nodes", (long long)count);
    count = 8;
    ASK(cuGraphGetRootNodes(graph, nodes, &count));
    tell("roots", (long long)count);
    ASK(cuGraphNodeGetType(third, &type));
    tell("type", type);
    CUDA_KERNEL_NODE_PARAMS got = {0};
    ASK(cuGraphKernelNodeGetParams(first, &got));
    tell("function", got.func == fill);
    tell("block", got.blockDimX);
    tell("argument", got.kernelParams != NULL ? (long long)*(uint64_t *)got.kernelParams[1] : -1);
    ASK(cuGraphKernelNodeGetParams(second, &got));
    CUDA_MEMSET_NODE_PARAMS got_set = {0};
    ASK(cuGraphMemsetNodeGetParams(second, &got_set));
    tell("width", (long long)got_set.width);
    CUDA_MEMCPY3D got_copy = {0};
    ASK(cuGraphMemcpyNodeGetParams(third, &got_copy));
    tell("width", (long long)got_copy.WidthInBytes);
    tell("type", got_copy.dstMemoryType);
    ASK(cuGraphInstantiate(&exec, graph, 0));
    ASK(cuGraphLaunch(exec, it.stream));
    ASK(cuStreamSynchronize(it.stream));
    const uint64_t *result = it.pinned;
    tell("filled", result[1] == 3 + 0x9E3779B97F4A7C15ull);
    tell("set", result[600] == 0x5555555555555555ull);
    value = 9;
    ASK(cuGraphExecKernelNodeSetParams(exec, first, &kernel));
    set.value = 0x66;
    ASK(cuGraphExecMemsetNodeSetParams(exec, second, &set, context));
    ASK(cuGraphLaunch(exec, it.stream));
    ASK(cuStreamSynchronize(it.stream));
    tell("filled", result[0] == 9);
    tell("set", result[600] == 0x6666666666666666ull);
    ASK(cuGraphNodeSetEnabled(exec, second, 0));
    unsigned enabled = 77;
    ASK(cuGraphNodeGetEnabled(exec, second, &enabled));
    tell("enabled", enabled);
    ASK(cuMemsetD8(it.memory + 4096, 0, 4096));
    ASK(cuCtxSynchronize());
    ASK(cuGraphLaunch(exec, it.stream));
    ASK(cuStreamSynchronize(it.stream));
    tell("not set", result[600] == 0);
    CUgraphExecUpdateResultInfo info = {0};
    value = 11;
    ASK(cuGraphKernelNodeSetParams(first, &kernel));
    ASK(cuGraphExecUpdate(exec, graph, &info));
    tell("result", info.result);
    ASK(cuGraphLaunch(exec, it.stream));
    ASK(cuStreamSynchronize(it.stream));
    tell("filled", result[0] == 11);
    ASK(cuGraphClone(&child, graph));
    ASK(cuGraphDestroyNode(fifth));
    ASK(cuGraphExecUpdate(exec, graph, &info));
    tell("result", info.result);
    CUgraph parent;
    ASK(cuGraphCreate(&parent, 0));
    ASK(cuGraphAddChildGraphNode(&first, parent, NULL, 0, child));
    ASK(cuGraphAddEventRecordNode(&second, parent, &first, 1, it.event));
    ASK(cuGraphAddEventWaitNode(&third, parent, NULL, 0, it.recorded));
    ASK(cuGraphDestroy(child));
    CUgraphExec whole;
    ASK(cuGraphInstantiate(&whole, parent, 0));
    memset(it.pinned, 0, 64);
    ASK(cuGraphLaunch(whole, it.stream));
    ASK(cuEventSynchronize(it.event));
    tell("filled", result[0] == 11);
    ASK(cuGraphAddDependencies(parent, &second, &third, NULL, 1));
    ASK(cuGraphAddDependencies(parent, &third, &second, NULL, 1));
    CUgraphExec circle;
    ASK(cuGraphInstantiate(&circle, parent, 0));
    ASK(cuGraphExecDestroy(whole));
    ASK(cuGraphDestroy(parent));
    ASK(cuGraphDestroy(graph));
    ASK(cuGraphLaunch(exec, it.stream));
    ASK(cuStreamSynchronize(it.stream));
    ASK(cuGraphExecDestroy(exec));
    /* A launch that outlives its executable graph. */
    ASK(cuGraphCreate(&graph, 0));
    uint64_t microseconds = 100000;
    void *spin_parameters[] = {&microseconds};
    kernel.func = spin;
    kernel.kernelParams = spin_parameters;
    ASK(cuGraphAddKernelNode(&first, graph, NULL, 0, &kernel));
    ASK(cuGraphInstantiate(&exec, graph, 0));
    ASK(cuGraphLaunch(exec, it.stream));
    ASK(cuGraphExecDestroy(exec));
    ASK(cuStreamQuery(it.stream));
    ASK(cuStreamSynchronize(it.stream));
}

static void addresses(void)
{
    begin();
    CUdeviceptr a = 0, b = 0, whole;
    ASK(cuMemAddressReserve(&a, BLOCK, 0, 0, 0));
    ASK(cuMemAddressReserve(&b, 4096, 0, 0, 0));
    ASK(cuMemAddressReserve(&b, BLOCK + 4096, 0, 0, 0));
    ASK(cuMemAddressReserve(&b, 0, 0, 0, 0));
    ASK(cuMemAddressReserve(&b, BLOCK, 3, 0, 0));
    ASK(cuMemAddressReserve(&b, BLOCK, 0, 0, 1));
    ASK(cuMemAddressReserve(&whole, (size_t)4 << 40, 0, 0, 0));
    ASK(cuMemAddressFree(whole, (size_t)4 << 40));
    ASK(cuMemAddressReserve(&whole, (size_t)1 << 60, 0, 0, 0));
    b = 0;
    ASK(cuMemAddressReserve(&b, BLOCK, 0, a, 0));
    tell("a taken hint gives another address", b != 0 && b != a);
    ASK(cuMemAddressFree(b, BLOCK));
    CUdeviceptr again = 0;
    ASK(cuMemAddressReserve(&again, BLOCK, 0, b, 0));
    tell("a free hint is taken", again == b);
    ASK(cuMemAddressReserve(&b, 4 * BLOCK, 64 * MIB, 0, 0));
    tell("aligned", b % (64 * MIB) == 0);
    ASK(cuMemAddressFree(b, BLOCK));
    ASK(cuMemAddressFree(b + BLOCK, BLOCK));
    ASK(cuMemAddressFree(b, 4 * BLOCK));
    ASK(cuMemAddressFree(b, 4 * BLOCK));
    CUmemGenericAllocationHandle handle;
    CUdeviceptr used = mapped_block(BLOCK, &handle);
    ASK(cuMemAddressFree(used, BLOCK));
    ASK(cuMemUnmap(used, BLOCK));
}

static void mappings(void)
{
    begin();
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemGenericAllocationHandle h, two, other;
    size_t grain = 0;
    ASK(cuMemGetAllocationGranularity(&grain, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    tell("minimum", (long long)grain);
    ASK(cuMemGetAllocationGranularity(&grain, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    tell("recommended", (long long)grain);
    ASK(cuMemCreate(&h, 4096, &properties, 0));
    ASK(cuMemCreate(&h, 0, &properties, 0));
    ASK(cuMemCreate(&h, BLOCK, NULL, 0));
    ASK(cuMemCreate(&h, (size_t)1 << 50, &properties, 0));
    properties.location.id = 99;
    ASK(cuMemCreate(&h, BLOCK, &properties, 0));
    properties.location.id = 0;
    properties.type = CU_MEM_ALLOCATION_TYPE_INVALID;
    ASK(cuMemCreate(&h, BLOCK, &properties, 0));
    CUdeviceptr a = reserve(8 * BLOCK);
    h = create_block(BLOCK);
    two = create_block(2 * BLOCK);
    other = create_block(BLOCK);
    ASK(cuMemMap(a, 4096, 0, h, 0));
    ASK(cuMemMap(a + 4096, BLOCK, 0, h, 0));
    ASK(cuMemMap(a, 2 * BLOCK, 0, h, 0));
    ASK(cuMemMap(a, BLOCK, BLOCK, two, 0));
    ASK(cuMemMap(a, BLOCK, 0, two, 0));
    ASK(cuMemUnmap(a, BLOCK));
    ASK(cuMemMap(a, BLOCK, 0, h, 1));
    ASK(cuMemMap(a, BLOCK, 0, h, 0));
    ASK(cuMemMap(a, BLOCK, 0, other, 0));
    ASK(cuMemMap(a + 8 * BLOCK, BLOCK, 0, other, 0));
    ASK(cuMemMap(a + BLOCK, 2 * BLOCK, 0, two, 0));
    ASK(cuMemMap(a + 3 * BLOCK, BLOCK, 0, h, 0));
    ASK(open_access(a, 8 * BLOCK));
    ASK(open_access(a + BLOCK, BLOCK));
    ASK(open_access(a, 4 * BLOCK));
    ASK(open_access(a + 5 * BLOCK, BLOCK));
    ASK(cuMemSetAccess(a, BLOCK, NULL, 0));
    CUmemLocation here = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    unsigned long long flags = 9;
    ASK(cuMemGetAccess(&flags, &here, a));
    tell("access", (long long)flags);
    ASK(cuMemGetAccess(&flags, &here, a + 5 * BLOCK));
    ASK(cuMemUnmap(a + BLOCK, BLOCK));
    ASK(cuMemUnmap(a + 5 * BLOCK, BLOCK));
    ASK(cuMemUnmap(a, 0));
    ASK(cuMemUnmap(a, 4096));
    ASK(cuMemUnmap(a, 3 * BLOCK));
    ASK(cuMemUnmap(a, BLOCK));
    CUmemGenericAllocationHandle again = 0;
    ASK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(a + 3 * BLOCK + 100)));
    tell("the same handle", again == h);
    ASK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)a));
    ASK(cuMemRelease(h));
    ASK(launch_fill(a + 3 * BLOCK, BLOCK / 8, NULL));
    ASK(cuCtxSynchronize());
    ASK(cuMemUnmap(a, 5 * BLOCK));
    ASK(cuMemUnmap(a, 9 * BLOCK));
    ASK(cuMemUnmap(0x1000000, BLOCK));
    ASK(cuMemRelease(two));
    ASK(cuMemRelease(other));
    CUmemAllocationProp got = {0};
    h = create_block(BLOCK);
    ASK(cuMemGetAllocationPropertiesFromHandle(&got, h));
    tell("type", got.type);
    tell("location type", got.location.type);
    size_t before, after, total;
    ASK(cuMemGetInfo(&before, &total));
    two = create_block(64 * MIB);
    ASK(cuMemGetInfo(&after, &total));
    tell("counted", (long long)(before - after) / (long long)MIB);
    ASK(cuMemRelease(two));
    ASK(cuMemGetInfo(&after, &total));
    tell("counted after release", (long long)(before - after));
    ASK(cuMemRelease(0));
    ASK(cuMemRelease(two));
}

static void describe(const char *what, CUdeviceptr p)
{
    unsigned type = 77, managed = 77, mapped = 77;
    int ordinal = 77, capable = 77;
    size_t range = 77;
    CUdeviceptr start = p, base = p;
    size_t size = 77;
    void *host = NULL;
    printf(" %s\n", what);
    ASK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p));
    tell("type", type);
    ASK(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, p));
    tell("managed", managed & 0xff);
    ASK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p));
    tell("ordinal", ordinal);
    ASK(cuPointerGetAttribute(&mapped, CU_POINTER_ATTRIBUTE_MAPPED, p));
    tell("mapped", mapped & 0xff);
    ASK(cuPointerGetAttribute(&range, CU_POINTER_ATTRIBUTE_RANGE_SIZE, p));
    tell("range", (long long)range);
    ASK(cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, p));
    tell("offset", (long long)(p - start));
    ASK(cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, p));
    tell("host", host != NULL);
    ASK(cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, p));
    tell("device pointer", start == p);
    ASK(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, p));
    tell("capable", capable & 0xff);
    CUcontext owner = NULL;
    ASK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, p));
    tell("owner", owner == context ? 1 : owner == NULL ? 0 : -1);
    unsigned long long id = 0;
    ASK(cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, p));
    tell("id", id != 0);
    CUmemoryPool pool = (CUmemoryPool)1;
    ASK(cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, p));
    tell("pool", pool != NULL);
    size = 77;
    ASK(cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, p));
    tell("mapping size", (long long)size);
    ASK(cuPointerGetAttribute(&base, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, p));
    tell("mapping offset", (long long)(p - base));
    CUresult found = cuMemGetAddressRange(&base, &size, p);
    ask("cuMemGetAddressRange", found);
    tell("size", (long long)size);
    tell("base offset", found == CUDA_SUCCESS ? (long long)(p - base) : -1);
    CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_CONTEXT};
    type = 77;
    void *values[] = {&type, &owner};
    ASK(cuPointerGetAttributes(2, names, values, p));
    tell("type", type);
}

static void pointers(void)
{
    begin();
    CUdeviceptr p, managed;
    CUmemGenericAllocationHandle handle;
    void *host;
    cuMemAlloc(&p, 1000);
    describe("allocated", p + 8);
    cuMemAlloc(&p, 5 * MIB);
    describe("allocated, large", p + 3 * MIB);
    describe("mapped", mapped_block(BLOCK, &handle) + 4096);
    describe("reserved", reserve(BLOCK));
    cuMemHostAlloc(&host, 10000, 0);
    describe("host", (uintptr_t)host + 16);
    host = aligned_alloc(4096, 8192);
    cuMemHostRegister(host, 8192, 0);
    describe("registered", (uintptr_t)host + 16);
    cuMemAllocManaged(&managed, 8192, CU_MEM_ATTACH_GLOBAL);
    describe("managed", managed + 16);
    describe("unknown", (uintptr_t)&p);
    int on = 1;
    ASK(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p));
    ASK(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, (uintptr_t)&p));
    ASK(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p));
}

static void host_memory(void)
{
    begin();
    void *host, *memory = aligned_alloc(4096, 65536);
    CUdeviceptr p;
    unsigned flags = 77;
    ASK(cuMemHostAlloc(&host, 4096, 0));
    ASK(cuMemHostGetFlags(&flags, host));
    tell("flags", flags);
    ASK(cuMemHostAlloc(&host, 4096, CU_MEMHOSTALLOC_PORTABLE));
    ASK(cuMemHostGetFlags(&flags, host));
    tell("flags", flags);
    ASK(cuMemHostGetDevicePointer(&p, host, 0));
    tell("the same", p == (uintptr_t)host);
    ASK(cuMemHostGetDevicePointer(&p, memory, 0));
    ASK(cuMemHostAlloc(&host, 0, 0));
    ASK(cuMemHostAlloc(&host, 4096, 128));
    ASK(cuMemFreeHost(memory));
    ASK(cuMemFreeHost(NULL));
    ASK(cuMemHostRegister(memory, 16384, 0));
    ASK(cuMemHostRegister(memory, 16384, 0));
    ASK(cuMemHostRegister((char *)memory + 8192, 16384, 0));
    ASK(cuMemHostRegister((char *)memory + 16384, 4096, 0));
    ASK(cuMemHostGetFlags(&flags, memory));
    tell("flags", flags);
    ASK(cuMemHostGetDevicePointer(&p, (char *)memory + 100, 0));
    tell("the same", p == (uintptr_t)memory + 100);
    ASK(launch_fill((uintptr_t)memory, 8, NULL));
    ASK(cuCtxSynchronize());
    tell("written", *(uint64_t *)memory == 1);
    ASK(cuMemHostUnregister((char *)memory + 4096));
    ASK(cuMemHostUnregister(memory));
    ASK(cuMemHostUnregister(memory));
    ASK(cuMemHostRegister((char *)memory + 100, 1000, 0));
    ASK(cuMemHostUnregister((char *)memory + 100));
    ASK(cuMemHostRegister(NULL, 4096, 0));
    ASK(cuMemHostRegister(memory, 0, 0));
    ASK(cuMemHostRegister(memory, 4096, 128));
    void *hole = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap((char *)hole + 32768, 32768);
    ASK(cuMemHostRegister(hole, 65536, 0));
    ASK(cuMemAllocManaged(&p, 4096, 0));
    ASK(cuMemAllocManaged(&p, 0, CU_MEM_ATTACH_GLOBAL));
    ASK(cuMemAllocManaged(&p, 4096, CU_MEM_ATTACH_GLOBAL));
    ASK(cuMemFree(p));
    ASK(cuMemHostUnregister((char *)memory + 16384));
    ASK(launch_fill((uintptr_t)memory, 8, NULL));
    CUresult result = cuCtxSynchronize();
    tell("pageable memory in a kernel is a fault", result != CUDA_SUCCESS);
}

static void allocations(void)
{
    begin();
    CUdeviceptr p, q;
    size_t pitch;
    ASK(cuMemAlloc(&p, 0));
    ASK(cuMemAlloc(&p, (size_t)1 << 50));
    ASK(cuMemAlloc(&p, SIZE_MAX));
    ASK(cuMemAlloc(&p, 1));
    tell("aligned", p % 512 == 0);
    ASK(cuMemFree(p + 1));
    ASK(cuMemFree(p));
    ASK(cuMemFree(p));
    ASK(cuMemFree(0));
    ASK(cuMemFree(0x1234));
    ASK(cuMemAllocPitch(&p, &pitch, 100, 10, 4));
    tell("pitch", (long long)pitch);
    ASK(cuMemAllocPitch(&q, &pitch, 100, 10, 3));
    ASK(cuMemAllocPitch(&q, &pitch, 0, 10, 4));
    ASK(cuMemFree(p));
    CUmemGenericAllocationHandle handle;
    p = mapped_block(BLOCK, &handle);
    ASK(cuMemFree(p));
    ASK(cuMemAlloc(&p, 4096));
    ASK(cuMemFreeAsync(p, NULL));
    ASK(cuCtxSynchronize());
    ASK(cuMemFree(p));
    ASK(cuMemsetD8(p, 0, 0));
    ASK(cuMemcpyHtoD(p, &pitch, 0));
    ASK(cuMemcpyDtoD(p, p, 0));
    size_t before, after, total;
    cuMemGetInfo(&before, &total);
    ASK(cuMemAlloc(&p, 3 * MIB));
    cuMemGetInfo(&after, &total);
    tell("taken for 3 MiB, in MiB", (long long)((before - after) / MIB));
    ASK(cuMemFree(p));
    cuMemGetInfo(&after, &total);
    tell("left", (long long)(before - after));
}

static void pools(void)
{
    begin();
    CUmemoryPool pool, own;
    CUdeviceptr p, q;
    CUstream stream;
    cuuint64_t bytes = 77;
    int option = 77;
    ASK(cuStreamCreate(&stream, 0));
    ASK(cuDeviceGetDefaultMemPool(&pool, 0));
    ASK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes));
    tell("threshold", (long long)bytes);
    ASK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &option));
    tell("opportunistic", option);
    ASK(cuMemAllocAsync(&p, 0, stream));
    ASK(cuMemAllocAsync(&p, 1000, stream));
    ASK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &bytes));
    tell("used", (long long)bytes);
    ASK(cuMemFreeAsync(p, stream));
    ASK(cuMemFreeAsync(p, stream));
    ASK(cuStreamSynchronize(stream));
    ASK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &bytes));
    tell("used", (long long)bytes);
    ASK(cuMemAllocAsync(&q, 1000, stream));
    ASK(cuMemFree(q));
    ASK(cuMemFreeAsync(q, stream));
    ASK(cuMemFreeAsync(0, stream));
    ASK(cuMemFreeAsync(0x1234, stream));
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    ASK(cuMemPoolCreate(&own, &properties));
    ASK(cuMemAllocFromPoolAsync(&p, BLOCK, own, stream));
    ASK(cuMemsetD8Async(p, 1, BLOCK, stream));
    ASK(cuMemPoolDestroy(own));
    ASK(cuMemFreeAsync(p, stream));
    ASK(cuStreamSynchronize(stream));
    ASK(cuMemPoolDestroy(pool));
    ASK(cuMemPoolTrimTo(pool, 0));
    ASK(cuMemAllocAsync(&p, (size_t)1 << 50, stream));
}

static void sharing(void)
{
    begin();
    CUmemGenericAllocationHandle handle, imported;
    CUipcMemHandle ipc;
    CUdeviceptr p = mapped_block(BLOCK, &handle), q;
    int file = -1;
    ASK(cuIpcGetMemHandle(&ipc, p));
    ASK(cuMemAlloc(&q, 4096));
    ASK(cuIpcGetMemHandle(&ipc, q));
    ASK(cuIpcOpenMemHandle(&p, ipc, 1));
    ASK(cuIpcCloseMemHandle(q));
    ASK(cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    CUmemAllocationProp properties = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
    ASK(cuMemCreate(&handle, BLOCK, &properties, 0));
    ASK(cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1));
    ASK(cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    size_t before, after, total;
    cuMemGetInfo(&before, &total);
    ASK(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)file,
                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    cuMemGetInfo(&after, &total);
    tell("counted", (long long)(before - after));
    tell("the same handle", imported == handle);
    ASK(cuMemRelease(imported));
    ASK(cuMemRelease(handle));
    close(file);
    ASK(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)file,
                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    ASK(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)0,
                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
}

/* Conformance: modules. */

static void modules(void)
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

static void before_init(void)
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

static void no_context(void)
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

static void contexts(void)
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

static void events(void)
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

static void streams(void)
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

static void callbacks(void)
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

static void proc_addresses(void)
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

static void forked(void)
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

static void at_exit(void)
{
    atexit(after_teardown);
    begin();
    CUdeviceptr flag;
    ASK(cuStreamCreate(&exit_stream, 0));
    cuMemAlloc(&flag, 4096);
    cuMemsetD8(flag, 0, 4096);
    ASK(launch_spin(5000000, exit_stream));
}

/* Copies of every shape, advice on managed memory, and what contexts and streams remember. */

static void shapes(void)
{
    begin();
    CUdeviceptr p, q;
    CUarray array;
    char host[4096];
    memset(host, 0, sizeof host);
    cuMemAlloc(&p, 65536);
    cuMemAlloc(&q, 65536);
    CUDA_MEMCPY2D flat = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = host, .srcPitch = 64,
                          .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = p, .dstPitch = 512,
                          .WidthInBytes = 64, .Height = 4};
    ASK(cuMemcpy2D(&flat));
    flat.srcPitch = 32;
    ASK(cuMemcpy2D(&flat));
    flat.srcPitch = 0;
    ASK(cuMemcpy2D(&flat));
    flat.Height = 0;
    ASK(cuMemcpy2D(&flat));
    flat.Height = 4;
    flat.WidthInBytes = 0;
    ASK(cuMemcpy2D(&flat));
    flat.WidthInBytes = 64;
    flat.srcMemoryType = 9;
    ASK(cuMemcpy2D(&flat));
    flat.srcMemoryType = CU_MEMORYTYPE_HOST;
    flat.Height = 1000;
    ASK(cuMemcpy2D(&flat));
    ASK(cuMemcpy2DUnaligned(NULL));
    CUDA_MEMCPY3D deep = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = p, .srcPitch = 64,
                          .srcHeight = 4, .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = q,
                          .dstPitch = 128, .dstHeight = 8, .WidthInBytes = 64, .Height = 4,
                          .Depth = 3};
    ASK(cuMemcpy3D(&deep));
    deep.Depth = 0;
    ASK(cuMemcpy3D(&deep));
    deep.Depth = 3;
    deep.srcHeight = 2;
    ASK(cuMemcpy3D(&deep));
    deep.srcHeight = 4;
    deep.srcLOD = 1;
    ASK(cuMemcpy3D(&deep));
    CUDA_ARRAY_DESCRIPTOR shape = {64, 4, CU_AD_FORMAT_FLOAT, 1};
    ASK(cuArrayCreate(&array, &shape));
    ASK(cuMemcpyHtoA(array, 0, host, 64));
    ASK(cuMemcpyAtoH(host, array, 0, 64));
    ASK(cuArrayDestroy(array));
    shape.NumChannels = 3;
    ASK(cuArrayCreate(&array, &shape));
    shape.NumChannels = 1;
    shape.Width = 0;
    ASK(cuArrayCreate(&array, &shape));
    ASK(cuMemsetD2D8(p, 16, 1, 64, 4));
    ASK(cuMemsetD2D8(p, 64, 1, 16, 4));
    ASK(cuMemsetD2D32(p, 64, 1, 0, 4));
    ASK(cuMemsetD16(p + 1, 1, 4));
    ASK(cuMemcpyPeer(p, context, q, context, 64));
    ASK(cuMemcpyPeer(p, NULL, q, context, 64));
    ASK(cuCtxSynchronize());
}

static void batches(void)
{
    begin();
    CUstream stream;
    CUdeviceptr p, to[2], from[2];
    size_t sizes[2] = {64, 64}, indices[1] = {0};
    CUmemcpyAttributes attributes[1] = {{.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM}};
    cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    cuMemAlloc(&p, 4096);
    to[0] = p;
    to[1] = p + 64;
    from[0] = p + 1024;
    from[1] = p + 2048;
    ASK(cuMemcpyBatchAsync(to, from, sizes, 2, attributes, indices, 1, stream));
    ASK(cuMemcpyBatchAsync(to, from, sizes, 2, attributes, indices, 1, NULL));
    ASK(cuMemcpyBatchAsync(to, from, sizes, 2, attributes, indices, 1, CU_STREAM_PER_THREAD));
    ASK(cuMemcpyBatchAsync(to, from, sizes, 0, attributes, indices, 1, stream));
    ASK(cuMemcpyBatchAsync(to, from, sizes, 2, NULL, NULL, 0, stream));
    sizes[1] = 0;
    ASK(cuMemcpyBatchAsync(to, from, sizes, 2, attributes, indices, 1, stream));
    sizes[1] = 64;
    to[1] = reserve(BLOCK);
    from[1] = p;
    to[0] = p + 4096 - 8;
    ASK(cuMemcpyBatchAsync(to, from, sizes, 1, attributes, indices, 1, stream));
    ASK(cuStreamSynchronize(stream));
    ASK(cuCtxSynchronize());
}

static void managed_memory(void)
{
    begin();
    CUdeviceptr p, plain;
    CUmemLocation here = {CU_MEM_LOCATION_TYPE_DEVICE, 0}, host = {CU_MEM_LOCATION_TYPE_HOST, 0};
    CUmemLocation none = {CU_MEM_LOCATION_TYPE_DEVICE, 99}, odd = {77, 0};
    int value = 77;
    cuMemAlloc(&plain, 65536);
    ASK(cuMemAllocManaged(&p, 65536, CU_MEM_ATTACH_GLOBAL));
    ASK(cuMemAdvise(p, 65536, CU_MEM_ADVISE_SET_READ_MOSTLY, here));
    ASK(cuMemAdvise(p, 65536, CU_MEM_ADVISE_UNSET_READ_MOSTLY, here));
    ASK(cuMemAdvise(p, 65536, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, host));
    ASK(cuMemAdvise(p, 65536, CU_MEM_ADVISE_SET_ACCESSED_BY, here));
    ASK(cuMemAdvise(p, 65536, CU_MEM_ADVISE_SET_ACCESSED_BY, none));
    ASK(cuMemAdvise(p, 65536, CU_MEM_ADVISE_SET_ACCESSED_BY, odd));
    ASK(cuMemAdvise(p, 0, CU_MEM_ADVISE_SET_ACCESSED_BY, here));
    ASK(cuMemAdvise(p, 65536, 77, here));
    ASK(cuMemAdvise(plain, 65536, CU_MEM_ADVISE_SET_ACCESSED_BY, here));
    ASK(cuMemPrefetchAsync(p, 65536, here, 0, NULL));
    ASK(cuMemPrefetchAsync(p, 65536, host, 0, NULL));
    ASK(cuMemPrefetchAsync(p, 65536, none, 0, NULL));
    ASK(cuMemPrefetchAsync(p, 65536, here, 1, NULL));
    ASK(cuMemPrefetchAsync(p, 0, here, 0, NULL));
    ASK(cuMemPrefetchAsync(plain, 65536, here, 0, NULL));
    ASK(cuMemRangeGetAttribute(&value, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p, 65536));
    tell("mostly read", value);
    ASK(cuMemRangeGetAttribute(&value, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, plain, 65536));
    ASK(launch_fill(p, 8192, NULL));
    ASK(cuCtxSynchronize());
    tell("the processor sees it", *(uint64_t *)(uintptr_t)p == 1);
    *(uint64_t *)(uintptr_t)p = 5;
    uint64_t got;
    ASK(cuMemcpyDtoH(&got, p, 8));
    tell("and the card", got == 5);
    ASK(cuMemcpyHtoD(p + 65536 - 4, &got, 8));
    ASK(cuMemFreeHost((void *)(uintptr_t)p));
    ASK(cuMemFree(p));
}

static void settings(void)
{
    begin();
    size_t size;
    int value;
    CUfunc_cache cache;
    ASK(cuCtxGetLimit(&size, CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH));
    ASK(cuCtxGetLimit(&size, 50));
    ASK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 16 << 20));
    ASK(cuCtxGetLimit(&size, CU_LIMIT_MALLOC_HEAP_SIZE));
    tell("heap", (long long)size);
    ASK(cuDeviceGetAttribute(&value, 0, 0));
    ASK(cuDeviceGetAttribute(&value, 5000, 0));
    ASK(cuDeviceGetAttribute(&value, 1, 77));
    ASK(cuCtxSetCacheConfig(CU_FUNC_CACHE_PREFER_L1));
    ASK(cuCtxGetCacheConfig(&cache));
    tell("cache", cache);
    CUstream a, b;
    CUstreamAttrValue attribute;
    cuStreamCreate(&a, 0);
    cuStreamCreateWithPriority(&b, 0, -3);
    memset(&attribute, 0, sizeof attribute);
    ASK(cuStreamGetAttribute(b, CU_LAUNCH_ATTRIBUTE_PRIORITY, &attribute));
    tell("priority", attribute.priority);
    attribute.priority = -1;
    ASK(cuStreamSetAttribute(a, CU_LAUNCH_ATTRIBUTE_PRIORITY, &attribute));
    ASK(cuStreamGetPriority(a, &value));
    tell("priority", value);
    ASK(cuStreamCopyAttributes(a, b));
    ASK(cuStreamGetPriority(a, &value));
    tell("priority", value);
    ASK(cuProfilerStart());
    ASK(cuProfilerStop());
    ASK(cuDeviceGetPCIBusId((char *)&attribute, 5, 0));
    ASK(cuDeviceGetByPCIBusId(&value, "nonsense"));
    ASK(cuDeviceGetByPCIBusId(&value, "0000:FE:1F.0"));
}

/* Which calls wait for work in flight: afterwards, is the stream still busy? */

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

static void waiting(void)
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

static void ending(void)
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

/* In the order of the recording. */
#define SECTIONS(X) \
    X(before_init) X(no_context) X(contexts) X(addresses) X(mappings) X(fault_kernel) \
    X(fault_access) X(fault_copy) X(fault_copy_async) X(fault_set) X(fault_elsewhere) \
    X(fault_peek) X(pointers) X(host_memory) X(allocations) X(pools) X(events) X(streams) \
    X(callbacks) X(proc_addresses) X(forked) X(at_exit) X(sharing) X(capture_own_global) \
    X(capture_own_thread_local) X(capture_own_relaxed) X(capture_other_global) \
    X(capture_other_thread_local) X(capture_other_relaxed) X(capture_rules) X(capture_context) \
    X(graphs) X(modules) X(waiting) X(ending) X(shapes) X(batches) X(managed_memory) \
    X(settings)

static const struct section {
    const char *name;
    void (*run)(void);
} sections[] = {
#define SECTION(name) {#name, name},
    SECTIONS(SECTION)
#undef SECTION
    {NULL, NULL},
};

static int run_apart(const struct section *section)
{
    int status = 0;
    printf("%s\n", section->name);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        section->run();
        fflush(stdout);
        exit(0);
    }
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status))
        printf("  ended by signal %d\n", WTERMSIG(status));
    return status;
}

int main(int argc, char **argv)
{
    int failed = 0;
    for (const struct section *section = sections; section->name != NULL; section++) {
        bool wanted = argc == 1;
        for (int i = 1; i < argc; i++)
            wanted = wanted || strcmp(argv[i], section->name) == 0;
        if (wanted && run_apart(section) != 0)
            failed = 1;
    }
    return failed;
}

/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance_ready.h"
#include "program.h"

struct ready it;

void prepare(void)
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

void nothing(void *data)
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

/* The calls whose right to be made in a capture is in question. Each stands
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
    void name(void)                                                                      \
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

void capture_rules(void)
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

void capture_context(void)
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

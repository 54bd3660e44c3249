/* SPDX-License-Identifier: Apache-2.0 */
/* Many threads in one process, each with memory that comes and goes. */
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

enum { THREADS = 4, ROUNDS = 40, WORDS = 40000 };

static CUcontext context;
static CUevent hand_over;

/* Evicts and restores a block again and again, with its bytes checked each time. */
static void *swap(void *number)
{
    CUdeviceptr range, out;
    CUstream stream;
    CUevent event;
    uint64_t seed = (uint64_t)(uintptr_t)number, want = 0, got;
    char *host;
    OK(cuCtxSetCurrent(context));
    OK(cuStreamCreate(&stream, seed % 2 == 0 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT));
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuMemHostAlloc((void **)&host, BLOCK, 0));
    OK(cuMemAddressReserve(&range, BLOCK, 0, 0, 0));
    OK(cuMemAlloc(&out, 8));
    CUmemGenericAllocationHandle handle = put_block(range, BLOCK);
    OK(launch(fill, stream, range, WORDS, seed, 0));
    OK(cuMemsetD8Async(out, 0, 8, stream));
    OK(launch(sum, stream, range, WORDS, out, 0));
    OK(cuMemcpyDtoHAsync(&want, out, 8, stream));
    for (int i = 0; i < ROUNDS; i++) {
        OK(cuMemcpyDtoHAsync(host, range, BLOCK, stream));
        OK(cuEventRecord(event, stream));
        OK(cuEventSynchronize(event));
        OK(cuMemUnmap(range, BLOCK));
        OK(cuMemRelease(handle));
        handle = put_block(range, BLOCK);
        OK(cuMemcpyHtoDAsync(range, host, BLOCK, stream));
        OK(cuMemsetD8Async(out, 0, 8, stream));
        OK(launch(sum, stream, range, WORDS, out, 0));
        OK(cuMemcpyDtoHAsync(&got, out, 8, stream));
        OK(cuStreamSynchronize(stream));
        CHECK(got == want);
    }
    OK(cuMemUnmap(range, BLOCK));
    OK(cuMemRelease(handle));
    OK(cuStreamDestroy(stream));
    OK(cuEventDestroy(event));
    OK(cuMemFreeHost(host));
    OK(cuMemFree(out));
    return NULL;
}

static void host_function(void *data)
{
    ++*(int *)data;
}

/* Everything that is made and destroyed, and the streams that threads own themselves. */
static void *churn(void *number)
{
    (void)number;
    OK(cuCtxSetCurrent(context));
    for (int i = 0; i < ROUNDS; i++) {
        CUstream stream;
        CUevent event;
        CUdeviceptr memory, pooled;
        CUgraph graph;
        CUgraphExec exec;
        int calls = 0;
        OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        OK(cuEventCreate(&event, 0));
        OK(cuMemAllocAsync(&pooled, 100000, stream));
        OK(launch(fill, stream, pooled, 1000, 1, 0));
        OK(cuMemFreeAsync(pooled, stream));
        OK(cuMemAllocAsync(&memory, 4096, stream));
        OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        OK(launch(fill, stream, memory, 512, 1, 0));
        OK(cuLaunchHostFunc(stream, host_function, &calls));
        OK(cuStreamEndCapture(stream, &graph));
        OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
        OK(cuGraphLaunch(exec, stream));
        OK(cuGraphLaunch(exec, stream));
        OK(cuGraphExecDestroy(exec));
        OK(cuGraphDestroy(graph));
        OK(cuEventRecord(event, stream));
        OK(cuStreamWaitEvent(CU_STREAM_PER_THREAD, event, 0));
        OK(cuLaunchHostFunc(CU_STREAM_PER_THREAD, host_function, &calls));
        OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
        CHECK(calls == 3);
        OK(cuMemFreeAsync(memory, stream));
        OK(cuEventRecord(event, stream));
        OK(cuStreamDestroy(stream));
        OK(cuEventSynchronize(event));
        OK(cuEventDestroy(event));
    }
    return NULL;
}

/* The NULL stream, which everything in blocking streams takes turns with. */
static void *legacy(void *number)
{
    (void)number;
    CUdeviceptr memory;
    uint64_t got;
    OK(cuCtxSetCurrent(context));
    OK(cuMemAlloc(&memory, 4096));
    for (uint64_t i = 0; i < ROUNDS; i++) {
        OK(launch(fill, NULL, memory, 512, i, 0));
        OK(cuMemcpyDtoH(&got, memory, 8));
        CHECK(got == i);
        OK(cuEventRecord(hand_over, NULL));
        if (i % 8 == 0)
            OK(cuStreamSynchronize(NULL));
        free_memory();
    }
    OK(cuMemFree(memory));
    return NULL;
}

int main(void)
{
    pthread_t threads[2 * THREADS + 1];
    context = begin(0);
    OK(cuEventCreate(&hand_over, 0));
    for (uintptr_t i = 0; i < THREADS; i++) {
        CHECK(pthread_create(&threads[2 * i], NULL, swap, (void *)i) == 0);
        CHECK(pthread_create(&threads[2 * i + 1], NULL, churn, (void *)i) == 0);
    }
    CHECK(pthread_create(&threads[2 * THREADS], NULL, legacy, NULL) == 0);
    for (size_t i = 0; i < 2 * THREADS + 1; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    OK(cuCtxSynchronize());
    OK(cuEventDestroy(hand_over));
    OK(cuDevicePrimaryCtxRelease(0));
    puts("threads: right");
    return 0;
}

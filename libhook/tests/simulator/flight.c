/* SPDX-License-Identifier: Apache-2.0 */
/* Work in flight over memory that goes away: a fault, however lucky the timing. */
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static CUdeviceptr range, flag;
static CUmemGenericAllocationHandle handle;
static CUstream stream;

/* A stream that stands before a gate, with memory mapped behind it. */
static void prepare(void)
{
    void *host;
    begin(0);
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemHostAlloc(&host, 4096, 0));
    memset(host, 0, 4096);
    flag = (uintptr_t)host;
    OK(cuMemAddressReserve(&range, 2 * BLOCK, 0, 0, 0));
    handle = put_block(range, BLOCK);
    put_block(range + BLOCK, BLOCK);
    OK(launch(wait_flag, stream, flag, 1, 0, 0));
}

static void open_gate(void)
{
    __atomic_store_n((uint32_t *)(uintptr_t)flag, 1, __ATOMIC_RELEASE);
}

static void unmapped(void)
{
    prepare();
    OK(launch(fill, stream, range, 8, 1, 0));
    OK(cuMemUnmap(range, BLOCK));
    OK(cuMemRelease(handle));
    open_gate();
    EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(stream));
    EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
}

/* The same handle is back at the same place before the work runs. */
static void moved(void)
{
    prepare();
    OK(cuMemcpyDtoDAsync(range + BLOCK, range, 64, stream));
    OK(cuMemUnmap(range, BLOCK));
    OK(cuMemMap(range, BLOCK, 0, handle, 0));
    OK(allow(0, range, BLOCK));
    open_gate();
    EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(stream));
}

static void in_a_graph(void)
{
    CUgraph graph;
    CUgraphExec exec;
    prepare();
    CUstream side;
    OK(cuStreamCreate(&side, CU_STREAM_NON_BLOCKING));
    OK(cuStreamBeginCapture(side, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(launch(fill, side, range, 8, 1, 0));
    OK(cuStreamEndCapture(side, &graph));
    OK(cuGraphInstantiate(&exec, graph, 0));
    OK(cuGraphLaunch(exec, stream));
    OK(cuMemUnmap(range, BLOCK));
    open_gate();
    EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(stream));
}

/* A graph that is not in flight may be replayed after its memory has come back. */
static void graph_at_rest(void)
{
    CUgraph graph;
    CUgraphExec exec;
    uint64_t got[2];
    prepare();
    open_gate();
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(launch(fill, stream, range, 8, 1, 0));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiate(&exec, graph, 0));
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemUnmap(range, BLOCK));
    OK(cuMemRelease(handle));
    put_block(range, BLOCK);
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemcpyDtoH(got, range, 16));
    CHECK(got[0] == 1 && got[1] == 1 + 0x9E3779B97F4A7C15ull);
}

static void neighbour(void)
{
    prepare();
    OK(launch(fill, stream, range + BLOCK, BLOCK / 8, 1, 0));
    OK(cuMemUnmap(range, BLOCK));
    open_gate();
    OK(cuStreamSynchronize(stream));
}

static void beyond_the_end(void)
{
    prepare();
    open_gate();
    OK(launch(fill, stream, range, 2 * BLOCK / 8, 1, 0));
    OK(cuStreamSynchronize(stream));
    OK(launch(fill, stream, range, 2 * BLOCK / 8 + 1, 1, 0));
    EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(stream));
}

static void read_only(void)
{
    prepare();
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READ};
    open_gate();
    OK(cuStreamSynchronize(stream));
    OK(cuMemSetAccess(range, BLOCK, &access, 1));
    OK(launch(add, stream, range + BLOCK, range, range, 8));
    OK(cuStreamSynchronize(stream));
    OK(launch(fill, stream, range, 8, 1, 0));
    EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(stream));
}

/* Kernels of one device do not reach another's memory unless they may. */
static void other_device(void)
{
    prepare();
    open_gate();
    CUcontext other = begin(1), first;
    CUdeviceptr far;
    OK(cuDevicePrimaryCtxRetain(&first, 0));
    OK(cuCtxSetCurrent(first));
    OK(cuMemAlloc(&far, BLOCK));
    OK(cuCtxSetCurrent(other));
    OK(cuCtxEnablePeerAccess(first, 0));
    OK(launch(fill, NULL, far, 8, 1, 0));
    OK(cuCtxSynchronize());
    OK(cuMemcpyPeer(far, first, far + 64, first, 64));
    OK(cuCtxDisablePeerAccess(first));
    OK(launch(fill, NULL, far, 8, 1, 0));
    EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
    OK(cuCtxSetCurrent(first));
    EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());     /* the whole process's */
}

static void run(const char *name, void (*test)(void))
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        test();
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    if (status != 0) {
        fprintf(stderr, "flight: %s failed\n", name);
        exit(1);
    }
}

int main(void)
{
    run("unmapped", unmapped);
    run("moved", moved);
    run("in a graph", in_a_graph);
    run("graph at rest", graph_at_rest);
    run("neighbour", neighbour);
    run("beyond the end", beyond_the_end);
    run("read only", read_only);
    run("other device", other_device);
    puts("flight: right");
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What no recording of a card shows: a fault for work in flight over memory that goes away, however
 * lucky the timing; fresh memory that is never clean; when the source of a copy is read.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"

#define MIB ((size_t)1 << 20)
#define BLOCK (2 * MIB)

#define CHECK(condition)                                                                 \
    do {                                                                                 \
        if (!(condition)) {                                                              \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);              \
            _exit(1);                                                                    \
        }                                                                                \
    } while (0)

#define EXPECT(code, call)                                                               \
    do {                                                                                 \
        CUresult result_ = (call);                                                       \
        if (result_ != (code)) {                                                         \
            const char *name_ = NULL;                                                    \
            cuGetErrorName(result_, &name_);                                             \
            fprintf(stderr, "%s:%d: %s gave %s instead of %s\n", __FILE__, __LINE__, #call, \
                    name_ != NULL ? name_ : "?", #code);                                 \
            _exit(1);                                                                    \
        }                                                                                \
    } while (0)

#define OK(call) EXPECT(CUDA_SUCCESS, call)

static CUfunction fill, add, wait_flag;

/* The primary context of a device, with all kernels loaded. */
static CUcontext begin(int device)
{
    static const char text[] =
        ".version 7.0\n.target sm_70\n.address_size 64\n"
        ".visible .entry nvshare_fill() { ret; }\n.visible .entry nvshare_add() { ret; }\n"
        ".visible .entry nvshare_wait_flag() { ret; }\n";
    CUcontext context;
    CUmodule module;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
    OK(cuModuleLoadData(&module, text));
    OK(cuModuleGetFunction(&fill, module, "nvshare_fill"));
    OK(cuModuleGetFunction(&add, module, "nvshare_add"));
    OK(cuModuleGetFunction(&wait_flag, module, "nvshare_wait_flag"));
    return context;
}

static CUresult launch(CUfunction function, CUstream stream, uint64_t a, uint64_t b, uint64_t c,
                       uint64_t d)
{
    void *parameters[] = {&a, &b, &c, &d};
    return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

static CUresult allow(int device, CUdeviceptr address, size_t size)
{
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, device},
                              CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    return cuMemSetAccess(address, size, &access, 1);
}

/* A block at an address that is reserved already. */
static CUmemGenericAllocationHandle put_block(CUdeviceptr address, size_t size)
{
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemGenericAllocationHandle handle;
    OK(cuMemCreate(&handle, size, &properties, 0));
    OK(cuMemMap(address, size, 0, handle, 0));
    OK(allow(0, address, size));
    return handle;
}

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

/* The source of a small copy is free at once; one in page-locked memory is not. */
static void staging(void)
{
    begin(0);
    CUdeviceptr memory;
    uint64_t word = 5, got = 0, *locked;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc(&memory, 64));
    OK(cuMemHostAlloc((void **)&locked, 4096, 0));
    OK(cuMemHostAlloc((void **)&flag, 4096, 0));
    uint32_t *gate = (uint32_t *)(uintptr_t)flag;
    __atomic_store_n(gate, 0, __ATOMIC_RELEASE);
    __atomic_store_n(locked, 6, __ATOMIC_RELEASE);
    OK(launch(wait_flag, stream, flag, 1, 0, 0));
    OK(cuMemcpyHtoDAsync(memory, &word, 8, stream));
    OK(cuMemcpyDtoDAsync(memory + 16, memory, 8, stream));
    word = 7;
    OK(cuMemcpyAsync(memory + 8, (uintptr_t)locked, 8, stream));
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
    *locked = 9;
    __atomic_store_n(gate, 1, __ATOMIC_RELEASE);
    OK(cuStreamSynchronize(stream));
    OK(cuMemcpyDtoH(&got, memory, 8));
    CHECK(got == 5);
    OK(cuMemcpyDtoH(&got, memory + 16, 8));
    CHECK(got == 5);
    OK(cuMemcpyDtoH(&got, memory + 8, 8));
    CHECK(got == 9);
    OK(cuMemFree(memory));
}

/* Memory is never clean, neither fresh nor used before. */
static void garbage(void)
{
    begin(0);
    uint64_t words[512];
    OK(cuMemAddressReserve(&range, BLOCK, 0, 0, 0));
    for (int round = 0; round < 3; round++) {
        CUmemGenericAllocationHandle handle = put_block(range, BLOCK);
        OK(cuMemcpyDtoH(words, range + MIB, sizeof words));
        for (size_t i = 0; i < 512; i++)
            CHECK(words[i] != 0 && words[i] != 0x0101010101010101ull);
        OK(cuMemsetD8(range, 1, BLOCK));
        OK(cuCtxSynchronize());
        OK(cuMemUnmap(range, BLOCK));
        OK(cuMemRelease(handle));
    }
    CUdeviceptr a, b, c;
    OK(cuMemAlloc(&a, 4096));
    OK(cuMemAlloc(&b, 4096));
    OK(cuMemsetD8(a, 1, 4096));
    OK(cuMemFree(a));
    OK(cuMemAlloc(&c, 4096));
    OK(cuMemcpyDtoH(words, c, 4096));
    CHECK(words[0] != 0x0101010101010101ull);
    OK(cuMemFree(b));
    OK(cuMemFree(c));
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
    run("staging", staging);
    run("garbage", garbage);
    puts("flight: right");
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions for the sections of conformance.txt and flight.txt, and main(): `conformance SECTION`
 * runs a section and prints one line for each of its questions. conformance.py generates the C code
 * of the sections.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define BLOCK (2 * MIB)
/* Some sections use only some of the functions here. */
#pragma GCC diagnostic ignored "-Wunused-function"

/* libhook/demo/kernels.ptx; simulator/engine/kernels.h says what each kernel does. */
extern const char program_text[];
__asm__(".section .rodata\n.global program_text\nprogram_text: .incbin \"" KERNELS_PTX "\"\n"
        ".byte 0\n.text\n");

static const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                               .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
static CUcontext context;
static CUfunction fill, spin, add, wait_flag;

static const char *note = "";       /* printed behind the next result */

/* The name of a result without CUDA_ERROR_ or CUDA_, or its number if the driver has no name. */
static const char *name_of(CUresult result)
{
    static char number[16];
    const char *name = NULL;
    if (cuGetErrorName(result, &name) == CUDA_SUCCESS && name != NULL)
        return strncmp(name, "CUDA_ERROR_", 11) == 0 ? name + 11 : name + 5;
    snprintf(number, sizeof number, "%d", (int)result);
    return number;
}

static void print_result(CUresult result)
{
    printf("%s%s\n", name_of(result), note);
    note = "";
    fflush(stdout);
}

static void print_number(long long number)
{
    printf("%lld\n", number);
    fflush(stdout);
}

static void require(CUresult result, const char *call)
{
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "%s: error %d\n", call, (int)result);
    exit(1);
}

static void begin_on(CUdevice device)
{
    CUmodule module;
    require(cuInit(0), "cuInit");
    require(cuDevicePrimaryCtxRetain(&context, device), "retain");
    require(cuCtxSetCurrent(context), "set current");
    require(cuModuleLoadData(&module, program_text), "load");
    require(cuModuleGetFunction(&fill, module, "nvshare_fill"), "fill");
    require(cuModuleGetFunction(&spin, module, "nvshare_spin"), "spin");
    require(cuModuleGetFunction(&add, module, "nvshare_add"), "add");
    require(cuModuleGetFunction(&wait_flag, module, "nvshare_wait_flag"), "wait_flag");
}

/* Most sections begin with this: the primary context of device 0 is current. */
static void begin(void)
{
    begin_on(0);
}

static CUresult launch_fill(CUdeviceptr address, uint64_t words, CUstream stream)
{
    uint64_t value = 1;
    void *parameters[] = {&address, &words, &value};
    return cuLaunchKernel(fill, 8, 1, 1, 128, 1, 1, 0, stream, parameters, NULL);
}

/* Adds the words at `from` to themselves. */
static CUresult launch_add(CUdeviceptr to, CUdeviceptr from, uint64_t words, CUstream stream)
{
    void *parameters[] = {&to, &from, &from, &words};
    return cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
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

static CUmemGenericAllocationHandle map_block(CUdeviceptr address, size_t size)
{
    CUmemGenericAllocationHandle handle = create_block(size);
    require(cuMemMap(address, size, 0, handle, 0), "map");
    require(open_access(address, size), "access");
    return handle;
}

static CUdeviceptr mapped_block(size_t size, CUmemGenericAllocationHandle *handle)
{
    CUdeviceptr address = reserve(size);
    *handle = map_block(address, size);
    return address;
}

/* Objects that exist before a capture begins, for the calls of the capture sections. */
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
static struct ready ready;

static void prepare(void)
{
    begin();
    ready.properties = (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                          .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    cuStreamCreate(&ready.stream, CU_STREAM_NON_BLOCKING);
    cuStreamCreate(&ready.side, CU_STREAM_NON_BLOCKING);
    cuStreamCreate(&ready.blocking, CU_STREAM_DEFAULT);
    cuEventCreate(&ready.recorded, 0);
    cuEventCreate(&ready.event, 0);
    cuEventCreate(&ready.never, 0);
    cuEventRecord(ready.recorded, ready.side);
    cuMemAlloc(&ready.memory, 4 * MIB);
    ready.mapped = mapped_block(BLOCK, &ready.handle);
    ready.reserved = reserve(8 * BLOCK);
    ready.host = aligned_alloc(4096, 65536);
    ready.registered = aligned_alloc(4096, 65536);
    cuMemHostAlloc(&ready.pinned, 65536, 0);
    cuGraphCreate(&ready.graph, 0);
    cuGraphInstantiate(&ready.exec, ready.graph, 0);
    cuCtxSynchronize();
}

/* Memory of a pool, managed or pinned memory. After prepare(). */
static CUdeviceptr memory_of(const char *kind, size_t size)
{
    CUdeviceptr address = 0;
    if (strcmp(kind, "pool") == 0)
        require(cuMemAllocAsync(&address, size, ready.stream), kind);
    else if (strcmp(kind, "managed") == 0)
        require(cuMemAllocManaged(&address, size, CU_MEM_ATTACH_GLOBAL), kind);
    else
        require(cuMemHostAlloc((void **)&address, size, 0), kind);
    require(cuStreamSynchronize(ready.stream), "memory_of");
    return address;
}

static _Atomic uint32_t *gate;

/* Work in ready.stream waits for open_gate(). Two blocks are mapped at ready.mapped; ready.handle
 * is the first block. */
static void prepare_closed_gate(void)
{
    void *host;
    uint64_t value = 1;              /* the simulator reads 8 bytes of each argument */
    begin();
    require(cuStreamCreate(&ready.stream, CU_STREAM_NON_BLOCKING), "stream");
    require(cuMemHostAlloc(&host, 4096, 0), "flag");
    gate = memset(host, 0, 4096);
    ready.mapped = reserve(2 * BLOCK);
    ready.handle = map_block(ready.mapped, BLOCK);
    map_block(ready.mapped + BLOCK, BLOCK);
    CUdeviceptr flag = (uintptr_t)gate;
    void *parameters[] = {&flag, &value};
    require(cuLaunchKernel(wait_flag, 1, 1, 1, 1, 1, 1, 0, ready.stream, parameters, NULL), "gate");
}

static void open_gate(void)
{
    *gate = 1;
}

static void nothing(void *data)
{
    (void)data;
}

/* The new context is popped, since cuStreamEndCapture() needs the context of the capture. */
static CUresult create_context(void)
{
    CUresult result = cuCtxCreate(&ready.context, NULL, 0, 0);
    if (result == CUDA_SUCCESS)
        cuCtxPopCurrent(&ready.context);
    return result;
}

/* Where IN_CAPTURE() captures, and which thread begins and ends the capture. */
static struct {
    CUstreamCaptureMode mode;
    bool by_other_thread;
    CUstream stream;
    CUresult ended;
    pthread_t thread;
    pthread_barrier_t begun, over;
} capture;

/* `run`: own_ or other_ (the thread that captures), then the capture's mode. */
static void capture_as(const char *run)
{
    capture.by_other_thread = strncmp(run, "other_", 6) == 0;
    capture.mode = strstr(run, "global") != NULL ? CU_STREAM_CAPTURE_MODE_GLOBAL
        : strstr(run, "local") != NULL ? CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
                                       : CU_STREAM_CAPTURE_MODE_RELAXED;
    /* A blocking stream: work in the NULL stream would join its capture. */
    capture.stream = strcmp(run, "other_relaxed") == 0 ? ready.blocking : ready.stream;
    pthread_barrier_init(&capture.begun, NULL, 2);
    pthread_barrier_init(&capture.over, NULL, 2);
}

static void begin_capture(void)
{
    require(cuStreamBeginCapture(capture.stream, capture.mode), "cuStreamBeginCapture");
}

static void end_capture(void)
{
    CUgraph graph = NULL;
    capture.ended = cuStreamEndCapture(capture.stream, &graph);
    if (graph != NULL)
        cuGraphDestroy(graph);
}

static void *capture_in_other_thread(void *unused)
{
    cuCtxSetCurrent(context);
    begin_capture();
    pthread_barrier_wait(&capture.begun);
    pthread_barrier_wait(&capture.over);
    end_capture();
    return unused;
}

static void enter_capture(void)
{
    if (!capture.by_other_thread) {
        begin_capture();
        return;
    }
    pthread_create(&capture.thread, NULL, capture_in_other_thread, NULL);
    pthread_barrier_wait(&capture.begun);
}

/* Its note "!" says that the call has invalidated the capture. */
static void leave_capture(void)
{
    if (capture.by_other_thread) {
        pthread_barrier_wait(&capture.over);
        pthread_join(capture.thread, NULL);
    } else {
        end_capture();
    }
    if (capture.ended == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
        note = "!";
    else
        require(capture.ended, "cuStreamEndCapture");
}

/* A refused call is repeated after the capture: later questions need the object that it creates. */
#define IN_CAPTURE(call)                                                                 \
    ({                                                                                   \
        enter_capture();                                                                 \
        CUresult during = (call);                                                        \
        leave_capture();                                                                 \
        if (during != CUDA_SUCCESS)                                                      \
            (void)(call);                                                                \
        cuCtxSynchronize();                                                              \
        during;                                                                          \
    })

static void *end_and_keep_result(void *stream)
{
    CUgraph graph;
    cuCtxSetCurrent(context);
    return (void *)(intptr_t)cuStreamEndCapture(stream, &graph);
}

static CUresult end_capture_in_other_thread(CUstream stream)
{
    pthread_t thread;
    void *result;
    pthread_create(&thread, NULL, end_and_keep_result, stream);
    pthread_join(thread, &result);
    return (CUresult)(intptr_t)result;
}

/* The call while a kernel runs for 0.4 s in ready.stream. Its note says whether the kernel still
 * runs when the call returns: "busy", or has ended: "idle". */
#define WHILE_BUSY(call)                                                                 \
    ({                                                                                   \
        launch_spin(400000, ready.stream);                                               \
        CUresult during = (call);                                                        \
        note = cuStreamQuery(ready.stream) == CUDA_ERROR_NOT_READY ? " busy" : " idle";  \
        cuCtxSynchronize();                                                              \
        during;                                                                          \
    })

/* An address within memory of a kind that the columns of [pointers] name. */
static CUdeviceptr address_in(const char *kind)
{
    static int variable[64];
    CUdeviceptr p = 0;
    CUmemGenericAllocationHandle handle;
    void *host = NULL;
    if (strcmp(kind, "allocated") == 0) {
        require(cuMemAlloc(&p, 1000), kind);
        return p + 8;
    }
    if (strcmp(kind, "large") == 0) {
        require(cuMemAlloc(&p, 5 * MIB), kind);
        return p + 3 * MIB;
    }
    if (strcmp(kind, "mapped") == 0)
        return mapped_block(BLOCK, &handle) + 4096;
    if (strcmp(kind, "reserved") == 0)
        return reserve(BLOCK);
    if (strcmp(kind, "host") == 0) {
        require(cuMemHostAlloc(&host, 10000, 0), kind);
        return (uintptr_t)host + 16;
    }
    if (strcmp(kind, "registered") == 0) {
        host = aligned_alloc(4096, 8192);
        require(cuMemHostRegister(host, 8192, 0), kind);
        return (uintptr_t)host + 16;
    }
    if (strcmp(kind, "managed") == 0) {
        require(cuMemAllocManaged(&p, 8192, CU_MEM_ATTACH_GLOBAL), kind);
        return p + 16;
    }
    return (uintptr_t)variable;      /* the driver does not know it */
}

#define ATTRIBUTE(variable, name) cuPointerGetAttribute(&variable, CU_POINTER_ATTRIBUTE_##name, p)

static CUresult from_callback[8];

static void host_function(void *data)
{
    int count;
    size_t a, b;
    CUdeviceptr p;
    const char *name;
    from_callback[0] = cuDeviceGetCount(&count);
    from_callback[1] = cuMemGetInfo(&a, &b);
    from_callback[2] = cuMemAlloc(&p, 4096);
    from_callback[3] = cuStreamQuery(data);
    from_callback[4] = cuCtxSynchronize();
    from_callback[5] = cuEventQuery(NULL);
    from_callback[6] = cuGetErrorName(1, &name);
    from_callback[7] = launch_spin(1, data);
}

/* Its note: "none" if there is no such entry point, the status, and the result without a status. */
static CUresult find(const char *name, int version, cuuint64_t flags)
{
    static char text[64];
    void *f = (void *)1, *g;
    CUdriverProcAddressQueryResult status = 77;
    CUresult result = cuGetProcAddress(name, &f, version, flags, &status);
    snprintf(text, sizeof text, "%s %d %s", f == NULL || f == (void *)1 ? " none" : "", status,
             name_of(cuGetProcAddress(name, &g, version, flags, NULL)));
    note = text;
    return result;
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

#define SECTION(name) static void name(void);
SECTIONS
#undef SECTION

int main(int argc, char **argv)
{
    alarm(60);
#define SECTION(name)                                                                    \
    if (argc == 2 && strcmp(argv[1], #name) == 0) {                                      \
        name();                                                                          \
        return 0;                                                                        \
    }
    SECTIONS
#undef SECTION
    fprintf(stderr, "usage: conformance SECTION\n");
    return 2;
}

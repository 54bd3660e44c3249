/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that calls the driver at random and verifies every byte.
 *
 *     stress --seed S --threads T --seconds N [--megabytes M] [--rest PERIOD]
 *
 * Each thread owns buffers on the card and a copy of each buffer on the host. The thread allocates,
 * frees, maps, exports, launches, copies and fills, replays graphs, queries pointers and lets the
 * processor access managed memory. It computes on the host copy the same as the card computes,
 * compares single buffers in between, and all buffers at the end. Exit code 0: every byte was
 * right. The program does not know nvshare; several such programs share a card with the library.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "driver/driver.h"

extern const char kernels_ptx[];     /* libhook/demo/kernels.ptx */
__asm__(".section .rodata\n.global kernels_ptx\nkernels_ptx: .incbin \"" KERNELS_PTX "\"\n"
        ".byte 0\n.text\n");

/* The driver's functions, found by dlsym() because the program is not linked with the driver.
 * NULL: this driver lacks the function. */
#define HOOK(name, parameters) __attribute__((unused)) static CUresult (*name) parameters;
#include "../driver.def"
#undef HOOK

static _Noreturn void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("stress: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    exit(1);
}

static void load_calls(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL)
        fail("%s", dlerror());
#define HOOK(name, parameters) *(void **)&name = dlsym(driver, #name);
#include "../driver.def"
#undef HOOK
}

static void check(CUresult result, const char *function)
{
    if (result != CUDA_SUCCESS)
        fail("%s failed: error %d", function, (int)result);
}

#define CHECK(function, ...) check(function(__VA_ARGS__), #function)

/* False: out of memory. Other errors end the program. */
static bool is_allocated(CUresult result, const char *function)
{
    if (result != CUDA_ERROR_OUT_OF_MEMORY)
        check(result, function);
    return result == CUDA_SUCCESS;
}

#define ALLOCATED(function, ...) is_allocated(function(__VA_ARGS__), #function)

/* Counters of each thread; the output names each. REUSED: pool allocations at the address that
 * was freed last. */
enum count {
    OPERATIONS, COMPARED, GRAPHS, MAPPED_ELSEWHERE, SHARED, POOLED, REUSED, TOUCHED, CHURNED, COUNTS
};
static const char *const count_names[COUNTS] = {
    "operations", "compared_bytes", "graphs", "mapped_elsewhere", "shared", "pooled", "reused",
    "touched", "churned",
};

/* State of a thread. */

#define BUFFERS 24
#define GRAPH_NODES 4

struct buffer {
    CUdeviceptr address;
    size_t words;
    uint64_t *shadow;
    unsigned generation;             /* changes when the address is freed */
    bool mapped, pooled, managed;    /* `mapped`: by cuMemMap */
};

struct recorded { unsigned buffer, generation; uint64_t step; };

struct worker {
    pthread_t thread;
    uint64_t random;
    bool first;                      /* the first thread of its program does more kinds of
                                        operations */
    size_t limit;                    /* bytes that the thread may allocate */
    size_t held;
    CUstream stream, other;          /* `other`: some pool allocations and frees are in its order */
    CUevent event;
    CUdeviceptr last_pooled;         /* address of the last freed pool memory */
    struct buffer buffers[BUFFERS];
    CUgraphExec graph;
    struct recorded nodes[GRAPH_NODES];
    unsigned node_count;
    uint64_t counts[COUNTS];
};

static uint64_t next(struct worker *w)
{
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return w->random * 0x2545F4914F6CDD1Du;
}

static uint64_t below(struct worker *w, uint64_t limit)
{
    return (next(w) >> 16) % limit;
}

static CUmemoryPool pool;            /* of all threads; the device's default pool is used as well */

/* Memory of pools, in stream order, without waits. */

static void order(struct worker *w, CUstream before, CUstream behind)
{
    CHECK(cuEventRecord, w->event, before);
    CHECK(cuStreamWaitEvent, behind, w->event, 0);
}

/* Allocates for the thread's stream, sometimes in the other stream. 0: out of memory. */
static CUdeviceptr take_pooled(struct worker *w, size_t bytes)
{
    CUdeviceptr address;
    uint64_t random = next(w) >> 16;
    CUstream from = random % 4 == 0 ? w->other : w->stream;
    if (!(random % 8 < 4 ? ALLOCATED(cuMemAllocAsync, &address, bytes, from)
                         : ALLOCATED(cuMemAllocFromPoolAsync, &address, bytes, pool, from)))
        return 0;
    if (from != w->stream)
        order(w, from, w->stream);
    w->counts[POOLED]++;
    w->counts[REUSED] += address == w->last_pooled;
    return address;
}

/* Frees with work of the thread's stream in flight, sometimes in the other stream behind that
 * work. */
static void give_pooled(struct worker *w, CUdeviceptr address)
{
    uint64_t random = next(w) >> 16;
    w->last_pooled = address;
    if (random % 4 == 0) {
        order(w, w->stream, w->other);
        CHECK(cuMemFreeAsync, address, w->other);
    } else if (random % 8 == 1) {
        CHECK(cuStreamSynchronize, w->stream);
        CHECK(cuMemFree_v2, address);
    } else {
        CHECK(cuMemFreeAsync, address, w->stream);
    }
}

/* Changes the release threshold, compares the pool's figures, and destroys a stream before its
 * frees have taken effect. */
static void tend_pools(struct worker *w)
{
    uint64_t random = next(w) >> 16;
    cuuint64_t threshold = random % 3 == 0 ? 0 : random % 3 == 1 ? (random >> 8) % (16 << 20)
                                                                 : UINT64_MAX;
    cuuint64_t used, high;
    CHECK(cuMemPoolSetAttribute, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
    CHECK(cuMemPoolGetAttribute, pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used);
    CHECK(cuMemPoolGetAttribute, pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &high);
    if (used > high)
        fail("a pool has %llu bytes in use, %llu at most", used, high);
    if (random % 5 == 0)
        CHECK(cuMemPoolTrimTo, pool, (random >> 8) % (16 << 20));
    if (random % 7 == 0) {
        CHECK(cuStreamDestroy_v2, w->other);
        CHECK(cuStreamCreate, &w->other, CU_STREAM_NON_BLOCKING);
    }
}

/* Pauses of a second, as of an idle notebook. */

static atomic_bool resting;

static double seconds_since(const struct timespec *begun)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - begun->tv_sec) + 1e-9 * (double)(now.tv_nsec - begun->tv_nsec);
}

/* Pauses in the last second of every `period`; `passed`: seconds since the start. 0: never. */
static void rest_as_due(double passed, double period)
{
    double within = period > 0 ? passed - period * (double)(long)(passed / period) : 0;
    atomic_store(&resting, period > 0 && within >= period - 1);
}

/* Managed memory: accessed by host and GPU, advised and prefetched. */

#define CU_MEM_ATTACH_GLOBAL 1u

/* The host writes some words, wherever the pages are, and reads one. */
static void touch_managed(struct worker *w, struct buffer *b)
{
    uint64_t *words = (uint64_t *)(uintptr_t)b->address;
    CHECK(cuStreamSynchronize, w->stream);
    for (unsigned i = 0; i < 16; i++) {
        size_t place = below(w, b->words);
        words[place] = b->shadow[place] = next(w);
    }
    size_t place = below(w, b->words);
    if (words[place] != b->shadow[place])
        fail("wrong: the processor finds %#lx at word %zu, must be %#lx", words[place], place,
             b->shadow[place]);
    w->counts[TOUCHED]++;
}

/* Random advice for a part of the memory, and a prefetch to host or GPU. The last prefetch
 * location is not verified: on an H200 the driver alone does not always report it for memory in
 * use. */
static void tend_managed(struct worker *w, struct buffer *b)
{
    const CUdevice to = below(w, 2) == 0 ? CU_DEVICE_CPU : 0;
    size_t bytes = b->words * 8, offset = below(w, bytes), size = 1 + below(w, bytes - offset);
    CUmem_advise advice = (CUmem_advise)(1 + below(w, 6));
    CHECK(cuMemAdvise, b->address + offset, size, advice, to);
    CHECK(cuMemPrefetchAsync, b->address, bytes, to, w->stream);
}

/* Memory that the program creates and maps, one whole handle each. */

#define GRAIN ((size_t)2 << 20)

/* Maps the handle at a new address; the old mapping is no longer used. */
static CUdeviceptr map_handle(CUmemGenericAllocationHandle handle, size_t bytes)
{
    const CUmemAccessDesc access = {
        .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE },
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    CUdeviceptr address = 0;
    CHECK(cuMemAddressReserve, &address, bytes, 0, 0, 0);
    CHECK(cuMemMap, address, bytes, 0, handle, 0);
    CHECK(cuMemSetAccess, address, bytes, &access, 1);
    return address;
}

/* 0: out of memory. The handle is released at once, as most programs do. */
static CUdeviceptr map_new(size_t bytes)
{
    const CUmemAllocationProp properties = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE },
    };
    CUmemGenericAllocationHandle handle;
    if (!ALLOCATED(cuMemCreate, &handle, bytes, &properties, 0))
        return 0;
    CUdeviceptr address = map_handle(handle, bytes);
    CHECK(cuMemRelease, handle);
    return address;
}

static void unmap(CUdeviceptr address, size_t bytes)
{
    CHECK(cuMemUnmap, address, bytes);
    CHECK(cuMemAddressFree, address, bytes);
}

/* Moves a mapping to a new address; meanwhile the memory is mapped at both or at none. */
static CUdeviceptr map_elsewhere(CUdeviceptr address, size_t bytes, bool both, bool export)
{
    CUmemGenericAllocationHandle handle;
    CHECK(cuMemRetainAllocationHandle, &handle, (void *)(uintptr_t)(address + bytes / 2));
    int file;
    if (export && ALLOCATED(cuMemExportToShareableHandle, &file, handle,
                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0))
        close(file);
    CUdeviceptr moved = both ? map_handle(handle, bytes) : 0;
    unmap(address, bytes);
    if (!both)
        moved = map_handle(handle, bytes);
    CHECK(cuMemRelease, handle);
    return moved;
}

static CUcontext context;
static CUfunction fill_kernel, step_kernel, add_kernel;
static atomic_bool finish;

static void launch(struct worker *w, CUfunction kernel, void **parameters)
{
    CHECK(cuLaunchKernel, kernel, 64, 1, 1, 256, 1, 1, 0, w->stream, parameters, NULL);
}

static void device_fill(struct worker *w, struct buffer *b, uint64_t value)
{
    uint64_t count = b->words;
    launch(w, fill_kernel, (void *[]){ &b->address, &count, &value });
    for (size_t i = 0; i < b->words; i++)
        b->shadow[i] = value + i * 0x9E3779B97F4A7C15u;
}

static void shadow_step(struct buffer *b, uint64_t step)
{
    for (size_t i = 0; i < b->words; i++) {
        uint64_t x = b->shadow[i];
        b->shadow[i] = (x ^ (x >> 29)) * 0xBF58476D1CE4E5B9u + step + i;
    }
}

static void device_step(struct worker *w, struct buffer *b, uint64_t step)
{
    uint64_t count = b->words;
    launch(w, step_kernel, (void *[]){ &b->address, &count, &step });
}

/* Memory for a host copy of a buffer. Marked as the library marks its host memory: a soak counts
 * neither as the process's own, because the sum of the buffers' sizes is a random walk. */
static uint64_t *host_copy_new(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        fail("no memory for a host copy of %zu bytes", bytes);
    madvise(memory, bytes, MADV_DONTFORK);
    madvise(memory, bytes, MADV_DONTDUMP);
    return memory;
}

static void host_copy_free(uint64_t *memory, size_t bytes)
{
    munmap(memory, bytes);
}

static void compare(struct worker *w, struct buffer *b)
{
    size_t bytes = b->words * 8;
    uint64_t *copy = host_copy_new(bytes);
    if (below(w, 2) == 0) {
        CHECK(cuMemcpyDtoHAsync_v2, copy, b->address, bytes, w->stream);
        CHECK(cuStreamSynchronize, w->stream);
    } else {
        CHECK(cuStreamSynchronize, w->stream);
        CHECK(cuMemcpyDtoH_v2, copy, b->address, bytes);
    }
    for (size_t i = 0; i < b->words; i++)
        if (copy[i] != b->shadow[i])
            fail("wrong: word %zu of %zu at %#llx is %#lx, must be %#lx", i, b->words, b->address,
                 copy[i], b->shadow[i]);
    host_copy_free(copy, bytes);
    w->counts[COMPARED] += bytes;
}

/* Starts a buffer in memory that is already allocated. */
static void begin_buffer(struct worker *w, struct buffer *b, size_t bytes)
{
    b->words = bytes / 8;
    b->shadow = host_copy_new(bytes);
    w->held += bytes;
    device_fill(w, b, next(w));
}

static void make(struct worker *w, struct buffer *b)
{
    /* Few small sizes, so that most of the moved bytes are data; and random large sizes. */
    static const size_t small[] = { 8, 512, 3000, 65536, 300000, 1 << 20 };
    size_t bytes = below(w, 4) != 0 ? small[below(w, 6)] & ~(size_t)7
                                    : ((size_t)1 << 20) + (below(w, 3 << 20) & ~(size_t)7);
    b->mapped = below(w, 5) == 0;
    b->pooled = !b->mapped && below(w, 3) == 0;
    b->managed = !b->mapped && !b->pooled && below(w, 3) == 0;
    if (b->mapped)
        bytes = GRAIN * (1 + below(w, 2));
    if (w->held + bytes > w->limit)
        return;
    if (b->mapped)
        b->address = map_new(bytes);
    else if (b->pooled)
        b->address = take_pooled(w, bytes);
    else if (!(b->managed ? ALLOCATED(cuMemAllocManaged, &b->address, bytes, CU_MEM_ATTACH_GLOBAL)
                          : ALLOCATED(cuMemAlloc_v2, &b->address, bytes)))
        b->address = 0;
    if (b->address != 0)
        begin_buffer(w, b, bytes);
}

static void drop(struct worker *w, struct buffer *b)
{
    /* Mostly without compare(), so that work is in flight, for which the driver waits. */
    if (below(w, 4) == 0)
        compare(w, b);
    if (b->mapped) {
        CHECK(cuStreamSynchronize, w->stream);
        unmap(b->address, b->words * 8);
    } else if (b->pooled || (!b->managed && below(w, 4) == 0)) {
        give_pooled(w, b->address);
    } else {
        CHECK(cuMemFree_v2, b->address);
    }
    w->held -= b->words * 8;
    host_copy_free(b->shadow, b->words * 8);
    *b = (struct buffer){ .generation = b->generation + 1 };
}

#define CHURNED_BYTES ((size_t)2 << 20)

/* Allocates and frees the same size repeatedly, so that freed memory is reused at once. `b` is
 * empty before and after. */
static void churn(struct worker *w, struct buffer *b)
{
    size_t bytes = CHURNED_BYTES * (1 + below(w, 2));
    b->mapped = b->pooled = b->managed = false;    /* left from the last attempt to allocate */
    while (w->held + bytes <= w->limit && below(w, 8) != 0
           && cuMemAlloc_v2(&b->address, bytes) == CUDA_SUCCESS) {
        begin_buffer(w, b, bytes);
        drop(w, b);
        w->counts[CHURNED]++;
    }
}

/* Maps the memory of `b` at another address, or of the next mapped buffer if `b` is not mapped. */
static void move(struct worker *w, struct buffer *b)
{
    for (unsigned i = 0; i < BUFFERS && !(b->mapped && b->address != 0); i++)
        b = &w->buffers[(b - w->buffers + 1) % BUFFERS];
    if (!b->mapped || b->address == 0)
        return;
    CHECK(cuStreamSynchronize, w->stream);
    b->address = map_elsewhere(b->address, b->words * 8, below(w, 2) == 0, below(w, 6) == 0);
    b->generation++;
    w->counts[MAPPED_ELSEWHERE]++;
}

static void upload(struct worker *w, struct buffer *b)
{
    for (size_t i = 0; i < b->words; i++)
        b->shadow[i] = next(w);
    if (below(w, 2) == 0) {
        CHECK(cuMemcpyHtoDAsync_v2, b->address, b->shadow, b->words * 8, w->stream);
        CHECK(cuStreamSynchronize, w->stream);
    } else {
        CHECK(cuStreamSynchronize, w->stream);
        CHECK(cuMemcpyHtoD_v2, b->address, b->shadow, b->words * 8);
        /* A small copy may still be in progress from the driver's own buffer. */
        CHECK(cuStreamSynchronize, NULL);
    }
}

static void copy_between(struct worker *w, struct buffer *to, struct buffer *from)
{
    size_t words = to->words < from->words ? to->words : from->words;
    if (to == from)
        return;
    CHECK(cuMemcpyDtoDAsync_v2, to->address, from->address, words * 8, w->stream);
    memcpy(to->shadow, from->shadow, words * 8);
}

static void add(struct worker *w, struct buffer *to, struct buffer *a, struct buffer *b)
{
    size_t words = a->words < b->words ? a->words : b->words;
    uint64_t count = words < to->words ? words : to->words;
    if (to == a || to == b)
        return;
    launch(w, add_kernel, (void *[]){ &to->address, &a->address, &b->address, &count });
    for (size_t i = 0; i < count; i++)
        to->shadow[i] = a->shadow[i] + b->shadow[i];
}

static void set(struct worker *w, struct buffer *b)
{
    unsigned char value = (unsigned char)next(w);
    size_t bytes = b->words * 8;
    if (below(w, 2) == 0) {
        CHECK(cuMemsetD8Async, b->address, value, bytes, w->stream);
    } else {
        uint32_t word = value * 0x01010101u;
        CHECK(cuMemsetD32Async, b->address, word, bytes / 4, w->stream);
    }
    memset(b->shadow, value, bytes);
}

static void ask(struct buffer *b)
{
    CUdeviceptr base = 0, inside = b->address + (b->words - 1) * 8;
    size_t size = 0;
    unsigned type = 0;
    CHECK(cuMemGetAddressRange_v2, &base, &size, inside);
    CHECK(cuPointerGetAttribute, &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, inside);
    if (base != b->address || size != b->words * 8 || type != CU_MEMORYTYPE_DEVICE)
        fail("asked about %#llx: base %#llx size %zu type %u", inside, base, size, type);
}

static bool can_be_shared(const struct buffer *b)
{
    return b->address != 0 && !b->mapped && !b->pooled && !b->managed
           && b->words * 8 > (size_t)1 << 20;
}

/*
 * Exports a large buffer by legacy IPC with work in flight; afterwards it is pinned. False: no
 * buffer, or no room to pin it.
 */
static bool share(struct worker *w, struct buffer *b)
{
    CUipcMemHandle handle;
    for (unsigned i = 0; i < BUFFERS && !can_be_shared(b); i++)
        b = &w->buffers[(b - w->buffers + 1) % BUFFERS];
    bool shared = can_be_shared(b) && ALLOCATED(cuIpcGetMemHandle, &handle, b->address + 8);
    w->counts[SHARED] += shared;
    return shared;
}

/*
 * Exports one buffer before the program has filled its memory: later there is rarely room, and each
 * run must export at least once. Memory that the library has allocated beyond the card can never be
 * exported: try another buffer.
 */
static void share_first(struct worker *w)
{
    struct buffer *b = &w->buffers[0];
    for (;; usleep(1000)) {
        if (!ALLOCATED(cuMemAlloc_v2, &b->address, (size_t)3 << 19))
            continue;
        begin_buffer(w, b, (size_t)3 << 19);
        if (share(w, b))
            return;
        drop(w, b);
    }
}

static struct buffer *any(struct worker *w)
{
    struct buffer *b = &w->buffers[below(w, BUFFERS)];
    return b->address != 0 ? b : NULL;
}

static void record_graph(struct worker *w)
{
    CUgraph graph;
    if (w->graph != NULL)
        CHECK(cuGraphExecDestroy, w->graph);
    w->graph = NULL;
    w->node_count = 0;
    CHECK(cuStreamBeginCapture_v2, w->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    /* Other threads allocate and free during the capture. */
    if (below(w, 4) == 0)
        usleep(3000);
    for (unsigned i = 0; i < GRAPH_NODES; i++) {
        struct buffer *b = any(w);
        if (b == NULL)
            continue;
        struct recorded *node = &w->nodes[w->node_count++];
        *node = (struct recorded){ (unsigned)(b - w->buffers), b->generation, next(w) };
        device_step(w, b, node->step);
    }
    CHECK(cuStreamEndCapture, w->stream, &graph);
    CHECK(cuGraphInstantiateWithFlags, &w->graph, graph, 0);
    CHECK(cuGraphDestroy, graph);
}

static void replay_graph(struct worker *w)
{
    bool valid = w->graph != NULL;
    for (unsigned i = 0; i < w->node_count; i++)
        valid &= w->buffers[w->nodes[i].buffer].generation == w->nodes[i].generation;
    if (!valid) {
        record_graph(w);
        return;
    }
    CHECK(cuGraphLaunch, w->graph, w->stream);
    for (unsigned i = 0; i < w->node_count; i++)
        shadow_step(&w->buffers[w->nodes[i].buffer], w->nodes[i].step);
    w->counts[GRAPHS]++;
}

static void operate(struct worker *w)
{
    struct buffer *slot = &w->buffers[below(w, BUFFERS)], *other;
    w->counts[OPERATIONS]++;
    if (slot->address == 0) {
        (below(w, 4) == 0 ? churn : make)(w, slot);
        return;
    }
    if (slot->managed && below(w, 4) == 0)
        (below(w, 2) == 0 ? touch_managed : tend_managed)(w, slot);
    switch (below(w, 19)) {
    case 0: case 1:
        drop(w, slot);
        break;
    case 2:
        upload(w, slot);
        break;
    case 3:
        if ((other = any(w)) != NULL)
            copy_between(w, slot, other);
        break;
    case 4: {
        struct buffer *second = any(w);
        if ((other = any(w)) != NULL && second != NULL)
            add(w, slot, other, second);
        break;
    }
    case 5:
        set(w, slot);
        break;
    case 6:
        ask(slot);
        break;
    case 7: case 8:
        replay_graph(w);
        break;
    case 9:
        compare(w, slot);
        break;
    case 10:
        move(w, slot);
        break;
    case 11: case 12: case 13:
        share(w, slot);
        break;
    case 14:
        tend_pools(w);
        break;
    case 15:
        usleep((unsigned)below(w, 2000));
        break;
    default: {
        uint64_t step = next(w);
        device_step(w, slot, step);
        shadow_step(slot, step);
    }
    }
}

static void *work(void *argument)
{
    struct worker *w = argument;
    CHECK(cuCtxSetCurrent, context);
    CHECK(cuStreamCreate, &w->stream, CU_STREAM_NON_BLOCKING);
    CHECK(cuStreamCreate, &w->other, CU_STREAM_NON_BLOCKING);
    CHECK(cuEventCreate, &w->event, CU_EVENT_DISABLE_TIMING);
    if (w->first)
        share_first(w);
    while (!atomic_load(&finish))
        if (atomic_load(&resting))
            usleep(5000);
        else
            operate(w);
    for (unsigned i = 0; i < BUFFERS; i++) {
        if (w->buffers[i].address == 0)
            continue;
        compare(w, &w->buffers[i]);
        drop(w, &w->buffers[i]);
    }
    CHECK(cuEventDestroy_v2, w->event);
    CHECK(cuStreamDestroy_v2, w->other);
    CHECK(cuStreamDestroy_v2, w->stream);
    return NULL;
}

static void stop(int signal)
{
    (void)signal;
    atomic_store(&finish, true);
}

static const char *option(int argc, char **argv, const char *name, const char *fallback)
{
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], name) == 0)
            return argv[i + 1];
    return fallback;
}

int main(int argc, char **argv)
{
    uint64_t seed = strtoull(option(argc, argv, "--seed", "1"), NULL, 0);
    unsigned threads = (unsigned)atoi(option(argc, argv, "--threads", "4"));
    double seconds = atof(option(argc, argv, "--seconds", "5"));
    double rest = atof(option(argc, argv, "--rest", "0"));
    size_t limit = strtoull(option(argc, argv, "--megabytes", "64"), NULL, 0) << 20;
    struct worker *workers = calloc(threads, sizeof *workers);
    CUdevice device;
    CUmodule module;

    load_calls();
    sigaction(SIGTERM, &(struct sigaction){ .sa_handler = stop }, NULL);
    CHECK(cuInit, 0);
    CHECK(cuDeviceGet, &device, 0);
    CHECK(cuDevicePrimaryCtxRetain, &context, device);
    CHECK(cuCtxSetCurrent, context);
    CHECK(cuModuleLoadData, &module, kernels_ptx);
    CHECK(cuModuleGetFunction, &fill_kernel, module, "nvshare_fill");
    CHECK(cuModuleGetFunction, &step_kernel, module, "nvshare_step");
    CHECK(cuModuleGetFunction, &add_kernel, module, "nvshare_add");

    const CUmemPoolProps properties = {
        .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE },
    };
    CHECK(cuMemPoolCreate, &pool, &properties);
    for (unsigned i = 0; i < threads; i++) {
        workers[i].random = (seed * 1000003 + i + 1) * 0x9E3779B97F4A7C15u | 1;
        workers[i].limit = limit / threads;
        workers[i].first = i == 0;
        pthread_create(&workers[i].thread, NULL, work, &workers[i]);
    }
    struct timespec begun;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    for (double passed = 0; !atomic_load(&finish) && passed < seconds;
         passed = seconds_since(&begun)) {
        usleep(20000);
        rest_as_due(passed, rest);
    }
    atomic_store(&finish, true);
    for (unsigned i = 0; i < threads; i++) {
        pthread_join(workers[i].thread, NULL);
        for (int count = 0; count < COUNTS && i > 0; count++)
            workers[0].counts[count] += workers[i].counts[count];
    }
    CHECK(cuMemPoolDestroy, pool);
    CHECK(cuDevicePrimaryCtxRelease_v2, device);
    printf("{\"seed\": %lu", seed);
    for (int count = 0; count < COUNTS; count++)
        printf(", \"%s\": %lu", count_names[count], workers[0].counts[count]);
    puts("}");
    free(workers);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "conformance.h"

void addresses(void)
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

void mappings(void)
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

void pointers(void)
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

void host_memory(void)
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

void allocations(void)
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

void pools(void)
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

void sharing(void)
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

/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes: what kernels, copies and fills do to them, bit by bit. */
#include <string.h>
#include <unistd.h>

#include "check.h"

#define GOLDEN 0x9E3779B97F4A7C15ull
#define MIX 0xBF58476D1CE4E5B9ull

/* Over three mappings that lie side by side, from an odd word on. */
static void kernels(void)
{
    CUdeviceptr range, out;
    size_t words = (6 * MIB - 24) / 8;
    uint64_t *got = malloc(words * 8), total = 0, told;
    OK(cuMemAddressReserve(&range, 6 * MIB, 0, 0, 0));
    for (int i = 0; i < 3; i++)
        put_block(range + (size_t)i * BLOCK, BLOCK);
    OK(cuMemAlloc(&out, 8));
    OK(cuMemsetD32(out, 0, 2));
    OK(launch(fill, NULL, range + 8, words, 77, 0));
    OK(launch(step, NULL, range + 8, words, 5, 0));
    OK(launch(sum, NULL, range + 8, words, out, 0));
    OK(launch(sum, NULL, range + 8, words, out, 0));
    OK(cuMemcpyDtoH(&told, out, 8));
    OK(cuMemcpyDtoH(got, range + 8, words * 8));
    for (uint64_t i = 0; i < words; i++) {
        uint64_t x = 77 + i * GOLDEN;
        x = (x ^ x >> 29) * MIX + 5 + i;
        CHECK(got[i] == x);
        total += x * (2 * i + 1);
    }
    CHECK(told == 2 * total);
    OK(launch(add, NULL, range + 8, range + 8, range + 8, words));
    OK(cuMemcpyDtoH(got, range + 8, 8));
    CHECK(got[0] == 2 * (((uint64_t)77 ^ 77 >> 29) * MIX + 5));
    OK(cuMemFree(out));
    free(got);
}

static void planes(void)
{
    enum { WIDTH = 100, HEIGHT = 7, DEPTH = 3, PITCH = 512, ROWS = 9 };
    unsigned char from[DEPTH][HEIGHT][WIDTH], back[DEPTH][HEIGHT][WIDTH];
    for (size_t i = 0; i < sizeof from; i++)
        ((unsigned char *)from)[i] = (unsigned char)(i * 7 + 1);
    CUdeviceptr memory;
    OK(cuMemAlloc(&memory, (size_t)PITCH * ROWS * DEPTH));
    OK(cuMemsetD8(memory, 0xEE, (size_t)PITCH * ROWS * DEPTH));
    CUDA_MEMCPY3D in = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = from,
                        .srcPitch = WIDTH, .srcHeight = HEIGHT,
                        .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = memory,
                        .dstPitch = PITCH, .dstHeight = ROWS, .dstXInBytes = 3, .dstY = 1,
                        .WidthInBytes = WIDTH, .Height = HEIGHT, .Depth = DEPTH};
    OK(cuMemcpy3D(&in));
    unsigned char byte;
    OK(cuMemcpyDtoH(&byte, memory + 1 * PITCH * ROWS + (2 + 1) * PITCH + 5 + 3, 1));
    CHECK(byte == from[1][2][5]);
    OK(cuMemcpyDtoH(&byte, memory + 2, 1));
    CHECK(byte == 0xEE);
    CUDA_MEMCPY3D out = {.dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = back,
                         .dstPitch = WIDTH, .dstHeight = HEIGHT,
                         .srcMemoryType = CU_MEMORYTYPE_UNIFIED, .srcDevice = memory,
                         .srcPitch = PITCH, .srcHeight = ROWS, .srcXInBytes = 3, .srcY = 1,
                         .WidthInBytes = WIDTH, .Height = HEIGHT, .Depth = DEPTH};
    OK(cuMemcpy3DAsync(&out, NULL));
    OK(cuCtxSynchronize());
    CHECK(memcmp(from, back, sizeof from) == 0);
    CUDA_ARRAY_DESCRIPTOR shape = {WIDTH, HEIGHT, CU_AD_FORMAT_UNSIGNED_INT8, 1};
    CUarray array;
    OK(cuArrayCreate(&array, &shape));
    CUDA_MEMCPY2D to_array = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = from,
                              .srcPitch = WIDTH, .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                              .dstArray = array, .WidthInBytes = WIDTH, .Height = HEIGHT};
    OK(cuMemcpy2D(&to_array));
    memset(back, 0, sizeof back);
    CUDA_MEMCPY2D from_array = {.srcMemoryType = CU_MEMORYTYPE_ARRAY, .srcArray = array,
                                .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = back,
                                .dstPitch = WIDTH, .WidthInBytes = WIDTH, .Height = HEIGHT};
    OK(cuMemcpy2DAsync(&from_array, NULL));
    OK(cuCtxSynchronize());
    CHECK(memcmp(from, back, sizeof from[0]) == 0);
    OK(cuArrayDestroy(array));
    OK(cuMemFree(memory));
}

/* Each level is an array like any other, but goes with the rest alone. */
static void levels(void)
{
    unsigned char from[16], back[16] = {0};
    CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = 16, .Height = 8, .NumChannels = 1,
                                     .Format = CU_AD_FORMAT_UNSIGNED_INT8};
    CUmipmappedArray array;
    CUarray level;
    OK(cuMipmappedArrayCreate(&array, &shape, 99));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMipmappedArrayGetLevel(&level, array, 5));
    OK(cuMipmappedArrayGetLevel(&level, array, 4));      /* 16 halves four times to 1 */
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuArrayDestroy(level));
    OK(cuMipmappedArrayGetLevel(&level, array, 1));
    for (size_t i = 0; i < sizeof from; i++)
        from[i] = (unsigned char)(i * 3 + 1);
    CUDA_MEMCPY2D there = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = from, .srcPitch = 8,
                           .dstMemoryType = CU_MEMORYTYPE_ARRAY, .dstArray = level,
                           .WidthInBytes = 8, .Height = 2};
    CUDA_MEMCPY2D here = {.srcMemoryType = CU_MEMORYTYPE_ARRAY, .srcArray = level,
                          .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = back, .dstPitch = 8,
                          .WidthInBytes = 8, .Height = 2};
    OK(cuMemcpy2D(&there));
    OK(cuMemcpy2D(&here));
    CHECK(memcmp(from, back, sizeof from) == 0);
    OK(cuMipmappedArrayDestroy(array));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuMipmappedArrayDestroy(array));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuMemcpy2D(&here));
}

static void prefetches(void)
{
    CUdeviceptr memory, list[3];
    CUstream stream;
    unsigned char byte = 0;
    CUmemLocation places[2] = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, {CU_MEM_LOCATION_TYPE_HOST, 0}};
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemAllocManaged(&memory, 3 * MIB, CU_MEM_ATTACH_GLOBAL));
    OK(cuMemsetD8(memory, 9, 3 * MIB));
    for (size_t i = 0; i < 3; i++)
        list[i] = memory + i * MIB;
#define PREFETCH(stream)                                                                 \
    cuMemPrefetchBatchAsync(list, (size_t[]){MIB, MIB, MIB}, 3, places, (size_t[]){0, 2}, 2, 0, \
                            stream)
    OK(PREFETCH(stream));
    EXPECT(CUDA_ERROR_INVALID_VALUE, PREFETCH(NULL));    /* of no stream, says cuda.h */
    places[1] = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, 99};
    EXPECT(CUDA_ERROR_INVALID_DEVICE, PREFETCH(stream));
#undef PREFETCH
    OK(cuStreamSynchronize(stream));
    OK(cuMemcpyDtoH(&byte, memory + 3 * MIB - 1, 1));
    CHECK(byte == 9);
    OK(cuMemFree(memory));
    OK(cuStreamDestroy(stream));
}

static void fills(void)
{
    CUdeviceptr memory;
    size_t pitch;
    unsigned char bytes[64];
    OK(cuMemAllocPitch(&memory, &pitch, 16, 4, 4));
    OK(cuMemsetD2D8(memory, pitch, 0x11, pitch, 4));
    OK(cuMemsetD2D16(memory + 4, pitch, 0x2233, 2, 2));
    OK(cuMemsetD2D32Async(memory + pitch, pitch, 0x44556677, 1, 1, NULL));
    OK(cuMemcpyDtoH(bytes, memory, 16));
    CHECK(memcmp(bytes, "\x11\x11\x11\x11\x33\x22\x33\x22\x11", 9) == 0);
    OK(cuMemcpyDtoH(bytes, memory + pitch, 16));
    CHECK(memcmp(bytes, "\x77\x66\x55\x44\x33\x22\x33\x22\x11", 9) == 0);
    OK(cuMemFree(memory));
}

/* The source of a small copy is free at once; one in page-locked memory is not. */
static void staging(void)
{
    CUdeviceptr memory, flag;
    CUstream stream;
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
    CUdeviceptr range;
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

static void values(void)
{
    CUdeviceptr memory;
    CUstream waiter, writer;
    OK(cuMemAlloc(&memory, 64));
    OK(cuMemsetD8(memory, 0, 64));
    OK(cuCtxSynchronize());
    OK(cuStreamCreate(&waiter, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&writer, CU_STREAM_NON_BLOCKING));
    OK(cuStreamWaitValue32(waiter, memory, 10, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuStreamWaitValue64(waiter, memory + 8, 6, CU_STREAM_WAIT_VALUE_EQ));
    OK(cuStreamWriteValue64(waiter, memory + 16, 1, 0));
    OK(cuStreamWriteValue32(writer, memory, 11, 0));
    OK(cuStreamSynchronize(writer));
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(waiter));
    CUstreamBatchMemOpParams list[2] = {
        {.writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64, .address = memory + 8,
                        .value64 = 6}},
        {.operation = CU_STREAM_MEM_OP_BARRIER}};
    OK(cuStreamBatchMemOp(writer, 2, list, 0));
    OK(cuStreamSynchronize(waiter));
    uint64_t got;
    OK(cuMemcpyDtoH(&got, memory + 16, 8));
    CHECK(got == 1);
    OK(cuMemAllocAsync(&memory, 64, writer));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamWriteValue32(writer, memory, 11, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamWaitValue64(writer, memory + 8, 6, 0));
    list[0].writeValue.address = memory;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamBatchMemOp(writer, 2, list, 0));
    OK(cuMemFreeAsync(memory, writer));
}

int main(void)
{
    begin(0);
    kernels();
    planes();
    levels();
    prefetches();
    fills();
    staging();
    garbage();
    values();
    puts("data: right");
    return 0;
}

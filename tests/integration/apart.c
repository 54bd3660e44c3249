/* SPDX-License-Identifier: Apache-2.0 */
/*
 * apart [stalled]: copies memory of one card to a card without peer access, by each function, and
 *     prints the result of each call and whether all bytes are right; with `stalled` also while the
 *     stream waits for the calling thread.
 * apart owner CARD: exports memory of this card, prints the handle, and runs until stdin ends.
 * apart importer CARD: has contexts on the first card and on this card, and copies the exported
 *     memory to the first card and back.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"

#define PITCH 64
#define SIZE (4u << 20)
#define USED 4096

static CUcontext first, second;
static CUdeviceptr from, to;
static CUstream stream;
static unsigned char source[USED], found[USED], expected[USED];

static void must(CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS)
        return;
    printf("%s: %d\n", what, (int)result);
    fflush(stdout);
    _exit(1);
}
#define OK(call) must(call, #call)

static void expect_rows(size_t rows, size_t width, size_t offset)
{
    memset(expected, 0, sizeof expected);
    for (size_t y = 0; y < rows; y++)
        memcpy(expected + offset + y * PITCH, source + offset + y * PITCH, width);
}

/* A call that copies between two cards may return before it has copied. */
static void synchronize(void)
{
    OK(cuCtxSetCurrent(first));
    OK(cuCtxSynchronize());
    OK(cuCtxSetCurrent(second));
    OK(cuCtxSynchronize());
}

static void say(const char *name, CUresult result)
{
    synchronize();
    OK(cuMemcpyDtoH_v2(found, to, USED));
    printf("%s %d %s\n", name, (int)result,
           memcmp(found, expected, USED) == 0 ? "right" : "wrong");
    fflush(stdout);
    OK(cuMemsetD8_v2(to, 0, USED));
    OK(cuCtxSynchronize());
}

static void copy_lines(void)
{
    memcpy(expected, source, USED);
    say("cuMemcpy", cuMemcpy(to, from, USED));
    say("cuMemcpyAsync", cuMemcpyAsync(to, from, USED, stream));
    say("cuMemcpyDtoD", cuMemcpyDtoD_v2(to, from, USED));
    CUmemcpyAttributes attributes = { .srcAccessOrder = 1 };
    size_t zero = 0, failed = 7;
    say("cuMemcpyBatchAsync",
        cuMemcpyBatchAsync(&to, &from, &(size_t){ USED }, 1, &attributes, &zero, 1, &failed, stream));
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
    /* The second copy is within one card. */
    OK(cuMemcpyHtoD_v2(to + SIZE / 2, source + USED / 2, USED / 2));
    CUdeviceptr targets[] = { to, to + USED / 2 }, sources[] = { from, to + SIZE / 2 };
    size_t sizes[] = { USED / 2, USED / 2 };
    say("mixed", cuMemcpyBatchAsync(targets, sources, sizes, 2, &attributes, &zero, 1, &failed, stream));
    if (failed != SIZE_MAX)
        printf("failed: %zu\n", failed);
}

/* Submits batches that the driver refuses. The driver may have copied a part, which is cleared. */
static void copy_wrong_lines(void)
{
    CUmemcpyAttributes attributes[] = { { .srcAccessOrder = 1 }, { .srcAccessOrder = 1 } };
    CUdeviceptr targets[] = { to, to + USED / 2 }, sources[] = { from, from + USED / 2 };
    size_t sizes[] = { USED / 2, 0 }, whole[] = { USED / 2, USED / 2 }, zero = 0, one = 1, failed;
    size_t many[] = { 0, 1 };
    printf("wrong size %d\n", (int)cuMemcpyBatchAsync(targets, sources, sizes, 2, attributes, &zero, 1, &failed, stream));
    printf("wrong index %d\n", (int)cuMemcpyBatchAsync(targets, sources, whole, 2, attributes, &one, 1, &failed, stream));
    printf("wrong number %d\n", (int)cuMemcpyBatchAsync(targets, sources, whole, 1, attributes, many, 2, &failed, stream));
    synchronize();
    OK(cuMemsetD8_v2(to, 0, USED));
    OK(cuCtxSynchronize());
}

/* Copies while the stream waits for this thread; the source may be read during the call only. */
static void copy_lines_while_the_stream_waits(void)
{
    unsigned *reached;
    unsigned char *half;
    OK(cuMemHostAlloc((void **)&reached, sizeof *reached, 0));
    OK(cuMemHostAlloc((void **)&half, USED / 2, 0));
    memcpy(half, source + USED / 2, USED / 2);
    *reached = 0;
    CUmemcpyAttributes attributes[] = {
        { .srcAccessOrder = 1 }, { .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL },
    };
    CUdeviceptr targets[] = { to, to + USED / 2 }, sources[] = { from, (CUdeviceptr)half };
    size_t sizes[] = { USED / 2, USED / 2 }, indices[] = { 0, 1 }, failed = 7;
    OK(cuStreamWaitValue32_v2(stream, (CUdeviceptr)reached, 1, 0));
    CUresult result =
        cuMemcpyBatchAsync(targets, sources, sizes, 2, attributes, indices, 2, &failed, stream);
    __atomic_store_n(reached, 1, __ATOMIC_RELEASE);
    say("while it waits", result);
}

static void copy_shapes(void)
{
    const size_t at = 2 * PITCH + 8;
    CUDA_MEMCPY2D flat = {
        .srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = from, .srcPitch = PITCH,
        .srcXInBytes = 8, .srcY = 2,
        .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = to, .dstPitch = PITCH,
        .dstXInBytes = 8, .dstY = 2, .WidthInBytes = 40, .Height = 16,
    };
    expect_rows(16, 40, at);
    say("cuMemcpy2D", cuMemcpy2D_v2(&flat));
    say("cuMemcpy2DUnaligned", cuMemcpy2DUnaligned_v2(&flat));
    say("cuMemcpy2DAsync", cuMemcpy2DAsync_v2(&flat, stream));
    flat.srcMemoryType = flat.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
    say("unified", cuMemcpy2D_v2(&flat));
    CUDA_MEMCPY3D deep = {
        .srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = from, .srcPitch = PITCH, .srcHeight = 8,
        .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = to, .dstPitch = PITCH, .dstHeight = 8,
        .WidthInBytes = 48, .Height = 8, .Depth = 3,
    };
    expect_rows(24, 48, 0);
    say("cuMemcpy3D", cuMemcpy3D_v2(&deep));
    say("cuMemcpy3DAsync", cuMemcpy3DAsync_v2(&deep, stream));
    CUDA_MEMCPY3D_BATCH_OP operation = {
        .src = { .type = CU_MEMCPY_OPERAND_TYPE_POINTER, .op.ptr = { from, PITCH, 8, { 0 } } },
        .dst = { .type = CU_MEMCPY_OPERAND_TYPE_POINTER, .op.ptr = { to, PITCH, 8, { 0 } } },
        .extent = { 48, 8, 3 }, .srcAccessOrder = 1,
    };
    size_t failed;
    say("cuMemcpy3DBatchAsync", cuMemcpy3DBatchAsync(1, &operation, &failed, 0, stream));
}

static void copy_between_cards(int stalled)
{
    for (size_t i = 0; i < USED; i++)
        source[i] = (unsigned char)(1 + i * 31 % 251);
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&first, 0));
    OK(cuDevicePrimaryCtxRetain(&second, 1));
    OK(cuCtxSetCurrent(first));
    OK(cuMemAlloc_v2(&from, SIZE));
    OK(cuMemcpyHtoD_v2(from, source, USED));
    OK(cuCtxSetCurrent(second));
    OK(cuMemAlloc_v2(&to, SIZE));
    OK(cuMemsetD8_v2(to, 0, SIZE));
    OK(cuStreamCreate(&stream, 1));
    copy_lines();
    if (stalled)
        copy_lines_while_the_stream_waits();
    copy_wrong_lines();
    copy_shapes();
}

static void own(int card)
{
    CUipcMemHandle handle;
    CUdeviceptr memory;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&first, card));
    OK(cuCtxSetCurrent(first));
    OK(cuMemAlloc_v2(&memory, SIZE));
    OK(cuMemsetD8_v2(memory, 7, SIZE));
    OK(cuIpcGetMemHandle(&handle, memory));
    if (fwrite(&handle, sizeof handle, 1, stdout) != 1 || fflush(stdout) != 0)
        _exit(1);
    while (getchar() != EOF)
        continue;
    OK(cuMemcpyDtoH_v2(found, memory, USED));
    _exit(found[0] == 9 && found[USED - 1] == 9 ? 0 : 1);
}

static void import(int card)
{
    CUipcMemHandle handle;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&first, 0));
    OK(cuDevicePrimaryCtxRetain(&second, card));
    OK(cuCtxSetCurrent(first));
    OK(cuMemAlloc_v2(&to, SIZE));
    if (fread(&handle, sizeof handle, 1, stdin) != 1)
        _exit(1);
    OK(cuIpcOpenMemHandle_v2(&from, handle, 1));
    OK(cuMemcpyDtoD_v2(to, from, USED));
    memset(expected, 7, USED);
    OK(cuMemcpyDtoH_v2(found, to, USED));
    printf("from %s\n", memcmp(found, expected, USED) == 0 ? "right" : "wrong");
    OK(cuMemsetD8_v2(to, 9, USED));
    OK(cuMemcpyDtoD_v2(from, to, USED));
    OK(cuCtxSynchronize());
    OK(cuCtxSetCurrent(second));
    OK(cuMemAlloc_v2(&to, SIZE));
    OK(cuMemcpyDtoD_v2(to, from, USED));
    OK(cuMemcpyDtoH_v2(found, to, USED));
    memset(expected, 9, USED);
    printf("to the other %s\n", memcmp(found, expected, USED) == 0 ? "right" : "wrong");
    fflush(stdout);
    OK(cuIpcCloseMemHandle(from));
}

int main(int count, char **arguments)
{
    const char *what = count > 1 ? arguments[1] : "";
    if (strcmp(what, "owner") == 0)
        own(atoi(arguments[2]));
    else if (strcmp(what, "importer") == 0)
        import(atoi(arguments[2]));
    else
        copy_between_cards(strcmp(what, "stalled") == 0);
    return 0;
}

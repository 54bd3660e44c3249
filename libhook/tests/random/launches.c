/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels, and words that streams write and wait for. */
#include "actions.h"

extern const char kernels_ptx[];     /* libhook/demo/kernels.ptx */
__asm__(".section .rodata\n.global kernels_ptx\nkernels_ptx: .incbin \"" KERNELS_PTX "\"\n"
        ".byte 0\n.text\n");

struct kernels kernels;

void kernels_begin(void)
{
    DO(cuModuleLoadData, (&kernels.module, kernels_ptx), "kernels");
    DO(cuModuleGetFunction, (&kernels.fill, kernels.module, "nvshare_fill"), "fill");
    DO(cuModuleGetFunction, (&kernels.step, kernels.module, "nvshare_step"), "step");
    DO(cuModuleGetFunction, (&kernels.add, kernels.module, "nvshare_add"), "add");
    DO(cuModuleGetFunction, (&kernels.checksum, kernels.module, "nvshare_checksum"), "checksum");
}

void kernels_end(void)
{
    DO(cuModuleUnload, (kernels.module), "kernels");
}

static void start(CUfunction kernel, struct lane lane, void **parameters, const char *name,
                  struct place place, size_t count)
{
    const CUlaunchConfig config = {
        .gridDimX = 4, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 64, .blockDimY = 1,
        .blockDimZ = 1, .hStream = lane.handle,
    };
#define ABOUT "%s, %s, %zu, %s", name, place.text, count, lane.text
    switch (roll(4)) {
    WHEN(0, IN_LANE(cuLaunchKernelEx, lane, (&config, kernel, parameters, NULL), ABOUT))
    WHEN(1, IN_LANE(cuLaunchCooperativeKernel, lane, (kernel, 4, 1, 1, 64, 1, 1, 0, lane.handle,
                                                      parameters), ABOUT))
    default:
        IN_LANE(cuLaunchKernel, lane, (kernel, 4, 1, 1, 64, 1, 1, 0, lane.handle, parameters,
                                       NULL), ABOUT);
    }
#undef ABOUT
}

void launch(void)
{
    struct block *block = block_any(), *other = block_any();
    struct lane lane = lane_any();
    if (block == NULL || block->size < 64)
        return;
    struct place place = place_in(block, 8);
    uint64_t count = roll(place.room / 8 + 1), value = roll(1u << 30);
    block_enter(block, lane.stream);
    switch (roll(4)) {
    WHEN(0, start(kernels.fill, lane, (void *[]){ &place.address, &count, &value }, "fill", place,
                  count))
    case 1:
        if (other != block && other->size / 8 >= count) {
            CUdeviceptr from = other->address;
            block_enter(other, lane.stream);
            start(kernels.add, lane, (void *[]){ &place.address, &from, &from, &count }, "add",
                  place, count);
            break;
        }
        /* fall through */
    case 2:
        if (other != block && other->size >= 8) {
            CUdeviceptr sum = other->address;
            block_enter(other, lane.stream);
            start(kernels.checksum, lane, (void *[]){ &place.address, &count, &sum }, "checksum",
                  place, count);
            break;
        }
        /* fall through */
    default:
        start(kernels.step, lane, (void *[]){ &place.address, &count, &value }, "step", place, count);
    }
}

/* A stream writes a word, and then waits for that value of the word. */
void write_value(void)
{
    struct block *block = block_of_device();
    struct lane lane = lane_own();
    uint32_t value = (uint32_t)roll(1u << 30);
    /* The driver does not promise stream writes to managed memory, and refuses pool memory. */
    if (block == NULL || block->size < 64 || block->kind == MANAGED
        || block->kind == POOLED || lane.handle == NULL)
        return;
    struct place place = place_in(block, 8);
    if (place.room < 8)
        return;
    block_enter(block, lane.stream);
#define ABOUT "%s, %s, %u", lane.text, place.text, value
#define BOTH(write, wait, suffix)                                                           \
    do {                                                                                    \
        IN_LANE(write##suffix, lane, (lane.handle, place.address, value, 0), ABOUT);        \
        IN_LANE(wait##suffix, lane, (lane.handle, place.address, value,                     \
                                     CU_STREAM_WAIT_VALUE_EQ), ABOUT);                      \
    } while (0)
    switch (roll(6)) {
    WHEN(0, BOTH(cuStreamWriteValue32, cuStreamWaitValue32, ))
    WHEN(1, BOTH(cuStreamWriteValue32, cuStreamWaitValue32, _v2))
    WHEN(2, BOTH(cuStreamWriteValue64, cuStreamWaitValue64, ))
    WHEN(3, BOTH(cuStreamWriteValue64, cuStreamWaitValue64, _v2))
    default: {
        CUstreamBatchMemOpParams operations[2] = {
            { .writeValue = { .operation = CU_STREAM_MEM_OP_WRITE_VALUE_32,
                              .address = place.address, .value = value } },
            { .waitValue = { .operation = CU_STREAM_MEM_OP_WAIT_VALUE_32,
                             .address = place.address, .value = value,
                             .flags = CU_STREAM_WAIT_VALUE_EQ } },
        };
        if (one_in(2))
            IN_LANE(cuStreamBatchMemOp, lane, (lane.handle, 2, operations, 0), ABOUT);
        else
            IN_LANE(cuStreamBatchMemOp_v2, lane, (lane.handle, 2, operations, 0), ABOUT);
    }
    }
}

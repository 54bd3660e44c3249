/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that a driver refuses, and unusual calls that a driver accepts. */
#include "actions.h"

#define NOWHERE ((CUdeviceptr)0x1234)
#define VAST ((size_t)1 << 50)

static void allocations(void)
{
    CUdeviceptr address = 0;
    size_t pitch = 77;
    switch (roll(11)) {
    WHEN(0, DO(cuMemAlloc_v2, (&address, 0), "0"))
    WHEN(1, DO(cuMemAlloc_v2, (&address, VAST), "1 << 50"))
    WHEN(2, DO(cuMemAlloc_v2, (NULL, 100), "NULL"))
    WHEN(3, DO(cuMemAlloc_v2, (&address, SIZE_MAX), "SIZE_MAX"))
    WHEN(4, DO(cuMemAllocPitch_v2, (&address, &pitch, 100, 10, 3), "element 3"))
    WHEN(5, DO(cuMemAllocPitch_v2, (&address, &pitch, 0, 10, 4), "width 0"))
    WHEN(6, DO(cuMemAllocPitch_v2, (&address, &pitch, 100, 0, 4), "height 0"))
    WHEN(7, DO(cuMemAllocManaged, (&address, 100, 0), "flags 0"))
    WHEN(8, DO(cuMemAllocManaged, (&address, 0, CU_MEM_ATTACH_GLOBAL), "0"))
    WHEN(9, DO(cuMemAllocAsync, (&address, VAST, NULL), "1 << 50"))
    default:
        if (DO(cuMemAllocAsync, (&address, 0, NULL), "0") == CUDA_SUCCESS && address != 0)
            DO(cuMemFreeAsync, (address, NULL), "of size 0");
    }
}

static void frees(struct block *block)
{
    switch (roll(8)) {
    WHEN(0, DO(cuMemFree_v2, (0), "0"))
    WHEN(1, DO(cuMemFreeAsync, (0, NULL), "0"))
    WHEN(2, DO(cuMemFree_v2, (NOWHERE), "nowhere"))
    WHEN(3, DO(cuMemFreeAsync, (NOWHERE, NULL), "nowhere"))
    case 4:
        if (block != NULL && block->size > 1)
            DO(cuMemFree_v2, (block->address + 1), "b%u+1", block->number);
        break;
    case 5:
        if (block != NULL && block->size > 1)
            DO(cuMemFreeAsync, (block->address + 1, NULL), "b%u+1", block->number);
        break;
    case 6:
        if (block != NULL && (block->kind == MAPPED || block_on_host(block)))
            DO(cuMemFree_v2, (block->address), "b%u, not so", block->number);
        break;
    default:
        if (block != NULL && block->kind != PINNED)
            DO(cuMemFreeHost, ((void *)(uintptr_t)block->address), "b%u, not so", block->number);
    }
}

static void copies(struct block *block)
{
    struct lane lane = lane_any();
    unsigned char byte = 0;
    switch (roll(9)) {
    WHEN(0, DO(cuMemcpyHtoD_v2, (NOWHERE, pattern, 64), "nowhere"))
    WHEN(1, DO(cuMemcpyDtoH_v2, (scratch, NOWHERE, 64), "nowhere"))
    WHEN(2, DO(cuMemcpyHtoD_v2, (NOWHERE, pattern, 0), "nowhere, 0"))
    WHEN(3, DO(cuMemsetD8_v2, (NOWHERE, 1, 64), "nowhere"))
    WHEN(4, DO(cuMemsetD8_v2, (NOWHERE, 1, 0), "nowhere, 0"))
    case 5:
        if (block != NULL && block->size > 64)
            DO(cuMemsetD32_v2, (block->address + 1, 1, 4), "b%u+1", block->number);
        break;
    case 6:
        /* The fill is longer than all mapped memory behind the block. */
        if (block != NULL && !block_on_host(block)) {
            block_enter(block, lane.stream);
            IN_LANE(cuMemsetD8Async, lane, (block->address, 1, VAST, lane.handle),
                    "b%u, 1 << 50, %s", block->number, lane.text);
        }
        break;
    case 7:
        if (block != NULL && block->kind == MAPPED)
            DO(cuMemcpyHtoD_v2, (block->address + block->size - 1, pattern, 2), "out of b%u",
               block->number);
        break;
    default:
        if (block != NULL && block->kind == MAPPED)
            DO(cuMemcpyDtoH_v2, (&byte, block->address + block->size, 1), "behind b%u",
               block->number);
    }
}

static void pools_and_hosts(struct block *block)
{
    CUmemPoolProps properties = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED };
    CUmemoryPool pool, standard = NULL;
    CUdeviceptr address;
    void *memory = NULL;
    unsigned flags = 77;
    switch (roll(8)) {
    WHEN(0, DO(cuMemPoolCreate, (&pool, &properties), "no location"))
    WHEN(1, DO(cuMemPoolCreate, (NULL, &properties), "NULL"))
    case 2:
        DO(cuDeviceGetDefaultMemPool, (&standard, device), "0");
        DO(cuMemPoolDestroy, (standard), "standard");
        break;
    WHEN(3, DO(cuMemAllocAsync, (NULL, 100, NULL), "NULL"))
    WHEN(4, DO(cuMemHostAlloc, (&memory, 4096, 128), "flags 128"))
    WHEN(5, DO(cuMemHostRegister_v2, (NULL, 4096, 0), "NULL"))
    case 6:
        if (block != NULL) {
            DO(cuMemHostGetDevicePointer_v2, (&address, (void *)(uintptr_t)block->address, 0),
               "b%u", block->number);
            DO(cuMemHostGetFlags, (&flags, (void *)(uintptr_t)block->address), "b%u",
               block->number);
            tell(" flags=%u", flags);
        }
        break;
    default:
        if (block != NULL && block->kind != REGISTERED)
            DO(cuMemHostUnregister, ((void *)(uintptr_t)block->address), "b%u", block->number);
    }
}

static void addresses(void)
{
    CUdeviceptr address;
    unsigned on = 1;
    switch (roll(7)) {
    WHEN(0, DO(cuMemAddressReserve, (&address, 4096, 0, 0, 0), "4096"))
    WHEN(1, DO(cuMemAddressReserve, (&address, 0, 0, 0, 0), "0"))
    WHEN(2, DO(cuMemAddressFree, (NOWHERE, GRAIN), "nowhere"))
    WHEN(3, DO(cuPointerGetAttribute, (NULL, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, NOWHERE), "NULL"))
    WHEN(4, DO(cuPointerSetAttribute, (&on, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, NOWHERE), "nowhere"))
    case 5: {
        struct block *block = block_of_device();
        if (block != NULL)
            DO(cuPointerSetAttribute, (&on, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, block->address),
               "b%u, its type", block->number);
        break;
    }
    default:
        /* Without a context nothing can be allocated, but memory can be freed and queried. */
        DO(cuCtxSetCurrent, (NULL), "NULL");
        DO(cuMemAlloc_v2, (&address, 100), "without a context");
        DO(cuMemFree_v2, (NOWHERE), "without a context");
        DO(cuMemGetInfo_v2, (&(size_t){ 0 }, &(size_t){ 0 }), "without a context");
        DO(cuMemAllocAsync, (&address, 100, NULL), "without a context");
        DO(cuCtxSetCurrent, (context), "again");
    }
}

void mistake(void)
{
    switch (roll(5)) {
    WHEN(0, allocations())
    WHEN(1, frees(block_any()))
    WHEN(2, copies(block_any()))
    WHEN(3, pools_and_hosts(block_any()))
    default:
        addresses();
    }
}

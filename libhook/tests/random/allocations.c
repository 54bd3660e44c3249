/* SPDX-License-Identifier: Apache-2.0 */
/* Every way to allocate memory except the program's own mappings, and every way to free memory. */
#include <stdlib.h>

#include "actions.h"

static void allocate_plain(size_t size)
{
    CUdeviceptr address;
    if (DO(cuMemAlloc_v2, (&address, size), "%zu", size) != CUDA_SUCCESS)
        return;
    struct block *block = block_new(PLAIN, size, address);
    tell(" %s", address % 256 == 0 ? "aligned" : "crooked");
    block_fill(block);
}

static void allocate_pitched(void)
{
    static const unsigned elements[] = { 4, 8, 16 };
    size_t width = 1 + roll(3000), height = 1 + roll(300), pitch;
    unsigned element = PICK(elements);
    CUdeviceptr address;
    if (DO(cuMemAllocPitch_v2, (&address, &pitch, width, height, element), "%zu, %zu, %u", width,
           height, element) != CUDA_SUCCESS)
        return;
    struct block *block = block_new(PITCHED, pitch * height, address);
    tell(" pitch=%zu", pitch);
    block_fill(block);
}

static void allocate_managed(size_t size)
{
    CUdeviceptr address;
    size = size % (MIB / 2) + 1;
    if (DO(cuMemAllocManaged, (&address, size, CU_MEM_ATTACH_GLOBAL), "%zu", size)
        == CUDA_SUCCESS)
        block_fill(block_new(MANAGED, size, address));
}

static void allocate_pinned(size_t size)
{
    void *memory;
    unsigned flags = one_in(2) ? CU_MEMHOSTALLOC_PORTABLE : 0;
    CUresult result = one_in(2) ? DO(cuMemHostAlloc, (&memory, size, flags), "%zu, %u", size, flags)
                                : DO(cuMemAllocHost_v2, (&memory, size), "%zu", size);
    if (result == CUDA_SUCCESS)
        block_fill(block_new(PINNED, size, (uintptr_t)memory));
}

static void register_memory(size_t size)
{
    size = (size / 4096 + 1) * 4096;
    void *memory = aligned_alloc(4096, size);
    unsigned flags = one_in(2) ? CU_MEMHOSTREGISTER_PORTABLE : 0;
    if (DO(cuMemHostRegister_v2, (memory, size, flags), "%zu, %u", size, flags) == CUDA_SUCCESS)
        block_fill(block_new(REGISTERED, size, (uintptr_t)memory));
    else
        free(memory);
}

void allocate(void)
{
    size_t size = block_size();
    if (size == 0)
        return;
    switch (roll(8)) {
    WHEN(0, allocate_pitched())
    WHEN(1, allocate_managed(size))
    WHEN(2, allocate_pinned(size))
    WHEN(3, register_memory(size))
    default:
        allocate_plain(size);
    }
}

static void free_mapped(struct block *block)
{
    size_t size = block->size;
    wait_for_all();
    DO(cuMemUnmap, (block->address, size), "b%u, %zu", block->number, size);
    if (block->handle != 0)
        DO(cuMemRelease, (block->handle), "b%u", block->number);
    DO(cuMemAddressFree, (block->reserved, size + GRAIN), "b%u, %zu", block->number, size + GRAIN);
}

static void free_pooled(struct block *block)
{
    struct lane lane = lane_any();
    if (one_in(5)) {
        wait_for_all();
        DO(cuMemFree_v2, (block->address), "b%u", block->number);
        return;
    }
    block_enter(block, lane.stream);
    IN_LANE(cuMemFreeAsync, lane, (block->address, lane.handle), "b%u, %s", block->number,
            lane.text);
}

void block_free(struct block *block)
{
    switch (block->kind) {
    case MAPPED:
        free_mapped(block);
        break;
    case POOLED:
        free_pooled(block);
        break;
    case PINNED:
        wait_for_all();
        DO(cuMemFreeHost, ((void *)(uintptr_t)block->address), "b%u", block->number);
        break;
    case REGISTERED:
        wait_for_all();
        DO(cuMemHostUnregister, ((void *)(uintptr_t)block->address), "b%u", block->number);
        free((void *)(uintptr_t)block->address);
        break;
    default:
        /* The driver waits only for work of the context in which the block was allocated. */
        if (block->busy && block->context != context)
            wait_for_all();
        /* Plain memory too may be freed in the order of a stream. */
        if (block->kind == PLAIN && one_in(4))
            free_pooled(block);
        else
            DO(cuMemFree_v2, (block->address), "b%u", block->number);
    }
    block_gone(block);
}

/* Misuses an address right after its free, before a new allocation can have the address. */
static void misuse_freed(struct place place)
{
    unsigned type = 77;
    CUdeviceptr base = 0;
    size_t size = 77;
    wait_for_all();
    switch (roll(6)) {
    WHEN(0, DO(cuMemFree_v2, (place.address), "freed %s", place.text))
    WHEN(1, DO(cuMemFreeAsync, (place.address, NULL), "freed %s", place.text))
    case 2:
        DO(cuPointerGetAttribute, (&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, place.address),
           "freed %s, type", place.text);
        tell(" type=%u", type);
        break;
    case 3:
        DO(cuMemGetAddressRange_v2, (&base, &size, place.address), "freed %s", place.text);
        tell(" size=%zu", size);
        break;
    case 4: {
        unsigned values[2] = { 77, 77 };
        CUpointer_attribute attributes[] = { CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                             CU_POINTER_ATTRIBUTE_IS_MANAGED };
        DO(cuPointerGetAttributes, (2, attributes, (void *[]){ &values[0], &values[1] },
                                    place.address), "freed %s", place.text);
        tell(" type=%u managed=%u", values[0], values[1]);
        break;
    }
    default: {
        CUipcMemHandle handle;
        DO(cuIpcGetMemHandle, (&handle, place.address), "freed %s", place.text);
    }
    }
}

void give_back(void)
{
    struct block *block = block_any();
    if (block == NULL)
        return;
    struct place place = place_at(block, 0);
    enum kind kind = block->kind;
    block_free(block);
    if (one_in(3) && (kind == PLAIN || kind == PITCHED || kind == POOLED))
        misuse_freed(place);
}

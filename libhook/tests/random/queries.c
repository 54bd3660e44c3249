/* SPDX-License-Identifier: Apache-2.0 */
/* A program's queries about its memory and about the card. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "actions.h"

/* A place in a block, at its last byte, one byte past its end, or in no block (NULL). */
static struct block *somewhere(struct place *place)
{
    struct block *block = block_any();
    *place = (struct place){ .address = 0x1234, .text = "nowhere" };
    switch (roll(8)) {
    case 0:
        return NULL;
    case 1:
        *place = (struct place){ .address = (uintptr_t)pattern, .text = "of the host" };
        return NULL;
    case 2:
        /* One byte past a size that is no multiple of 512 lies in no allocation. */
        if (block != NULL && block->size % 512 != 0 && !block_on_host(block)) {
            *place = place_at(block, block->size);
            return NULL;
        }
        break;
    case 3:
        if (block != NULL && block->kind == MAPPED) {
            *place = place_at(block, block->size);
            return NULL;
        }
        break;
    case 4:
        if (block != NULL)
            *place = place_at(block, block->size - 1);
        return block;
    default:
        break;
    }
    if (block != NULL)
        *place = place_in(block, 1);
    return block;
}

static void tell_relative(CUdeviceptr value, CUdeviceptr asked)
{
    if (value == 0 || value == 77)
        tell(" %llu", value);
    else
        tell(" asked%+lld", (long long)(value - asked));
}

static void tell_owner(CUcontext owner)
{
    tell(" %s", owner == NULL ? "none" : owner == context ? "current"
                                       : owner == primary ? "primary" : "other");
}

static bool excused(CUpointer_attribute attribute, const struct block *block)
{
    /* For memory that the library leaves to the driver every attribute is compared. */
    bool driver_s = block == NULL || block->kind == MANAGED || block_on_host(block);
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        if (!driver_s && block->kind != MAPPED)
            tell_exception(MAPPING_OF_THE_DRIVERS);
        return !driver_s && block->kind != MAPPED;
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        if (!driver_s)
            excuse_result(REACH_OF_A_NIC);
        return !driver_s;
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
        if (!driver_s)
            tell_exception(HARDWARE_DECOMPRESSION);
        return !driver_s;
    default:
        return false;
    }
}

static void tell_attribute(CUpointer_attribute attribute, uint64_t value, struct block *block,
                           CUdeviceptr asked)
{
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        tell_owner((CUcontext)(uintptr_t)value);
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        tell_relative(value, asked);
        break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        tell(" %s", value == 0 ? "none"
                    : block != NULL && value == (uintptr_t)block->pool ? "its pool" : "another");
        break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        tell(" %s", value == 0 ? "0" : "an id");
        if (block != NULL && attribute == CU_POINTER_ATTRIBUTE_BUFFER_ID) {
            if (block->id != 0)
                tell(" %s", block->id == value ? "as before" : "another");
            block->id = value;
        }
        break;
    default:
        tell(" %llu", (unsigned long long)value);
    }
}

void ask_pointer(void)
{
    struct place place;
    struct block *block = somewhere(&place);
    CUpointer_attribute attribute = (CUpointer_attribute)roll(23);
    uint64_t value[2] = { 77, 0 };
    CUdeviceptr base = 77;
    size_t size = 77;
    if (one_in(3)) {
        bool whole = one_in(3);
        DO(cuMemGetAddressRange_v2, (whole ? &base : NULL, &size, place.address), "%s%s",
           place.text, whole ? "" : ", size only");
        tell_relative(base, place.address);
        tell(" size=%zu", size);
        return;
    }
    DO(cuPointerGetAttribute, (value, attribute, place.address), "%s, %d", place.text,
       (int)attribute);
    if (!excused(attribute, block))
        tell_attribute(attribute, value[0], block, place.address);
}

void ask_pointers(void)
{
    static CUpointer_attribute attributes[] = {
        CU_POINTER_ATTRIBUTE_CONTEXT, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        CU_POINTER_ATTRIBUTE_DEVICE_POINTER, CU_POINTER_ATTRIBUTE_HOST_POINTER,
        CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
        CU_POINTER_ATTRIBUTE_MAPPED, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
        CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
    };
    enum { COUNT = sizeof attributes / sizeof *attributes };
    uint64_t values[COUNT];
    void *pointers[COUNT];
    struct place place;
    struct block *block = somewhere(&place);
    unsigned first = (unsigned)roll(COUNT), count = 1 + (unsigned)roll(COUNT - first);
    for (int i = 0; i < COUNT; i++) {
        values[i] = 77;
        pointers[i] = &values[i];
    }
    if (one_in(10)) {
        unsigned on = 1;
        DO(cuPointerSetAttribute, (&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, place.address), "%s",
           place.text);
        return;
    }
    DO(cuPointerGetAttributes, (count, attributes + first, pointers + first, place.address),
       "%s, %u from %u", place.text, count, first);
    for (unsigned i = first; i < first + count; i++)
        tell_attribute(attributes[i], values[i], block, place.address);
}

void ask_card(void)
{
    size_t available = 0, total = 0;
    switch (roll(3)) {
    case 0:
        DO(cuMemGetInfo_v2, (&available, &total), "%s", "");
        tell(" %s", available <= total && total > 0 ? "fits" : "more free than there is");
        tell_exception(FREE_MEMORY);
        break;
    case 1:
        DO(cuDeviceTotalMem_v2, (&total, device), "0");
        tell_exception(FREE_MEMORY);
        break;
    default:
        DO(cuDeviceTotalMem_v2, (&total, 9), "9");
    }
}

/* Exports memory and closes the export: compares whether exporting works, and whether this process
 * may not open its own IPC handle. */
void share(void)
{
    struct block *block = block_any();
    CUipcMemHandle handle;
    CUdeviceptr address = 0;
    int file = -1;
    if (block == NULL)
        return;
    struct place place = place_in(block, 1);
    switch (roll(5)) {
    case 0:
        memset(&handle, 0, sizeof handle);
        EITHER(cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2, (&address, handle, 1), "zeros");
        break;
    WHEN(1, DO(cuIpcCloseMemHandle, (place.address), "%s", place.text))
    case 2:
        if (block->kind != PLAIN && block->kind != PITCHED)
            break;
        DO(cuMemGetHandleForAddressRange, (&file, block->address, block->size, 1, 0), "b%u",
           block->number);
        excuse_result(HANDLE_FOR_A_RANGE);
        if (file >= 0)
            close(file);
        break;
    default:
        if (DO(cuIpcGetMemHandle, (&handle, place.address), "%s", place.text) == CUDA_SUCCESS
            && one_in(2))
            DO(cuIpcOpenMemHandle_v2, (&address, handle, 1), "own");
    }
}

void read_block(void)
{
    struct block *block = block_any();
    if (block != NULL)
        block_read(block);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that the program creates, maps, exports and unmaps by cuMem* functions itself. */
#include <unistd.h>

#include "actions.h"

#define INTO_VOID ((CUdeviceptr)0x1000000)

static CUmemAllocationProp properties_here(void)
{
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device },
    };
}

static CUresult allow(CUdeviceptr address, size_t size, CUmemAccess_flags flags, const char *name)
{
    const CUmemAccessDesc access = {
        .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device }, .flags = flags,
    };
    return DO(cuMemSetAccess, (address, size, &access, 1), "%s, %zu, %d", name, size, (int)flags);
}

static void ask_handle(CUmemGenericAllocationHandle handle)
{
    CUmemAllocationProp told = { .type = (CUmemAllocationType)77 };
    DO(cuMemGetAllocationPropertiesFromHandle, (&told, handle), "handle");
    tell(" type=%d handles=%d location=%d,%d rdma=%d", (int)told.type,
         (int)told.requestedHandleTypes, (int)told.location.type, told.location.id,
         told.allocFlags.gpuDirectRDMACapable);
}

/* Maps a whole handle of `size` bytes; the reserved addresses behind the mapping stay a hole. */
static struct block *map_handle(CUmemGenericAllocationHandle handle, size_t size)
{
    CUdeviceptr address;
    if (DO(cuMemAddressReserve, (&address, size + GRAIN, 0, 0, 0), "%zu", size + GRAIN)
        != CUDA_SUCCESS)
        return NULL;
    if (DO(cuMemMap, (address, size, 0, handle, 0), "%zu, handle", size) != CUDA_SUCCESS) {
        DO(cuMemAddressFree, (address, size + GRAIN), "%zu", size + GRAIN);
        return NULL;
    }
    allow(address, size, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, "mapped");
    struct block *block = block_new(MAPPED, size, address);
    block->reserved = address;
    return block;
}

void map_own(void)
{
    CUmemAllocationProp properties = properties_here();
    CUmemGenericAllocationHandle handle;
    size_t size = (1 + roll(2)) * GRAIN;
    if (block_size() == 0 || blocks_held() + size > HELD_MOST)
        return;
    properties.requestedHandleTypes *= one_in(2);
    if (DO(cuMemCreate, (&handle, size, &properties, 0), "%zu", size) != CUDA_SUCCESS)
        return;
    if (one_in(3))
        ask_handle(handle);
    struct block *block = map_handle(handle, size);
    if (block != NULL && one_in(2))
        block->handle = handle;
    else
        DO(cuMemRelease, (handle), "handle");
    if (block != NULL)
        block_fill(block);
}

/* Exports the memory and imports the same memory into this process again. */
static void export(CUmemGenericAllocationHandle handle, size_t size)
{
    int file = -1;
    CUmemGenericAllocationHandle again;
    if (DO(cuMemExportToShareableHandle, (&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                          0), "handle") != CUDA_SUCCESS)
        return;
    if (DO(cuMemImportFromShareableHandle, (&again, (void *)(uintptr_t)file,
                                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), "file")
        == CUDA_SUCCESS) {
        struct block *block = map_handle(again, size);
        DO(cuMemRelease, (again), "handle");
        if (block != NULL) {
            block_read(block);
            block_free(block);
        }
    }
    close(file);
}

/* Maps a block's memory at a second address as well, or only at another address. */
void map_twice(void)
{
    struct block *block = block_of_kind(MAPPED), *other;
    CUmemGenericAllocationHandle handle;
    if (block == NULL || block_size() == 0 || blocks_held() + block->size > HELD_MOST)
        return;
    size_t size = block->size;
    struct place place = place_in(block, 1);
    if (DO(cuMemRetainAllocationHandle, (&handle, (void *)(uintptr_t)place.address), "%s",
           place.text) != CUDA_SUCCESS)
        return;
    ask_handle(handle);
    wait_for_all();
    if (one_in(3) && (other = map_handle(handle, size)) != NULL) {
        /* Both mappings show the same bytes; no other work writes to either mapping now. */
        block_read(other);
        struct place there = place_in(other, 8);
        DO(cuMemsetD8_v2, (there.address, 5, 1), "%s, 5, 1", there.text);
        wait_for_all();
        block_read(block);
        block_free(other);
    } else if (one_in(3)) {
        export(handle, size);
    } else {
        block_free(block);
        if ((other = map_handle(handle, size)) != NULL)
            block_read(other);
    }
    DO(cuMemRelease, (handle), "handle");
}

/* Wrong or unusual calls for mappings, of which the driver refuses most. */
void map_wrongly(void)
{
    struct block *block = block_of_kind(MAPPED);
    CUmemAllocationProp properties = properties_here();
    CUmemGenericAllocationHandle handle = 0;
    unsigned long long flags = 77;
    size_t grain = 0;
    CUmemLocation here = properties.location;
    if (block == NULL)
        return;
    struct place place = place_in(block, GRAIN), inside = place_in(block, 1);
    wait_for_all();
    /* No call has an arbitrary number as handle: the driver would use it as a pointer and crash. */
    switch (roll(14)) {
    WHEN(0, DO(cuMemCreate, (&handle, 4096, &properties, 0), "4096"))
    WHEN(1, DO(cuMemCreate, (NULL, GRAIN, &properties, 0), "NULL"))
    case 2:
        properties.location.id = 9;
        DO(cuMemCreate, (&handle, GRAIN, &properties, 0), "device 9");
        break;
    WHEN(3, DO(cuMemCreate, (&handle, (size_t)1 << 50, &properties, 0), "1 << 50"))
    case 4:
        DO(cuMemUnmap, (place.address, GRAIN), "%s, a part or all of %zu", place.text, block->size);
        if (block->size == GRAIN) {
            if (block->handle != 0)
                DO(cuMemRelease, (block->handle), "b%u", block->number);
            DO(cuMemAddressFree, (block->reserved, block->size + GRAIN), "b%u", block->number);
            block_gone(block);
        }
        break;
    WHEN(5, DO(cuMemUnmap, (INTO_VOID, GRAIN), "void"))
    WHEN(6, DO(cuMemAddressFree, (block->reserved, block->size + GRAIN), "b%u in use",
               block->number))
    WHEN(7,
         DO(cuMemRetainAllocationHandle,
            (&handle, (void *)(uintptr_t)(block->address + block->size)), "behind b%u",
            block->number))
    case 8:
        DO(cuMemGetAccess, (&flags, &here, inside.address), "%s", inside.text);
        tell(" access=%llu", flags);
        break;
    WHEN(9, DO(cuMemGetAccess, (&flags, &here, block->address + block->size), "behind b%u",
               block->number))
    WHEN(10, allow(block->address + block->size, GRAIN, CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
                   "behind"))
    default:
        DO(cuMemGetAllocationGranularity, (&grain, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
           "minimum");
        tell(" grain=%zu", grain);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Maps the blocks of a VMM allocation wherever the program has mapped that allocation (an alias),
 * in addition to their home addresses. When a block is loaded, it is mapped at each alias with the
 * access that the program has set there; before a block is evicted, it is unmapped from each alias.
 *
 * The aliases are in an array sorted by address: lookup is a binary search, and because programs
 * usually map at rising addresses, insertion is usually an append.
 */
#include "memory/alias.h"

#include <stdlib.h>
#include <string.h>

#include "block/block.h"
#include "block/region.h"
#include "driver/ops.h"
#include "memory/large.h"
#include "memory/reservation.h"

static struct alias **sorted;
static size_t count, room;

/* The index of the first alias that ends after `address`. */
static size_t search(CUdeviceptr address)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (sorted[middle]->address + sorted[middle]->size <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct alias *alias_from(CUdeviceptr address)
{
    size_t index = search(address);
    return index < count ? sorted[index] : NULL;
}

struct alias *alias_at(CUdeviceptr address)
{
    struct alias *alias = alias_from(address);
    return alias != NULL && alias->address <= address ? alias : NULL;
}

bool alias_whole(CUdeviceptr address, size_t size, bool *any)
{
    CUdeviceptr end = address + size;
    *any = false;
    for (size_t i = search(address); i < count && sorted[i]->address < end; i++) {
        *any = true;
        if (sorted[i]->address < address || sorted[i]->address + sorted[i]->size > end)
            return false;
    }
    return true;
}

static bool insert(struct alias *alias)
{
    if (count == room) {
        size_t more = room == 0 ? 64 : room * 2;
        struct alias **larger = realloc(sorted, more * sizeof *sorted);
        if (larger == NULL)
            return false;
        sorted = larger;
        room = more;
    }
    size_t index = search(alias->address);
    memmove(&sorted[index + 1], &sorted[index], (count - index) * sizeof *sorted);
    sorted[index] = alias;
    count++;
    return true;
}

static void withdraw(struct alias *alias)
{
    size_t index = search(alias->address);
    count--;
    memmove(&sorted[index], &sorted[index + 1], (count - index) * sizeof *sorted);
    struct alias **link = &alias->vmm->aliases;
    while (*link != alias)
        link = &(*link)->next;
    *link = alias->next;
}

void alias_remove(struct alias *alias)
{
    withdraw(alias);
    free(alias->access);
    free(alias);
}

static CUdeviceptr place_of(const struct alias *alias, const struct block *block)
{
    return alias->address + (block->address - alias->vmm->memory->base);
}

static CUresult map_at(const struct alias *alias, CUdeviceptr address, size_t size,
                       CUmemGenericAllocationHandle handle)
{
    CUresult result = REAL(cuMemMap)(address, size, 0, handle, 0);
    if (result != CUDA_SUCCESS || alias->access_count == 0)
        return result;
    result = REAL(cuMemSetAccess)(address, size, alias->access, alias->access_count);
    if (result != CUDA_SUCCESS)
        REAL(cuMemUnmap)(address, size);
    return result;
}

static const struct vmm_allocation *vmm_of(const struct page_owner *owner)
{
    return ((const struct large *)owner)->vmm;
}

static CUresult map_block(struct page_owner *owner, struct block *block)
{
    const struct vmm_allocation *vmm = vmm_of(owner);
    struct alias *last = vmm->aliases;
    CUresult result = CUDA_SUCCESS;
    while (last != NULL && result == CUDA_SUCCESS) {
        result = map_at(last, place_of(last, block), block->size, block->handle);
        if (result == CUDA_SUCCESS)
            last = last->next;
    }
    for (struct alias *done = last == NULL ? NULL : vmm->aliases; done != last;
         done = done->next)
        REAL(cuMemUnmap)(place_of(done, block), block->size);
    return result;
}

CUresult alias_unmap_block(const struct vmm_allocation *vmm, const struct block *block)
{
    CUresult result = CUDA_SUCCESS;
    for (struct alias *alias = vmm->aliases;
         alias != NULL && result == CUDA_SUCCESS; alias = alias->next)
        result = REAL(cuMemUnmap)(place_of(alias, block), block->size);
    return result;
}

static CUresult unmap_block(struct page_owner *owner, struct block *block)
{
    return alias_unmap_block(vmm_of(owner), block);
}

const struct owner_mappings alias_mappings = { map_block, unmap_block };

/* A block that is being evicted or loaded is mapped, too. */
static bool is_mapped(const struct block *block)
{
    return block->state == BLOCK_RESIDENT || block->state == BLOCK_EVICTING
        || block->state == BLOCK_LOADING;
}

bool vmm_is_resident(const struct vmm_allocation *vmm)
{
    for (size_t i = 0; vmm->memory != NULL && i < vmm->memory->block_count; i++)
        if (!is_mapped(vmm->memory->blocks[i]))
            return false;
    return true;
}

static CUresult map_blocks(const struct alias *alias)
{
    const struct large *memory = alias->vmm->memory;
    CUresult result = CUDA_SUCCESS;
    size_t done = 0;
    while (done < memory->block_count && result == CUDA_SUCCESS) {
        struct block *block = memory->blocks[done];
        if (is_mapped(block))
            result = map_at(alias, place_of(alias, block), block->size, block->handle);
        if (result == CUDA_SUCCESS)
            done++;
    }
    for (size_t i = 0; result != CUDA_SUCCESS && i < done; i++)
        if (is_mapped(memory->blocks[i]))
            REAL(cuMemUnmap)(place_of(alias, memory->blocks[i]), memory->blocks[i]->size);
    return result;
}

CUresult alias_open(const struct alias *alias, const CUmemAccessDesc *access, size_t number)
{
    const struct large *memory = alias->vmm->memory;
    if (memory == NULL)
        return REAL(cuMemSetAccess)(alias->address, alias->size, access, number);
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < memory->block_count && result == CUDA_SUCCESS; i++)
        if (is_mapped(memory->blocks[i]))
            result = REAL(cuMemSetAccess)(place_of(alias, memory->blocks[i]),
                                          memory->blocks[i]->size, access, number);
    return result;
}

/* If the library did not see the reservation, the driver reports the range, but only while the
 * alias is mapped. */
static void learn_range(struct alias *alias)
{
    CUdeviceptr range;
    size_t size;
    if (!reservation_around(alias->address, &range, &size)
        && (REAL(cuPointerGetAttribute)(&range, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                        alias->address) != CUDA_SUCCESS
            || REAL(cuPointerGetAttribute)(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                           alias->address) != CUDA_SUCCESS))
        return;
    alias->range = range;
    alias->range_size = size;
}

CUresult alias_add(struct vmm_allocation *vmm, CUdeviceptr address)
{
    bool any;
    if (!alias_whole(address, vmm->size, &any) || any)
        return CUDA_ERROR_INVALID_VALUE;
    struct alias *alias = calloc(1, sizeof *alias);
    if (alias == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *alias = (struct alias){
        .address = address, .size = vmm->size, .vmm = vmm, .next = vmm->aliases,
        .range = address, .range_size = vmm->size,
    };
    CUresult result = vmm->memory != NULL
        ? map_blocks(alias) : map_at(alias, address, vmm->size, vmm->real);
    if (result != CUDA_SUCCESS) {
        free(alias);
        return result;
    }
    if (!insert(alias)) {
        REAL(cuMemUnmap)(address, vmm->size);
        free(alias);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    vmm->aliases = alias;
    vmm->written = true;
    learn_range(alias);
    return CUDA_SUCCESS;
}

CUresult alias_map_pinned(const struct vmm_allocation *vmm)
{
    CUresult result = CUDA_SUCCESS;
    for (struct alias *alias = vmm->aliases; alias != NULL && result == CUDA_SUCCESS;
         alias = alias->next)
        result = map_at(alias, alias->address, alias->size, vmm->real);
    return result;
}

bool alias_set_access(struct alias *alias, const CUmemAccessDesc *access, size_t number)
{
    CUmemAccessDesc *larger = realloc(alias->access,
                                      (alias->access_count + number) * sizeof *larger);
    if (larger == NULL)
        return false;
    alias->access = larger;
    for (size_t i = 0; i < number; i++) {
        size_t same = 0;
        while (same < alias->access_count
               && (larger[same].location.type != access[i].location.type
                   || larger[same].location.id != access[i].location.id))
            same++;
        larger[same] = access[i];
        if (same == alias->access_count)
            alias->access_count++;
    }
    return true;
}

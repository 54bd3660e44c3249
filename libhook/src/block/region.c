/* SPDX-License-Identifier: Apache-2.0 */
#include "block/region.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "driver/ops.h"
#include "tier/ranges.h"

#define REGION_SIZE ((size_t)1 << 40)

/* A reserved range of addresses. */
struct region {
    CUdeviceptr base, end;
    /* One entry for each page. Linux allocates the tables, which are one mapping, on first use. */
    struct page_owner **owner;
    _Atomic(const struct extents *) *extents;      /* those of the owner */
    struct region *next;
};

/* Regions are only added, so that region_entered() needs no lock. */
static _Atomic(struct region *) regions;
static struct ranges space;           /* free addresses */

static struct region *region_of(CUdeviceptr address)
{
    struct region *region = atomic_load_explicit(&regions, memory_order_relaxed);
    while (region != NULL && (address < region->base || address >= region->end))
        region = region->next;
    return region;
}

static CUresult add_region(size_t size)
{
    struct region *region = malloc(sizeof *region);
    size_t pages = size / PAGE, table = pages * sizeof *region->owner;
    table += pages * sizeof *region->extents;
    void *owner = mmap(NULL, table, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CUdeviceptr base = 0;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (region != NULL && owner != MAP_FAILED)
        result = REAL(cuMemAddressReserve)(&base, size, PAGE, 0, 0);
    if (result != CUDA_SUCCESS) {
        free(region);
        if (owner != MAP_FAILED)
            munmap(owner, table);
        return result;
    }
    void *extents = (struct page_owner **)owner + pages;
    *region = (struct region){ base, base + size, owner, extents, regions };
    atomic_store_explicit(&regions, region, memory_order_release);
    region_give(base, size);
    return CUDA_SUCCESS;
}

CUresult region_take(size_t size, CUdeviceptr *address)
{
    CUresult result = CUDA_SUCCESS;
    size_t most = size > REGION_SIZE ? size : REGION_SIZE;
    if (ranges_take(&space, size, UINT64_MAX, address))
        return CUDA_SUCCESS;
    /* The driver may refuse a large region (RLIMIT_AS, 39-bit addresses): halves the size. */
    while ((result = add_region(most)) != CUDA_SUCCESS && most > size)
        most = most / 2 > size ? most / 2 : size;
    return result == CUDA_SUCCESS && !ranges_take(&space, size, UINT64_MAX, address)
        ? CUDA_ERROR_OUT_OF_MEMORY : result;
}

void region_give(CUdeviceptr address, size_t size)
{
    const struct region *region = region_of(address);
    ranges_give(&space, address, size, region->base, region->end);
}

void region_unmap(CUdeviceptr address, size_t size)
{
    if (REAL(cuMemUnmap)(address, size) == CUDA_SUCCESS)
        region_give(address, size);
}

CUresult region_map_new(size_t size, const CUmemAllocationProp *properties,
                        const CUmemAccessDesc *access, size_t count, CUdeviceptr *address,
                        CUmemGenericAllocationHandle *handle)
{
    CUresult result = region_take(size, address);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuMemCreate)(handle, size, properties, 0);
    if (result != CUDA_SUCCESS) {
        region_give(*address, size);
        return result;
    }
    result = REAL(cuMemMap)(*address, size, 0, *handle, 0);
    if (result != CUDA_SUCCESS)
        region_give(*address, size);
    else if ((result = REAL(cuMemSetAccess)(*address, size, access, count)) != CUDA_SUCCESS)
        region_unmap(*address, size);
    if (result != CUDA_SUCCESS)
        REAL(cuMemRelease)(*handle);
    return result;
}

void region_set_owner(CUdeviceptr address, size_t size, struct page_owner *owner)
{
    struct region *region = region_of(address);
    size_t first = (address - region->base) / PAGE;
    const struct extents *extents = owner == NULL ? NULL : owner->extents;
    for (size_t i = 0; i < size / PAGE; i++) {
        region->owner[first + i] = owner;
        atomic_store_explicit(&region->extents[first + i], extents, memory_order_release);
    }
}

struct page_owner *region_owner(CUdeviceptr address)
{
    struct region *region = region_of(address);
    return region == NULL ? NULL : region->owner[(address - region->base) / PAGE];
}

struct page_owner *region_owner_between(CUdeviceptr *address, CUdeviceptr end)
{
    struct page_owner *first = NULL;
    CUdeviceptr begin = *address / PAGE * PAGE, found = end;
    const struct region *region = atomic_load_explicit(&regions, memory_order_relaxed);
    for (; region != NULL; region = region->next) {
        CUdeviceptr at = begin > region->base ? begin : region->base;
        while (at < found && at < region->end && region->owner[(at - region->base) / PAGE] == NULL)
            at += PAGE;
        if (at < found && at < region->end) {
            first = region->owner[(at - region->base) / PAGE];
            found = at;
        }
    }
    *address = found;
    return first;
}

bool region_entered(CUdeviceptr address, size_t bytes, const struct extents **extents)
{
    const struct region *region = atomic_load_explicit(&regions, memory_order_acquire);
    *extents = NULL;
    for (; region != NULL; region = region->next) {
        if (address - region->base < region->end - region->base) {
            *extents = atomic_load_explicit(&region->extents[(address - region->base) / PAGE],
                                            memory_order_acquire);
            return false;
        }
        if (region->base - address < bytes)
            return true;
    }
    return false;
}

bool region_contains(CUdeviceptr address)
{
    return region_of(address) != NULL;
}

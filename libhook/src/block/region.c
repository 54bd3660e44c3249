/* SPDX-License-Identifier: Apache-2.0 */
/* Free runs of pages are in an array sorted by address, in which free neighbours of a region always
 * form one run. */
#include "block/region.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "block/ranges.h"
#include "driver/ops.h"

#define REGION_SIZE ((size_t)1 << 40)

/* A reserved range of addresses. */
struct region {
    CUdeviceptr base, end;
    struct page_owner **owner;       /* of each page; Linux populates the table on demand */
    struct region *next;
};

static struct region *regions;
static struct ranges free_runs;

static struct region *region_of(CUdeviceptr address)
{
    struct region *region = regions;
    while (region != NULL && (address < region->base || address >= region->end))
        region = region->next;
    return region;
}

static CUresult add_region(size_t size)
{
    struct region *region = malloc(sizeof *region);
    size_t table = size / PAGE * sizeof *region->owner;
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
    *region = (struct region){ base, base + size, owner, regions };
    regions = region;
    region_give(base, size);
    return CUDA_SUCCESS;
}

static struct range *find(size_t size)
{
    for (size_t i = 0; i < free_runs.count; i++)
        if (free_runs.sorted[i]->size >= size)
            return free_runs.sorted[i];
    return NULL;
}

CUresult region_take(size_t size, CUdeviceptr *address)
{
    CUresult result = CUDA_SUCCESS;
    size_t most = size > REGION_SIZE ? size : REGION_SIZE;
    struct range *run = find(size);
    /* A large region may be refused: RLIMIT_AS, 39-bit addresses. */
    while (run == NULL && (result = add_region(most)) != CUDA_SUCCESS && most > size)
        most = most / 2 > size ? most / 2 : size;
    if (result != CUDA_SUCCESS)
        return result;
    if (run == NULL && (run = find(size)) == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *address = run->address;
    if (run->size == size) {
        ranges_remove(&free_runs, run);
        free(run);
    } else {
        run->address += size;
        run->size -= size;
    }
    return CUDA_SUCCESS;
}

void region_give(CUdeviceptr address, size_t size)
{
    const struct region *region = region_of(address);
    CUdeviceptr end = address + size;
    struct range *run = NULL, *neighbour;
    /* A neighbour contains the byte before the run, or the byte behind it. */
    while ((neighbour = ranges_between(&free_runs, address - (address > region->base),
                                       end + (end < region->end))) != NULL) {
        address = neighbour->address < address ? neighbour->address : address;
        end = range_end(neighbour) > end ? range_end(neighbour) : end;
        ranges_remove(&free_runs, neighbour);
        free(run);
        run = neighbour;
    }
    if (run == NULL)
        run = malloc(sizeof *run);
    if (run == NULL || !ranges_reserve(&free_runs)) {
        free(run);                   /* without memory for the run, its addresses are lost */
        return;
    }
    *run = (struct range){ address, end - address };
    ranges_insert(&free_runs, run);
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
    for (size_t i = 0; i < size / PAGE; i++)
        region->owner[first + i] = owner;
}

struct page_owner *region_owner(CUdeviceptr address)
{
    struct region *region = region_of(address);
    return region == NULL ? NULL : region->owner[(address - region->base) / PAGE];
}

bool region_contains(CUdeviceptr address)
{
    return region_of(address) != NULL;
}

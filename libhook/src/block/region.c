/* SPDX-License-Identifier: Apache-2.0 */
/* Free runs of pages are in lists, one for each power of two of their length, and a table of
 * their first and last pages (boundary tags) finds free neighbours of a released run. So taking
 * and giving pages take constant time, and free neighbours always form one run. */
#include "block/region.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "driver/ops.h"
#include "driver/ring.h"

#define REGION_SIZE ((size_t)1 << 40)
#define BUCKETS 48

/* A free run of pages. */
struct run {
    size_t first, pages;
    struct region *region;
    struct ring bucket_link;         /* in its bucket; the run freed last is used first */
};

/* A reserved range of addresses. */
struct region {
    CUdeviceptr base;
    size_t pages;
    struct page_owner **owner;       /* of each page; Linux populates the table on demand */
    struct run **boundary;           /* set for the first and the last page of a free run */
    struct region *next;
};

static struct region *regions;
static struct ring buckets[BUCKETS];

static unsigned bucket_of(size_t pages)
{
    return 63 - (unsigned)__builtin_clzl(pages);
}

static void insert(struct run *run)
{
    ring_append(ring_ready(&buckets[bucket_of(run->pages)]), &run->bucket_link);
    run->region->boundary[run->first] = run;
    run->region->boundary[run->first + run->pages - 1] = run;
}

static void withdraw(struct run *run)
{
    ring_leave(&run->bucket_link);
    run->region->boundary[run->first] = NULL;
    run->region->boundary[run->first + run->pages - 1] = NULL;
}

static CUresult add_region(size_t size)
{
    struct region *region = malloc(sizeof *region);
    struct run *run = malloc(sizeof *run);
    size_t pages = size / PAGE;
    void **tables = mmap(NULL, 2 * pages * sizeof *tables, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CUdeviceptr base = 0;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (region != NULL && run != NULL && tables != MAP_FAILED)
        result = REAL(cuMemAddressReserve)(&base, size, PAGE, 0, 0);
    if (result != CUDA_SUCCESS) {
        free(region);
        free(run);
        if (tables != MAP_FAILED)
            munmap(tables, 2 * pages * sizeof *tables);
        return result;
    }
    *region = (struct region){ base, pages, (struct page_owner **)tables,
                               (struct run **)(tables + pages), regions };
    regions = region;
    *run = (struct run){ .first = 0, .pages = pages, .region = region };
    insert(run);
    return CUDA_SUCCESS;
}

/* A run of a bucket in which all are long enough, else the first long enough in the next lower. */
static struct run *find(size_t pages)
{
    unsigned exact = bucket_of(pages);
    for (unsigned b = (pages & (pages - 1)) == 0 ? exact : exact + 1; b < BUCKETS; b++)
        if (!ring_empty(ring_ready(&buckets[b])))
            return RING_MEMBER(buckets[b].previous, struct run, bucket_link);
    const struct ring *head = ring_ready(&buckets[exact]);
    for (const struct ring *link = head->previous; link != head; link = link->previous)
        if (RING_MEMBER(link, struct run, bucket_link)->pages >= pages)
            return RING_MEMBER(link, struct run, bucket_link);
    return NULL;
}

CUresult region_take(size_t size, CUdeviceptr *address)
{
    size_t pages = size / PAGE;
    struct run *run = find(pages);
    if (run == NULL) {
        CUresult result;
        size_t most = size > REGION_SIZE ? size : REGION_SIZE;
        /* A large region may be refused: RLIMIT_AS, 39-bit addresses. */
        while ((result = add_region(most)) != CUDA_SUCCESS && most > size)
            most = most / 2 > size ? most / 2 : size;
        if (result != CUDA_SUCCESS)
            return result;
        run = find(pages);
    }
    withdraw(run);
    *address = run->region->base + run->first * PAGE;
    if (run->pages == pages) {
        free(run);
        return CUDA_SUCCESS;
    }
    run->first += pages;
    run->pages -= pages;
    insert(run);
    return CUDA_SUCCESS;
}

static struct region *region_of(CUdeviceptr address)
{
    for (struct region *region = regions; region != NULL; region = region->next)
        if (address >= region->base && address - region->base < region->pages * PAGE)
            return region;
    return NULL;
}

void region_give(CUdeviceptr address, size_t size)
{
    struct region *region = region_of(address);
    size_t first = (address - region->base) / PAGE, pages = size / PAGE;
    struct run *run = NULL;
    if (first > 0 && (run = region->boundary[first - 1]) != NULL) {
        withdraw(run);
        first = run->first;
        pages += run->pages;
    }
    struct run *after = first + pages < region->pages ? region->boundary[first + pages] : NULL;
    if (after != NULL) {
        withdraw(after);
        pages += after->pages;
        if (run == NULL)
            run = after;
        else
            free(after);
    }
    if (run == NULL && (run = malloc(sizeof *run)) == NULL)
        return;                      /* without memory for the run, its addresses are lost */
    *run = (struct run){ .first = first, .pages = pages, .region = region };
    insert(run);
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

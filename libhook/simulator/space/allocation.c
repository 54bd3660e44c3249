/* SPDX-License-Identifier: Apache-2.0 */
/* As in the driver, small allocations share 2 MiB of physical memory, in units of 512 bytes;
 * larger allocations occupy multiples of 2 MiB. */
#include "space/allocation.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver/context.h"

#define UNIT 512u
#define UNITS (PHYSICAL_GRAIN / UNIT)
#define SMALL (PHYSICAL_GRAIN / 2)

struct chunk {
    struct chunk *next;
    struct device *device;
    struct physical *physical;
    CUdeviceptr base;
    size_t taken;                    /* number of units in use */
    bool used[UNITS];
};

pthread_mutex_t allocations_lock = PTHREAD_MUTEX_INITIALIZER;

static struct {
    struct allocation **list;        /* sorted by base */
    struct length length;
    struct chunk *chunks;
    unsigned long long made;
} state;

/* Index of the first allocation after `address`. */
static size_t index_after(CUdeviceptr address)
{
    size_t low = 0, high = state.length.count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (state.list[middle]->base <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct allocation *allocation_find(CUdeviceptr address)
{
    size_t place = index_after(address);
    if (place == 0)
        return NULL;
    struct allocation *allocation = state.list[place - 1];
    size_t size = allocation->size != 0 ? allocation->size : 1;
    return address < allocation->base + size ? allocation : NULL;
}

struct allocation *allocation_at(CUdeviceptr base)
{
    struct allocation *allocation = allocation_find(base);
    return allocation != NULL && allocation->base == base ? allocation : NULL;
}

struct allocation *allocation_add(CUdeviceptr base, size_t size, enum allocation_kind kind,
                                  struct context *context)
{
    struct allocation *allocation = checked(calloc(1, sizeof *allocation));
    *allocation = (struct allocation){.base = base, .size = size, .kind = kind,
                                      .context = context->owner, .device = context->device,
                                      .id = ++state.made};
    state.list = sorted_insert(state.list, &state.length, index_after(base), &allocation,
                               sizeof allocation);
    return allocation;
}

static void allocation_remove(struct allocation *allocation)
{
    size_t place = index_after(allocation->base) - 1;
    state.length.count--;
    memmove(&state.list[place], &state.list[place + 1],
            (state.length.count - place) * sizeof(struct allocation *));
    free(allocation);
}

bool range_is_valid(const struct device *device, CUdeviceptr base, size_t size)
{
    pthread_mutex_lock(&allocations_lock);
    const struct allocation *allocation = allocation_find(base);
    bool whole = allocation != NULL && size <= allocation->base + allocation->size - base;
    pthread_mutex_unlock(&allocations_lock);
    space_lock_to_read();
    const struct mapping *mapping = space_find(base);
    bool allocated = mapping != NULL && mapping->allocated;
    space_unlock();
    return (whole || !allocated) && space_is_open(device, base, size);
}

CUresult device_map(struct device *device, struct physical *physical, CUdeviceptr *base)
{
    uint32_t bit = 1u << device->ordinal;
    space_lock_to_write();
    *base = space_reserve(physical->size, PHYSICAL_GRAIN, 0, false);
    bool mapped = *base != 0 && space_map(&(struct mapping){
        .base = *base, .size = physical->size, .physical = physical, .readable = bit,
        .writable = bit, .allocated = true});
    space_unlock();
    if (!mapped)
        physical_drop(physical);
    return mapped ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult map_new(struct device *device, size_t size, struct physical **physical,
                        CUdeviceptr *base)
{
    TRY(physical_create(device, size, CU_MEM_HANDLE_TYPE_NONE, physical));
    return device_map(device, *physical, base);
}

static void unmap(CUdeviceptr base, size_t size)
{
    struct mapping *mapping;
    struct physical *physical = NULL;
    space_lock_to_write();
    if (space_whole(base, size, &mapping) == 1) {
        physical = mapping->physical;
        space_unmap(mapping, 1);
        space_unreserve(base, size, false);
    }
    space_unlock();
    if (physical != NULL)
        physical_drop(physical);
}

/* Imported memory is mapped as a whole, even if the handle denotes a part of it. */
static void unmap_around(CUdeviceptr address)
{
    space_lock_to_read();
    const struct mapping *mapping = space_find(address);
    CUdeviceptr base = mapping->base;
    size_t size = mapping->size;
    space_unlock();
    unmap(base, size);
}

/* Index of the first `units` free units in a row; UNITS: there are none. */
static size_t free_run(const struct chunk *chunk, size_t units)
{
    size_t run = 0;
    for (size_t i = 0; i < UNITS; i++) {
        run = chunk->used[i] ? 0 : run + 1;
        if (run == units)
            return i + 1 - units;
    }
    return UNITS;
}

static CUresult take_part(struct device *device, size_t size, struct chunk **chunk,
                          CUdeviceptr *address)
{
    size_t units = (size + UNIT - 1) / UNIT;
    for (*chunk = state.chunks; *chunk != NULL; *chunk = (*chunk)->next)
        if ((*chunk)->device == device && (*chunk)->taken + units <= UNITS
            && free_run(*chunk, units) != UNITS)
            break;
    if (*chunk == NULL) {
        struct chunk *made = checked(calloc(1, sizeof *made));
        CUresult result = map_new(device, PHYSICAL_GRAIN, &made->physical, &made->base);
        if (result != CUDA_SUCCESS) {
            free(made);
            return result;
        }
        made->device = device;
        made->next = state.chunks;
        *chunk = state.chunks = made;
    }
    size_t first = free_run(*chunk, units);
    memset(&(*chunk)->used[first], true, units);
    (*chunk)->taken += units;
    *address = (*chunk)->base + first * UNIT;
    return CUDA_SUCCESS;
}

/* Overwrites the units at once, although the chunk stays mapped for other allocations. */
static void free_part(struct chunk *chunk, CUdeviceptr address, size_t size)
{
    size_t units = (size + UNIT - 1) / UNIT;
    memset(&chunk->used[(address - chunk->base) / UNIT], false, units);
    chunk->taken -= units;
    if (chunk->taken != 0) {
        space_lock_to_write();
        physical_spoil(chunk->physical, address - chunk->base, units * UNIT);
        space_unlock();
        return;
    }
    struct chunk **place = &state.chunks;
    while (*place != chunk)
        place = &(*place)->next;
    *place = chunk->next;
    unmap(chunk->base, PHYSICAL_GRAIN);
    free(chunk);
}

CUresult device_allocate(struct context *context, size_t size, enum allocation_kind kind,
                         struct pool *pool, CUdeviceptr *address)
{
    struct chunk *chunk = NULL;
    struct physical *physical;
    size_t whole = (size + PHYSICAL_GRAIN - 1) / PHYSICAL_GRAIN * PHYSICAL_GRAIN;
    FAIL_IF(size == 0, CUDA_ERROR_INVALID_VALUE);
    FAIL_IF(whole < size, CUDA_ERROR_OUT_OF_MEMORY);
    LOCKED(allocations_lock);
    CUresult result = size <= SMALL ? take_part(context->device, size, &chunk, address)
                                    : map_new(context->device, whole, &physical, address);
    if (result == CUDA_SUCCESS) {
        struct allocation *allocation = allocation_add(*address, size, kind, context);
        allocation->chunk = chunk;
        allocation->pool = pool;
    }
    return result;
}

void allocations_open(const struct pool *pool, uint32_t opened, uint32_t closed)
{
    SPACE_LOCKED(write);
    for (size_t i = 0; i < state.length.count; i++) {
        const struct allocation *allocation = state.list[i];
        struct mapping *mapping = allocation->pool != pool ? NULL : space_find(allocation->base);
        if (mapping == NULL || (closed != 0 && allocation->chunk != NULL))
            continue;
        mapping->readable = (mapping->readable | opened) & ~closed;
        mapping->writable = (mapping->writable | opened) & ~closed;
    }
}

void device_free(struct allocation *allocation)
{
    if (allocation->kind == ALLOCATED_IMPORT)
        unmap_around(allocation->base);
    else if (allocation->chunk != NULL)
        free_part(allocation->chunk, allocation->base, allocation->size);
    else
        unmap(allocation->base, (allocation->size + PHYSICAL_GRAIN - 1) / PHYSICAL_GRAIN
                                    * PHYSICAL_GRAIN);
    allocation_remove(allocation);
}

bool host_map(void *memory, size_t size, struct residency *residency)
{
    SPACE_LOCKED(write);
    return space_map(&(struct mapping){.base = (uintptr_t)memory, .size = size,
                                              .residency = residency,
                                              .readable = ~0u, .writable = ~0u});
}

size_t whole_pages(size_t size)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (size + page - 1) / page * page;
}

void host_free(struct allocation *allocation)
{
    space_lock_to_write();
    struct mapping *mapping = space_find(allocation->base);
    if (mapping != NULL && mapping->base == allocation->base && mapping->physical == NULL)
        space_unmap(mapping, 1);
    space_unlock();
    if (allocation->residency != NULL)
        residency_drop(allocation->residency);
    if (allocation->kind != REGISTERED_HOST)
        munmap((void *)(uintptr_t)allocation->base, whole_pages(allocation->size));
    allocation_remove(allocation);
}

void allocations_each(const struct context *context, void (*act)(struct allocation *))
{
    for (size_t i = state.length.count; i > 0; i--)
        if (state.list[i - 1]->context == context)
            act(state.list[i - 1]);
}

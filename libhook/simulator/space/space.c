/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "space/space.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver/context.h"

/* The length of a sorted array. */
struct length { size_t count, room; };

struct reservation {
    CUdeviceptr base;
    size_t size;
    bool by_program;
};

static struct {
    pthread_rwlock_t lock;
    struct reservation *reservations;        /* both arrays are sorted by base */
    struct length reserved, mapped;
    struct mapping *mappings;
    CUdeviceptr next;                /* reused late, so that stale accesses fault */
} space = {
    .lock = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP,
    .next = SPACE_BEGIN,
};

void space_lock_to_read(void)
{
    pthread_rwlock_rdlock(&space.lock);
}

void space_lock_to_write(void)
{
    pthread_rwlock_wrlock(&space.lock);
}

void space_unlock(void)
{
    pthread_rwlock_unlock(&space.lock);
}

/* The first entry of a sorted array that ends after `address`. */
#define FIRST_BEHIND(list, count, address)                                               \
    ({                                                                                   \
        size_t low_ = 0, high_ = (count);                                                \
        while (low_ < high_) {                                                           \
            size_t middle_ = (low_ + high_) / 2;                                         \
            if ((list)[middle_].base + (list)[middle_].size <= (address))                \
                low_ = middle_ + 1;                                                      \
            else                                                                         \
                high_ = middle_;                                                         \
        }                                                                                \
        low_;                                                                            \
    })

/* Inserts an element, which may move the array, and returns the array. */
static void *sorted_insert(void *list, struct length *length, size_t place,
                           const void *element, size_t size)
{
    if (length->count == length->room) {
        length->room = length->room == 0 ? 64 : length->room * 2;
        list = checked(realloc(list, length->room * size));
    }
    char *at = (char *)list + place * size;
    memmove(at + size, at, (length->count++ - place) * size);
    memcpy(at, element, size);
    return list;
}

static bool is_free(CUdeviceptr base, size_t size)
{
    size_t i = FIRST_BEHIND(space.reservations, space.reserved.count, base);
    return i == space.reserved.count || space.reservations[i].base >= base + size;
}

static CUdeviceptr round_up(CUdeviceptr address, size_t alignment)
{
    return (address + alignment - 1) / alignment * alignment;
}

/* The lowest free range at or above `from`; 0: none. */
static CUdeviceptr free_range(CUdeviceptr from, size_t size, size_t alignment)
{
    CUdeviceptr base = round_up(from, alignment);
    size_t i = FIRST_BEHIND(space.reservations, space.reserved.count, base);
    for (; i < space.reserved.count && space.reservations[i].base < base + size; i++)
        base = round_up(space.reservations[i].base + space.reservations[i].size, alignment);
    return base < SPACE_END && size <= SPACE_END - base ? base : 0;
}

CUdeviceptr space_reserve(size_t size, size_t alignment, CUdeviceptr hint, bool by_program)
{
    CUdeviceptr base = 0;
    if (size > SPACE_END - SPACE_BEGIN)
        return 0;
    if (space_is_device(hint) && hint % alignment == 0 && size <= SPACE_END - hint
        && is_free(hint, size))
        base = hint;
    if (base == 0)
        base = free_range(space.next, size, alignment);
    if (base == 0)
        base = free_range(SPACE_BEGIN, size, alignment);
    if (base == 0)
        return 0;
    if (base != hint)
        space.next = base + size;
    size_t i = FIRST_BEHIND(space.reservations, space.reserved.count, base);
    const struct reservation made = {base, size, by_program};
    space.reservations = sorted_insert(space.reservations, &space.reserved, i, &made, sizeof made);
    return base;
}

bool space_unreserve(CUdeviceptr base, size_t size, bool by_program)
{
    size_t i = FIRST_BEHIND(space.reservations, space.reserved.count, base);
    if (i == space.reserved.count || space.reservations[i].base != base
        || space.reservations[i].size != size || space.reservations[i].by_program != by_program)
        return false;
    size_t m = FIRST_BEHIND(space.mappings, space.mapped.count, base);
    if (m < space.mapped.count && space.mappings[m].base < base + size)
        return false;                /* something is still mapped in the range */
    space.reserved.count--;
    memmove(&space.reservations[i], &space.reservations[i + 1],
            (space.reserved.count - i) * sizeof *space.reservations);
    return true;
}

bool space_is_reserved(CUdeviceptr base, size_t size)
{
    size_t i = FIRST_BEHIND(space.reservations, space.reserved.count, base);
    return i < space.reserved.count && space.reservations[i].base <= base
        && space.reservations[i].by_program
        && size <= space.reservations[i].base + space.reservations[i].size - base;
}

bool space_reservation(CUdeviceptr address, CUdeviceptr *base, size_t *size)
{
    size_t i = FIRST_BEHIND(space.reservations, space.reserved.count, address);
    if (i == space.reserved.count || space.reservations[i].base > address)
        return false;
    *base = space.reservations[i].base;
    *size = space.reservations[i].size;
    return true;
}

bool space_map(const struct mapping *mapping)
{
    size_t i = FIRST_BEHIND(space.mappings, space.mapped.count, mapping->base);
    if (i < space.mapped.count && space.mappings[i].base < mapping->base + mapping->size)
        return false;
    space.mappings = sorted_insert(space.mappings, &space.mapped, i, mapping, sizeof *mapping);
    return true;
}

struct mapping *space_find(CUdeviceptr address)
{
    size_t i = FIRST_BEHIND(space.mappings, space.mapped.count, address);
    return i < space.mapped.count && space.mappings[i].base <= address ? &space.mappings[i]
                                                                        : NULL;
}

size_t space_whole(CUdeviceptr base, size_t size, struct mapping **first)
{
    struct mapping *mapping = space_find(base), *end = space.mappings + space.mapped.count;
    if (mapping == NULL || mapping->base != base || size == 0)
        return 0;
    *first = mapping;
    CUdeviceptr reached = base;
    while (mapping < end && mapping->base == reached && reached < base + size)
        reached += mapping++->size;
    return reached == base + size ? (size_t)(mapping - *first) : 0;
}

bool space_within(CUdeviceptr base, size_t size, struct mapping **first, size_t *count)
{
    struct mapping *end = space.mappings + space.mapped.count;
    *first = space.mappings + FIRST_BEHIND(space.mappings, space.mapped.count, base);
    *count = 0;
    if (*first < end && (*first)->base < base)
        return false;
    struct mapping *mapping = *first;
    while (mapping < end && mapping->base < base + size)
        mapping++;
    if (mapping != *first && mapping[-1].base + mapping[-1].size > base + size)
        return false;                /* refuses before any mapping of the range is changed */
    *count = (size_t)(mapping - *first);
    return true;
}

void space_unmap(struct mapping *first, size_t count)
{
    struct mapping *end = space.mappings + space.mapped.count;
    memmove(first, first + count, (size_t)(end - (first + count)) * sizeof *first);
    space.mapped.count -= count;
}

static bool may_access(const struct device *device, const struct mapping *mapping,
                       enum access access)
{
    uint32_t allowed = access == ACCESS_WRITE ? mapping->writable : mapping->readable;
    bool peer = mapping->allocation != NULL && mapping->physical != NULL
        && (atomic_load(&device->peers) >> mapping->physical->device->ordinal & 1) != 0;
    return (allowed >> device->ordinal & 1) != 0 || peer;
}

char *space_resolve(const struct device *device, CUdeviceptr address, enum access access,
                    bool overwrite, size_t *size)
{
    struct mapping *mapping = space_find(address);
    if (mapping == NULL)
        return NULL;
    if (!may_access(device, mapping, access))
        return NULL;
    size_t left = mapping->base + mapping->size - address;
    if (*size > left)
        *size = left;
    if (mapping->residency != NULL)
        residency_touch(mapping->residency, device->gpu, address, *size);
    if (mapping->physical == NULL)
        return (char *)(uintptr_t)address;
    size_t offset = address - mapping->base;
    physical_touch(mapping->physical, offset, *size, overwrite);
    return mapping->physical->memory + offset;
}

bool range_is_valid(const struct device *device, CUdeviceptr base, size_t size)
{
    SPACE_LOCKED(read);
    const struct mapping *mapping = space_find(base), *end = space.mappings + space.mapped.count;
    if (mapping != NULL && mapping->allocation != NULL
        && (base - mapping->base > mapping->allocation->size
            || size > mapping->base + mapping->allocation->size - base))
        return false;
    CUdeviceptr reached = base;
    for (; mapping != NULL && mapping < end && mapping->base <= reached && reached < base + size;
         mapping++) {
        if (!may_access(device, mapping, ACCESS_READ) && mapping->physical != NULL
            && !may_access(mapping->physical->device, mapping, ACCESS_READ))
            break;
        reached = mapping->base + mapping->size;
    }
    return reached >= base + size;
}

static bool is_closed(const struct mapping *mapping, const struct device *device)
{
    return mapping->allocation == NULL && (mapping->readable >> device->ordinal & 1) == 0;
}

bool space_is_apart(CUdeviceptr one, CUdeviceptr other)
{
    SPACE_LOCKED(read);
    const struct mapping *first = space_find(one), *second = space_find(other);
    return first != NULL && second != NULL && first->physical != NULL
        && second->physical != NULL && first->physical->device != second->physical->device
        && is_closed(first, second->physical->device)
        && is_closed(second, first->physical->device);
}

struct allocation *allocation_find(CUdeviceptr address)
{
    const struct mapping *mapping = space_find(address);
    struct allocation *allocation = mapping != NULL ? mapping->allocation : NULL;
    return allocation != NULL && address < allocation->base + allocation->size ? allocation : NULL;
}

struct allocation *allocation_at(CUdeviceptr base)
{
    struct allocation *allocation = allocation_find(base);
    return allocation != NULL && allocation->base == base ? allocation : NULL;
}

/* Maps memory that belongs to a new allocation. NULL: the range is not free. */
static struct allocation *map_allocation(struct mapping mapping, struct allocation values,
                                         const struct context *context)
{
    static unsigned long long made;
    struct allocation *allocation = checked(malloc(sizeof *allocation));
    mapping.allocation = allocation;
    if (!space_map(&mapping)) {
        free(allocation);
        return NULL;
    }
    *allocation = values;
    allocation->base = mapping.base;
    allocation->context = context->owner;
    allocation->device = context->device;
    allocation->id = ++made;
    return allocation;
}

struct allocation *host_map(void *memory, size_t size, struct residency *residency,
                            enum allocation_kind kind, struct context *context)
{
    const struct mapping mapping = {.base = (uintptr_t)memory, .size = size,
                                    .residency = residency, .readable = ~0u, .writable = ~0u};
    return map_allocation(mapping, (struct allocation){.size = size, .kind = kind}, context);
}

size_t whole_pages(size_t size)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (size + page - 1) / page * page;
}

CUresult device_map(struct context *context, struct physical *physical, size_t size,
                    enum allocation_kind kind, struct pool *pool, CUdeviceptr *address)
{
    uint32_t bit = 1u << context->device->ordinal;
    SPACE_LOCKED(write);
    *address = space_reserve(physical->size, PHYSICAL_GRAIN, 0, false);
    const struct mapping mapping = {.base = *address, .size = physical->size,
                                    .physical = physical, .readable = bit, .writable = bit};
    const struct allocation values = {.size = size, .kind = kind, .pool = pool};
    if (*address != 0 && map_allocation(mapping, values, context) != NULL)
        return CUDA_SUCCESS;
    physical_drop(physical);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult device_allocate(struct context *context, size_t size, enum allocation_kind kind,
                         struct pool *pool, CUdeviceptr *address)
{
    struct physical *physical;
    size_t whole = (size + PHYSICAL_GRAIN - 1) / PHYSICAL_GRAIN * PHYSICAL_GRAIN;
    FAIL_IF(size == 0, CUDA_ERROR_INVALID_VALUE);
    FAIL_IF(whole < size, CUDA_ERROR_OUT_OF_MEMORY);
    TRY(physical_create(context->device, whole, CU_MEM_HANDLE_TYPE_NONE, &physical));
    return device_map(context, physical, size, kind, pool, address);
}

void allocation_free(struct allocation *allocation)
{
    struct mapping *found = space_find(allocation->base), mapping = *found;
    space_unmap(found, 1);
    if (mapping.physical != NULL) {
        space_unreserve(mapping.base, mapping.size, false);
        physical_drop(mapping.physical);
    }
    if (mapping.residency != NULL)
        residency_drop(mapping.residency);
    if (allocation->kind == ALLOCATED_HOST || allocation->kind == ALLOCATED_MANAGED)
        munmap((void *)(uintptr_t)mapping.base, whole_pages(mapping.size));
    free(allocation);
}

void allocations_open(const struct pool *pool, uint32_t opened, uint32_t closed)
{
    for (size_t i = 0; i < space.mapped.count; i++) {
        struct mapping *mapping = &space.mappings[i];
        if (mapping->allocation == NULL || mapping->allocation->pool != pool)
            continue;
        mapping->readable = (mapping->readable | opened) & ~closed;
        mapping->writable = (mapping->writable | opened) & ~closed;
    }
}

struct allocation *allocation_after(CUdeviceptr address)
{
    size_t i = FIRST_BEHIND(space.mappings, space.mapped.count, address);
    for (; i < space.mapped.count; i++)
        if (space.mappings[i].allocation != NULL && space.mappings[i].base > address)
            return space.mappings[i].allocation;
    return NULL;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "space/residency.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

#include "shared/shared_state.h"

struct page {
    uint8_t holder;                  /* index of the GPU plus one; 0: the host */
    bool mostly_read;
    CUmemLocation preferred, prefetched;     /* of type INVALID: none */
};

struct residency {
    CUdeviceptr base;
    size_t count;
    struct page pages[];
};

/* Protects all pages. Locked after the address space, and before the shared state. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct residency *residency_new(CUdeviceptr base, size_t size)
{
    size_t count = (size + RESIDENCY_PAGE - 1) / RESIDENCY_PAGE;
    struct residency *made = checked(calloc(1, sizeof *made + count * sizeof made->pages[0]));
    made->base = base;
    made->count = count;
    return made;
}

/* Moves a page to the host. False: it was there. */
static bool move_to_host(struct page *page)
{
    if (page->holder == 0)
        return false;
    shared_give_back(page->holder - 1, RESIDENCY_PAGE);
    page->holder = 0;
    return true;
}

void residency_drop(struct residency *residency)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < residency->count; i++)
        move_to_host(&residency->pages[i]);
    pthread_mutex_unlock(&lock);
    free(residency);
}

static struct page *pages_of(const struct residency *residency, CUdeviceptr address, size_t size,
                             size_t *count)
{
    size_t first = (address - residency->base) / RESIDENCY_PAGE;
    *count = (address - residency->base + size + RESIDENCY_PAGE - 1) / RESIDENCY_PAGE - first;
    return (struct page *)&residency->pages[first];
}

static bool keeps_location(const struct page *page, int gpu, bool asked)
{
    return page->holder == gpu + 1
        || (!asked && page->preferred.type != CU_MEM_LOCATION_TYPE_INVALID
            && page->preferred.type != CU_MEM_LOCATION_TYPE_DEVICE);
}

static size_t move_to_gpu(struct page *pages, size_t count, int gpu, bool asked)
{
    size_t wanted = 0;
    for (size_t i = 0; i < count; i++)
        wanted += !keeps_location(&pages[i], gpu, asked);
    if (wanted == 0 || !shared_take(gpu, wanted * RESIDENCY_PAGE))
        return 0;                    /* where the GPU is full, the pages stay where they are */
    for (size_t i = 0; i < count; i++)
        if (!keeps_location(&pages[i], gpu, asked)) {
            move_to_host(&pages[i]);
            pages[i].holder = (uint8_t)(gpu + 1);
        }
    return wanted;
}

void residency_touch(struct residency *residency, int gpu, CUdeviceptr address, size_t size)
{
    size_t count;
    struct page *pages = pages_of(residency, address, size, &count);
    LOCKED(lock);
    move_to_gpu(pages, count, gpu, false);
}

size_t residency_move(struct residency *residency, int gpu, CUdeviceptr address, size_t size)
{
    size_t count, moved = 0;
    struct page *pages = pages_of(residency, address, size, &count);
    LOCKED(lock);
    if (gpu != RESIDENCY_HOST)
        moved = move_to_gpu(pages, count, gpu, true);
    for (size_t i = 0; i < count && gpu == RESIDENCY_HOST; i++)
        if (!pages[i].mostly_read)
            moved += move_to_host(&pages[i]);
    return moved * RESIDENCY_PAGE;
}

void residency_advise(struct residency *residency, CUdeviceptr address, size_t size,
                      CUmem_advise advice, CUmemLocation place)
{
    size_t count;
    struct page *pages = pages_of(residency, address, size, &count);
    LOCKED(lock);
    for (size_t i = 0; i < count; i++) {
        struct page *page = &pages[i];
        if (advice == CU_MEM_ADVISE_SET_READ_MOSTLY || advice == CU_MEM_ADVISE_UNSET_READ_MOSTLY)
            page->mostly_read = advice == CU_MEM_ADVISE_SET_READ_MOSTLY;
        else if (advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION)
            page->preferred = place;
        else if (advice == CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION)
            page->preferred = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_INVALID};
    }
}

void residency_prefetched(struct residency *residency, CUdeviceptr address, size_t size,
                          CUmemLocation place)
{
    size_t count;
    struct page *pages = pages_of(residency, address, size, &count);
    LOCKED(lock);
    for (size_t i = 0; i < count; i++)
        pages[i].prefetched = place;
}

/* The settings that all pages have in common; a location that differs has the type INVALID. */
static struct page agreed(const struct page *pages, size_t count)
{
    const CUmemLocation nowhere = {.type = CU_MEM_LOCATION_TYPE_INVALID};
    struct page all_say = pages[0];
    for (size_t i = 1; i < count; i++) {
        all_say.mostly_read &= pages[i].mostly_read;
        if (pages[i].preferred.type != all_say.preferred.type
            || pages[i].preferred.id != all_say.preferred.id)
            all_say.preferred = nowhere;
        if (pages[i].prefetched.type != all_say.prefetched.type
            || pages[i].prefetched.id != all_say.prefetched.id)
            all_say.prefetched = nowhere;
    }
    return all_say;
}

/* The location as a device ordinal, as in the attributes of CUDA 8, which do not distinguish parts
 * of the host. */
static int ordinal_of(CUmemLocation place)
{
    return place.type == CU_MEM_LOCATION_TYPE_DEVICE ? place.id
         : place.type == CU_MEM_LOCATION_TYPE_HOST ? CU_DEVICE_CPU : CU_DEVICE_INVALID;
}

bool residency_attribute(const struct residency *residency, CUdeviceptr address, size_t size,
                         CUmem_range_attribute attribute, void *data)
{
    size_t count;
    const struct page *pages = pages_of(residency, address, size, &count);
    pthread_mutex_lock(&lock);
    struct page page = agreed(pages, count);
    pthread_mutex_unlock(&lock);
    switch ((int)attribute) {
#define TELL(name, is) case CU_MEM_RANGE_ATTRIBUTE_##name: *(int *)data = (int)(is); return true;
    TELL(READ_MOSTLY, page.mostly_read)
    TELL(PREFERRED_LOCATION, ordinal_of(page.preferred))
    TELL(LAST_PREFETCH_LOCATION, ordinal_of(page.prefetched))
    TELL(PREFERRED_LOCATION_TYPE, page.preferred.type)
    TELL(PREFERRED_LOCATION_ID, page.preferred.id)
    TELL(LAST_PREFETCH_LOCATION_TYPE, page.prefetched.type)
    TELL(LAST_PREFETCH_LOCATION_ID, page.prefetched.id)
#undef TELL
    }
    return false;
}

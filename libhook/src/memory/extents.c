/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/extents.h"

#include <stdatomic.h>
#include <stdlib.h>

struct extents {
    _Atomic CUdeviceptr base;
    uint32_t class, slot_size, count;          /* slot_size: unused if there is only one slot */
    struct extents *next;            /* in the list of unused extents of the class */
    _Atomic size_t sizes[];          /* bytes as requested; 0: no allocation */
};

static struct extents *unused[EXTENTS_CLASSES];

struct extents *extents_new(unsigned class, size_t slot_size, size_t count)
{
    struct extents *extents = unused[class];
    if (extents != NULL) {
        unused[class] = extents->next;
    } else if ((extents = calloc(1, sizeof *extents + count * sizeof extents->sizes[0])) != NULL) {
        extents->class = class;
        extents->slot_size = (uint32_t)slot_size;
        extents->count = (uint32_t)count;
    }
    return extents;
}

void extents_free(struct extents *extents)
{
    if (extents == NULL)
        return;
    for (uint32_t i = 0; i < extents->count; i++)
        atomic_store_explicit(&extents->sizes[i], 0, memory_order_relaxed);
    extents->next = unused[extents->class];
    unused[extents->class] = extents;
}

void extents_begin(struct extents *extents, CUdeviceptr base)
{
    if (extents != NULL)
        atomic_store_explicit(&extents->base, base, memory_order_relaxed);
}

/* The slot of an address; `count`: none. *inside: the offset in the slot. */
static uint32_t slot_of(const struct extents *extents, CUdeviceptr address, size_t *inside)
{
    size_t offset = address - atomic_load_explicit(&extents->base, memory_order_relaxed);
    *inside = offset;
    if (extents->count == 1)
        return 0;
    /* Slots lie in one page. The base may have changed: this memory may be freed meanwhile. */
    uint32_t short_offset = (uint32_t)(offset % PAGE), index = short_offset / extents->slot_size;
    *inside = short_offset % extents->slot_size;
    return index < extents->count ? index : extents->count;
}

void extents_set(struct extents *extents, CUdeviceptr address, size_t size)
{
    size_t inside;
    if (extents != NULL)
        atomic_store_explicit(&extents->sizes[slot_of(extents, address, &inside)], size,
                              memory_order_relaxed);
}

bool extents_exceeded(CUdeviceptr address, size_t bytes)
{
    const struct extents *extents;
    bool entered = region_entered(address, bytes, &extents);
    if (extents == NULL || bytes == 0)
        return entered;
    size_t inside;
    uint32_t slot = slot_of(extents, address, &inside);
    size_t size = slot == extents->count
        ? 0 : atomic_load_explicit(&extents->sizes[slot], memory_order_relaxed);
    return inside >= size || bytes > size - inside;
}

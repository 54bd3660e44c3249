/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes small allocations. A slab is one block of 2 MiB, divided into slots of one size; a bitmap
 * says which slots are free.
 *
 * Sizes are multiples of 512 bytes (the driver's alignment), four classes to each power of two, so
 * at most a quarter of a slot is lost. Allocation, release and lookup take constant time.
 */
#include "memory/slab.h"

#include <stdlib.h>
#include <string.h>

#include "block/block.h"
#include "block/region.h"
#include "driver/ring.h"
#include "gate/client.h"
#include "gate/commit.h"
#include "memory/allocation.h"

#define GRAIN 512
#define RETIRED UINT32_MAX

struct object {
    unsigned long long id;
    uint32_t size;                   /* bytes as requested; 0: free; RETIRED: not free yet */
    bool sync_memops;
};

struct slab {
    struct page_owner owner;
    struct block *block;
    unsigned class;
    uint32_t slot_size;              /* bytes */
    uint32_t count, used;
    struct ring alike;               /* in the client's list of such slabs with a free slot */
    uint64_t *free_bits;
    struct object *objects;
};

/* Slots of 1 to 8 grains, then four sizes to each power of two. */
static unsigned class_of(size_t bytes, uint32_t *slot_size)
{
    uint32_t grains = (uint32_t)((bytes + GRAIN - 1) / GRAIN);
    if (grains <= 8) {
        *slot_size = grains * GRAIN;
        return grains - 1;
    }
    unsigned power = 31 - (unsigned)__builtin_clz(grains - 1);
    uint32_t step = (uint32_t)1 << (power - 2);
    uint32_t steps = (grains - ((uint32_t)1 << power) + step - 1) / step;
    *slot_size = (((uint32_t)1 << power) + steps * step) * GRAIN;
    return 8 + (power - 3) * 4 + steps - 1;
}

static struct ring slabs[CLIENTS_MAX][SLAB_CLASSES]; /* slabs with a free slot */

static struct ring *list_of(const struct client *client, unsigned class)
{
    return ring_ready(&slabs[client->index][class]);
}

static struct object *object_at(struct slab *slab, CUdeviceptr address, CUdeviceptr *base)
{
    size_t index = (address - slab->block->address) / slab->slot_size;
    if (index >= slab->count)
        return NULL;                 /* the remainder at the end is smaller than a slot */
    struct object *object = &slab->objects[index];
    *base = slab->block->address + index * slab->slot_size;
    if (object->size == 0 || object->size == RETIRED || address - *base >= object->size)
        return NULL;
    return object;
}

static bool describe(struct page_owner *owner, CUdeviceptr address,
                     struct memory_description *description)
{
    struct slab *slab = (struct slab *)owner;
    CUdeviceptr base;
    const struct object *object = object_at(slab, address, &base);
    if (object == NULL)
        return false;
    *description = (struct memory_description){
        .base = base,
        .size = object->size,
        .context = slab->owner.context,
        .device = slab->owner.client->device,
        .id = object->id,
        .sync_memops = object->sync_memops,
        .ipc = slab->owner.context != NULL,
    };
    return true;
}

static void set_sync_memops(struct page_owner *owner, CUdeviceptr address, bool on)
{
    CUdeviceptr base;
    struct object *object = object_at((struct slab *)owner, address, &base);
    if (object != NULL)
        object->sync_memops = on;
}

static bool retire(struct page_owner *owner, CUdeviceptr address)
{
    CUdeviceptr base;
    struct object *object = object_at((struct slab *)owner, address, &base);
    if (object == NULL || base != address)
        return false;
    object->size = RETIRED;
    return true;
}

static void destroy(struct page_owner *owner)
{
    struct slab *slab = (struct slab *)owner;
    ring_leave(&slab->alike);
    region_set_owner(slab->block->address, PAGE, NULL);
    block_free(slab->block);
    free(slab);
}

static void release(struct page_owner *owner, CUdeviceptr address)
{
    struct slab *slab = (struct slab *)owner;
    size_t index = (address - slab->block->address) / slab->slot_size;
    slab->objects[index].size = 0;
    slab->free_bits[index / 64] |= (uint64_t)1 << (index % 64);
    slab->used--;
    struct ring *list = list_of(owner->client, slab->class);
    if (ring_empty(&slab->alike))
        ring_append(list, &slab->alike);
    /* The last slab with a free slot is kept even when empty, so that a program that allocates and
     * frees in turn does not map and unmap each time. */
    if (slab->used == 0 && list->next != list->previous)
        destroy(owner);
}

static void renew(struct page_owner *owner, CUdeviceptr address, size_t bytes)
{
    struct slab *slab = (struct slab *)owner;
    size_t index = (address - slab->block->address) / slab->slot_size;
    slab->objects[index] = (struct object){ allocation_id(), (uint32_t)bytes, false };
}

static struct block *const *blocks(struct page_owner *owner, size_t *count)
{
    *count = 1;
    return &((struct slab *)owner)->block;
}

static const struct owner_operations OPERATIONS = {
    describe, set_sync_memops, retire, release, renew, destroy, blocks,
};

static struct slab *new_slab(struct client *client, CUcontext context, unsigned class,
                             uint32_t slot_size, CUresult *result)
{
    *result = CUDA_ERROR_OUT_OF_MEMORY;
    if (!client_commit(client, PAGE))
        return NULL;
    uint32_t count = (uint32_t)(PAGE / slot_size), words = (count + 63) / 64;
    struct slab *slab = calloc(1, sizeof *slab + words * sizeof(uint64_t)
                                  + count * sizeof(struct object));
    if (slab == NULL)
        return NULL;
    slab->owner = (struct page_owner){
        .operations = &OPERATIONS, .client = client, .context = context,
    };
    slab->class = class;
    slab->slot_size = slot_size;
    slab->count = count;
    slab->objects = (struct object *)(slab + 1);
    slab->free_bits = (uint64_t *)(slab->objects + count);
    for (uint32_t i = 0; i < count; i++)
        slab->free_bits[i / 64] |= (uint64_t)1 << (i % 64);
    CUdeviceptr address;
    *result = region_take(PAGE, &address);
    if (*result != CUDA_SUCCESS) {
        free(slab);
        return NULL;
    }
    slab->block = block_new(client, false, address, PAGE);
    if (slab->block == NULL) {
        region_give(address, PAGE);
        free(slab);
        *result = CUDA_ERROR_OUT_OF_MEMORY;
        return NULL;
    }
    region_set_owner(address, PAGE, &slab->owner);
    allocation_fill(&slab->block, 1);
    ring_append(list_of(client, class), &slab->alike);
    return slab;
}

CUresult slab_allocate(struct client *client, CUcontext context, size_t bytes,
                       CUdeviceptr *address)
{
    uint32_t slot_size;
    unsigned class = class_of(bytes, &slot_size);
    const struct ring *list = list_of(client, class);
    struct slab *slab = NULL;
    /* Contexts do not share slabs, because the end of a context frees its memory. */
    for (const struct ring *link = list->previous; link != list && slab == NULL;
         link = link->previous)
        if (RING_MEMBER(link, struct slab, alike)->owner.context == context)
            slab = RING_MEMBER(link, struct slab, alike);
    CUresult result = CUDA_SUCCESS;
    if (slab == NULL)
        slab = new_slab(client, context, class, slot_size, &result);
    if (slab == NULL)
        return result;
    uint32_t word = 0;
    while (slab->free_bits[word] == 0)
        word++;
    uint32_t index = word * 64 + (uint32_t)__builtin_ctzl(slab->free_bits[word]);
    slab->free_bits[word] &= slab->free_bits[word] - 1;
    slab->objects[index] = (struct object){ allocation_id(), (uint32_t)bytes, false };
    if (++slab->used == slab->count)
        ring_leave(&slab->alike);
    *address = slab->block->address + (size_t)index * slab->slot_size;
    return CUDA_SUCCESS;
}

size_t slab_slot_size(size_t bytes, unsigned *class)
{
    uint32_t slot_size;
    *class = class_of(bytes, &slot_size);
    return slot_size;
}

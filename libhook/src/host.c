/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host memory for swapped blocks: slabs of a few hundred MiB, taken with huge
 * pages and several threads, registered with the driver once and kept. Taking
 * memory so costs about 25 GiB/s, taking it page by page or registering it
 * for each copy costs a tenth of the bus's speed.
 *
 * The memory is private to the process, is not inherited by its children and
 * does not appear in core dumps.
 */
#define _GNU_SOURCE
#include "block.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "log.h"
#include "real.h"
#include "region.h"

#define DEFAULT_SLAB ((uint64_t)256 << 20)
#define THREADS_MAX 8

struct host_slab {
    char *memory;
    uint64_t size;
    uint64_t used;
    uint64_t pages;
    struct host_slab *next;
    bool taken[];                    /* one per page of 2 MiB */
};

struct part { char *memory; size_t size; };

static void *touch(void *argument)
{
    const struct part *part = argument;
#ifdef MADV_POPULATE_WRITE
    if (madvise(part->memory, part->size, MADV_POPULATE_WRITE) == 0)
        return NULL;
#endif
    /* Older kernels: the same by hand. The memory is not shared yet. */
    for (size_t offset = 0; offset < part->size; offset += 4096)
        ((volatile char *)part->memory)[offset] = 0;
    return NULL;
}

static void touch_by_threads(char *memory, size_t size)
{
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    unsigned wanted = online < 1 ? 1 : online > THREADS_MAX ? THREADS_MAX : (unsigned)online;
    size_t share = WHOLE_PAGES(size / wanted);
    struct part parts[THREADS_MAX];
    pthread_t threads[THREADS_MAX];
    unsigned started = 0;
    size_t done = 0;
    while (started + 1 < wanted && done + share < size) {
        parts[started] = (struct part){ memory + done, share };
        if (pthread_create(&threads[started], NULL, touch, &parts[started]) != 0)
            break;
        done += share;
        started++;
    }
    touch(&(struct part){ memory + done, size - done });
    for (unsigned i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
}

/* Huge pages need an address that is a multiple of their size. */
static char *map_aligned(size_t size)
{
    char *memory = mmap(NULL, size + PAGE, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    size_t before = (PAGE - (uintptr_t)memory % PAGE) % PAGE;
    if (before > 0)
        munmap(memory, before);
    if (before < PAGE)
        munmap(memory + before + size, PAGE - before);
    return memory + before;
}

static struct host_slab *new_slab(uint64_t size)
{
    struct host_slab *slab = calloc(1, sizeof *slab + size / PAGE);
    if (slab == NULL)
        return NULL;
    slab->size = size;
    slab->pages = size / PAGE;
    slab->memory = map_aligned(size);
    if (slab->memory == NULL) {
        free(slab);
        return NULL;
    }
    madvise(slab->memory, size, MADV_HUGEPAGE);
    madvise(slab->memory, size, MADV_DONTFORK);
    madvise(slab->memory, size, MADV_DONTDUMP);
    touch_by_threads(slab->memory, size);
    CUresult result = REAL(cuMemHostRegister_v2)(slab->memory, size, CU_MEMHOSTREGISTER_PORTABLE);
    if (result != CUDA_SUCCESS) {
        debug("registering %llu bytes of host memory failed: error %d",
              (unsigned long long)size, (int)result);
        munmap(slab->memory, size);
        free(slab);
        return NULL;
    }
    return slab;
}

static bool place(struct host_slab *slab, struct block *block)
{
    uint64_t wanted = block->size / PAGE, run = 0;
    if (slab->size - slab->used < block->size)
        return false;
    for (uint64_t page = 0; page < slab->pages; page++) {
        run = slab->taken[page] ? 0 : run + 1;
        if (run < wanted)
            continue;
        memset(&slab->taken[page + 1 - wanted], true, wanted);
        slab->used += block->size;
        block->slot = (struct host_slot){ slab, slab->memory + (page + 1 - wanted) * PAGE };
        return true;
    }
    return false;
}

/* The daemon may know better than we how coarse to be; never finer than a block. */
static uint64_t slab_size(const struct client *client, uint64_t block_size, uint64_t allowance)
{
    uint64_t size = client->limits.host_slab != 0 ? client->limits.host_slab : DEFAULT_SLAB;
    uint64_t left = allowance > client->memory.host ? allowance - client->memory.host : 0;
    if (size > left)
        size = left;
    size = size / PAGE * PAGE;
    if (size < BLOCK_SIZE && block_size <= left)
        size = BLOCK_SIZE <= left ? BLOCK_SIZE : block_size;
    return size >= block_size ? size : 0;
}

bool host_take(struct client *client, struct block *block, uint64_t allowance)
{
    if (block->slot.slab != NULL)
        return true;
    for (struct host_slab *slab = client->host_slabs; slab != NULL; slab = slab->next)
        if (place(slab, block))
            return true;
    uint64_t size = slab_size(client, block->size, allowance);
    if (size == 0)
        return false;
    pthread_mutex_unlock(&memory_lock);
    struct host_slab *slab = new_slab(size);
    pthread_mutex_lock(&memory_lock);
    if (slab == NULL)
        return false;
    slab->next = client->host_slabs;
    client->host_slabs = slab;
    client->memory.host += size;
    return place(slab, block);
}

void host_give(struct block *block)
{
    struct host_slab *slab = block->slot.slab;
    if (slab == NULL)
        return;
    memset(&slab->taken[(block->slot.address - slab->memory) / (ptrdiff_t)PAGE], false,
           block->size / PAGE);
    slab->used -= block->size;
    block->slot = (struct host_slot){ NULL, NULL };
}

void host_trim(struct client *client, uint64_t allowance)
{
    struct host_slab **link = &client->host_slabs;
    while (*link != NULL && client->memory.host > allowance) {
        struct host_slab *slab = *link;
        if (slab->used > 0) {
            link = &slab->next;
            continue;
        }
        *link = slab->next;
        client->memory.host -= slab->size;
        pthread_mutex_unlock(&memory_lock);
        CUresult result = REAL(cuMemHostUnregister)(slab->memory);
        if (result == CUDA_SUCCESS)
            munmap(slab->memory, slab->size);
        else
            debug("unregistering host memory failed: error %d", (int)result);
        free(slab);
        pthread_mutex_lock(&memory_lock);
        link = &client->host_slabs;
    }
}

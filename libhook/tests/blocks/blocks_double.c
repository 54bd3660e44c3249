/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulated environment for block/, tier/ and memory/ in which tens of thousands of blocks need
 * no memory: a driver that makes all calls succeed, and host memory that is addresses only.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "block/search.c"            /* for the enumeration of searches */

#include "block/block.h"
#include "block/contents.h"
#include "block/swap.h"
#include "block/region.h"
#include "gate/client.h"
#include "gate/contexts.h"
#include "flight/bus_sharing.h"
#include "driver/log.h"
#include "flight/drain.h"
#include "driver/real.h"
#include "memory/allocation.h"
#include "tier/tier.h"

#define SIZE PAGE
#define MOST 65536

SEEN unsigned copied;                /* number of copies */
SEEN unsigned refuses;               /* the copy after this number of copies fails; 0: none */
SEEN unsigned waits;                 /* how often a thread waited for a copy with the lock
                                        released */
SEEN unsigned wrong_states;          /* number of waits during which block states and `resident`
                                        disagreed */
SEEN int freed_meanwhile = -1;       /* index of the block that is freed during the next wait */
SEEN unsigned registers = -1u;       /* number of slabs that can still be registered */
SEEN int freed_by_refusal = -1;      /* index of the block that is freed when a slab is refused,
                                        if the block has no host memory then */
SEEN unsigned freed_by_growth;       /* number of blocks, from the last on, that are freed while
                                        a slab is created */
SEEN unsigned looked;                /* how often a thread of the program could take the lock while
                                        some blocks were resident and others not */
SEEN unsigned unmapped_under_lock;   /* number of slabs unmapped while memory_lock was held */
pthread_cond_t memory_changed = PTHREAD_COND_INITIALIZER;
const struct tier tier_disk;         /* no block moves on to a file in this test */
static struct client one = { .turns = 1, .drained = true };
static CUdeviceptr allocations[MOST];
static struct { bool zero; uint64_t changed; } contents[MOST];

CUcontext contexts_of(CUdevice device, unsigned number)
{
    return number == 0 ? (CUcontext)1 : NULL;
}

static CUresult reserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr wanted,
                        unsigned long long flags)
{
    static CUdeviceptr next = (CUdeviceptr)1 << 40;
    *address = next;
    next += size;
    return CUDA_SUCCESS;
}

static CUresult copy(void)
{
    copied++;
    return refuses > 0 && --refuses == 0 ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

static void free_one(unsigned index)
{
    large_release(region_owner(allocations[index]));
    allocations[index] = 0;
}

/* A read of a freed block reads garbage. */
static void overwrite_freed(void)
{
    static void *volatile freed;
    freed = malloc(sizeof(struct block));
    memset(freed, 0xff, sizeof(struct block));
}

static CUresult wait_for(void)
{
    waits++;
    LOCKED(memory_lock);
    if (freed_meanwhile >= 0)
        free_one((unsigned)freed_meanwhile);
    freed_meanwhile = -1;
    return CUDA_SUCCESS;
}

/* A thread of the program may inspect blocks while the lock is released. Its steps do not count. */
__attribute__((no_sanitize_coverage)) static CUresult synchronize(void)
{
    uint64_t mapped = 0;
    LOCKED(memory_lock);
    for (const struct block *block = one.blocks; block != NULL; block = block->younger)
        if (block->state == BLOCK_RESIDENT || block->state == BLOCK_EVICTING
            || block->state == BLOCK_LOADING)
            mapped += block->size;
    wrong_states += mapped != one.memory.resident;
    waits++;
    return CUDA_SUCCESS;
}

static CUresult enregister(void)
{
    if (registers > 0) {
        registers--;
        return CUDA_SUCCESS;
    }
    LOCKED(memory_lock);
    for (struct block *block = one.blocks; block != NULL && freed_by_refusal >= 0;
         block = block->younger)
        if (block->address == allocations[freed_by_refusal] && block->place.tier == NULL) {
            free_one((unsigned)freed_by_refusal);
            freed_by_refusal = -1;
            overwrite_freed();
            break;
        }
    return CUDA_ERROR_UNKNOWN;
}
static CUresult nothing(void) { return CUDA_SUCCESS; }

void *real_find(enum real_index index)
{
    switch (index) {
    case REAL_cuMemAddressReserve: return (void *)reserve;
    case REAL_cuMemcpyDtoHAsync_v2: return (void *)copy;
    case REAL_cuMemcpyHtoDAsync_v2: return (void *)copy;
    case REAL_cuMemHostRegister_v2: return (void *)enregister;
    case REAL_cuEventSynchronize: return (void *)wait_for;
    case REAL_cuStreamSynchronize: return (void *)synchronize;
    default: return (void *)nothing;
    }
}

static unsigned index_of(const struct block *block)
{
    unsigned index = 0;
    while (allocations[index] != block->address)
        index++;
    return index;
}

/* Whether content_read() compares contents[]; false: each block counts as changed in each turn. */
static bool contents_matter;

bool content_read(struct client *client, struct block *const *blocks, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct content all = { .any = 1, .sum = { client->turns } };
        if (contents_matter && !blocks[i]->doomed) {
            unsigned index = index_of(blocks[i]);
            all.any = !contents[index].zero;
            all.sum[0] = contents[index].changed;
        }
        blocks[i]->reading = (struct reading){ .all = all, .part = all, .whole = true,
                                         .turn = client->turns };
    }
    return true;
}

uint64_t client_free_room(const struct client *client)
{
    return client->memory.room > client->memory.resident
        ? client->memory.room - client->memory.resident : 0;
}

/* Functions without effect in this test. */
bool client_commit(struct client *client, uint64_t bytes) { return true; }
bool client_next(struct client *client, unsigned type, struct nvshare_order *order) { return false; }
bool client_take_yield(struct client *client) { return false; }
bool client_must_yield(struct client *client) { return false; }
bool client_load_follows(struct client *client) { return false; }
void client_update(struct client *client) {}
void bus_sharing_measured(enum bus_direction way, uint64_t bytes, uint64_t microseconds) {}
int own_thread_start(pthread_t *thread, void *(*does)(void *), void *argument)
{
    return EAGAIN;
}
CUresult context_error(CUcontext context) { return CUDA_SUCCESS; }

/* Host memory of this double consists of addresses without pages. */
int madvise(void *memory, size_t size, int advice)
{
    if (advice != MADV_POPULATE_WRITE)
        return 0;
    LOCKED(memory_lock);
    for (unsigned i = MOST; i-- > 0 && freed_by_growth > 0;)
        if (allocations[i] != 0) {
            free_one(i);
            freed_by_growth--;
        }
    return 0;
}
int munmap(void *memory, size_t size)
{
    if (size > PAGE && pthread_mutex_trylock(&memory_lock) != 0)
        unmapped_under_lock++;
    else if (size > PAGE)
        pthread_mutex_unlock(&memory_lock);
    return (int)syscall(SYS_munmap, memory, size);
}
/* Each call advances the clock. */
uint64_t now_microseconds(void)
{
    static _Atomic uint64_t now;
    return now += 1000;
}

/* Compares the result of a search with a scan of all blocks. */
static bool is_right(enum search search)
{
    const struct block *first = NULL;
    uint64_t bytes = 0;
    for (const struct block *block = one.blocks; block != NULL; block = block->younger)
        if (satisfied(block) >> search & 1) {
            if (first == NULL || search >= SEARCHES_OLDEST)
                first = block;
            bytes += block->size;
        }
    return search_first(&one, search) == first && search_bytes(&one, search) == bytes;
}

/* `room`: number of blocks that may be resident; each allocation has the size of `size` blocks. */
SEEN void allocate(unsigned first, unsigned count, unsigned room, unsigned size)
{
    one.memory.room = room * SIZE;
    for (unsigned i = first; i < first + count; i++)
        allocation_make(&one, (CUcontext)1, size * SIZE, &allocations[i]);
}

SEEN void release(unsigned first, unsigned count)
{
    for (unsigned i = first; i < first + count; i++)
        if (allocations[i] != 0)
            free_one(i);
}

SEEN uint64_t address_of(unsigned index) { return allocations[index]; }

/* The program runs, and may change all blocks. */
SEEN void runs(void) { one.turns++; }

/* Changes one block, or fills it with zeros. */
SEEN void changes(unsigned index, bool to_zero)
{
    contents_matter = true;
    contents[index].zero = to_zero;
    contents[index].changed = one.turns;
}

static struct nvshare_order order(unsigned blocks, unsigned host, bool ahead)
{
    return (struct nvshare_order){
        .room = blocks * SIZE, .writeback = blocks * SIZE, .host = host * SIZE,
        .flags = ahead ? NVSHARE_AHEAD : 0,
    };
}

/* Carries out one EVICT: at most `blocks` remain resident, at most `host` in host memory. */
SEEN void evict(unsigned blocks, unsigned host, bool ahead)
{
    unsigned flags;
    const struct nvshare_order evicting = order(blocks, host, ahead);
    swap_out(&one, &evicting, &flags);
}

SEEN void load(unsigned blocks, unsigned host, bool ahead)
{
    const struct nvshare_order loading = order(blocks, host, ahead);
    swap_in(&one, &loading);
}

/* From now on blocks are evicted to another GPU; return_borrowed() moves all of them to the
 * host. */
SEEN void borrow(unsigned blocks) { tier_use(&one, tier_lent())->limit = blocks * SIZE; }

SEEN unsigned return_borrowed(unsigned host)
{
    unsigned flags = 0;
    const struct nvshare_order returning = order(0, host, false);
    swap_return(&one, &returning, &flags);
    return flags;
}

/* Called where the thread that moves blocks yields: a thread of the program may take the lock
 * now. */
int nanosleep(const struct timespec *time, struct timespec *left)
{
    if (pthread_mutex_trylock(&memory_lock) == 0) {
        looked += one.memory.resident > 0 && one.absent > 0;
        pthread_mutex_unlock(&memory_lock);
    }
    return 0;
}

SEEN void write_back(unsigned blocks, unsigned host)
{
    unsigned flags;
    const struct nvshare_order saving = order(blocks, host, false);
    swap_write_back(&one, &saving, &flags);
}

SEEN unsigned resident(void) { return (unsigned)(one.memory.resident / SIZE); }

SEEN bool searches_are_right(void)
{
    bool right = true;
    for (unsigned i = 0; i < SEARCHES; i++)
        right = right && is_right(i);
    return right;
}

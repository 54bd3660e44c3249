/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What swap/ and block/ stand on: one client with blocks of 17 MiB, and a card that copies no
 * earlier than somebody waits for it. A test gives orders and looks at bytes.
 */
#define _GNU_SOURCE
#include "store_double.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "block/region.h"
#include "block/host_threads.h"
#include "block/host_slabs.h"
#include "client/client.h"
#include "client/connection.h"
#include "client/contexts.h"
#include "flight/bus_sharing.h"
#include "interpose/log.h"
#include "swap/content.h"
#include "swap/context_failed.h"
#include "swap/load.h"
#include "swap/pipeline.h"
#include "swap/presave.h"
#include "swap/swap.h"
#include "swap/yield.h"

#define SIZE ((size_t)17 << 20)      /* two pieces, of which one is small */
#define COPIES 64

SEEN unsigned answered;              /* flags of the last answer */
SEEN unsigned yields_at;             /* an order yields when it has asked so often. 0: never */
pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t memory_changed = PTHREAD_COND_INITIALIZER;
_Atomic(void *) real_functions[REAL_COUNT];
static struct client one = { .turns = 1 };

CUcontext contexts_of(CUdevice device, unsigned number)
{
    (void)device;
    return number == 0 ? (CUcontext)1 : NULL;
}

/* The card's queue, and how far it was when each event was recorded. */
static struct { void *to; const void *from; size_t size; } queue[COPIES];
static size_t queued, done, reached[COPIES_IN_FLIGHT];

static CUresult enqueue(void *to, const void *from, size_t size)
{
    queue[queued].to = to;
    queue[queued].from = from;
    queue[queued++].size = size;
    return CUDA_SUCCESS;
}

static CUresult copy_out(void *to, CUdeviceptr from, size_t size, CUstream stream)
{
    (void)stream;
    return enqueue(to, (void *)from, size);
}

static CUresult copy_in(CUdeviceptr to, const void *from, size_t size, CUstream stream)
{
    (void)stream;
    return enqueue((void *)to, from, size);
}

static CUresult clear(CUdeviceptr address, unsigned char value, size_t size, CUstream stream)
{
    (void)value, (void)stream;
    return enqueue((void *)address, NULL, size);
}

static CUresult make_event(CUevent *event, unsigned flags)
{
    static size_t made;
    (void)flags;
    *event = (CUevent)&reached[made++];
    return CUDA_SUCCESS;
}

static CUresult record(CUevent event, CUstream stream)
{
    (void)stream;
    *(size_t *)event = queued;
    return CUDA_SUCCESS;
}

static CUresult wait_for(CUevent event)
{
    for (; done < *(size_t *)event; done++)
        if (queue[done].from == NULL)
            memset(queue[done].to, 0, queue[done].size);
        else
            memcpy(queue[done].to, queue[done].from, queue[done].size);
    return CUDA_SUCCESS;
}

static CUresult nothing(void)
{
    return CUDA_SUCCESS;
}

void *real_find(enum real_index index)
{
    switch (index) {
    case REAL_cuMemcpyDtoHAsync_v2: return (void *)copy_out;
    case REAL_cuMemcpyHtoDAsync_v2: return (void *)copy_in;
    case REAL_cuMemsetD8Async: return (void *)clear;
    case REAL_cuEventCreate: return (void *)make_event;
    case REAL_cuEventRecord: return (void *)record;
    case REAL_cuEventSynchronize: return (void *)wait_for;
    default: return (void *)nothing;
    }
}

/* The sum is one that bytes in another order change as well. */
bool content_look(struct client *client, struct block *const *blocks, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const uint64_t *words = (const uint64_t *)blocks[i]->address;
        struct content all = { .any = 0 };
        for (size_t word = 0; word < blocks[i]->size / sizeof *words; word++) {
            all.any |= words[word];
            all.sum[0] = all.sum[0] * 31 + words[word];
        }
        blocks[i]->look = (struct look){ .all = all, .whole = true, .turn = client->turns };
    }
    return true;
}

bool content_is_zero(const struct content *content)
{
    return content->any == 0;
}

bool content_equal(const struct content *a, const struct content *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

void content_leave_context(struct client *client)
{
    (void)client;
}

bool order_yields(struct client *client, const struct nvshare_order *order)
{
    (void)client, (void)order;
    return yields_at > 0 && --yields_at == 0;
}

void client_send(struct client *client, struct nvshare_report report)
{
    (void)client;
    answered = report.flags;
}

uint64_t client_free_room(const struct client *client)
{
    return client->memory.room - client->memory.resident;
}

bool connection_next(int socket, unsigned type, struct nvshare_order *order)
{
    (void)socket, (void)type, (void)order;
    return false;
}

/* What there is nothing to say of here. */
void client_update(struct client *client) { (void)client; }
void memory_lock_yields(uint64_t *held_since) { (void)held_since; }
void release_if_context_failed(struct client *client) { (void)client; }
void host_shrink(struct client *client, uint64_t allowance) { (void)client, (void)allowance; }
void host_provided(struct client *client) { (void)client; }
void host_expect(struct client *client, uint64_t bytes) { (void)client, (void)bytes; }
void host_leave_context(struct client *client, bool drained) { (void)client, (void)drained; }
void region_give(CUdeviceptr address, size_t size) { (void)address, (void)size; }
bool region_contains(CUdeviceptr address) { (void)address; return false; }
void debug(const char *format, ...) { (void)format; }
uint64_t now_microseconds(void) { return 0; }
void bus_sharing_measured(enum bus_way way, uint64_t bytes, uint64_t microseconds)
{
    (void)way, (void)bytes, (void)microseconds;
    abort();                         /* these stores say nothing of the bus */
}

SEEN struct block *make(bool emptied)
{
    void *address = mmap(NULL, SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return block_new(&one, emptied ? &store_emptied : &store_file, (CUdeviceptr)address, SIZE);
}

SEEN void unmake(struct block *block)
{
    block_free(block);
}

/* The program runs, and so may write. */
SEEN void runs(void)
{
    one.turns++;
}

SEEN char *bytes_of(struct block *block)
{
    return block->state == BLOCK_RESIDENT ? (char *)block->address : NULL;
}

static struct nvshare_order order(uint64_t blocks, bool ahead)
{
    done = queued = 0;
    return (struct nvshare_order){
        .room = blocks * SIZE, .presaved = blocks * SIZE, .flags = ahead ? NVSHARE_AHEAD : 0,
    };
}

/* So many blocks may be on the card: others leave, or as many come as can. */
SEEN unsigned leave(unsigned blocks, bool ahead)
{
    const struct nvshare_order leaving = order(blocks, ahead);
    swap_out(&one, &leaving, &answered);
    return answered;
}

SEEN unsigned come(unsigned blocks, bool ahead)
{
    const struct nvshare_order coming = order(blocks, ahead);
    swap_in(&one, &coming);
    return answered;
}

SEEN unsigned presave(unsigned blocks)
{
    const struct nvshare_order saving = order(blocks, false);
    swap_presave(&one, &saving, &answered);
    return answered;
}

SEEN unsigned resident(void)
{
    return (unsigned)(one.memory.resident / SIZE);
}

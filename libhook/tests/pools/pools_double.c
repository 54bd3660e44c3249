/* SPDX-License-Identifier: Apache-2.0 */
/* A simulated environment for pool.c with thousands of streams: allocations are addresses only, and
 * `reached` decides whether streams have done their work. A stream is its number. */
#include <stdlib.h>

#include "driver/real.h"
#include "flight/capture.h"
#include "flight/drain.h"
#include "flight/streams.h"
#include "gate/client.h"
#include "gate/contexts.h"
#include "memory/allocation.h"
#include "memory/peers.h"
#include "pool/pool.h"

#define MOST 65536

SEEN unsigned reached;               /* streams with lower numbers have done their work */
SEEN unsigned made;                  /* number of allocations that were not reused */
static struct client one;
static struct object objects[MOST];
static CUmemoryPool const POOL = (CUmemoryPool)1;
static struct { CUstream stream; } events[MOST];
static unsigned event_count;

bool client_none(void) { return false; }
struct client *client_on(CUdevice device) { return &one; }
void client_update(struct client *client) {}
bool memory_is_ours(CUdeviceptr address) { return true; }
bool capture_refuses(CUresult *result) { return false; }
uint64_t stream_name(CUstream stream) { return (uint64_t)(uintptr_t)stream; }

CUresult stream_device(CUstream stream, CUcontext *context, CUdevice *device)
{
    *context = NULL;
    *device = 0;
    return CUDA_SUCCESS;
}

struct object *allocation_at(CUdeviceptr address)
{
    return &objects[address];
}

CUresult allocation_make(struct client *client, CUcontext context, size_t bytes,
                         CUdeviceptr *address)
{
    *address = made++;
    objects[*address] = (struct object){ .size = bytes };
    return CUDA_SUCCESS;
}

void allocation_release(CUdeviceptr address)
{
    objects[address] = (struct object){ .size = 0 };
}

void allocation_renew(CUdeviceptr address, size_t bytes)
{
    objects[address].size = bytes;
    objects[address].retired = false;
}

size_t slab_slot_size(size_t bytes, unsigned *class)
{
    *class = 0;
    return 1024;
}

static CUresult create_event(CUevent *event, unsigned flags)
{
    *event = (CUevent)&events[event_count++];
    return CUDA_SUCCESS;
}

static CUresult record(CUevent event, CUstream stream)
{
    *(CUstream *)event = stream;
    return CUDA_SUCCESS;
}

static CUresult query(CUevent event)
{
    return stream_name(*(CUstream *)event) < reached ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult nothing(void) { return CUDA_SUCCESS; }

void *real_find(enum real_index index)
{
    switch (index) {
    case REAL_cuEventCreate: return (void *)create_event;
    case REAL_cuEventRecord: return (void *)record;
    case REAL_cuEventQuery: return (void *)query;
    default: return (void *)nothing;
    }
}

/* Allocates and frees once in each of `count` streams from `first` on. */
SEEN void allocate_and_free(unsigned first, unsigned count)
{
    static bool added;
    if (!added)
        pool_add(POOL, 0, 0);
    added = true;
    for (unsigned i = first; i < first + count; i++) {
        CUdeviceptr address;
        CUresult result;
        CUstream stream = (CUstream)(uintptr_t)i;
        if (!pool_allocate(POOL, 1024, stream, &address, &result) || result != CUDA_SUCCESS
            || !pool_free_async(address, stream, &result) || result != CUDA_SUCCESS)
            abort();
    }
}

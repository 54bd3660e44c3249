/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stands for the library's core (gate, memory, client) behind the wrappers,
 * so that a test sees what they ask of it. The gate is always closed, and
 * opens for each thread that stands at it.
 */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#include <stdlib.h>
#include <string.h>

#include "driver/forked.h"
#include "gate/client.h"
#include "gate/gate.h"
#include "flight/bus_sharing.h"
#include "flight/capture.h"
#include "ipc/ipc_export.h"
#include "ipc/ipc_import.h"
#include "memory/allocation.h"
#include "memory/managed.h"
#include "memory/memory.h"
#include "memory/peers.h"
#include "memory/pinned.h"
#include "memory/reservation.h"
#include "memory/vmm_allocation.h"
#include "memory/vmm_mapping.h"
#include "daemon/attach.h"

#define SEEN __attribute__((visibility("default")))
#define BEGINNING 0x100000000ull     /* where our memory lies */
#define SIZE 0x1000ull               /* bytes, one allocation at the beginning */
#define RESERVED 0x100000ull
#define NOT_SHARED 9                 /* a device without a client */
#define MANAGED 0x300000000ull       /* where managed memory lies that can be sent away */

/* What a test sets, */
SEEN int core_attached;              /* there is a client */
SEEN int core_sends;                 /* managed memory can be sent away */
SEEN int core_refuses;               /* pinned memory is refused with this */
SEEN uint64_t core_reserved;         /* bytes of addresses */
SEEN uint64_t core_mixed;            /* where the driver has mapped something last */
SEEN int core_mapped;                /* the program mapped every address itself */
/* and what it reads. */
SEEN uint64_t core_stream;           /* that was last named at the gate */
SEEN int core_entered;
SEEN uint64_t core_wished;           /* bytes of the last pinned_begin(), */
SEEN int core_device_wished = -1;    /* and of which device, if it was named */
SEEN uint64_t core_pinned;           /* bytes counted now, */
SEEN int core_device_released = -1;  /* and of which device last no longer */
SEEN uint64_t core_remembered;       /* objects */
SEEN int core_captures;              /* going on */
SEEN uint64_t core_context_ended, core_contexts_ended, core_contexts_attached;
SEEN int core_device_attached = -1;
SEEN int core_sync_memops;
SEEN uint64_t core_kept;             /* the last address that was to stay where it is */
SEEN uint64_t core_prefetched;       /* of all ranges: bytes, and from MANAGED to each */

SEEN uint64_t core_copied;           /* bytes of the last copy that counts, */
SEEN int core_way, core_waits;       /* which way they went, and whether the call waits for them */
SEEN int core_copies;                /* that began and have not ended */

struct client *clients[CLIENTS_MAX];
_Atomic uint64_t gate_closed = 1;
_Atomic uint32_t bus_sharing_watched SEEN;
__thread struct gate_thread *gate_self __attribute__((tls_model("initial-exec")));

struct gate_thread *gate_register_thread(void)
{
    struct gate_thread *self = aligned_alloc(128, sizeof *self);
    return gate_self = memset(self, 0, sizeof *self);
}

uint32_t gate_block(void)
{
    return 0;
}

void gate_unblock(const uint32_t *before) {}

bool gate_wait(struct gate_thread *self, CUstream stream, bool (*is_vain)(void))
{
    core_stream = (uint64_t)stream;
    core_entered++;
    return true;
}

void bus_copy_begins(struct bus_copy *copy, enum bus_way way, uint64_t bytes, bool waits)
{
    copy->client = (struct client *)&core_copies;
    core_copied = bytes;
    core_way = way;
    core_waits = waits;
    core_copies++;
}

void bus_copy_ends(const struct bus_copy *copy)
{
    if (copy->client != NULL)
        core_copies--;
}

/* How often this thread has entered and not left. */
SEEN int core_inside(void)
{
    return gate_self == NULL ? 0 : (int)gate_self->inside;
}

bool client_is_called_back(void)
{
    return false;
}

bool client_none(void)
{
    return !core_attached;
}

void clients_watch_forks(void)
{
}

void client_attach(CUdevice device, CUcontext context)
{
    core_device_attached = device;
    core_contexts_attached++;
}

uint64_t now_microseconds(void)
{
    return 1;
}

void capture_begins(void)
{
    core_captures++;
}

void capture_ends(void)
{
    core_captures--;
}

/* As where nothing is captured. */
bool capture_refuses(CUresult *result) { return false; }

bool memory_allocate(size_t bytes, CUdeviceptr *address, CUresult *result)
{
    if (!core_attached)
        return false;
    core_wished = bytes;
    *address = BEGINNING;
    *result = CUDA_SUCCESS;
    return true;
}

bool memory_is_ours(CUdeviceptr address)
{
    return core_attached && address - BEGINNING < RESERVED;
}

bool memory_free(CUdeviceptr address, CUresult *result)
{
    *result = CUDA_SUCCESS;
    return memory_is_ours(address);
}

bool memory_describe(CUdeviceptr address, struct memory_description *description)
{
    if (!core_attached || address - BEGINNING >= SIZE)
        return false;
    *description = (struct memory_description){
        .base = BEGINNING, .size = SIZE, .context = (CUcontext)0x77, .device = 3, .id = 5,
        .sync_memops = core_sync_memops != 0, .ipc = true,
    };
    return true;
}

bool memory_set_sync_memops(CUdeviceptr address, bool on)
{
    core_sync_memops = on;
    return address - BEGINNING < SIZE;
}

/* Of managed memory, one place for all that was prefetched. */
static CUmemLocation prefetched;

bool managed_allocate(CUdeviceptr *address, size_t bytes, unsigned int flags, CUresult *result)
{
    if (!core_sends || bytes == 0)
        return false;
    core_wished = bytes + flags;
    *address = MANAGED;
    *result = CUDA_SUCCESS;
    return true;
}

bool managed_free(CUdeviceptr address, bool plain, CUresult *result)
{
    *result = CUDA_SUCCESS;
    return core_sends && address == (plain ? MANAGED + 16 : MANAGED);
}

void managed_prefetched(CUdeviceptr address, size_t size, CUmemLocation place)
{
    core_prefetched += address - MANAGED + size;
    prefetched = place;
}

bool managed_last_prefetch(CUdeviceptr address, size_t size, CUmemLocation *place)
{
    *place = prefetched;
    return core_sends && address == MANAGED && size != 0;
}

bool memory_information(size_t *free_bytes, size_t *total_bytes)
{
    *free_bytes = 5ull << 30;
    *total_bytes = 7;
    return core_attached;
}

bool memory_total(CUdevice device, size_t *total_bytes)
{
    *total_bytes = (6ull << 30) + (size_t)device;
    return core_attached;
}

bool client_awaits_context(CUdevice device, unsigned *tries) { return false; }

static CUresult begin(CUdevice device, size_t bytes)
{
    core_wished = bytes;
    core_device_wished = device;
    if (core_attached && core_refuses != 0)
        return (CUresult)core_refuses;
    gate_enter(GATE_NO_STREAM);
    return CUDA_SUCCESS;
}

CUresult pinned_begin(size_t bytes)
{
    return begin(-1, bytes);
}

CUresult pinned_begin_on(CUdevice device, size_t bytes, bool submits)
{
    return begin(device, bytes);
}

bool pinned_counts_on(CUdevice device)
{
    return core_attached && device != NOT_SHARED;
}

/* Two cards: ours is of one, and what lies right behind it of the other. */
bool memory_apart(CUdeviceptr to, CUdeviceptr from, CUcontext *to_context, CUcontext *from_context)
{
    *to_context = (CUcontext)0x77;
    *from_context = (CUcontext)0x78;
    return memory_is_ours(to) && from == BEGINNING + RESERVED;
}

bool memory_never_apart(void)
{
    return false;
}

CUresult memory_open_to_peer(CUdevice owner, CUdevice reader, bool open) { return CUDA_SUCCESS; }

void pinned_end(size_t bytes_taken)
{
    core_pinned += bytes_taken;
    gate_leave();
}

void pinned_release_on(CUdevice device, size_t bytes)
{
    core_device_released = device;
    core_pinned -= bytes;
}

static struct { uint64_t key; size_t bytes; } remembered[64];

void pinned_remember(uint64_t key, size_t bytes)
{
    remembered[core_remembered].key = key;
    remembered[core_remembered++].bytes = bytes;
}

void pinned_forget(uint64_t key)
{
    for (uint64_t i = 0; i < core_remembered; i++)
        if (remembered[i].key == key) {
            core_pinned -= remembered[i].bytes;
            remembered[i] = remembered[--core_remembered];
            return;
        }
}

/* Nothing that the program creates itself is ours here: what wrappers do then
 * is what these tests look at. The rest is tested on the simulated card. */

bool vmm_create(CUmemGenericAllocationHandle *handle, size_t size,
                  const CUmemAllocationProp *properties, CUresult *result)
{
    return false;
}

bool vmm_release(CUmemGenericAllocationHandle handle, CUresult *result) { return false; }
bool vmm_retain(CUdeviceptr address, CUmemGenericAllocationHandle *handle) { return false; }

bool vmm_properties(CUmemGenericAllocationHandle handle, CUmemAllocationProp *properties)
{
    return false;
}

bool vmm_map(CUdeviceptr address, size_t size, size_t offset,
               CUmemGenericAllocationHandle handle, unsigned long long flags, CUresult *result)
{
    return false;
}

bool vmm_unmap(CUdeviceptr address, size_t size, CUresult *result) { return false; }

bool vmm_set_access(CUdeviceptr address, size_t size, const CUmemAccessDesc *access,
                      size_t count, CUresult *result)
{
    return false;
}

bool vmm_mapped_in(CUdeviceptr address, size_t size) { return core_mapped; }

bool vmm_access_of(CUdeviceptr address, const CUmemLocation *location,
                     unsigned long long *flags)
{
    return false;
}

bool vmm_range_of(CUdeviceptr address, CUdeviceptr *base, size_t *size) { return false; }
void reservation_add(CUdeviceptr base, size_t size) { core_reserved += size; }

CUresult reservation_free(CUdeviceptr base, size_t size)
{
    CUresult result = REAL(cuMemAddressFree)(base, size);
    core_reserved -= result == CUDA_SUCCESS ? size : 0;
    return result;
}

void reservation_is_mixed(CUdeviceptr address)
{
    core_mixed = address;
}

CUresult vmm_pin_in_place(CUmemGenericAllocationHandle *handle) { return CUDA_SUCCESS; }
CUresult vmm_pin_range_in_place(CUdeviceptr address, size_t size) { return CUDA_SUCCESS; }

CUresult ipc_export_pin(CUdeviceptr address)
{
    core_kept = address;
    return memory_is_ours(address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void clients_stay(enum nvshare_stays reason) {}

bool ipc_export(CUdeviceptr address, CUipcMemHandle *handle, CUresult *result)
{
    *result = CUDA_ERROR_INVALID_VALUE;
    return memory_is_ours(address);
}

bool ipc_import_open(const CUipcMemHandle *handle, CUdeviceptr *address, CUresult *result)
{
    return false;
}

bool ipc_import_close(CUdeviceptr address, CUresult *result) { return false; }

void context_ends(CUcontext context)
{
    core_context_ended = (uint64_t)context;
    core_contexts_ended++;
}

void client_stay(struct client *client, enum nvshare_stays reason) {}

void room_end(void)
{
}

bool room_begin(struct room *room) { return false; }

void process_end_watch(void)
{
}

bool is_forked_child(void)
{
    return false;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tier of page-locked host memory, in slabs. It keeps the bytes of a block that has been loaded
 * again: if the block is unchanged at its next eviction, it is not copied again.
 */

#include "driver/ops.h"
#include "gate/client.h"
#include "tier/host_slabs.h"
#include "tier/host_threads.h"
#include "tier/tier.h"

static void room(struct client *client, uint64_t bytes)
{
    if (bytes > 0)
        host_expect(client, bytes);
    else
        host_allocated(client);
}

static bool find(struct client *client, size_t size, uint64_t allowance, bool patient,
                 struct place *place)
{
    if (host_place(client, size, place))
        return true;
    while (client->allocators > 0 || (patient && client->preallocators > 0)) {
        pthread_cond_wait(&memory_changed, &memory_lock);
        if (host_place(client, size, place))
            return true;
    }
    return host_grow(client, size, allowance) && host_place(client, size, place);
}

static bool take(struct client *client, size_t size, uint64_t allowance, bool patient,
                 struct place *place)
{
    host_allocate(client, allowance);
    bool found = find(client, size, allowance, patient, place);
    if (found)
        host_placed(client, size);
    return found;
}

/* Either returns at once, or blocks for the duration of the copy with the lock released. */
static CUresult copy(struct place *place, bool out, CUdeviceptr address, size_t offset, size_t size,
                     CUstream stream)
{
    bool waits = !host_slab_registered(place->host.slab);
    char *memory = place->host.address + offset;
    if (waits)
        pthread_mutex_unlock(&memory_lock);
    CUresult result = out ? REAL(cuMemcpyDtoHAsync_v2)(memory, address + offset, size, stream)
                          : REAL(cuMemcpyHtoDAsync_v2)(address + offset, memory, size, stream);
    if (waits)
        pthread_mutex_lock(&memory_lock);
    return result;
}

static CUresult out(struct place *place, CUdeviceptr address, size_t offset, size_t size,
                    CUstream stream)
{
    return copy(place, true, address, offset, size, stream);
}

static CUresult in(struct place *place, CUdeviceptr address, size_t offset, size_t size,
                   CUstream stream)
{
    return copy(place, false, address, offset, size, stream);
}

const struct tier tier_host = {
    .room = room, .take = take, .give = host_unplace, .out = out, .in = in,
    .pieces = true, .keeps = true, .over_bus = true,
};

/* SPDX-License-Identifier: Apache-2.0 */
/* The tier of managed memory: the driver keeps the bytes, and blocks are evicted and loaded by
 * prefetches. A prefetch of memory advised as read-mostly leaves its source in place, so that
 * advice is withdrawn until the eviction has ended. */

#include "driver/log.h"
#include "driver/ops.h"
#include "gate/client.h"
#include "tier/host.h"
#include "tier/tier.h"

static bool take(struct client *client, size_t size, uint64_t allowance, bool patient,
                 struct place *place)
{
    (void)patient, (void)place;
    while (allowance >= size && client->memory.host > allowance - size && host_is_made(client))
        pthread_cond_wait(&memory_changed, &memory_lock);
    return tiers_make_room(client, size, allowance);
}

static void give(struct client *client, size_t size, struct place *place)
{
    (void)client, (void)size, (void)place;
}

static CUresult prefetch(const struct place *place, CUdeviceptr address, CUdevice to,
                         CUstream stream)
{
    size_t bytes = place->managed.bytes;
    if (HAVE_REAL(cuMemPrefetchAsync))
        return REAL(cuMemPrefetchAsync)(address, bytes, to, stream);
    CUmemLocation location = { .type = CU_MEM_LOCATION_TYPE_HOST };
    if (to != CU_DEVICE_CPU)
        location = (CUmemLocation){ .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = to };
    return REAL(cuMemPrefetchAsync_v2)(address, bytes, location, 0, stream);
}

static int range_attribute(const struct place *place, CUdeviceptr address,
                           CUmem_range_attribute attribute, int otherwise)
{
    int value;
    return REAL(cuMemRangeGetAttribute)(&value, sizeof value, attribute, address,
                                        place->managed.bytes) == CUDA_SUCCESS
               ? value : otherwise;
}

static CUresult advise(const struct place *place, CUdeviceptr address, CUmem_advise advice)
{
    CUresult result = REAL(cuMemAdvise)(address, place->managed.bytes, advice,
                                        place->managed.device);
    if (result != CUDA_SUCCESS)
        debug("advice %d on managed memory failed: error %d", (int)advice, (int)result);
    return result;
}

/* A prefetch may return only after its bytes have crossed the bus, so the lock is released. Memory
 * with the host as preferred location, by the program's advice, is not prefetched to the card. */
static CUresult copy(struct place *place, bool out, CUdeviceptr address, size_t offset, size_t size,
                     CUstream stream)
{
    CUresult result = CUDA_SUCCESS;
    (void)offset, (void)size;
    place->managed.sent = true;
    pthread_mutex_unlock(&memory_lock);
    if (out && range_attribute(place, address, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 0) == 1)
        place->managed.mostly_read =
            advise(place, address, CU_MEM_ADVISE_UNSET_READ_MOSTLY) == CUDA_SUCCESS;
    if (out || range_attribute(place, address, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION,
                               CU_DEVICE_INVALID)
            != CU_DEVICE_CPU)
        result = prefetch(place, address, out ? CU_DEVICE_CPU : place->managed.device, stream);
    pthread_mutex_lock(&memory_lock);
    return result;
}

static enum settled settle(struct place *place, CUdeviceptr address)
{
    if (place->managed.mostly_read)
        advise(place, address, CU_MEM_ADVISE_SET_READ_MOSTLY);
    place->managed.mostly_read = false;
    return SETTLED;
}

const struct tier tier_managed = {
    .take = take, .give = give, .copy = copy, .settle = settle, .managed = true,
    .of_driver = true, .cost = COSTS_PLACES,
};

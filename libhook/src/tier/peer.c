/* SPDX-License-Identifier: Apache-2.0 */
/* The tier of another GPU's memory, which the daemon lends (EVICT's `loan`): a copy over NVLink is
 * seven times as fast as over the bus. The process needs no context on the other GPU: memory that
 * cuMemCreate makes there is mapped for access by this GPU. Borrowed bytes count in memory.host,
 * because they are copied to host memory when the daemon ends the loan (block/swap.c). */
#include "tier/peer.h"

#include <string.h>

#include "driver/log.h"
#include "driver/ops.h"
#include "gate/client.h"
#include "tier/host.h"

static CUdevice find_lender(const struct client *client, const uint8_t uuid[16])
{
    int count = 0, reachable = 0;
    if (REAL(cuDeviceGetCount)(&count) != CUDA_SUCCESS)
        return CU_DEVICE_INVALID;
    for (int i = 0; i < count; i++) {
        CUdevice device;
        CUuuid its;
        if (REAL(cuDeviceGet)(&device, i) == CUDA_SUCCESS && device != client->device
            && device_uuid(device, &its) == CUDA_SUCCESS && memcmp(&its, uuid, 16) == 0
            && REAL(cuDeviceCanAccessPeer)(&reachable, client->device, device) == CUDA_SUCCESS
            && reachable)
            return device;
    }
    debug("the GPU that lends memory cannot be reached by this process");
    return CU_DEVICE_INVALID;
}

uint64_t peer_allow(struct client *client, uint64_t loan, const uint8_t uuid[16])
{
    bool same = memcmp(client->lender_uuid, uuid, 16) == 0;
    if (!same && client->borrowed > 0)
        loan = 0;                    /* blocks are still on another lender; one lender at a time */
    client->loan = loan;
    if (!same && loan > 0) {
        client->lender = find_lender(client, uuid);
        memcpy(client->lender_uuid, uuid, 16);
    }
    return loan;
}

void peer_failed(struct client *client)
{
    debug("copies to the GPU that lends memory fail: it is used no more");
    client->lender = CU_DEVICE_INVALID;
}

static CUresult map(struct client *client, size_t size, struct place *place)
{
    const CUmemAllocationProp property = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = client->lender },
    };
    const CUmemAccessDesc access = {
        .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = client->device },
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    CUdeviceptr address;
    CUmemGenericAllocationHandle handle;
    CUresult result = REAL(cuMemAddressReserve)(&address, size, PAGE, 0, 0);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuMemCreate)(&handle, size, &property, 0);
    if (result == CUDA_SUCCESS) {
        result = REAL(cuMemMap)(address, size, 0, handle, 0);
        if (result == CUDA_SUCCESS) {
            result = REAL(cuMemSetAccess)(address, size, &access, 1);
            if (result != CUDA_SUCCESS)
                REAL(cuMemUnmap)(address, size);
        }
        if (result != CUDA_SUCCESS)
            REAL(cuMemRelease)(handle);
    }
    if (result != CUDA_SUCCESS)
        REAL(cuMemAddressFree)(address, size);
    place->peer.address = address;
    place->peer.handle = handle;
    return result;
}

/* Empty slabs are released first, as borrowed bytes count in memory.host. */
static bool take(struct client *client, size_t size, uint64_t allowance, bool patient,
                 struct place *place)
{
    (void)patient;
    if (client->lender == CU_DEVICE_INVALID || client->borrowed + size > client->loan
        || size > allowance)
        return false;
    host_trim(client, allowance - size);
    if (client->memory.host > allowance - size)
        return false;
    CUresult result = map(client, size, place);
    if (result != CUDA_SUCCESS) {
        debug("no memory on the GPU that lends it: error %d", (int)result);
        client->loan = client->borrowed;     /* borrow nothing more until the next EVICT */
        return false;
    }
    client->memory.host += size;
    client->borrowed += size;
    host_placed(client, size);
    return true;
}

/* Releases memory on the lender. If the context has failed, only the process's end does so. */
static void give(struct client *client, size_t size, struct place *place)
{
    CUresult result = REAL(cuMemRelease)(place->peer.handle);
    if (result == CUDA_SUCCESS)
        result = REAL(cuMemUnmap)(place->peer.address, size);
    if (result == CUDA_SUCCESS)
        result = REAL(cuMemAddressFree)(place->peer.address, size);
    if (result != CUDA_SUCCESS)
        debug("memory of another GPU is not given back: error %d", (int)result);
    uint64_t returned = size < client->returning ? size : client->returning;
    client->returning -= returned;
    client->memory.host -= size - returned;
    client->borrowed -= size;
}

static CUresult copy(struct place *place, bool out, CUdeviceptr address, size_t offset, size_t size,
                     CUstream stream)
{
    CUdeviceptr here = address + offset, there = place->peer.address + offset;
    return REAL(cuMemcpyDtoDAsync_v2)(out ? there : here, out ? here : there, size, stream);
}

const struct tier tier_peer = {
    .take = take, .give = give, .copy = copy, .pieces = true, .keeps = true,
};

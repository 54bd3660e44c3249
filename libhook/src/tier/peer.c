/* SPDX-License-Identifier: Apache-2.0 */
/* The tier of another GPU's memory, which the daemon lends (EVICT's `loan`): a copy over NVLink is
 * seven times as fast as over the bus. The process needs no context on the other GPU: memory that
 * cuMemCreate makes there is mapped for access by this GPU. Borrowed bytes count in memory.host,
 * because they are copied to host memory when the daemon ends the loan (block/swap.c). */
#include <string.h>

#include "driver/log.h"
#include "driver/ops.h"
#include "gate/client.h"
#include "tier/tier.h"

static CUdevice lenders[CLIENTS_MAX];  /* the GPU that lends memory; CU_DEVICE_INVALID: none usable */

static struct tier_use *use_of(const struct client *client)
{
    return tier_use(client, &tier_peer);
}

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

static void attach(struct client *client)
{
    lenders[client->index] = CU_DEVICE_INVALID;
    memset(use_of(client)->lender, 0, sizeof use_of(client)->lender);
}

static void lend(struct client *client, uint64_t loan, const uint8_t lender[16])
{
    struct tier_use *use = use_of(client);
    bool same = memcmp(use->lender, lender, sizeof use->lender) == 0;
    if (!same && use->bytes > 0)
        loan = 0;                    /* blocks are still on another lender; one lender at a time */
    use->limit = loan;
    if (!same && loan > 0) {
        lenders[client->index] = find_lender(client, lender);
        memcpy(use->lender, lender, sizeof use->lender);
    }
}

static void failed(struct client *client)
{
    debug("copies to the GPU that lends memory fail: it is used no more");
    lenders[client->index] = CU_DEVICE_INVALID;
}

static CUresult map(struct client *client, size_t size, struct place *place)
{
    const CUmemAllocationProp property = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = lenders[client->index] },
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
    place->address = address;
    place->handle = handle;
    return result;
}

/* Empty slabs are released first, as borrowed bytes count in memory.host. */
static bool take(struct client *client, size_t size, uint64_t allowance, bool patient,
                 struct place *place)
{
    struct tier_use *use = use_of(client);
    (void)patient;
    if (lenders[client->index] == CU_DEVICE_INVALID || use->bytes + size > use->limit
        || !tiers_make_room(client, size, allowance))
        return false;
    CUresult result = map(client, size, place);
    if (result != CUDA_SUCCESS) {
        debug("no memory on the GPU that lends it: error %d", (int)result);
        use->limit = use->bytes;     /* borrow nothing more until the next EVICT */
        return false;
    }
    return true;
}

/* Releases memory on the lender. If the context has failed, only the process's end does so. */
static void give(struct client *client, size_t size, struct place *place)
{
    (void)client;
    CUresult result = REAL(cuMemRelease)(place->handle);
    if (result == CUDA_SUCCESS)
        result = REAL(cuMemUnmap)(place->address, size);
    if (result == CUDA_SUCCESS)
        result = REAL(cuMemAddressFree)(place->address, size);
    if (result != CUDA_SUCCESS)
        debug("memory of another GPU is not given back: error %d", (int)result);
}

static CUresult copy(struct place *place, bool out, CUdeviceptr address, size_t offset, size_t size,
                     CUstream stream)
{
    CUdeviceptr here = address + offset, there = place->address + offset;
    return REAL(cuMemcpyDtoDAsync_v2)(out ? there : here, out ? here : there, size, stream);
}

const struct tier tier_peer = {
    .take = take, .give = give, .copy = copy, .pieces = true, .keeps = true,
    .of_driver = true, .cost = COSTS_PLACES, .lend = lend, .attach = attach, .failed = failed,
};

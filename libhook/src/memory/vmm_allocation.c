/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes the program's own virtual memory (cuMemCreate, cuMemMap) swappable. cuMemCreate returns a
 * handle number of the library, for memory like that of cuMemAlloc.
 *
 * That memory consists of blocks of at most 128 MiB at a home, an address range of the library.
 * Resident blocks are mapped there, and evicted and loaded through that mapping. Wherever the
 * program maps the allocation, the same blocks are mapped a second time (alias.c). Content
 * therefore survives while the program has it mapped nowhere, one allocation may be mapped at
 * several addresses, and a large one can be evicted in part.
 *
 * Export to another process, multicast and NICs need a single handle of the driver and memory that
 * stays on the card. The first such request pins the allocation (pin_in_place.c); its handle number
 * and addresses stay valid. An allocation that may be exported is one block unless it is too large,
 * so that pinning it needs no copy.
 */
#include "memory/vmm_allocation.h"

#include <stdlib.h>
#include <string.h>

#include "block/region.h"
#include "driver/ops.h"
#include "gate/client.h"
#include "memory/alias.h"
#include "memory/large.h"
#include "memory/pin_in_place.h"

#define OUR_HANDLES ((CUmemGenericAllocationHandle)0x6e76 << 48)
#define BUCKETS 4096

static struct vmm_allocation *buckets[BUCKETS]; /* protected by memory_lock */

static struct vmm_allocation **bucket_of(CUmemGenericAllocationHandle handle)
{
    return &buckets[handle % BUCKETS];
}

struct vmm_allocation *vmm_find(CUmemGenericAllocationHandle handle)
{
    struct vmm_allocation *vmm = *bucket_of(handle);
    while (vmm != NULL && vmm->handle != handle)
        vmm = vmm->next;
    return vmm != NULL && vmm->references > 0 ? vmm : NULL;
}

/* The driver itself maps the memory of sparse arrays. */
static bool can_move(const CUmemAllocationProp *properties)
{
    return properties->type == CU_MEM_ALLOCATION_TYPE_PINNED
        && properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE
        && properties->allocFlags.usage == 0;
}

/* Whether the driver would create memory of this kind. Special properties (exportable,
 * compressible) take effect only when the allocation is pinned in place, but cuMemCreate must
 * refuse at once what the driver does not support. */
static bool accepted(const CUmemAllocationProp *properties)
{
    static CUmemAllocationProp last; /* last accepted; protected by memory_lock */
    CUmemAllocationProp plain = {
        .type = properties->type, .location = properties->location,
    };
    if (memcmp(properties, &plain, sizeof plain) == 0)
        return true;
    pthread_mutex_lock(&memory_lock);
    bool known = memcmp(properties, &last, sizeof last) == 0;
    pthread_mutex_unlock(&memory_lock);
    CUmemGenericAllocationHandle tried;
    if (known)
        return true;
    if (REAL(cuMemCreate)(&tried, PAGE, properties, 0) != CUDA_SUCCESS)
        return false;
    REAL(cuMemRelease)(tried);
    LOCKED(memory_lock);
    last = *properties;
    return true;
}

bool vmm_create(CUmemGenericAllocationHandle *handle, size_t size,
                const CUmemAllocationProp *properties, CUresult *result)
{
    static uint64_t made;            /* protected by memory_lock */
    int device = properties->location.id;
    if (size == 0 || size % PAGE != 0 || !can_move(properties) || device < 0
        || device >= CLIENTS_MAX || !accepted(properties))
        return false;
    struct vmm_allocation *vmm = calloc(1, sizeof *vmm);
    LOCKED(memory_lock);
    struct client *client = clients[device];
    if (client == NULL || vmm == NULL) {
        free(vmm);
        return false;
    }
    CUdeviceptr home;
    vmm->properties = *properties;
    *result = large_create(client, size, &vmm->properties, &home);
    if (*result == CUDA_SUCCESS) {
        *vmm = (struct vmm_allocation){
            .handle = OUR_HANDLES + ++made,
            .properties = *properties,
            .size = size,
            .client = client,
            .memory = (struct large *)region_owner(home),
            .references = 1,
        };
        vmm->memory->vmm = vmm;
        vmm->memory->owner.mappings = &alias_mappings;
        vmm->next = *bucket_of(vmm->handle);
        *bucket_of(vmm->handle) = vmm;
        *handle = vmm->handle;
    } else {
        free(vmm);
    }
    client_update(client);
    return true;
}

void vmm_drop(struct vmm_allocation *vmm)
{
    if (vmm->references > 0 || vmm->aliases != NULL)
        return;
    struct vmm_allocation **link = bucket_of(vmm->handle);
    while (*link != vmm)
        link = &(*link)->next;
    *link = vmm->next;
    if (vmm->memory != NULL)
        large_release(vmm->memory);
    else if (REAL(cuMemRelease)(vmm->real) == CUDA_SUCCESS)
        vmm->client->memory.pinned -= vmm->size;
    client_update(vmm->client);
    free(vmm);
}

bool vmm_release(CUmemGenericAllocationHandle handle, CUresult *result)
{
    if (client_none())
        return false;
    LOCKED(memory_lock);
    struct vmm_allocation *vmm = vmm_find(handle);
    if (vmm != NULL) {
        vmm->references--;
        vmm_drop(vmm);
    }
    *result = CUDA_SUCCESS;
    return vmm != NULL;
}

bool vmm_retain(CUdeviceptr address, CUmemGenericAllocationHandle *handle)
{
    if (client_none())
        return false;
    LOCKED(memory_lock);
    struct alias *alias = alias_at(address);
    if (alias != NULL) {
        alias->vmm->references++;
        *handle = alias->vmm->handle;
    }
    return alias != NULL;
}

bool vmm_properties(CUmemGenericAllocationHandle handle, CUmemAllocationProp *properties)
{
    if (client_none())
        return false;
    LOCKED(memory_lock);
    struct vmm_allocation *vmm = vmm_find(handle);
    if (vmm != NULL)
        *properties = vmm->properties;
    return vmm != NULL;
}

bool vmm_access_of(CUdeviceptr address, const CUmemLocation *location,
                   unsigned long long *flags)
{
    if (client_none())
        return false;
    LOCKED(memory_lock);
    struct alias *alias = alias_at(address);
    if (alias != NULL) {
        *flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
        for (size_t i = 0; i < alias->access_count; i++)
            if (alias->access[i].location.type == location->type
                && alias->access[i].location.id == location->id)
                *flags = alias->access[i].flags;
    }
    return alias != NULL;
}

bool vmm_range_of(CUdeviceptr address, CUdeviceptr *base, size_t *size)
{
    if (client_none())
        return false;
    LOCKED(memory_lock);
    const struct alias *alias = alias_at(address);
    if (alias != NULL) {
        *base = alias->range;
        *size = alias->range_size;
    }
    return alias != NULL;
}

CUresult vmm_pin_in_place(CUmemGenericAllocationHandle *handle)
{
    if (client_none())
        return CUDA_SUCCESS;
    LOCKED(memory_lock);
    struct vmm_allocation *vmm = vmm_find(*handle);
    CUresult result = CUDA_SUCCESS;
    if (vmm != NULL) {
        vmm->references++;
        result = pin_in_place(vmm);
        if (result == CUDA_SUCCESS)
            *handle = vmm->real;
        vmm->references--;
        vmm_drop(vmm);
    }
    return result;
}

CUresult vmm_pin_range_in_place(CUdeviceptr address, size_t size)
{
    if (client_none())
        return CUDA_SUCCESS;
    CUdeviceptr end = address + size;
    CUresult result = CUDA_SUCCESS;
    LOCKED(memory_lock);
    struct alias *alias;
    while (result == CUDA_SUCCESS && address < end && (alias = alias_from(address)) != NULL
           && alias->address < end) {
        struct vmm_allocation *vmm = alias->vmm;
        address = alias->address + alias->size;
        vmm->references++;
        result = pin_in_place(vmm);
        vmm->references--;
        vmm_drop(vmm);
    }
    return result;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Maps the program's VMM allocations, unmaps them and sets access to them. None of these calls
 * waits for a turn: a program without a turn can release memory at once and prepare memory that it
 * will use.
 *
 * Resident blocks are mapped or changed by the driver at once. Swapped blocks are mapped when they
 * are loaded, with the access that the program has set (alias.c); no work of the program runs
 * before that. One call unmaps both, as the driver accepts ranges with holes.
 *
 * The driver validates a request for resident memory. For swapped memory the library itself must be
 * certain that the request is valid: that the addresses lie in a reservation of the program in
 * which the driver maps nothing but the library's blocks (reservation.c), and that the access is
 * the one that every device has to its own memory. Otherwise the call waits at the gate until the
 * memory is resident.
 */
#include "memory/vmm_mapping.h"

#include "block/region.h"
#include "driver/ops.h"
#include "gate/client.h"
#include "gate/gate.h"
#include "memory/alias.h"
#include "memory/reservation.h"
#include "memory/vmm_allocation.h"

static bool any_remapping(void)
{
    unsigned i = 0;
    while (i < CLIENTS_MAX && (clients[i] == NULL || !clients[i]->remapping))
        i++;
    return i < CLIENTS_MAX;
}

/* While pin_in_place.c replaces memory, no mapping may change. */
static void begin(void)
{
    pthread_mutex_lock(&memory_lock);
    while (any_remapping())
        pthread_cond_wait(&memory_changed, &memory_lock);
}

/* All memory of the client is resident from here to end(). */
static void begin_inside(void)
{
    pthread_mutex_unlock(&memory_lock);
    gate_enter(GATE_NO_STREAM);
    pthread_mutex_lock(&memory_lock);
}

static void end(bool inside)
{
    pthread_mutex_unlock(&memory_lock);
    if (inside)
        gate_leave();
}

bool vmm_mapped_in(CUdeviceptr address, size_t size)
{
    if (client_none())
        return false;
    LOCKED(memory_lock);
    bool any;
    alias_whole(address, size, &any);
    return any;
}

bool vmm_map(CUdeviceptr address, size_t size, size_t offset,
             CUmemGenericAllocationHandle handle, unsigned long long flags, CUresult *result)
{
    if (client_none())
        return false;
    UNCANCELLED;
    begin();
    struct vmm_allocation *vmm = vmm_find(handle);
    bool ours = vmm != NULL;
    bool inside = ours && !vmm_is_resident(vmm) && !reservation_is_ours(address, size);
    if (inside) {
        begin_inside();
        vmm = vmm_find(handle);      /* may have been released meanwhile */
    }
    if (vmm == NULL || size == 0 || address % PAGE != 0 || flags != 0)
        *result = CUDA_ERROR_INVALID_VALUE;
    else if (offset != 0 || size != vmm->size)
        *result = CUDA_ERROR_NOT_SUPPORTED;        /* the driver, too, maps only whole handles */
    else
        *result = alias_add(vmm, address);
    end(inside);
    return ours;
}

bool vmm_unmap(CUdeviceptr address, size_t size, CUresult *result)
{
    bool any;
    if (client_none())
        return false;
    UNCANCELLED;
    begin();
    bool whole = alias_whole(address, size, &any);
    if (any)
        *result = whole ? REAL(cuMemUnmap)(address, size) : CUDA_ERROR_INVALID_VALUE;
    struct alias *alias;
    while (any && *result == CUDA_SUCCESS && (alias = alias_from(address)) != NULL
           && alias->address - address < size) {
        struct vmm_allocation *vmm = alias->vmm;
        alias_remove(alias);
        vmm_drop(vmm);
    }
    end(false);
    return any;
}

/* The whole range is aliases, some of them not resident, and the access is certain to be valid. */
static bool may_apply_later(CUdeviceptr address, size_t size, const CUmemAccessDesc *access,
                           size_t count)
{
    bool away = false;
    CUdeviceptr behind = address + size;
    if (count != 1 || access == NULL || access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        || access->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return false;
    while (address < behind) {
        const struct alias *alias = alias_at(address);
        if (alias == NULL || access->location.id != alias->vmm->client->device)
            return false;
        away = away || !vmm_is_resident(alias->vmm);
        address = alias->address + alias->size;
    }
    return away;
}

static bool range_is_resident(CUdeviceptr address, size_t size)
{
    const struct alias *alias;
    for (CUdeviceptr behind = address + size;
         (alias = alias_from(address)) != NULL && alias->address < behind;
         address = alias->address + alias->size)
        if (!vmm_is_resident(alias->vmm))
            return false;
    return true;
}

bool vmm_set_access(CUdeviceptr address, size_t size, const CUmemAccessDesc *access,
                    size_t count, CUresult *result)
{
    bool any;
    if (client_none())
        return false;
    UNCANCELLED;
    begin();
    bool whole = alias_whole(address, size, &any);
    bool later = any && whole && may_apply_later(address, size, access, count);
    bool inside = any && !later && !range_is_resident(address, size);
    if (inside) {
        begin_inside();
        whole = alias_whole(address, size, &any);
    }
    if (any)
        *result = !whole ? CUDA_ERROR_INVALID_VALUE
                : later ? CUDA_SUCCESS : REAL(cuMemSetAccess)(address, size, access, count);
    struct alias *alias = any && *result == CUDA_SUCCESS ? alias_from(address) : NULL;
    while (alias != NULL && alias->address - address < size && *result == CUDA_SUCCESS) {
        if (later)
            *result = alias_open(alias, access, count);
        if (*result == CUDA_SUCCESS && !alias_set_access(alias, access, count))
            *result = CUDA_ERROR_OUT_OF_MEMORY;
        alias = alias_from(alias->address + alias->size);
    }
    end(inside);
    return any;
}

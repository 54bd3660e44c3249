/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peer access. The driver opens mapped memory, as the library's is, to a peer only range by range.
 * The library therefore opens the device's resident blocks, whichever context owns them, at once,
 * and blocks that are loaded later when they are mapped (block.c).
 *
 * Without peer access the driver copies mapped memory between devices only if the call names both
 * contexts (otherwise CUDA_ERROR_INVALID_VALUE, measured on two H200): memory_apart().
 */
#include "memory/peers.h"

#include "block/block.h"
#include "driver/ops.h"
#include "gate/client.h"
#include "gate/contexts.h"
#include "memory/allocation.h"

static CUresult set_access(const struct client *owner, CUdevice reader, CUmemAccess_flags flags)
{
    const CUmemAccessDesc access = {
        .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = reader }, .flags = flags,
    };
    CUresult result = CUDA_SUCCESS;
    for (struct block *block = owner->blocks; block != NULL && result == CUDA_SUCCESS;
         block = block->younger)
        if (block_is_mapped(block) && !block->managed)
            result = REAL(cuMemSetAccess)(block->address, block->size, &access, 1);
    return result;
}

CUresult memory_open_to_peer(CUdevice owner, CUdevice reader, bool open)
{
    if (owner < 0 || owner >= CLIENTS_MAX || reader < 0 || reader >= CLIENTS_MAX || owner == reader)
        return CUDA_SUCCESS;
    LOCKED(memory_lock);
    const struct client *client = client_on(owner);
    unsigned *count = &block_reader_counts[owner][reader];
    CUresult result = CUDA_SUCCESS;
    if (open) {
        if (client != NULL && *count == 0)
            result = set_access(client, reader, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        if (result == CUDA_SUCCESS)
            ++*count;
    } else if (*count > 0 && --*count == 0 && client != NULL) {
        result = set_access(client, reader, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    }
    return result;
}

static _Atomic bool any_imported;

void memory_imported(void)
{
    any_imported = true;
}

/* Imported memory may be on a card on which this process has no client. */
static bool reaches(CUdevice reader, const struct memory_description *memory)
{
    return memory->imported
        ? reader == memory->reader
        : reader < CLIENTS_MAX && block_reader_counts[memory->device][reader] != 0;
}

/* Imported memory belongs to the context in which it was opened, perhaps on another card. */
static CUcontext context_on(const struct memory_description *memory)
{
    CUcontext there = memory->imported && memory->reader != memory->device
        ? contexts_of(memory->device, 0) : NULL;
    return there != NULL ? there : memory->context;
}

bool memory_never_apart(void)
{
    return clients_count() < 2 && !any_imported;
}

bool memory_apart(CUdeviceptr to, CUdeviceptr from, CUcontext *to_context, CUcontext *from_context)
{
    struct memory_description target, source;
    if (memory_never_apart() || !memory_is_ours(to) || !memory_is_ours(from))
        return false;
    LOCKED(memory_lock);
    if (!allocation_describe(to, &target) || !allocation_describe(from, &source)
        || target.device == source.device
        || (reaches(source.device, &target) && reaches(target.device, &source)))
        return false;
    *to_context = context_on(&target);
    *from_context = context_on(&source);
    return true;
}

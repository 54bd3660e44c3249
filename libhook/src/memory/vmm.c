/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes the program's own virtual memory (cuMemCreate, cuMemMap) swappable. cuMemCreate returns a
 * handle number of the library, for blocks in an address range of the library (the home),
 * where they are evicted and loaded. Wherever the program maps the allocation (an alias), the same
 * blocks are mapped once more. Export to another process, multicast and NICs need a handle of the
 * driver: the first such request pins the allocation; its handle number and addresses stay valid.
 */
#include "memory/vmm.h"

#include <stdlib.h>
#include <string.h>

#include "block/block.h"
#include "block/exclusive.h"
#include "block/region.h"
#include "driver/log.h"
#include "driver/ops.h"
#include "driver/ring.h"
#include "flight/drain.h"
#include "gate/client.h"
#include "gate/gate.h"
#include "memory/allocation.h"
#include "tier/ranges.h"

struct vmm_allocation {
    struct range handle;             /* `address`: the handle returned to the program; `size` 1 */
    CUmemAllocationProp properties;
    size_t size;
    struct client *client;
    struct large *memory;            /* the evictable memory; NULL: the allocation is pinned */
    CUmemGenericAllocationHandle real; /* the driver's handle, if the allocation is pinned */
    unsigned references;             /* handles returned and not yet released */
    bool pinning;                    /* a thread is pinning the allocation */
    bool written;                    /* was mapped at least once, so it may have content */
    struct alias *aliases;
};

/* One mapping of a VMM allocation, always of the whole allocation. */
struct alias {
    struct range range;
    struct range reservation;        /* the program's reservation around the alias */
    struct vmm_allocation *vmm;
    struct alias *next;              /* next alias of the same VMM allocation */
    size_t access_count;
    CUmemAccessDesc *access;         /* one entry for each device named in cuMemSetAccess */
};

/* Recorded because the driver reports a reservation only while something is mapped there. */
struct reservation {
    struct range range;
    bool mixed;                      /* the driver maps memory there that is not the library's */
};

static struct ranges reservations;

static struct reservation *reservation_at(CUdeviceptr address)
{
    return (struct reservation *)ranges_at(&reservations, address);
}

/* Without a record (out of memory), calls that map swapped memory there wait at the gate. */
static void insert_reservation(struct reservation *one)
{
    if (one != NULL && ranges_reserve(&reservations))
        ranges_insert(&reservations, &one->range);
    else
        free(one);
}

/* These are also called in a tool's callback, where this thread may have locked memory_lock: no
 * code calls the driver while it uses a member of `reservations`. */
void reservation_add(CUdeviceptr base, size_t size)
{
    struct reservation *one = malloc(sizeof *one);
    if (one != NULL)
        *one = (struct reservation){ .range = { base, size } };
    LOCKED(memory_lock);
    insert_reservation(one);
}

CUresult reservation_free(CUdeviceptr base, size_t size)
{
    struct reservation *one;
    {
        LOCKED(memory_lock);
        one = reservation_at(base);
        if (one != NULL)
            ranges_remove(&reservations, &one->range);
    }
    /* During this call another thread may already reserve the same addresses. */
    CUresult result = REAL(cuMemAddressFree)(base, size);
    if (result != CUDA_SUCCESS) {
        LOCKED(memory_lock);
        insert_reservation(one);
    } else {
        free(one);
    }
    return result;
}

void reservation_is_mixed(CUdeviceptr address)
{
    LOCKED(memory_lock);
    struct reservation *one = reservation_at(address);
    if (one != NULL)
        one->mixed = true;
}

/* Whether the range lies in one known reservation in which only the library maps memory. */
static bool reservation_is_ours(CUdeviceptr address, size_t size)
{
    const struct reservation *one = reservation_at(address);
    return one != NULL && !one->mixed && size <= one->range.size - (address - one->range.address);
}

static struct ranges aliases;

static struct alias *alias_at(CUdeviceptr address) /* the alias that contains `address`, or NULL */
{
    return (struct alias *)ranges_at(&aliases, address);
}

static struct alias *alias_between(CUdeviceptr address, CUdeviceptr end)
{
    return (struct alias *)ranges_between(&aliases, address, end);
}

#define EACH_ALIAS(alias, address, size)                                           \
    for (struct alias *alias = alias_between(address, (address) + (size)); alias != NULL; \
         alias = alias_between(range_end(&alias->range), (address) + (size)))

/* Whether each alias that overlaps the range lies inside it; *any: at least one overlaps it. */
static bool alias_whole(CUdeviceptr address, size_t size, bool *any)
{
    *any = false;
    EACH_ALIAS(alias, address, size) {
        *any = true;
        if (alias->range.address < address || range_end(&alias->range) > address + size)
            return false;
    }
    return true;
}

bool vmm_describe(CUdeviceptr address, struct memory_description *description)
{
    const struct alias *alias = alias_at(address);
    if (alias == NULL || alias->vmm->memory == NULL)
        return false;
    *description = (struct memory_description){
        .base = alias->range.address, .size = alias->range.size,
        .range = alias->reservation.address, .range_size = alias->reservation.size,
        .device = alias->vmm->client->device, .id = alias->vmm->memory->object.id,
        .handle_types = alias->vmm->properties.requestedHandleTypes,
    };
    return true;
}

static void alias_remove(struct alias *alias)
{
    ranges_remove(&aliases, &alias->range);
    LIST_REMOVE(alias->vmm->aliases, alias);
    free(alias->access);
    free(alias);
}

static CUdeviceptr address_in(const struct alias *alias, const struct block *block)
{
    return alias->range.address + (block->address - alias->vmm->memory->base);
}

static CUresult map_at(const struct alias *alias, CUdeviceptr address, size_t size,
                       CUmemGenericAllocationHandle handle)
{
    CUresult result = REAL(cuMemMap)(address, size, 0, handle, 0);
    if (result != CUDA_SUCCESS || alias->access_count == 0)
        return result;
    result = REAL(cuMemSetAccess)(address, size, alias->access, alias->access_count);
    if (result != CUDA_SUCCESS)
        REAL(cuMemUnmap)(address, size);
    return result;
}

static CUresult map_in(const struct alias *alias, const struct block *block)
{
    return map_at(alias, address_in(alias, block), block->size, block->handle);
}

static CUresult map_block(struct page_owner *owner, struct block *block)
{
    struct alias *first = ((const struct large *)owner)->vmm->aliases, *last = first;
    CUresult result = CUDA_SUCCESS;
    while (last != NULL && (result = map_in(last, block)) == CUDA_SUCCESS)
        last = last->next;
    for (struct alias *done = first; last != NULL && done != last; done = done->next)
        REAL(cuMemUnmap)(address_in(done, block), block->size);
    return result;
}

static CUresult unmap_block(struct page_owner *owner, struct block *block)
{
    CUresult result = CUDA_SUCCESS;
    for (struct alias *alias = ((const struct large *)owner)->vmm->aliases;
         alias != NULL && result == CUDA_SUCCESS; alias = alias->next)
        result = REAL(cuMemUnmap)(address_in(alias, block), block->size);
    return result;
}

static const struct owner_mappings ALIAS_MAPPINGS = { map_block, unmap_block };

static bool vmm_is_resident(const struct vmm_allocation *vmm)
{
    for (size_t i = 0; vmm->memory != NULL && i < vmm->memory->owner.block_count; i++)
        if (!block_is_mapped(vmm->memory->blocks[i]))
            return false;
    return true;
}

static CUresult map_blocks(const struct alias *alias)
{
    const struct large *memory = alias->vmm->memory;
    CUresult result = CUDA_SUCCESS;
    size_t done = 0;
    while (done < memory->owner.block_count
           && (!block_is_mapped(memory->blocks[done])
               || (result = map_in(alias, memory->blocks[done])) == CUDA_SUCCESS))
        done++;
    for (size_t i = 0; result != CUDA_SUCCESS && i < done; i++)
        if (block_is_mapped(memory->blocks[i]))
            REAL(cuMemUnmap)(address_in(alias, memory->blocks[i]), memory->blocks[i]->size);
    return result;
}

static CUresult alias_open(const struct alias *alias, const CUmemAccessDesc *access, size_t number)
{
    const struct large *memory = alias->vmm->memory;
    if (memory == NULL)
        return REAL(cuMemSetAccess)(alias->range.address, alias->range.size, access, number);
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < memory->owner.block_count && result == CUDA_SUCCESS; i++)
        if (block_is_mapped(memory->blocks[i]))
            result = REAL(cuMemSetAccess)(address_in(alias, memory->blocks[i]),
                                          memory->blocks[i]->size, access, number);
    return result;
}

static CUresult alias_add(struct vmm_allocation *vmm, CUdeviceptr address)
{
    if (alias_between(address, address + vmm->size) != NULL)
        return CUDA_ERROR_INVALID_VALUE;
    struct alias *alias = malloc(sizeof *alias);
    if (alias == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    const struct reservation *known = reservation_at(address);
    struct range range = { address, vmm->size };
    *alias = (struct alias){
        .range = range, .reservation = known != NULL ? known->range : range, .vmm = vmm,
        .next = vmm->aliases,
    };
    CUresult result = vmm->memory != NULL
        ? map_blocks(alias) : map_at(alias, address, vmm->size, vmm->real);
    if (result != CUDA_SUCCESS) {
        free(alias);
        return result;
    }
    if (!ranges_reserve(&aliases)) {
        REAL(cuMemUnmap)(address, vmm->size);
        free(alias);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    ranges_insert(&aliases, &alias->range);
    vmm->aliases = alias;
    vmm->written = true;
    /* The driver knows reservations that the library did not see, while memory is mapped there. */
    if (known == NULL
        && REAL(cuPointerGetAttribute)(&range.address, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                       address) == CUDA_SUCCESS
        && REAL(cuPointerGetAttribute)(&range.size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, address)
            == CUDA_SUCCESS)
        alias->reservation = range;
    return CUDA_SUCCESS;
}

/* Records access rights that the driver has accepted. False: out of host memory. */
static bool alias_set_access(struct alias *alias, const CUmemAccessDesc *access, size_t number)
{
    CUmemAccessDesc *larger = realloc(alias->access,
                                      (alias->access_count + number) * sizeof *larger);
    if (larger == NULL)
        return false;
    alias->access = larger;
    for (size_t i = 0; i < number; i++) {
        size_t same = 0;
        while (same < alias->access_count
               && (larger[same].location.type != access[i].location.type
                   || larger[same].location.id != access[i].location.id))
            same++;
        larger[same] = access[i];
        if (same == alias->access_count)
            alias->access_count++;
    }
    return true;
}

/*
 * Pins a VMM allocation. A single block already has a handle of the driver, and is only counted as
 * pinned, without waiting for work in flight, which may wait for the calling thread. An allocation
 * of several blocks is copied while no work runs; later steps fail only if the context fails.
 */

/* Copies the blocks to `copy`, while no block moves. Releases memory_lock meanwhile. */
static CUresult fill(struct vmm_allocation *vmm, CUdeviceptr copy)
{
    const struct large *memory = vmm->memory;
    CUstream stream = vmm->client->copy_stream;
    mutex_unlock(&memory_lock);
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < memory->owner.block_count && result == CUDA_SUCCESS; i++) {
        const struct block *block = memory->blocks[i];
        result = REAL(cuMemcpyDtoDAsync_v2)(copy + (block->address - memory->base),
                                            block->address, block->size, stream);
    }
    CUresult ended = REAL(cuStreamSynchronize)(stream);
    mutex_lock(&memory_lock);
    return result != CUDA_SUCCESS ? result : ended;
}

/* Turns the allocation into pinned memory with this handle of the driver. */
static void become_pinned(struct vmm_allocation *vmm, CUmemGenericAllocationHandle handle)
{
    struct large *memory = vmm->memory;
    vmm->memory = NULL;
    vmm->real = handle;
    vmm->client->memory.pinned += vmm->size;
    large_release(&memory->owner);
}

static CUresult switch_to_copy(struct vmm_allocation *vmm, CUmemGenericAllocationHandle handle)
{
    struct large *memory = vmm->memory;
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < memory->owner.block_count && result == CUDA_SUCCESS; i++)
        result = unmap_block(&memory->owner, memory->blocks[i]);
    become_pinned(vmm, handle);
    for (struct alias *alias = vmm->aliases; alias != NULL && result == CUDA_SUCCESS;
         alias = alias->next)
        result = map_at(alias, alias->range.address, alias->range.size, vmm->real);
    return result;
}

static CUresult replace(void *argument)
{
    struct vmm_allocation *vmm = argument;
    const CUmemAccessDesc access = {
        .location = vmm->properties.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    CUdeviceptr copy;
    CUmemGenericAllocationHandle handle;
    CUresult result = region_map_new(vmm->size, &vmm->properties, &access, 1, &copy, &handle);
    if (result != CUDA_SUCCESS)
        return result;
    if (vmm->written)
        result = fill(vmm, copy);
    region_unmap(copy, vmm->size);
    if (result != CUDA_SUCCESS) {
        REAL(cuMemRelease)(handle);
        return result;
    }
    result = switch_to_copy(vmm, handle);
    if (result != CUDA_SUCCESS)
        debug("memory that was to stay on the card is lost: error %d", (int)result);
    return result;
}

static bool first_is_resident(const struct vmm_allocation *vmm)
{
    return vmm->memory->blocks[0]->state == BLOCK_RESIDENT;
}

/* The single block's handle becomes the allocation's. The program's own mappings stay. */
static void take_over(struct vmm_allocation *vmm)
{
    CUmemGenericAllocationHandle handle = vmm->memory->blocks[0]->handle;
    vmm->memory->blocks[0]->handle = 0;
    vmm->memory->owner.mappings = NULL;
    become_pinned(vmm, handle);
}

/* Pins a single block; releases memory_lock meanwhile. NOT_READY: the block was evicted again. */
static CUresult pin_whole(struct vmm_allocation *vmm)
{
    struct client *client = vmm->client;
    if (!client_commit_pinned(client, 0, vmm->size, client_patience_ends()))
        return CUDA_ERROR_OUT_OF_MEMORY;
    bool inside = !first_is_resident(vmm);
    if (inside) {
        mutex_unlock(&memory_lock);
        gate_enter(GATE_NO_STREAM);  /* waits until the client runs and its memory is resident */
        mutex_lock(&memory_lock);
    }
    bool ready = first_is_resident(vmm);
    if (ready)
        take_over(vmm);
    client_settle();
    client_update(client);
    if (inside)
        gate_leave();
    return ready ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static void end_pinning(struct vmm_allocation *vmm)
{
    vmm->pinning = false;
    memory_notify();
}

static void undo_pinning(void *vmm, uint64_t unused)
{
    (void)unused;
    LOCKED(memory_lock);
    client_settle();
    end_pinning(vmm);
}

/* Pins an allocation. Releases memory_lock meanwhile; the caller holds a reference. */
static CUresult pin_in_place(struct vmm_allocation *vmm)
{
    while (vmm->pinning)
        memory_wait();
    if (vmm->memory == NULL)
        return CUDA_SUCCESS;
    vmm->pinning = true;
    UNLESS_LEFT(undo_pinning, vmm, 0);
    CUresult result = CUDA_ERROR_NOT_READY;
    if (vmm->memory->owner.block_count == 1)
        result = pin_whole(vmm);
    if (result == CUDA_ERROR_NOT_READY)
        result = exclusively(vmm->client, vmm->size, vmm->size, DRAIN_PATIENCE_US, replace, vmm);
    end_pinning(vmm);
    return result;
}

#define OUR_HANDLES ((CUmemGenericAllocationHandle)0x6e76 << 48)

static struct ranges allocations;    /* sorted by handle; protected by memory_lock */

/* The allocation of a handle; NULL: it is not a handle of the library. */
static struct vmm_allocation *vmm_find(CUmemGenericAllocationHandle handle)
{
    struct vmm_allocation *vmm = (struct vmm_allocation *)ranges_at(&allocations, handle);
    return vmm != NULL && vmm->references > 0 ? vmm : NULL;
}

/* Memory for sparse arrays (allocFlags.usage) cannot be evicted: the driver itself maps it. */
static bool can_move(const CUmemAllocationProp *properties)
{
    return properties->type == CU_MEM_ALLOCATION_TYPE_PINNED
        && properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE
        && properties->allocFlags.usage == 0;
}

/* Whether the driver accepts the properties, although most matter only once memory is pinned. */
static bool accepted(const CUmemAllocationProp *properties)
{
    static CUmemAllocationProp last; /* last accepted; protected by memory_lock */
    CUmemAllocationProp plain = {
        .type = properties->type, .location = properties->location,
    };
    if (memcmp(properties, &plain, sizeof plain) == 0)
        return true;
    mutex_lock(&memory_lock);
    bool known = memcmp(properties, &last, sizeof last) == 0;
    mutex_unlock(&memory_lock);
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
    struct vmm_allocation *vmm = malloc(sizeof *vmm);
    LOCKED(memory_lock);
    struct client *client = clients[device];
    if (client == NULL || vmm == NULL || !ranges_reserve(&allocations)) {
        free(vmm);
        return false;
    }
    CUdeviceptr home;
    *vmm = (struct vmm_allocation){
        .handle = { OUR_HANDLES + ++made, 1 }, .properties = *properties, .size = size,
        .client = client, .references = 1,
    };
    *result = large_create(client, NULL, size, &vmm->properties, &home);
    if (*result == CUDA_SUCCESS) {
        vmm->memory = (struct large *)region_owner(home);
        vmm->memory->vmm = vmm;
        vmm->memory->owner.mappings = &ALIAS_MAPPINGS;
        ranges_insert(&allocations, &vmm->handle);
        *handle = vmm->handle.address;
    } else {
        allocations.reserved--;
        free(vmm);
    }
    client_update(client);
    return true;
}

/* Frees the allocation if it has neither a handle nor a mapping left. */
static void vmm_drop(struct vmm_allocation *vmm)
{
    if (vmm->references > 0 || vmm->aliases != NULL)
        return;
    ranges_remove(&allocations, &vmm->handle);
    if (vmm->memory != NULL)
        large_release(&vmm->memory->owner);
    else if (REAL(cuMemRelease)(vmm->real) == CUDA_SUCCESS)
        vmm->client->memory.pinned -= vmm->size;
    client_update(vmm->client);
    free(vmm);
}

bool vmm_release(CUmemGenericAllocationHandle handle, CUresult *result)
{
    LOCKED_OR_RETURN(false);
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
    LOCKED_OR_RETURN(false);
    struct alias *alias = alias_at(address);
    if (alias != NULL) {
        alias->vmm->references++;
        *handle = alias->vmm->handle.address;
    }
    return alias != NULL;
}

bool vmm_properties(CUmemGenericAllocationHandle handle, CUmemAllocationProp *properties)
{
    READING_OR_RETURN(false);
    struct vmm_allocation *vmm = vmm_find(handle);
    if (vmm != NULL)
        *properties = vmm->properties;
    return vmm != NULL;
}

bool vmm_access_of(CUdeviceptr address, const CUmemLocation *location, unsigned long long *flags)
{
    READING_OR_RETURN(false);
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

static void refer_less(struct vmm_allocation *vmm)
{
    vmm->references--;
    vmm_drop(vmm);
}

static void undo_reference(void *vmm, uint64_t unused)
{
    (void)unused;
    LOCKED(memory_lock);
    refer_less(vmm);
}

/* Pins the allocation, and keeps another thread's vmm_release() from freeing it meanwhile. */
static CUresult pin(struct vmm_allocation *vmm, CUmemGenericAllocationHandle *handle)
{
    vmm->references++;
    UNLESS_LEFT(undo_reference, vmm, 0);
    CUresult result = pin_in_place(vmm);
    if (result == CUDA_SUCCESS)
        *handle = vmm->real;
    refer_less(vmm);
    return result;
}

CUresult vmm_pin_in_place(CUmemGenericAllocationHandle *handle)
{
    LOCKED_OR_RETURN(CUDA_SUCCESS);
    struct vmm_allocation *vmm = vmm_find(*handle);
    return vmm != NULL ? pin(vmm, handle) : CUDA_SUCCESS;
}

CUresult vmm_pin_range_in_place(CUdeviceptr address, size_t size)
{
    LOCKED_OR_RETURN(CUDA_SUCCESS);
    CUmemGenericAllocationHandle unused;
    CUdeviceptr end = address + size;
    CUresult result = CUDA_SUCCESS;
    struct alias *alias;
    while (result == CUDA_SUCCESS && address < end
           && (alias = alias_between(address, end)) != NULL) {
        address = range_end(&alias->range);
        result = pin(alias->vmm, &unused);
    }
    return result;
}

/*
 * Maps, unmaps and sets access without waiting for a turn. For resident blocks the driver validates
 * the request. Swapped blocks are mapped when they are loaded, so the library must be certain that
 * the addresses lie in a reservation in which the driver maps nothing else, and that the access is
 * a device's default access to its own memory; else the call waits at the gate.
 */

static bool any_remapping(void)
{
    EACH_CLIENT(client)
        if (client->remapping)
            return true;
    return false;
}

/* Locks memory_lock once no client is remapping: exclusively() may be replacing memory. */
static void begin(void)
{
    mutex_lock(&memory_lock);
    while (any_remapping())
        memory_wait();
}

/* Enters the gate, waiting if it is closed: from here to end() all memory is resident. */
static void begin_inside(void)
{
    mutex_unlock(&memory_lock);
    gate_enter(GATE_NO_STREAM);
    mutex_lock(&memory_lock);
}

static void end(bool inside)
{
    mutex_unlock(&memory_lock);
    if (inside)
        gate_leave();
}

bool vmm_mapped_in(CUdeviceptr address, size_t size)
{
    READING_OR_RETURN(false);
    bool any;
    alias_whole(address, size, &any);
    return any;
}

bool vmm_map(CUdeviceptr address, size_t size, size_t offset,
             CUmemGenericAllocationHandle handle, unsigned long long flags, CUresult *result)
{
    if (client_none())
        return false;
    begin();
    struct vmm_allocation *vmm = vmm_find(handle);
    bool ours = vmm != NULL;
    bool inside = ours && !vmm_is_resident(vmm) && !reservation_is_ours(address, size);
    if (inside) {
        begin_inside();
        vmm = vmm_find(handle);      /* the program may have released the handle meanwhile */
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
    begin();
    bool whole = alias_whole(address, size, &any);
    if (any)
        *result = whole ? REAL(cuMemUnmap)(address, size) : CUDA_ERROR_INVALID_VALUE;
    struct alias *alias;
    while (any && *result == CUDA_SUCCESS
           && (alias = alias_between(address, address + size)) != NULL) {
        struct vmm_allocation *vmm = alias->vmm;
        alias_remove(alias);
        vmm_drop(vmm);
    }
    end(false);
    return any;
}

/* Whether aliases cover the whole range, and the access is certain to be valid. */
static bool may_apply_later(CUdeviceptr address, size_t size, const CUmemAccessDesc *access,
                           size_t count)
{
    CUdeviceptr behind = address + size;
    if (count != 1 || access == NULL || access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        || access->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return false;
    while (address < behind) {
        const struct alias *alias = alias_at(address);
        if (alias == NULL || access->location.id != alias->vmm->client->device)
            return false;
        address = range_end(&alias->range);
    }
    return true;
}

static bool range_is_resident(CUdeviceptr address, size_t size)
{
    EACH_ALIAS(alias, address, size)
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
    begin();
    bool whole = alias_whole(address, size, &any);
    bool absent = any && !range_is_resident(address, size);
    bool later = absent && whole && may_apply_later(address, size, access, count);
    bool inside = absent && !later;
    if (inside) {
        begin_inside();
        whole = alias_whole(address, size, &any);
    }
    if (any)
        *result = !whole ? CUDA_ERROR_INVALID_VALUE
                : later ? CUDA_SUCCESS : REAL(cuMemSetAccess)(address, size, access, count);
    EACH_ALIAS(alias, address, size) {
        if (*result == CUDA_SUCCESS && later)
            *result = alias_open(alias, access, count);
        if (*result == CUDA_SUCCESS && !alias_set_access(alias, access, count))
            *result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    end(inside);
    return any;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Imports memory of another process: the owner sends a descriptor of each block, and keeps the
 * memory resident and counted. As with the driver, memory opened twice must be closed twice, and
 * nothing is unmapped before work in flight has ended; the wait is bounded, because the work may
 * wait for the thread that closes. Any process may answer at the owner's socket: a message counts
 * only with the secret of the handle.
 */
#define _GNU_SOURCE
#include "ipc/ipc_import.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "block/region.h"
#include "driver/forked.h"
#include "driver/ops.h"
#include "driver/own_file.h"
#include "driver/ring.h"
#include "flight/capture.h"
#include "flight/drain.h"
#include "gate/client.h"
#include "gate/contexts.h"
#include "gate/gate.h"
#include "ipc/ipc_export.h"
#include "memory/allocation.h"
#include "memory/peers.h"

#define PATIENCE_MS 5000             /* ms to wait for a silent owner */
#define PAGES_MAX (1u << 20)         /* 2 TiB; a larger size in a message is refused */
#define TRIES 64

/* Whether the listener may be the owner, which runs as the same user, or root. The name of a socket
 * that this process cannot see, of another network namespace, can be taken here by anybody, who
 * would learn the secret. Root imports from every user. */
static bool may_be_owner(int socket)
{
    struct ucred listener;
    socklen_t size = sizeof listener;
    uid_t own = geteuid();
    return own == 0 || (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &listener, &size) == 0
                        && (listener.uid == own || listener.uid == 0));
}

static int begin(enum ipc_socket_kind kind, const struct ipc_ticket *ticket, bool *again)
{
    struct sockaddr_un address;
    unsigned length = ipc_socket(kind, ticket->name, &address);
    uint64_t end = now_microseconds() + PATIENCE_MS * 1000;
    int handle = own_file_socket(0), from = own_file_descriptor(handle);
    *again = false;
    if (from < 0)
        return -1;
    const struct timeval patience = { .tv_sec = PATIENCE_MS / 1000 };
    setsockopt(from, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    int failed;
    {
        UNLESS_LEFT(own_file_left, NULL, (uint64_t)handle);
        do
            failed = connect(from, (struct sockaddr *)&address, length);
        while (failed != 0 && errno == EINTR && now_microseconds() < end);
        defer_begin();               /* before the note ends: the handle is closed once */
    }
    if (failed == 0 && !may_be_owner(from))
        failed = -1;
    if (failed != 0 || send(from, &ticket->request, sizeof ticket->request,
                            MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)sizeof ticket->request) {
        *again = failed == 0;
        own_file_close(handle);
        handle = -1;
    }
    defer_end();
    return handle;
}

int ipc_client_begin(const struct ipc_ticket *ticket, bool *again)
{
    int from = begin(IPC_ABSTRACT, ticket, again);
    return from >= 0 || *again ? from : begin(IPC_FILE, ticket, again);
}

/* Waits for a message. Not by SO_RCVTIMEO, a timeout that each signal of a timer restarts. */
static bool wait_for(int from)
{
    struct pollfd ready = { .fd = own_file_descriptor(from), .events = POLLIN };
    uint64_t end = now_microseconds() + PATIENCE_MS * 1000, now;
    int count = -1;
    while (ready.fd >= 0 && count < 0 && (now = now_microseconds()) < end) {
        count = poll(&ready, 1, (int)((end - now) / 1000) + 1);
        if (count < 0 && errno != EINTR)
            return false;
    }
    return count > 0;
}

int ipc_client_part(int from, const struct ipc_ticket *ticket, struct ipc_part *part, bool *again)
{
    int file;
    *again = false;
    if (!wait_for(from))
        return -1;
    ssize_t got = own_file_receive(from, part, sizeof *part, &file);
    *again = got < 0 ? errno == ECONNRESET : got == 0;
    if (got == (ssize_t)sizeof *part && part->secret == ticket->secret && part->size > 0
        && part->size % PAGE == 0 && part->left >= part->size && part->left % PAGE == 0
        && part->left / PAGE <= PAGES_MAX)
        return file;
    own_file_close(file);
    return -1;
}

struct ipc_import {
    struct page_owner owner;         /* its client is NULL */
    struct ipc_ticket ticket;
    CUdevice device, reader;         /* the device of the memory, and the device that accesses it */
    CUdeviceptr range;               /* address range of all parts */
    size_t range_size;
    size_t mapped;                   /* bytes mapped so far */
    CUdeviceptr base;                /* start of the allocation inside the range */
    size_t size;
    unsigned long long id;
    unsigned opened;                 /* number of opens minus closes; 0: closed, still mapped */
    struct ipc_import *next;
    size_t count;
    CUmemGenericAllocationHandle handles[];
};

static struct ipc_import *imports;   /* protected by memory_lock */

static bool describe(struct page_owner *owner, CUdeviceptr address,
                     struct memory_description *description)
{
    const struct ipc_import *import = (const struct ipc_import *)owner;
    if (address - import->base >= import->size)
        return false;
    *description = (struct memory_description){
        .base = import->base, .size = import->size, .context = import->owner.context,
        .device = import->device, .id = import->id, .imported = true, .reader = import->reader,
    };
    return true;
}

static const struct owner_operations OPERATIONS = { .describe = describe };

static struct ipc_import *same(const struct ipc_ticket *ticket)
{
    struct ipc_import *import = imports;
    while (import != NULL && memcmp(&import->ticket, ticket, sizeof *ticket) != 0)
        import = import->next;
    return import;
}

/* Unmaps and frees an import that is not listed. memory_lock is held. */
static void unmap(struct ipc_import *import)
{
    for (size_t i = 0; i < import->count; i++)
        REAL(cuMemRelease)(import->handles[i]);
    if (import->mapped == 0 || REAL(cuMemUnmap)(import->range, import->mapped) == CUDA_SUCCESS)
        region_give(import->range, import->range_size);
    free(import);
}

static void forget(struct ipc_import *import)
{
    LIST_REMOVE(imports, import);
    region_set_owner(import->range, import->range_size, NULL);
    unmap(import);
}

void ipc_import_context_ends(CUcontext context)
{
    EACH_LISTED(struct ipc_import, import, imports)
        if (import->owner.context == context)
            forget(import);
}

static CUresult map_part(struct ipc_import *import, size_t offset, size_t size, int file)
{
    CUmemAllocationProp properties;
    CUmemGenericAllocationHandle handle;
    CUresult result = REAL(cuMemImportFromShareableHandle)(
        &handle, (void *)(intptr_t)own_file_descriptor(file),
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuMemMap)(import->range + offset, size, 0, handle, 0);
    if (result != CUDA_SUCCESS) {
        REAL(cuMemRelease)(handle);
        return result;
    }
    import->handles[import->count++] = handle;
    import->mapped = offset + size;
    result = REAL(cuMemGetAllocationPropertiesFromHandle)(&properties, handle);
    if (result == CUDA_SUCCESS && properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = REAL(cuCtxGetDevice)(&import->reader);
    if (result != CUDA_SUCCESS)
        return result;
    import->device = properties.location.id;
    CUmemLocation here = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = import->reader };
    CUmemAccessDesc access[2] = {
        { here, CU_MEM_ACCESS_FLAGS_PROT_READWRITE },
        { properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE },
    };
    return REAL(cuMemSetAccess)(import->range + offset, size, access,
                                import->device == import->reader ? 1 : 2);
}

static void undo_import(void *import, uint64_t unused)
{
    (void)unused;
    LOCKED(memory_lock);
    unmap(import);
}

/* Lists the import, or opens once more what another thread has opened meanwhile. memory_lock is
 * held. */
static CUdeviceptr adopt(struct ipc_import *import)
{
    struct ipc_import *known = same(&import->ticket);
    if (known != NULL) {
        unmap(import);
        import = known;
    } else {
        memory_imported();
        import->id = allocation_id();
        import->next = imports;
        imports = import;
        region_set_owner(import->range, import->range_size, &import->owner);
    }
    import->opened++;
    return import->base;
}

/* Maps and closes a part that has arrived. */
static CUresult take_part(struct ipc_import *import, size_t offset, size_t size, int file)
{
    DEFERRED;                        /* no file stays open if the thread leaves */
    CUresult result = map_part(import, offset, size, file);
    own_file_close(file);
    return result;
}

/* Maps all parts; the first has arrived, with the descriptor *file. The caller closes the last
 * *file. Called without memory_lock. */
static CUresult fetch_all(int from, const struct ipc_ticket *ticket, struct ipc_part *part,
                          int *file, CUdeviceptr *address)
{
    size_t total = part->left, offset = 0;
    bool again;
    if (part->bytes == 0 || part->offset >= total || part->bytes > total - part->offset)
        return CUDA_ERROR_INVALID_VALUE;
    struct ipc_import *import = calloc(1, sizeof *import
                                          + total / PAGE * sizeof import->handles[0]);
    if (import == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *import = (struct ipc_import){
        .owner.operations = &OPERATIONS, .ticket = *ticket, .range_size = total,
        .size = part->bytes,
    };
    contexts_current(&import->owner.context);
    LOCKED(memory_lock);
    CUresult result = region_take(total, &import->range);
    if (result != CUDA_SUCCESS) {
        free(import);
        return result;
    }
    import->base = import->range + part->offset;
    {
        UNLESS_LEFT(undo_import, import, 0);
        mutex_unlock(&memory_lock);
        while (*file >= 0 && result == CUDA_SUCCESS) {
            result = take_part(import, offset, part->size, *file);
            offset += part->size;
            *file = result == CUDA_SUCCESS && offset < total
                ? ipc_client_part(from, ticket, part, &again) : -1;
            if (*file >= 0 && part->left != total - offset)
                break;
        }
        mutex_lock(&memory_lock);
    }
    if (result == CUDA_SUCCESS && offset == total) {
        *address = adopt(import);
        return CUDA_SUCCESS;
    }
    unmap(import);
    return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
}

/* Repeats the request: an owner with too many peers drops connections before it reads requests. */
static CUresult open_new(const struct ipc_ticket *ticket, CUdeviceptr *address)
{
    BLOCKED;
    bool again = true;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    for (unsigned tries = 0; again && tries < TRIES; tries++) {
        struct ipc_part part;
        int file, from = ipc_client_begin(ticket, &again);
        {
            UNLESS_LEFT(own_file_left, NULL, (uint64_t)from);
            file = from < 0 ? -1 : ipc_client_part(from, ticket, &part, &again);
            if (file >= 0)
                result = fetch_all(from, ticket, &part, &file, address);
            defer_begin();
        }
        own_file_close(file);
        own_file_close(from);
        defer_end();
    }
    return result;
}

bool ipc_import_open(const CUipcMemHandle *handle, CUdeviceptr *address, CUresult *result)
{
    struct ipc_ticket ticket;
    _Static_assert(sizeof ticket <= sizeof *handle, "it must fit");
    memcpy(&ticket, handle, sizeof ticket);
    if (ticket.magic != IPC_MAGIC || is_forked_child())
        return false;
    if (ipc_export_own(&ticket)) {
        *result = CUDA_ERROR_INVALID_CONTEXT;
        return true;
    }
    if (client_is_called_back())
        return false;                /* the thread must not wait, and the driver refuses */
    mutex_lock(&memory_lock);
    struct ipc_import *known = same(&ticket);
    if (known != NULL) {
        known->opened++;
        *address = known->base;
    }
    mutex_unlock(&memory_lock);
    *result = known != NULL ? CUDA_SUCCESS : open_new(&ticket, address);
    return true;
}

static struct ipc_import *import_at(CUdeviceptr address)
{
    struct page_owner *owner = region_owner(address);
    struct ipc_import *import = owner != NULL && owner->operations == &OPERATIONS
        ? (struct ipc_import *)owner : NULL;
    return import != NULL && import->base == address && import->opened > 0 ? import : NULL;
}

bool ipc_import_close(CUdeviceptr address, CUresult *result)
{
    if (client_is_called_back())
        return false;                /* the thread must not wait, and the driver refuses */
    mutex_lock(&memory_lock);
    struct ipc_import *import = import_at(address);
    CUcontext context = import != NULL ? import->owner.context : NULL;
    mutex_unlock(&memory_lock);
    if (import == NULL)
        return false;
    bool drained = drain_context(context, DRAIN_PATIENCE_US, result);
    bool late = !drained && *result == CUDA_ERROR_NOT_READY;
    if (late)
        *result = capture_going_on() ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
    if (*result != CUDA_SUCCESS)
        return true;
    LOCKED(memory_lock);
    import = import_at(address);     /* another thread may have closed the import meanwhile */
    if (import == NULL)
        *result = CUDA_ERROR_INVALID_VALUE;
    else if (--import->opened == 0 && !late)
        forget(import);              /* `late`: the import stays mapped for the next open */
    return true;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of another process, fetched from it block by block (share.c) and
 * mapped here. It is on the card as long as its owner is, and counts there.
 *
 * As with the driver, memory that is opened again while it is open is the same
 * memory, and must be closed as often; and nothing is unmapped before the work
 * in flight is done.
 */
#define _GNU_SOURCE
#include "share.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "allocation.h"
#include "client.h"
#include "real.h"
#include "region.h"

#define PAGES_MAX (1u << 20)         /* 2 TiB; a size from elsewhere is not to be trusted */

struct import {
    struct page_owner owner;         /* its client is NULL */
    struct share_ticket ticket;
    CUdevice device;                 /* where the memory lies */
    CUdeviceptr range;               /* of all pieces */
    size_t range_size;
    CUdeviceptr base;                /* of the allocation in it */
    size_t size;
    unsigned long long id;
    unsigned opened;
    struct import *next;
    size_t count;
    CUmemGenericAllocationHandle handles[];
};

static struct import *imports;       /* protected by memory_lock */

/* One opening at a time, so that two of the same find each other. Taken before memory_lock. */
static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;

bool import_describe(const struct import *import, CUdeviceptr address,
                     struct memory_description *description)
{
    if (address - import->base >= import->size)
        return false;
    *description = (struct memory_description){
        .base = import->base,
        .size = import->size,
        .context = import->owner.context,
        .device = import->device,
        .id = import->id,
    };
    return true;
}

static struct import *same(const struct share_ticket *ticket)
{
    struct import *import = imports;
    while (import != NULL && memcmp(&import->ticket, ticket, sizeof *ticket) != 0)
        import = import->next;
    return import;
}

/* Takes away what of it was mapped. memory_lock is held. */
static void unmap(struct import *import)
{
    for (size_t i = 0; i < import->count; i++)
        REAL(cuMemRelease)(import->handles[i]);
    if (import->count == 0 || REAL(cuMemUnmap)(import->range, import->range_size) == CUDA_SUCCESS)
        region_give(import->range, import->range_size);
    free(import);
}

static void forget(struct import *import)
{
    struct import **link = &imports;
    while (*link != import)
        link = &(*link)->next;
    *link = import->next;
    region_set_owner(import->range, import->range_size, NULL);
    unmap(import);
}

void import_context_ends(CUcontext context)
{
    struct import *import = imports;
    while (import != NULL) {
        struct import *next = import->next;
        if (import->owner.context == context)
            forget(import);
        import = next;
    }
}

static int ask_owner(const struct share_ticket *ticket)
{
    static const struct timeval PATIENCE = { .tv_sec = 5 };
    struct sockaddr_un address;
    unsigned length = share_socket(ticket->name, &address);
    int from = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (from < 0)
        return -1;
    setsockopt(from, SOL_SOCKET, SO_RCVTIMEO, &PATIENCE, sizeof PATIENCE);
    setsockopt(from, SOL_SOCKET, SO_SNDTIMEO, &PATIENCE, sizeof PATIENCE);
    if (connect(from, (struct sockaddr *)&address, length) == 0
        && send(from, ticket, sizeof *ticket, MSG_NOSIGNAL) == (ssize_t)sizeof *ticket)
        return from;
    close(from);
    return -1;
}

/* The next piece; its descriptor, or -1. */
static int receive(int from, struct share_piece *piece)
{
    union { char space[CMSG_SPACE(sizeof(int))]; struct cmsghdr aligned; } control;
    struct iovec part = { piece, sizeof *piece };
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1,
        .msg_control = &control, .msg_controllen = sizeof control.space,
    };
    ssize_t got = recvmsg(from, &message, MSG_CMSG_CLOEXEC);
    const struct cmsghdr *header = got < 0 ? NULL : CMSG_FIRSTHDR(&message);
    int file = -1;
    if (header != NULL && header->cmsg_type == SCM_RIGHTS
        && header->cmsg_len == CMSG_LEN(sizeof file))
        memcpy(&file, CMSG_DATA(header), sizeof file);
    bool sound = got == (ssize_t)sizeof *piece && piece->size > 0 && piece->size % PAGE == 0
        && piece->left >= piece->size && piece->left / PAGE <= PAGES_MAX;
    if (!sound && file >= 0) {
        close(file);
        file = -1;
    }
    return file;
}

static CUresult map_piece(struct import *import, size_t offset, size_t size, int file)
{
    CUmemAllocationProp properties;
    CUmemGenericAllocationHandle handle;
    CUdevice here;
    CUresult result = REAL(cuMemImportFromShareableHandle)(&handle, (void *)(intptr_t)file,
                                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuMemMap)(import->range + offset, size, 0, handle, 0);
    if (result != CUDA_SUCCESS) {
        REAL(cuMemRelease)(handle);
        return result;
    }
    import->handles[import->count++] = handle;
    result = REAL(cuMemGetAllocationPropertiesFromHandle)(&properties, handle);
    if (result == CUDA_SUCCESS)
        result = REAL(cuCtxGetDevice)(&here);
    if (result != CUDA_SUCCESS)
        return result;
    import->device = properties.location.id;
    CUmemAccessDesc access[2] = {
        { { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = here }, CU_MEM_ACCESS_FLAGS_PROT_READWRITE },
        { properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE },
    };
    return REAL(cuMemSetAccess)(import->range + offset, size, access,
                                import->device == here ? 1 : 2);
}

/* All pieces; the first has come. memory_lock is held by none of this. */
static CUresult fetch(int from, const struct share_ticket *ticket, struct share_piece *piece,
                      int file, struct import **made)
{
    size_t total = piece->left, offset = 0;
    if (piece->offset >= total || piece->bytes > total - piece->offset) {
        close(file);
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct import *import = calloc(1, sizeof *import + total / PAGE * sizeof import->handles[0]);
    if (import == NULL) {
        close(file);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    import->owner.kind = OWNER_IMPORT;
    import->ticket = *ticket;
    import->range_size = total;
    import->size = piece->bytes;
    REAL(cuCtxGetCurrent)(&import->owner.context);
    pthread_mutex_lock(&memory_lock);
    CUresult result = region_take(total, &import->range);
    pthread_mutex_unlock(&memory_lock);
    if (result != CUDA_SUCCESS) {
        close(file);
        free(import);
        return result;
    }
    import->base = import->range + piece->offset;
    while (file >= 0 && result == CUDA_SUCCESS) {
        result = map_piece(import, offset, piece->size, file);
        close(file);
        offset += piece->size;
        file = result == CUDA_SUCCESS && offset < total ? receive(from, piece) : -1;
        if (file >= 0 && piece->left != total - offset) {
            close(file);
            file = -1;
        }
    }
    if (result == CUDA_SUCCESS && offset == total) {
        *made = import;
        return CUDA_SUCCESS;
    }
    pthread_mutex_lock(&memory_lock);
    unmap(import);
    pthread_mutex_unlock(&memory_lock);
    return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
}

static CUresult open_new(const struct share_ticket *ticket, CUdeviceptr *address)
{
    struct share_piece piece;
    struct import *import;
    int from = ask_owner(ticket);
    int file = from < 0 ? -1 : receive(from, &piece);
    CUresult result = file < 0 ? CUDA_ERROR_INVALID_VALUE
                               : fetch(from, ticket, &piece, file, &import);
    if (from >= 0)
        close(from);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&memory_lock);
    import->opened = 1;
    import->id = allocation_id();
    import->next = imports;
    imports = import;
    region_set_owner(import->range, import->range_size, import);
    *address = import->base;
    pthread_mutex_unlock(&memory_lock);
    return CUDA_SUCCESS;
}

bool import_open(const CUipcMemHandle *handle, CUdeviceptr *address, CUresult *result)
{
    struct share_ticket ticket;
    _Static_assert(sizeof ticket <= sizeof *handle, "it must fit");
    memcpy(&ticket, handle, sizeof ticket);
    if (ticket.magic != SHARE_MAGIC)
        return false;
    if (share_own(&ticket)) {
        *result = CUDA_ERROR_INVALID_CONTEXT;
        return true;
    }
    pthread_mutex_lock(&open_lock);
    pthread_mutex_lock(&memory_lock);
    struct import *known = same(&ticket);
    if (known != NULL) {
        known->opened++;
        *address = known->base;
    }
    pthread_mutex_unlock(&memory_lock);
    *result = known != NULL ? CUDA_SUCCESS : open_new(&ticket, address);
    pthread_mutex_unlock(&open_lock);
    return true;
}

bool import_close(CUdeviceptr address, CUresult *result)
{
    pthread_mutex_lock(&memory_lock);
    const struct page_owner *owner = region_owner(address);
    bool ours = owner != NULL && owner->kind == OWNER_IMPORT
        && ((const struct import *)owner)->base == address;
    CUcontext context = ours ? owner->context : NULL;
    pthread_mutex_unlock(&memory_lock);
    if (!ours)
        return false;
    if (!drain_context(context, result) && *result == CUDA_SUCCESS)
        *result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (*result != CUDA_SUCCESS)
        return true;
    pthread_mutex_lock(&memory_lock);
    struct import *import = region_owner(address);
    if (import != NULL && --import->opened == 0)
        forget(import);
    pthread_mutex_unlock(&memory_lock);
    return true;
}

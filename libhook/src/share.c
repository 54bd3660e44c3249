/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Giving memory to other processes by legacy IPC. The driver gives no such
 * handle for mapped memory; so its blocks are exported as file descriptors,
 * and the handle says where to fetch them.
 *
 * What others reach must stay where it is. A block becomes shared by being
 * copied into memory that can be exported, which takes its place at the same
 * address and never leaves the card. One block after the other, so that the
 * card needs room for one more only.
 *
 * The descriptors are handed out by a thread of this process, on a socket
 * whose name is in the handle: the memory is gone with this process anyway,
 * nothing but the two has to know of it, and the daemon may come and go.
 */
#define _GNU_SOURCE
#include "share.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "allocation.h"
#include "client.h"
#include "exclusive.h"
#include "log.h"
#include "real.h"
#include "region.h"

/* One that has connected and says nothing keeps the others waiting no longer. */
static const struct timeval PATIENCE = { .tv_sec = 2 };

unsigned share_socket(const uint64_t name[2], struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){ .sun_family = AF_UNIX };
    /* Abstract: nothing to remove, and its name cannot be guessed. */
    int length = snprintf(address->sun_path + 1, sizeof address->sun_path - 1,
                          "nvshare-%016llx%016llx", (unsigned long long)name[0],
                          (unsigned long long)name[1]);
    return (unsigned)(offsetof(struct sockaddr_un, sun_path) + 1 + (unsigned)length);
}

/* The allocation that a ticket means, or NULL. memory_lock is held. */
static struct page_owner *find(const struct share_ticket *ticket,
                               struct memory_description *description)
{
    bool found = allocation_describe(ticket->address, description)
        && description->id == ticket->id;
    struct page_owner *owner = found ? region_owner(ticket->address) : NULL;
    return owner != NULL && owner->kind != OWNER_IMPORT ? owner : NULL;
}

/* One block's descriptor, -1 if it is gone. */
static int export_piece(const struct share_ticket *ticket, size_t index, struct share_piece *piece)
{
    struct memory_description description;
    int file = -1;
    pthread_mutex_lock(&memory_lock);
    struct page_owner *owner = find(ticket, &description);
    size_t count = owner == NULL ? 0 : allocation_blocks(owner);
    *piece = (struct share_piece){ .left = 0 };
    for (size_t i = index; i < count; i++)
        piece->left += allocation_block(owner, i)->size;
    if (index < count) {
        const struct block *block = allocation_block(owner, index);
        piece->size = block->size;
        piece->offset = ticket->address - allocation_block(owner, 0)->address;
        piece->bytes = description.size;
        if (block->state != BLOCK_SHARED
            || REAL(cuMemExportToShareableHandle)(&file, block->handle,
                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) != CUDA_SUCCESS)
            file = -1;
    }
    pthread_mutex_unlock(&memory_lock);
    return file;
}

static bool send_piece(int to, const struct share_piece *piece, int file)
{
    union { char space[CMSG_SPACE(sizeof(int))]; struct cmsghdr aligned; } control;
    struct iovec part = { (void *)piece, sizeof *piece };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
    if (file >= 0) {
        message.msg_control = &control;
        message.msg_controllen = sizeof control.space;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        *header = (struct cmsghdr){
            .cmsg_len = CMSG_LEN(sizeof file), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS,
        };
        memcpy(CMSG_DATA(header), &file, sizeof file);
    }
    return sendmsg(to, &message, MSG_NOSIGNAL) == (ssize_t)sizeof *piece;
}

static void serve(int to)
{
    struct ucred peer;
    socklen_t length = sizeof peer;
    struct share_ticket ticket;
    struct share_piece piece = { .left = 1 };
    setsockopt(to, SOL_SOCKET, SO_RCVTIMEO, &PATIENCE, sizeof PATIENCE);
    setsockopt(to, SOL_SOCKET, SO_SNDTIMEO, &PATIENCE, sizeof PATIENCE);
    if (getsockopt(to, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0
        || (peer.uid != geteuid() && peer.uid != 0)
        || recv(to, &ticket, sizeof ticket, 0) != (ssize_t)sizeof ticket)
        return;
    bool sent = true;
    for (size_t index = 0; sent && piece.left > piece.size; index++) {
        int file = export_piece(&ticket, index, &piece);
        sent = send_piece(to, &piece, file) && file >= 0;
        if (file >= 0)
            close(file);
    }
}

static void *give_out(void *argument)
{
    int listener = (int)(intptr_t)argument;
    for (;;) {
        int to = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (to < 0 && errno != EINTR && errno != ECONNABORTED) {
            debug("memory is no longer given to other processes: %s", error_text(errno));
            return NULL;
        }
        if (to >= 0) {
            serve(to);
            close(to);
        }
    }
}

static pthread_mutex_t shop_lock = PTHREAD_MUTEX_INITIALIZER;  /* protects the following */
static uint64_t ours[2];             /* the socket's name */
static bool open;

bool share_own(const struct share_ticket *ticket)
{
    pthread_mutex_lock(&shop_lock);
    bool own = open && memcmp(ticket->name, ours, sizeof ours) == 0;
    pthread_mutex_unlock(&shop_lock);
    return own;
}

/* The socket and its thread, once for the process. False: not possible here. */
static bool open_shop(uint64_t name[2])
{
    pthread_mutex_lock(&shop_lock);
    if (!open && getrandom(ours, sizeof ours, 0) == (ssize_t)sizeof ours) {
        struct sockaddr_un address;
        unsigned length = share_socket(ours, &address);
        int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        sigset_t all, before;
        pthread_t thread;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        open = listener >= 0 && bind(listener, (struct sockaddr *)&address, length) == 0
            && listen(listener, SOMAXCONN) == 0
            && pthread_create(&thread, NULL, give_out, (void *)(intptr_t)listener) == 0;
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        if (open) {
            pthread_setname_np(thread, "nvshare-ipc");
            pthread_detach(thread);
        } else if (listener >= 0) {
            close(listener);
        }
    }
    memcpy(name, ours, sizeof ours);
    bool possible = open;
    pthread_mutex_unlock(&shop_lock);
    return possible;
}

/* Memory that can be exported, with the block's bytes, in its place. Everything is still. */
static CUresult share_block(struct block *block)
{
    struct client *client = block->client;
    const CUmemAllocationProp property = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = client->device },
    };
    CUmemAccessDesc access[CLIENTS_MAX];
    size_t readers = block_access(client, access);
    CUmemGenericAllocationHandle handle;
    CUdeviceptr beside;
    CUresult result = region_take(block->size, &beside);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuMemCreate)(&handle, block->size, &property, 0);
    if (result != CUDA_SUCCESS) {
        region_give(beside, block->size);
        return result;
    }
    result = REAL(cuMemMap)(beside, block->size, 0, handle, 0);
    if (result == CUDA_SUCCESS) {
        result = REAL(cuMemSetAccess)(beside, block->size, access, readers);
        if (result == CUDA_SUCCESS)
            result = REAL(cuMemcpyDtoDAsync_v2)(beside, block->address, block->size,
                                                client->copy_stream);
        if (result == CUDA_SUCCESS)
            result = REAL(cuStreamSynchronize)(client->copy_stream);
        REAL(cuMemUnmap)(beside, block->size);
    }
    region_give(beside, block->size);
    if (result != CUDA_SUCCESS) {
        REAL(cuMemRelease)(handle);
        return result;
    }
    /* From here on the driver refuses only if the context has failed for good. */
    result = block_unmap(block);
    block->handle = handle;
    if (result == CUDA_SUCCESS)
        result = REAL(cuMemMap)(block->address, block->size, 0, handle, 0);
    if (result == CUDA_SUCCESS)
        result = REAL(cuMemSetAccess)(block->address, block->size, access, readers);
    host_give(block);
    block_set_state(block, BLOCK_SHARED);
    client->memory.allocated -= block->size;
    client->memory.pinned += block->size;
    return result;
}

/* All blocks of what a ticket means. */
static CUresult share_all(void *argument)
{
    struct memory_description description;
    struct page_owner *owner = find(argument, &description);
    if (owner == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < allocation_blocks(owner) && result == CUDA_SUCCESS; i++)
        if (allocation_block(owner, i)->state == BLOCK_RESIDENT)
            result = share_block(allocation_block(owner, i));
    return result;
}

static uint64_t not_shared(struct page_owner *owner)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < allocation_blocks(owner); i++)
        if (allocation_block(owner, i)->state != BLOCK_SHARED)
            bytes += allocation_block(owner, i)->size;
    return bytes;
}

bool share_give(CUdeviceptr address, CUipcMemHandle *handle, CUresult *result)
{
    struct memory_description description;
    if (!memory_is_ours(address)) {
        /* What lies beyond the card cannot stay there. */
        pthread_mutex_lock(&memory_lock);
        bool beyond = managed_describe(address, &description);
        pthread_mutex_unlock(&memory_lock);
        *result = CUDA_ERROR_OUT_OF_MEMORY;
        return beyond;
    }
    *result = CUDA_ERROR_INVALID_VALUE;
    if (!memory_describe(address, &description) || !description.ipc)
        return true;
    struct share_ticket ticket = {
        .magic = SHARE_MAGIC, .address = description.base, .id = description.id,
    };
    if (!open_shop(ticket.name)) {
        *result = CUDA_ERROR_OPERATING_SYSTEM;
        return true;
    }
    pthread_mutex_lock(&memory_lock);
    struct page_owner *owner = find(&ticket, &description);
    if (owner != NULL)               /* the first of its blocks is the largest */
        *result = not_shared(owner) == 0
            ? CUDA_SUCCESS
            : exclusively(owner->client, allocation_block(owner, 0)->size, not_shared(owner),
                          share_all, &ticket);
    pthread_mutex_unlock(&memory_lock);
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &ticket, sizeof ticket);
    return true;
}

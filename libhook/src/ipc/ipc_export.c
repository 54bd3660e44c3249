/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exports memory to other processes by legacy IPC. The driver gives no IPC handle for mapped
 * memory, so the library exports blocks as file descriptors; the library's handle says where to
 * fetch them. A block becomes shared by a copy into exportable memory, which replaces it at the
 * same address and is never evicted. No work may run meanwhile, and work in flight may wait for the
 * thread that requests the handle: that thread waits only briefly; blocks that are not shared by
 * then are shared when another process first requests them.
 */
#define _GNU_SOURCE
#include "ipc/ipc_export.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "block/block.h"
#include "block/exclusive.h"
#include "block/region.h"
#include "driver/forked.h"
#include "driver/log.h"
#include "driver/ops.h"
#include "driver/own_file.h"
#include "driver/own_thread.h"
#include "driver/stubs.h"
#include "flight/drain.h"
#include "gate/client.h"
#include "memory/allocation.h"
#include "memory/managed.h"

#define PEERS_MAX 32
#define PATIENCE_MS 2000
#define PAUSE_MS 100                 /* ms before the next accept if no descriptor is free */
#define HANDLE_PATIENCE_US 250000    /* longest drain within cuIpcGetMemHandle */

/* The requested allocation, or NULL. memory_lock is held. */
static struct page_owner *find(const struct ipc_request *request,
                               struct memory_description *description)
{
    bool found = allocation_describe(request->address, description)
        && description->id == request->id;
    struct page_owner *owner = found ? region_owner(request->address) : NULL;
    return owner != NULL && owner->client != NULL ? owner : NULL;
}

static int export(const struct block *block)
{
    int file;
    stubs_await();                   /* not within UNFORKED: the wait would block fork() */
    UNFORKED;
    return REAL(cuMemExportToShareableHandle)(&file, block->handle,
               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_SUCCESS
        ? own_file_add(file) : -1;
}

/* Replaces the block's memory by exportable (and NIC-registrable) memory with the same bytes. */
static CUresult share_block(struct block *block)
{
    struct client *client = block->client;
    int by_network = 0;              /* whether network cards may access the new memory */
    REAL(cuDeviceGetAttribute)(&by_network,
        CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, client->device);
    const CUmemAllocationProp property = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = client->device },
        .allocFlags.gpuDirectRDMACapable = by_network != 0,
    };
    CUmemAccessDesc access[CLIENTS_MAX];
    size_t readers = block_readers(client, access);
    CUmemGenericAllocationHandle handle;
    CUdeviceptr beside;
    CUresult result = region_map_new(block->size, &property, access, readers, &beside, &handle);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuMemcpyDtoDAsync_v2)(beside, block->address, block->size, client->copy_stream);
    if (result == CUDA_SUCCESS)
        result = REAL(cuStreamSynchronize)(client->copy_stream);
    region_unmap(beside, block->size);
    if (result != CUDA_SUCCESS) {
        REAL(cuMemRelease)(handle);
        return result;
    }
    /* From here on the driver's calls fail only if the context has failed, which is final. */
    result = block_unmap(block);
    block->handle = handle;
    if (result == CUDA_SUCCESS)
        result = REAL(cuMemMap)(block->address, block->size, 0, handle, 0);
    if (result == CUDA_SUCCESS)
        result = REAL(cuMemSetAccess)(block->address, block->size, access, readers);
    block_share(block);
    return result;
}

static CUresult share_blocks(const struct page_owner *owner)
{
    if (owner == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < owner->block_count && result == CUDA_SUCCESS; i++)
        if (owner->blocks[i]->state == BLOCK_RESIDENT)
            result = share_block(owner->blocks[i]);
    return result;
}

static CUresult share_all(void *argument)
{
    struct memory_description description;
    return share_blocks(find(argument, &description));
}

static CUresult share_page(void *address)
{
    return share_blocks(region_owner(*(CUdeviceptr *)address));
}

static uint64_t not_shared(const struct page_owner *owner)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < owner->block_count; i++)
        if (owner->blocks[i]->state != BLOCK_SHARED)
            bytes += owner->blocks[i]->size;
    return bytes;
}

static CUresult share(const struct ipc_request *request, uint64_t patience)
{
    struct memory_description description;
    LOCKED(memory_lock);
    struct page_owner *owner = find(request, &description);
    uint64_t bytes = owner == NULL ? 0 : not_shared(owner);
    if (bytes == 0)
        return owner == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    return exclusively(owner->client, owner->blocks[0]->size /* the largest */, bytes, patience,
                       share_all, (void *)request);
}

/* Fills *part for a block. Returns a handle (own_file.h) of its file; -1: not exportable. */
static int export_part(const struct ipc_request *request, size_t index, struct ipc_part *part)
{
    struct memory_description description;
    int file = -1;
    if (index == 0)
        share(request, DRAIN_PATIENCE_US);         /* shares blocks that are not shared yet */
    LOCKED(memory_lock);
    struct page_owner *owner = find(request, &description);
    *part = (struct ipc_part){ .left = 0 };
    if (owner != NULL && index < owner->block_count) {
        const struct block *block = owner->blocks[index];
        const struct block *last = owner->blocks[owner->block_count - 1];
        part->left = last->address + last->size - block->address;
        part->size = block->size;
        part->offset = request->address - owner->blocks[0]->address;
        part->bytes = description.size;
        if (block->state == BLOCK_SHARED)
            file = export(block);
    }
    return file;
}

/*
 * A process shares its memory on two sockets. One is abstract: it leaves no file behind, but is
 * visible only in the same network namespace. Containers that share the IPC namespace have only
 * /dev/shm in common, where the second socket is a file. The file of a killed process, to which
 * connecting is refused, is removed by the next process; only if it is old, because a socket that
 * is not listening yet refuses, too.
 */

#define FOLDER "/dev/shm/"
#define PREFIX "nvshare-"
#define FORMAT "%s" PREFIX "%016llx%016llx"
#define OLD_S 60

static char file[sizeof ((struct sockaddr_un *)NULL)->sun_path]; /* path of the process's socket */
static pid_t maker;

unsigned ipc_socket(enum ipc_socket_kind kind, const uint64_t name[2], struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){ .sun_family = AF_UNIX };
    bool abstract = kind == IPC_ABSTRACT;
    char *path = address->sun_path + abstract;
    int length = snprintf(path, sizeof address->sun_path - 1, FORMAT, abstract ? "" : FOLDER,
                          (unsigned long long)name[0], (unsigned long long)name[1]);
    /* The length of a path includes its terminating zero, that of an abstract name does not. */
    return (unsigned)(path - (char *)address) + (unsigned)length + !abstract;
}

static void remove_if_dead(const char *name)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    struct stat status;              /* stat() is not exported under this name before glibc 2.33 */
    int length = snprintf(address.sun_path, sizeof address.sun_path, FOLDER "%s", name);
    if ((size_t)length >= sizeof address.sun_path
        || syscall(SYS_newfstatat, AT_FDCWD, address.sun_path, &status, 0) != 0
        || time(NULL) - status.st_mtime <= OLD_S)
        return;
    int to = own_file_socket(SOCK_NONBLOCK);
    if (connect(own_file_descriptor(to), (struct sockaddr *)&address, sizeof address) != 0
        && errno == ECONNREFUSED)
        unlink(address.sun_path);    /* the kernel refuses this for another user's file */
    own_file_close(to);
}

static void remove_dead(void)
{
    DIR *folder = opendir(FOLDER);
    struct dirent *entry;
    while (folder != NULL && (entry = readdir(folder)) != NULL)
        /* Only sockets: other files refuse connections, too, and must stay. */
        if (entry->d_type == DT_SOCK && strncmp(entry->d_name, PREFIX, sizeof PREFIX - 1) == 0)
            remove_if_dead(entry->d_name);
    if (folder != NULL)
        closedir(folder);
}

static void at_exit(void)
{
    if (maker == getpid())           /* a forked child must not remove the file */
        unlink(file);
}

/*
 * A thread for each socket sends descriptors of shared memory to all its peers in turn, as any
 * process may connect and stall. A peer without progress is dropped after PATIENCE_MS, or when its
 * entry is needed. A peer must run as the same user or root, and know the secret of the handle.
 */

struct peer {
    int socket;                      /* a handle of own_file.h; -1: a free entry */
    bool has_request;
    struct ipc_request request;
    size_t index;                    /* index of the block to send next */
    uint64_t progress;               /* us: time of the peer's last progress */
};

/* Protects the following variables; no other lock is taken while it is held. */
static MUTEX(server_lock);
static struct {
    unsigned open;                   /* number of sockets served */
    struct { uint64_t name[2], importer, owner; } random;   /* the socket's name; two secrets */
} server;

static bool send_part(int to, const struct ipc_part *part, int file)
{
    union { char space[CMSG_SPACE(sizeof(int))]; struct cmsghdr aligned; } control;
    struct iovec bytes = { (void *)part, sizeof *part };
    struct msghdr message = { .msg_iov = &bytes, .msg_iovlen = 1 };
    if (file >= 0) {
        int descriptor = own_file_descriptor(file);
        if (descriptor < 0)
            return false;
        message.msg_control = &control;
        message.msg_controllen = sizeof control.space;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        *header = (struct cmsghdr){
            .cmsg_len = CMSG_LEN(sizeof descriptor), .cmsg_level = SOL_SOCKET,
            .cmsg_type = SCM_RIGHTS,
        };
        memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
    }
    return sendmsg(own_file_descriptor(to), &message, MSG_NOSIGNAL | MSG_DONTWAIT)
        == (ssize_t)sizeof *part;
}

/* Reads the peer's request. False: the caller drops the peer. */
static bool read_request(struct peer *peer)
{
    char packet[sizeof peer->request + 1]; /* one more byte, to notice a longer packet */
    ssize_t size = recv(own_file_descriptor(peer->socket), packet, sizeof packet, MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    if (size != (ssize_t)sizeof peer->request)
        return false;
    memcpy(&peer->request, packet, sizeof peer->request);
    peer->has_request = true;
    if (peer->request.secret == server.random.importer)
        return true;
    const struct ipc_part nothing = { .left = 0 };
    send_part(peer->socket, &nothing, -1); /* the peer is dropped in any case */
    return false;
}

/* Sends a part to a peer with socket space. False: the last part was sent, or sending failed. */
static bool send_next_part(struct peer *peer)
{
    struct ipc_part part;
    int file = export_part(&peer->request, peer->index++, &part);
    part.secret = server.random.owner;
    bool sent = send_part(peer->socket, &part, file) && file >= 0;
    own_file_close(file);
    return sent && part.left > part.size;
}

static void drop_peer(struct peer *peer)
{
    /* close() may not end the connection: a child forked by a raw system call has it open, too. */
    shutdown(own_file_descriptor(peer->socket), SHUT_RDWR);
    own_file_close(peer->socket);
    peer->socket = -1;
}

static struct peer *free_entry(struct peer *peers)
{
    struct peer *best = peers;
    for (struct peer *each = peers; each < peers + PEERS_MAX; each++) {
        if (each->socket < 0)
            return each;
        if (each->has_request != best->has_request ? best->has_request
                                                   : each->progress < best->progress)
            best = each;
    }
    drop_peer(best);
    return best;
}

/* Accepts one peer. False: no peer is waiting, or no descriptor is free. */
static bool accept_one(int listener, struct peer *peers, bool *short_of_files)
{
    struct ucred credentials;
    socklen_t length = sizeof credentials;
    const int little = 1;            /* bytes; the kernel raises it to one or two parts' size */
    int to;
    {
        UNFORKED;
        to = own_file_add(accept4(own_file_descriptor(listener), NULL, NULL, SOCK_CLOEXEC));
    }
    if (to < 0) {
        *short_of_files = errno != EAGAIN && errno != EINTR && errno != ECONNABORTED;
        return false;
    }
    struct peer peer = { .socket = to, .progress = now_microseconds() };
    int descriptor = own_file_descriptor(to);
    setsockopt(descriptor, SOL_SOCKET, SO_SNDBUF, &little, sizeof little);
    if (getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0
        || (credentials.uid != geteuid() && credentials.uid != 0) || !read_request(&peer))
        drop_peer(&peer);
    else
        *free_entry(peers) = peer;
    return true;
}

static void serve_peer(struct peer *peer, bool ready)
{
    uint64_t now = now_microseconds();
    bool stays = now - peer->progress < PATIENCE_MS * 1000;
    if (ready) {
        peer->progress = now;
        stays = peer->has_request ? send_next_part(peer) : read_request(peer);
    }
    if (!stays)
        drop_peer(peer);
}

static void *serve(void *argument)
{
    int listener = (int)(intptr_t)argument; /* a handle of own_file.h */
    struct peer peers[PEERS_MAX];
    struct pollfd ready[PEERS_MAX + 1]; /* the last entry is the listener */
    bool short_of_files = false;
    for (unsigned i = 0; i < PEERS_MAX; i++)
        peers[i] = (struct peer){ .socket = -1 };
    own_thread_begins("nvshare-ipc");
    while (own_file_descriptor(listener) >= 0) {
        int timeout = short_of_files ? PAUSE_MS : -1;
        for (unsigned i = 0; i < PEERS_MAX; i++) {
            ready[i] = (struct pollfd){
                .fd = own_file_descriptor(peers[i].socket),
                .events = peers[i].has_request ? POLLOUT : POLLIN,
            };
            if (peers[i].socket >= 0 && timeout < 0)
                timeout = PATIENCE_MS;
        }
        ready[PEERS_MAX] = (struct pollfd){
            .fd = short_of_files ? -1 : own_file_descriptor(listener), .events = POLLIN,
        };
        if (poll(ready, PEERS_MAX + 1, timeout) < 0)
            continue;
        for (unsigned i = 0; i < PEERS_MAX; i++)
            if (peers[i].socket >= 0)
                serve_peer(&peers[i], ready[i].revents != 0);
        short_of_files = false;
        for (unsigned i = 0; i < PEERS_MAX && ready[PEERS_MAX].revents != 0; i++)
            if (!accept_one(listener, peers, &short_of_files))
                break;
    }
    debug("memory is no longer given to other processes: the program has closed the socket");
    for (unsigned i = 0; i < PEERS_MAX; i++)
        drop_peer(&peers[i]);
    own_file_close(listener);
    LOCKED(server_lock);
    server.open--;
    return NULL;
}

bool ipc_export_own(const struct ipc_ticket *ticket)
{
    LOCKED(server_lock);
    return server.open > 0
        && memcmp(ticket->name, server.random.name, sizeof server.random.name) == 0;
}

static void serve_at(enum ipc_socket_kind kind)
{
    static bool registered;
    struct sockaddr_un address;
    pthread_t thread;
    unsigned length = ipc_socket(kind, server.random.name, &address);
    int listener = own_file_socket(SOCK_NONBLOCK), descriptor = own_file_descriptor(listener);
    if (descriptor < 0 || bind(descriptor, (struct sockaddr *)&address, length) != 0
        || listen(descriptor, SOMAXCONN) != 0) {
        debug("no socket to share memory at with other processes: %s", error_text(errno));
        own_file_close(listener);
        return;
    }
    if (kind == IPC_FILE) {
        memcpy(file, address.sun_path, sizeof file);
        maker = getpid();
        registered = registered || atexit(at_exit) == 0;
        remove_dead();
    }
    int error = own_thread_start(&thread, serve, (void *)(intptr_t)listener);
    if (error != 0) {
        debug("no thread to share memory with other processes: %s", error_text(error));
        own_file_close(listener);
        return;
    }
    pthread_detach(thread);
    server.open++;
}

/* Opens the sockets, once for the process, and writes their name and secrets to the ticket. */
static bool open_server(struct ipc_ticket *ticket)
{
    LOCKED(server_lock);
    if (server.open == 0 && syscall(SYS_getrandom, &server.random, sizeof server.random, 0)
                                == sizeof server.random)
        for (enum ipc_socket_kind kind = 0; kind < IPC_SOCKETS; kind++)
            serve_at(kind);
    memcpy(ticket->name, server.random.name, sizeof ticket->name);
    ticket->secret = server.random.owner;
    ticket->request.secret = server.random.importer;
    return server.open > 0;
}

CUresult ipc_export_pin(CUdeviceptr address)
{
    struct memory_description description;
    if (!memory_describe(address, &description) || !description.ipc)
        return CUDA_ERROR_NOT_SUPPORTED;
    return share(&(struct ipc_request){ .address = description.base, .id = description.id },
                 DRAIN_PATIENCE_US);
}

CUresult ipc_export_pin_range(CUdeviceptr address, size_t size)
{
    LOCKED_OR_RETURN(CUDA_ERROR_NOT_SUPPORTED);
    CUdeviceptr end = address + size;
    const struct page_owner *owner;
    CUresult result = CUDA_SUCCESS;
    while (result == CUDA_SUCCESS && (owner = region_owner_between(&address, end)) != NULL) {
        CUdeviceptr page = address, behind = page + PAGE;
        uint64_t bytes = not_shared(owner);
        if (bytes > 0) {             /* 0: also for imported memory, which has no blocks here */
            const struct block *last = owner->blocks[owner->block_count - 1];
            behind = last->address + last->size;
            result = exclusively(owner->client, owner->blocks[0]->size /* the largest */, bytes,
                                 DRAIN_PATIENCE_US, share_page, &page);
        }
        address = behind;
    }
    return result;
}

bool ipc_export(CUdeviceptr address, CUipcMemHandle *handle, CUresult *result)
{
    struct memory_description description;
    if (client_is_called_back())
        return false;                /* the thread must not wait, and the driver refuses */
    if (!memory_is_ours(address)) {
        /* Managed memory for allocations that do not fit the card cannot be pinned on the card. */
        LOCKED_TO_READ(memory_lock);
        bool beyond = managed_describe(address, &description);
        *result = CUDA_ERROR_OUT_OF_MEMORY;
        return beyond;
    }
    *result = CUDA_ERROR_INVALID_VALUE;
    if (!memory_describe(address, &description) || !description.ipc)
        return true;
    struct ipc_ticket ticket = {
        .magic = IPC_MAGIC,
        .request = { .address = description.base, .id = description.id },
    };
    if (!open_server(&ticket)) {
        *result = CUDA_ERROR_OPERATING_SYSTEM;
        return true;
    }
    *result = share(&ticket.request, HANDLE_PATIENCE_US);
    if (*result == CUDA_ERROR_NOT_READY || *result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
        *result = CUDA_SUCCESS;      /* the memory is shared at the first request */
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &ticket, sizeof ticket);
    return true;
}

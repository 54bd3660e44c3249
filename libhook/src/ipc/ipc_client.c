/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The importer's end of the connection to a process that shares memory (ipc_server.c). Any process
 * may answer there with anything. A message therefore counts only with the secret of the handle,
 * and descriptors that come with other messages are closed.
 */
#include "ipc/ipc_client.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "block/region.h"
#include "driver/forked.h"
#include "driver/own_file.h"
#include "gate/client.h"
#include "ipc/ipc.h"
#include "ipc/ipc_socket.h"

#define PATIENCE_MS 5000             /* ms to wait for a silent owner */
#define PAGES_MAX (1u << 20)         /* 2 TiB; a larger size in a message is refused */

static int new_socket(void)
{
    UNFORKED;
    return own_file_add(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
}

static int begin(enum ipc_place place, const struct ipc_ticket *ticket, bool *again)
{
    struct sockaddr_un address;
    unsigned length = ipc_socket(place, ticket->name, &address);
    uint64_t end = now_microseconds() + PATIENCE_MS * 1000;
    int handle = new_socket(), from = own_file_descriptor(handle);
    *again = false;
    if (from < 0)
        return -1;
    const struct timeval patience = { .tv_sec = PATIENCE_MS / 1000 };
    setsockopt(from, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    int failed;
    do
        failed = connect(from, (struct sockaddr *)&address, length);
    while (failed != 0 && errno == EINTR && now_microseconds() < end);
    if (failed == 0 && send(from, &ticket->request, sizeof ticket->request,
                            MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof ticket->request)
        return handle;
    *again = failed == 0;
    own_file_close(handle);
    return -1;
}

int ipc_client_begin(const struct ipc_ticket *ticket, bool *again)
{
    int from = begin(IPC_ABSTRACT, ticket, again);
    return from >= 0 || *again ? from : begin(IPC_IN_FILES, ticket, again);
}

/* Not by SO_RCVTIMEO: the signals of an interval timer would restart it for ever. */
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

/* The only descriptor of a message; -1: there is none. Any further descriptors are closed. */
static int only_file(struct msghdr *message)
{
    int files[4];                    /* more than `control` can hold */
    size_t count = 0;
    for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header != NULL;
         header = CMSG_NXTHDR(message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
            continue;
        size_t here = (header->cmsg_len - CMSG_LEN(0)) / sizeof files[0];
        memcpy(files + count, CMSG_DATA(header), here * sizeof files[0]);
        count += here;
    }
    if (count == 1 && (message->msg_flags & MSG_CTRUNC) == 0)
        return files[0];
    while (count > 0)
        close(files[--count]);
    return -1;
}

int ipc_client_part(int from, const struct ipc_ticket *ticket, struct ipc_part *part, bool *again)
{
    union { char space[CMSG_SPACE(sizeof(int))]; struct cmsghdr aligned; } control;
    struct iovec bytes = { part, sizeof *part };
    struct msghdr message = {
        .msg_iov = &bytes, .msg_iovlen = 1,
        .msg_control = &control, .msg_controllen = sizeof control.space,
    };
    *again = false;
    if (!wait_for(from))
        return -1;
    UNFORKED;
    ssize_t got = recvmsg(own_file_descriptor(from), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got < 0) {
        *again = errno == ECONNRESET;
        return -1;
    }
    int file = only_file(&message);
    *again = got == 0 && file < 0;
    bool sound = got == (ssize_t)sizeof *part && (message.msg_flags & MSG_TRUNC) == 0
        && part->secret == ticket->secret && part->size > 0 && part->size % PAGE == 0
        && part->left >= part->size && part->left % PAGE == 0
        && part->left / PAGE <= PAGES_MAX;
    if (sound || file < 0)
        return own_file_add(file);
    close(file);
    return -1;
}

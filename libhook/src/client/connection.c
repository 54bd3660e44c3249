/* SPDX-License-Identifier: Apache-2.0 */
#include "client/connection.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "interpose/log.h"
#include "nvshare/protocol.h"

/* A daemon that does not read for this long is as good as gone. */
static const struct timeval SEND_PATIENCE = { .tv_sec = 5 };

int connection_open(void)
{
    const char *path = setting("NVSHARE_SOCKET");
    if (path == NULL || *path == '\0')
        path = NVSHARE_DEFAULT_SOCKET;
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    if (strlen(path) >= sizeof address.sun_path) {
        complain("NVSHARE_SOCKET=%s is longer than a socket's path can be", path);
        errno = ENAMETOOLONG;
        return -1;
    }
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &SEND_PATIENCE, sizeof SEND_PATIENCE);
    if (connect(fd, (const struct sockaddr *)&address, sizeof address) != 0) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

static bool transmit(int socket, const struct msghdr *message, size_t size)
{
    ssize_t sent;
    do
        sent = sendmsg(socket, message, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)size;
}

bool connection_send(int socket, const struct nvshare_report *report)
{
    struct iovec part = { .iov_base = (void *)report, .iov_len = sizeof *report };
    return transmit(socket, &(struct msghdr){ .msg_iov = &part, .msg_iovlen = 1 }, sizeof *report);
}

bool connection_pass(int socket, const struct nvshare_report *report, int descriptor)
{
    struct iovec part = { .iov_base = (void *)report, .iov_len = sizeof *report };
    union { struct cmsghdr head; char space[CMSG_SPACE(sizeof(int))]; } control = { .space = { 0 } };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
                              .msg_controllen = sizeof control.space };
    control.head = (struct cmsghdr){ .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS,
                                     .cmsg_len = CMSG_LEN(sizeof(int)) };
    memcpy(CMSG_DATA(&control.head), &descriptor, sizeof descriptor);
    return transmit(socket, &message, sizeof *report);
}

void descriptors_close(struct descriptors *descriptors)
{
    while (descriptors->count > 0)
        close(descriptors->fd[--descriptors->count]);
}

/* As many as found a place in this process; it was the kernel that closed the others. */
static void unpack(struct msghdr *message, struct descriptors *with)
{
    for (struct cmsghdr *head = CMSG_FIRSTHDR(message); head != NULL;
         head = CMSG_NXTHDR(message, head)) {
        if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS)
            continue;
        with->count = (unsigned)((head->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(with->fd, CMSG_DATA(head), with->count * sizeof(int));
    }
}

static ssize_t receive(int socket, char *packet, size_t size, struct descriptors *with)
{
    struct iovec part = { .iov_base = packet, .iov_len = size };
    union { struct cmsghdr head; char space[CMSG_SPACE(DESCRIPTORS_MOST * sizeof(int))]; } control;
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
                              .msg_controllen = sizeof control.space };
    struct descriptors came = { .count = 0 };
    ssize_t length = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (length >= 0)
        unpack(&message, &came);
    if (with == NULL)
        descriptors_close(&came);
    else
        *with = came;
    return length;
}

int connection_receive(int socket, struct nvshare_order *order, struct descriptors *with,
                       int timeout_ms)
{
    struct pollfd ready = { .fd = socket, .events = POLLIN };
    int count = poll(&ready, 1, timeout_ms);
    if (with != NULL)
        with->count = 0;
    if (count == 0 || (count < 0 && errno == EINTR))
        return 0;
    char extra[sizeof *order + 1];  /* a longer packet shows as longer, not as cut */
    ssize_t length = receive(socket, extra, sizeof extra, with);
    if (length < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (length != (ssize_t)sizeof *order) {
        if (length > 0)
            complain("nvshared sent a record of %zd bytes instead of %zu; leaving it",
                     length, sizeof *order);
        return -1;
    }
    memcpy(order, extra, sizeof *order);
    if (order->version != NVSHARE_PROTOCOL_VERSION && order->type != NVSHARE_REFUSED) {
        complain("nvshared speaks protocol %u, this library %u; leaving it",
                 order->version, NVSHARE_PROTOCOL_VERSION);
        return -1;
    }
    return 1;
}

bool connection_next(int socket, unsigned type, struct nvshare_order *order,
                     struct descriptors *with)
{
    struct nvshare_order next;
    return recv(socket, &next, sizeof next, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT)
               == (ssize_t)sizeof next
           && next.type == type && connection_receive(socket, order, with, 0) == 1;
}

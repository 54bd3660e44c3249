/* SPDX-License-Identifier: Apache-2.0 */
#include "gate/connection.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "driver/forked.h"
#include "driver/log.h"
#include "driver/own_file.h"
#include "driver/setting.h"
#include "nvshare/protocol.h"

/* A daemon that does not read for this long counts as gone. */
static const struct timeval SEND_PATIENCE = { .tv_sec = 2 };

static int new_socket(void)
{
    UNFORKED;
    return own_file_add(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
}

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
    int connection = new_socket(), fd = own_file_descriptor(connection);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &SEND_PATIENCE, sizeof SEND_PATIENCE);
    if (connect(fd, (const struct sockaddr *)&address, sizeof address) != 0) {
        own_file_close(connection);
        return -1;
    }
    return connection;
}

static bool transmit(int connection, const struct msghdr *message, size_t size)
{
    int socket = own_file_descriptor(connection);
    ssize_t sent;
    do
        sent = sendmsg(socket, message, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)size;
}

bool connection_send(int connection, const struct nvshare_report *report)
{
    struct iovec part = { .iov_base = (void *)report, .iov_len = sizeof *report };
    return transmit(connection, &(struct msghdr){ .msg_iov = &part, .msg_iovlen = 1 }, sizeof *report);
}

/* The descriptor that came with a packet, or -1. */
static int unpack(struct msghdr *message)
{
    int descriptor = -1;
    struct cmsghdr *head = CMSG_FIRSTHDR(message);
    if (head != NULL && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS)
        memcpy(&descriptor, CMSG_DATA(head), sizeof descriptor);
    return descriptor;
}

/* The control buffer holds one descriptor; the kernel closes further ones. */
static ssize_t receive(int connection, char *packet, size_t size, int *descriptor)
{
    struct iovec part = { .iov_base = packet, .iov_len = size };
    union { struct cmsghdr head; char space[CMSG_LEN(sizeof(int))]; } control;
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
                              .msg_controllen = sizeof control.space };
    UNFORKED;
    ssize_t length = recvmsg(own_file_descriptor(connection), &message,
                             MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    *descriptor = own_file_add(length >= 0 ? unpack(&message) : -1);
    return length;
}

int connection_receive(int connection, struct nvshare_order *order, int *descriptor,
                       int timeout_ms)
{
    struct pollfd ready = { .fd = own_file_descriptor(connection), .events = POLLIN };
    if (descriptor != NULL)
        *descriptor = -1;
    if (ready.fd < 0)
        return -1;
    int count = poll(&ready, 1, timeout_ms);
    if (count == 0 || (count < 0 && errno == EINTR))
        return 0;
    char extra[sizeof *order + 1];  /* so that a longer packet is seen to be longer */
    int came;
    ssize_t length = receive(connection, extra, sizeof extra, &came);
    if (descriptor != NULL)
        *descriptor = came;
    else
        own_file_close(came);
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

bool connection_next(int connection, unsigned type, struct nvshare_order *order)
{
    struct nvshare_order next;
    return recv(own_file_descriptor(connection), &next, sizeof next,
                MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT) == (ssize_t)sizeof next
           && next.type == type && connection_receive(connection, order, NULL, 0) == 1;
}

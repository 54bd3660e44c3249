/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/own_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>

#include "driver/forked.h"

#define FILES_MOST 512               /* suffices for three sockets of each GPU, and IPC peers */

static struct own_file {
    _Atomic bool taken, open;
    int descriptor;
    struct file_identity identity;
} files[FILES_MOST];

static bool is_ours(const struct own_file *file)
{
    struct file_identity now;
    return file->open && file_identify(file->descriptor, &now)
           && file_identity_equal(&now, &file->identity);
}

int own_file_add(int descriptor)
{
    if (descriptor < 0)
        return -1;
    for (int handle = 0; handle < FILES_MOST; handle++)
        if (!atomic_exchange(&files[handle].taken, true)) {
            own_file_replace(handle, descriptor);
            if (files[handle].open)
                return handle;
            files[handle].taken = false;       /* no number above stderr was free */
            errno = EMFILE;
            return -1;
        }
    close(descriptor);
    errno = EMFILE;
    return -1;
}

void own_file_replace(int handle, int descriptor)
{
    struct own_file *file = &files[handle];
    if (descriptor >= 0 && descriptor <= STDERR_FILENO) {
        int above = fcntl(descriptor, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
        close(descriptor);
        descriptor = above;
    }
    file->open = false;
    file->descriptor = descriptor;
    file->open = file_identify(descriptor, &file->identity);
}

int own_file_descriptor(int handle)
{
    if (handle >= 0 && is_ours(&files[handle]))
        return files[handle].descriptor;
    errno = EBADF;
    return -1;
}

int own_file_socket(int flags)
{
    UNFORKED;
    return own_file_add(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0));
}

ssize_t own_file_receive(int handle, void *packet, size_t size, int *file)
{
    struct iovec part = { packet, size };
    /* Space for one descriptor: the kernel closes any others that arrive with the packet. */
    union { struct cmsghdr head; char space[CMSG_LEN(sizeof(int))]; } control;
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
                              .msg_controllen = sizeof control.space };
    int descriptor = -1;
    UNFORKED;
    ssize_t length = recvmsg(own_file_descriptor(handle), &message,
                             MSG_DONTWAIT | MSG_CMSG_CLOEXEC | MSG_TRUNC);
    const struct cmsghdr *head = length < 0 ? NULL : CMSG_FIRSTHDR(&message);
    if (head != NULL && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS)
        memcpy(&descriptor, CMSG_DATA(head), sizeof descriptor);
    if (descriptor >= 0 && (message.msg_flags & MSG_CTRUNC) != 0) {
        close(descriptor);
        descriptor = -1;
    }
    *file = own_file_add(descriptor);
    return length;
}

static void close_file(struct own_file *file)
{
    if (is_ours(file))
        close(file->descriptor);
    file->open = false;
    file->taken = false;
}

/* UNFORKED because fork() copies descriptors before memory: a child could get a descriptor that
 * its `files` no longer lists. */
void own_file_close(int handle)
{
    int error = errno;
    if (handle >= 0) {
        UNFORKED;
        close_file(&files[handle]);
    }
    errno = error;
}

void own_file_left(void *unused, uint64_t handle)
{
    (void)unused;
    own_file_close((int)handle);
}

void own_files_close_all(void)
{
    for (int handle = 0; handle < FILES_MOST; handle++)
        close_file(&files[handle]);
}

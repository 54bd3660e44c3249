/* SPDX-License-Identifier: Apache-2.0 */
/* The library's file descriptors. A program may close a descriptor or put another file at its
 * number, so each use first checks that the file is still the library's. No descriptor is 0, 1 or
 * 2. A forked child closes all of them. Descriptors must be created within UNFORKED (forked.h). */
#pragma once

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

/* Identifies an open file. */
struct file_identity {
    dev_t device;
    ino_t inode;
    mode_t mode;
};

/* False: no file is open at `descriptor`. */
static inline bool file_identify(int descriptor, struct file_identity *identity)
{
    struct stat status;              /* stat() is not exported under this name before glibc 2.33 */
    int error = errno;
    bool open = syscall(SYS_fstat, descriptor, &status) == 0;
    errno = error;
    if (open)
        *identity = (struct file_identity){ status.st_dev, status.st_ino, status.st_mode };
    return open;
}

static inline bool file_identity_equal(const struct file_identity *one,
                                       const struct file_identity *other)
{
    return one->device == other->device && one->inode == other->inode
           && (one->mode & S_IFMT) == (other->mode & S_IFMT);
}

/* Returns a handle of `descriptor`. On failure closes `descriptor`, returns -1. -1 yields -1. */
int own_file_add(int descriptor);
/* Gives a handle another descriptor. Leaves the old number open: the program may be using it. */
void own_file_replace(int handle, int descriptor);
/* The descriptor; or -1 with EBADF if the program has closed it or put another file there. */
int own_file_descriptor(int handle);
/* Creates a SOCK_SEQPACKET socket; `flags` as for socket(). A handle; or -1 and errno. */
int own_file_socket(int flags);
/* As recv() with MSG_DONTWAIT | MSG_TRUNC. *file: a handle of the descriptor received; or -1. */
ssize_t own_file_receive(int handle, void *packet, size_t size, int *file);
/* Closes the descriptor if it is still the library's, and frees the handle; -1 is ignored. */
void own_file_close(int handle);
/* For UNLESS_LEFT() (leave.h): closes `handle`. */
void own_file_left(void *unused, uint64_t handle);
void own_files_close_all(void);      /* called in a forked child */

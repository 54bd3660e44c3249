/* SPDX-License-Identifier: Apache-2.0 */
/* Identifies the open file behind a descriptor. */
#pragma once

#include <errno.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

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

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A disk that hangs, fails or shortens requests: preloaded before libnvshare.so to intercept the
 * library's requests. Files in the folder NVSHARE_TEST_DISK select the fault: while "pread" or "pwrite"
 * exists, calls of that name do not return; "short" halves each request; "fails" makes each write
 * fail with EIO. A directory "hangs" appears when a request does not return.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

static const char *in_folder(char path[512], const char *name)
{
    snprintf(path, 512, "%s/%s", getenv("NVSHARE_TEST_DISK"), name);
    return path;
}

static int there(const char *name)
{
    char path[512];
    return access(in_folder(path, name), F_OK) == 0;
}

static size_t admit(const char *name, size_t size)
{
    char path[512];
    while (there(name)) {
        mkdir(in_folder(path, "hangs"), 0700);
        usleep(1000);
    }
    return there("short") && size > 4096 ? size / 2 / 4096 * 4096 : size;
}

ssize_t pread(int file, void *into, size_t size, off_t at)
{
    return syscall(SYS_pread64, file, into, admit("pread", size), at);
}

ssize_t pwrite(int file, const void *from, size_t size, off_t at)
{
    if (there("fails")) {
        errno = EIO;
        return -1;
    }
    return syscall(SYS_pwrite64, file, from, admit("pwrite", size), at);
}

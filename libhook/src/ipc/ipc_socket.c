/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two sockets on which a process shares its memory. One is abstract: it leaves no file behind,
 * but is visible only in the same network namespace. Containers that share the IPC namespace have
 * only /dev/shm in common; the other socket is a file there.
 *
 * The process removes the file at its end. The file of a killed process is removed by the next
 * process that has the right to: connecting to it is refused. A socket that is not listening yet
 * refuses, too, so only old files are removed.
 */
#include "ipc/ipc_socket.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "driver/forked.h"
#include "driver/log.h"
#include "driver/own_file.h"

#define FOLDER "/dev/shm/"
#define PREFIX "nvshare-"
#define FORMAT "%s" PREFIX "%016llx%016llx"
#define OLD_S 60

static char file[sizeof ((struct sockaddr_un *)NULL)->sun_path]; /* of this process */
static pid_t maker;

unsigned ipc_socket(enum ipc_place place, const uint64_t name[2], struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){ .sun_family = AF_UNIX };
    bool abstract = place == IPC_ABSTRACT;
    char *path = address->sun_path + abstract;
    int length = snprintf(path, sizeof address->sun_path - 1, FORMAT, abstract ? "" : FOLDER,
                          (unsigned long long)name[0], (unsigned long long)name[1]);
    /* The length of a path includes its terminating zero, that of an abstract name does not. */
    return (unsigned)(path - (char *)address) + (unsigned)length + !abstract;
}

static bool is_old(const char *path)
{
    struct stat status;              /* stat() is not exported under this name before glibc 2.33 */
    return syscall(SYS_newfstatat, AT_FDCWD, path, &status, 0) == 0
        && time(NULL) - status.st_mtime > OLD_S;
}

int ipc_socket_new(int flags)
{
    UNFORKED;
    return own_file_add(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0));
}

static void remove_if_dead(const char *name)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    int length = snprintf(address.sun_path, sizeof address.sun_path, FOLDER "%s", name);
    if ((size_t)length >= sizeof address.sun_path || !is_old(address.sun_path))
        return;
    int to = ipc_socket_new(SOCK_NONBLOCK);
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
        /* A file that is not a socket refuses connections, too. */
        if (entry->d_type == DT_SOCK && strncmp(entry->d_name, PREFIX, sizeof PREFIX - 1) == 0)
            remove_if_dead(entry->d_name);
    if (folder != NULL)
        closedir(folder);
}

static void at_exit(void)
{
    if (maker == getpid())           /* not in a forked child */
        unlink(file);
}

static void remove_at_exit(const struct sockaddr_un *bound)
{
    static bool registered;
    memcpy(file, bound->sun_path, sizeof file);
    maker = getpid();
    registered = registered || atexit(at_exit) == 0;
}

int ipc_socket_listen(enum ipc_place place, const uint64_t name[2])
{
    struct sockaddr_un address;
    unsigned length = ipc_socket(place, name, &address);
    int listener = ipc_socket_new(SOCK_NONBLOCK), descriptor = own_file_descriptor(listener);
    if (descriptor >= 0 && bind(descriptor, (struct sockaddr *)&address, length) == 0
        && listen(descriptor, SOMAXCONN) == 0) {
        if (place == IPC_IN_FILES) {
            remove_at_exit(&address);
            remove_dead();
        }
        return listener;
    }
    debug("no socket to share memory at with other processes: %s", error_text(errno));
    own_file_close(listener);
    return -1;
}

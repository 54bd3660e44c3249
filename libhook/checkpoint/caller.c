/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "caller.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77              /* Linux 6.5; the headers may be older than the kernel */
#endif

/* The caller's uid may be this program's own, or that of the owner of the socket's file: systemd
 * gives the file to the user that the daemon runs as. */
static bool is_uid_allowed(int descriptor, uid_t uid)
{
    struct sockaddr_un address = { 0 };
    socklen_t length = sizeof address - 1;       /* so that the path ends with a zero byte */
    struct stat file;
    if (uid == geteuid())
        return true;
    return getsockname(descriptor, (struct sockaddr *)&address, &length) == 0
           && address.sun_path[0] == '/' && stat(address.sun_path, &file) == 0
           && S_ISSOCK(file.st_mode) && file.st_uid == uid;
}

/* Whether a name in /proc/PID leads to the same object for this process and for the caller. */
static bool is_same(pid_t pid, const char *name)
{
    char path[64];
    struct stat own, others;
    snprintf(path, sizeof path, "/proc/self/%s", name);
    if (stat(path, &own) != 0)
        return false;
    snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    return stat(path, &others) == 0 && own.st_dev == others.st_dev && own.st_ino == others.st_ino;
}

/* When a process started, in clock ticks since the boot; 0: it has ended. */
static unsigned long long started(pid_t pid)
{
    char path[32], text[1024];
    unsigned long long ticks = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    size_t count = file == NULL ? 0 : fread(text, 1, sizeof text - 1, file);
    if (file != NULL)
        fclose(file);
    text[count] = '\0';
    /* Field 22. The name, field 2, may contain blanks and parentheses. */
    const char *rest = strrchr(text, ')');
    for (int field = 2; rest != NULL && field < 22; field++)
        rest = strchr(rest + 1, ' ');
    return rest != NULL && sscanf(rest, "%llu", &ticks) == 1 ? ticks : 0;
}

/* Whether the process that connected still has this number, so that /proc/PID was about it. */
static bool is_still(int descriptor, pid_t pid)
{
    int pidfd = -1;
    socklen_t size = sizeof pidfd;
    if (getsockopt(descriptor, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &size) == 0) {
        struct pollfd end = { .fd = pidfd, .events = POLLIN };
        int ended = poll(&end, 1, 0);
        close(pidfd);
        return ended == 0;
    }
    if (errno != ENOPROTOOPT)
        return false;                /* the process has ended */
    /* Older kernels: a process that got the number since then is younger than this program. */
    unsigned long long began = started(pid);
    return pid != getpid() && began != 0 && began <= started(getpid());
}

const char *caller_refusal(int descriptor, char *words, size_t size)
{
    struct ucred caller;
    socklen_t length = sizeof caller;
    const char *why = NULL;
    if (getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &caller, &length) != 0) {
        if (errno == ENOTSOCK)
            return NULL;
        snprintf(words, size, "a caller of unknown identity: %s", strerror(errno));
        return words;
    }
    if (caller.pid > 0 && caller.pid == getppid() && caller.uid == geteuid())
        return NULL;                 /* it has started this program, with the rights that it has */
    bool is_near = caller.pid > 0 && is_same(caller.pid, "ns/pid") && is_same(caller.pid, "ns/user");
    bool has_our_root = is_near && is_same(caller.pid, "root/");
    if (!is_uid_allowed(descriptor, caller.uid))
        why = "this is not the user of nvshared";
    else if (caller.pid > 0 && !is_still(descriptor, caller.pid))    /* after /proc was read */
        why = "it has ended";
    else if (!is_near)
        why = "it is in other namespaces, as in a container";
    else if (!has_our_root)
        why = "its root directory is another one, as in a container";
    if (why == NULL)
        return NULL;
    snprintf(words, size, "process %d of uid %u: %s", (int)caller.pid, (unsigned)caller.uid, why);
    return words;
}

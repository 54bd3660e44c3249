/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded into CRIU: kills it, and its parent if NVSHARE_TEST_PARENT is set, before its
 * NVSHARE_TEST_PTRACE-th call of ptrace(), or before it writes NVSHARE_TEST_LINE to its log. Lets it
 * read the limits of other users' processes where root lacks CAP_SYS_RESOURCE. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

static void end(void)
{
    if (getenv("NVSHARE_TEST_PARENT") != NULL)
        kill(getppid(), SIGKILL);
    kill(getpid(), SIGKILL);
}

long ptrace(int request, ...)
{
    static long calls;
    va_list list;
    va_start(list, request);
    pid_t pid = va_arg(list, pid_t);
    void *address = va_arg(list, void *), *data = va_arg(list, void *);
    va_end(list);
    const char *last = getenv("NVSHARE_TEST_PTRACE");
    if (last != NULL && ++calls == atol(last))
        end();
    long (*real)(int, ...) = (long (*)(int, ...))dlsym(RTLD_NEXT, "ptrace");
    return real(request, pid, address, data);
}

ssize_t write(int file, const void *data, size_t size)
{
    const char *line = getenv("NVSHARE_TEST_LINE");
    if (line != NULL && memmem(data, size, line, strlen(line)) != NULL)
        end();
    ssize_t (*real)(int, const void *, size_t) =
        (ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    return real(file, data, size);
}

static const char *const NAMES[] = {
    [RLIMIT_CPU] = "Max cpu time", [RLIMIT_FSIZE] = "Max file size",
    [RLIMIT_DATA] = "Max data size", [RLIMIT_STACK] = "Max stack size",
    [RLIMIT_CORE] = "Max core file size", [RLIMIT_RSS] = "Max resident set",
    [RLIMIT_NPROC] = "Max processes", [RLIMIT_NOFILE] = "Max open files",
    [RLIMIT_MEMLOCK] = "Max locked memory", [RLIMIT_AS] = "Max address space",
    [RLIMIT_LOCKS] = "Max file locks", [RLIMIT_SIGPENDING] = "Max pending signals",
    [RLIMIT_MSGQUEUE] = "Max msgqueue size", [RLIMIT_NICE] = "Max nice priority",
    [RLIMIT_RTPRIO] = "Max realtime priority", [RLIMIT_RTTIME] = "Max realtime timeout",
};

static rlim_t value(const char *text)
{
    return strcmp(text, "unlimited") == 0 ? RLIM_INFINITY : strtoull(text, NULL, 10);
}

/* Reads a limit of a process that is not root's from /proc. Returns 0; -1: it is not there. */
static long read_limit(pid_t pid, unsigned resource, struct rlimit64 *limit)
{
    char path[64], line[256], soft[32], hard[32];
    long result = -1;
    snprintf(path, sizeof path, "/proc/%d/limits", (int)pid);
    FILE *file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, NAMES[resource], strlen(NAMES[resource])) == 0
            && sscanf(line + 25, "%31s %31s", soft, hard) == 2) {
            limit->rlim_cur = value(soft);
            limit->rlim_max = value(hard);
            result = 0;
        }
    if (file != NULL)
        fclose(file);
    return result;
}

/* CRIU calls prlimit64(2) by syscall(). */
long syscall(long number, ...)
{
    long words[6];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++)
        words[i] = va_arg(list, long);
    va_end(list);
    long (*real)(long, ...) = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    long result = real(number, words[0], words[1], words[2], words[3], words[4], words[5]);
    if (number != SYS_prlimit64 || result == 0 || errno != EPERM || words[2] != 0
        || words[1] >= (long)(sizeof NAMES / sizeof *NAMES))
        return result;
    return read_limit((pid_t)words[0], (unsigned)words[1], (struct rlimit64 *)words[3]);
}

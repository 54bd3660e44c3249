/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded into CRIU: kills it, and its parent if NVSHARE_TEST_PARENT is set, before its
 * NVSHARE_TEST_PTRACE-th call of ptrace(), before it writes NVSHARE_TEST_LINE to its log, or, if
 * NVSHARE_TEST_READING is set, once a restored process reads its memory, which it stops. Lets it
 * read the limits of other users' processes where root lacks CAP_SYS_RESOURCE. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
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

/* Runs the process that CRIU has begun to restore in short steps until it has CRIU's memory no longer,
 * stops it there, as if its own memory were large, and kills CRIU. */
static void *end_while_read(void *root)
{
    pid_t process = (pid_t)(intptr_t)root;
    char path[64], words[16], own[4096] = "", its[4096] = "";
    ssize_t length = 1;
    readlink("/proc/self/exe", own, sizeof own - 1);
    for (bool begun = false; !begun || (length > 0 && strcmp(own, its) == 0);) {
        kill(process, SIGCONT);
        sched_yield();
        kill(process, SIGSTOP);
        snprintf(path, sizeof path, "/proc/%d/cmdline", (int)process);
        int file = open(path, O_RDONLY | O_CLOEXEC);
        length = file < 0 ? 0 : read(file, words, sizeof words);
        close(file);
        snprintf(path, sizeof path, "/proc/%d/exe", (int)process);
        memset(its, 0, sizeof its);
        readlink(path, its, sizeof its - 1);
        begun |= length > 0 && strcmp(own, its) == 0;
    }
    end();
    return NULL;
}

ssize_t write(int file, const void *data, size_t size)
{
    static const char FORKING[] = "Forking task with ";
    const char *forking = getenv("NVSHARE_TEST_READING") == NULL
        ? NULL : memmem(data, size, FORKING, strlen(FORKING));
    pthread_t thread;
    if (forking != NULL)
        pthread_create(&thread, NULL, end_while_read,
                       (void *)(intptr_t)atol(forking + strlen(FORKING)));
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

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * resources CASE: holds memory on the card while it closes or replaces stderr or descriptors, or
 * changes its threads or permitted system calls. Exit code 0: every byte was right.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "holder.h"

#define OWN_MOST 64

/* Like a real-time program that binds its main thread to one processor. */
static void start_threads(void)
{
    CUipcMemHandle handle;
    cpu_set_t first;
    int processor = 0;
    must(sched_getaffinity(0, sizeof first, &first) == 0, "its processors");
    while (!CPU_ISSET(processor, &first))
        processor++;
    CPU_ZERO(&first);
    CPU_SET(processor, &first);
    must(sched_setaffinity(0, sizeof first, &first) == 0, "one processor");
    must(sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){ .sched_priority = 1 }) == 0,
         "being urgent");
    begin();
    must(cuIpcGetMemHandle(&handle, memory) == 0, "sharing memory");
    pause_here("started");
    check();
}

/* From now on the kernel refuses this system call to each thread of the program. */
static void refuse(unsigned call)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { sizeof filter / sizeof filter[0], filter };
    must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no new privileges");
    must(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0,
         "a sandbox");
    must(syscall(call, 0, 0, 0, 0, 0) == -1 && errno == EPERM, "being refused");
}

static void enter_sandbox(unsigned before, unsigned after)
{
    if (before != 0)
        refuse(before);
    begin();
    if (after != 0)
        refuse(after);
    pause_here("away");
    check();
}

/* Like a daemon that has closed its standard streams. */
static void close_streams(void)
{
    int in = dup2(STDIN_FILENO, 100), out = dup2(STDOUT_FILENO, 101), taken = 0;
    for (int stream = 0; stream < 3; stream++)
        close(stream);
    begin();
    for (int stream = 0; stream < 3; stream++)
        taken += is_socket_of_library(stream);
    must(dup2(in, STDIN_FILENO) == 0 && dup2(out, STDOUT_FILENO) == 1, "its streams");
    must(taken == 0, "a socket of the library was a standard stream");
    pause_here("away");
    check();
}

static void start_small_threads(void)
{
    pthread_attr_t small;
    pthread_attr_init(&small);
    must(pthread_attr_setstacksize(&small, PTHREAD_STACK_MIN) == 0
         && pthread_setattr_default_np(&small) == 0, "small stacks");
    begin();
    pause_here("away");
    check();
}

/* The default stack size exceeds the address space, so no thread can be started. */
static void start_no_thread(void)
{
    pthread_attr_t usual, huge;
    pthread_getattr_default_np(&usual);
    pthread_attr_init(&huge);
    must(pthread_attr_setstacksize(&huge, (size_t)1 << 46) == 0
         && pthread_setattr_default_np(&huge) == 0, "huge stacks");
    must(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0, "a context");
    pthread_setattr_default_np(&usual);
    begin();
    check();
    must(cuMemFree_v2(memory) == 0, "freeing");
}

static int find_descriptors(int *found)
{
    int count = 0;
    DIR *all = opendir("/proc/self/fd");
    for (struct dirent *entry; (entry = readdir(all)) != NULL;)
        if (is_socket_of_library(atoi(entry->d_name)))
            found[count++] = atoi(entry->d_name);
    closedir(all);
    return count;
}

static int data_file(void)
{
    int file = open("data", O_RDWR | O_CREAT | O_TRUNC, 0600);
    must(file >= 0, "a file");
    return file;
}

static void must_be_untouched(int file)
{
    struct stat status;
    must(fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_size == 0,
         "its own file was written to, or closed");
    must(lseek(file, 0, SEEK_CUR) == 0, "its own file was read");
}

static void take_descriptors(void)
{
    CUipcMemHandle handle;
    CUdeviceptr shared;
    int own[OWN_MOST], file = data_file();
    begin();
    must(cuMemAlloc_v2(&shared, 1 << 20) == 0 && cuIpcGetMemHandle(&handle, shared) == 0,
         "sharing memory");
    int count = find_descriptors(own);
    must(count > 2, "the library has no descriptors");
    for (int i = 0; i < count; i++)
        must(dup2(file, own[i]) == own[i], "a number of its own");
    pause_here("away");
    check();
    must(cuIpcGetMemHandle(&handle, shared) == 0, "sharing memory again");
    must(cuMemFree_v2(memory) == 0, "freeing");
    for (int i = 0; i < count; i++)
        must_be_untouched(own[i]);
    must(close(file) == 0, "its own file is closed");
}

static void take_stderr(void)
{
    close(STDERR_FILENO);
    must(data_file() == STDERR_FILENO, "the number 2");
    begin();
    check();
    must_be_untouched(STDERR_FILENO);
}

/* Redirects stderr to a pipe, as Jupyter's kernels do. */
static void redirect_stderr(void)
{
    char text[4096];
    int ends[2];
    must(pipe(ends) == 0 && dup2(ends[1], STDERR_FILENO) == STDERR_FILENO, "redirecting stderr");
    begin();
    check();
    ssize_t length = read(ends[0], text, sizeof text - 1);
    text[length > 0 ? length : 0] = '\0';
    must(strstr(text, "libnvshare[") != NULL, "a line in the pipe");
}

static void plain(void)
{
    begin();
    check();
}

int main(int count_of_arguments, char **arguments)
{
    const char *what = count_of_arguments > 1 ? arguments[1] : "";
    WHEN("threads", start_threads());
    WHEN("sandbox", enter_sandbox(0, SYS_membarrier));
    WHEN("sandbox-without-ppoll", enter_sandbox(SYS_ppoll, 0));
    WHEN("closed-streams", close_streams());
    WHEN("small-stacks", start_small_threads());
    WHEN("no-thread", start_no_thread());
    WHEN("takes-descriptors", take_descriptors());
    WHEN("takes-stderr", take_stderr());
    WHEN("redirects-stderr", redirect_stderr());
    WHEN("plain", plain());
    must(0, "what is this to do");
    return 0;
}

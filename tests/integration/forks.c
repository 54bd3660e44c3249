/* SPDX-License-Identifier: Apache-2.0 */
/*
 * forks SECONDS: two processes fork children while other threads allocate, free, create and destroy
 * contexts, capture, and share memory between the processes. The two take turns on the card.
 *
 * Each child calls the driver, and prints "child RESULT RESULT..." if the results differ from the
 * last child's. "inherited KIND" reports an inherited descriptor: "socket" of the library, "shared"
 * of memory that a simulated card exports. Exit code 0: no child hung.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>

#include "holder.h"

#define CALLS 20
#define STREAM_CAPTURE_UNSUPPORTED 900
#define PATIENCE_S 60

static _Atomic int over, opened;     /* opened: the other process has opened shared memory */
static CUipcMemHandle handle_of_other;

/* NULL: a descriptor of another kind. Files of a simulated card's exports have a read lock. */
static const char *kind_of(int descriptor)
{
    char path[64], text[4096];
    if (is_socket_of_library(descriptor))
        return "socket";
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", descriptor);
    int file = open(path, O_RDONLY);
    ssize_t length = file < 0 ? 0 : read(file, text, sizeof text - 1);
    text[length < 0 ? 0 : length] = '\0';
    close(file);
    return strstr(text, "FLOCK") != NULL && strstr(text, "READ") != NULL ? "shared" : NULL;
}

static void look_at_descriptors(void)
{
    DIR *all = opendir("/proc/self/fd");
    for (struct dirent *entry; (entry = readdir(all)) != NULL;) {
        const char *kind = kind_of(atoi(entry->d_name));
        if (kind != NULL)
            dprintf(STDOUT_FILENO, "inherited %s\n", kind);
    }
    closedir(all);
}

static void call_driver(int results[CALLS])
{
    int n = 0;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUcontext other = NULL;
    CUstream stream = NULL;
    size_t unused, total;
    char bytes[8];
    CUipcMemHandle handle = handle_of_other;
    CUdeviceptr address = memory;
    results[n++] = cuDevicePrimaryCtxRetain(&other, 0);
    results[n++] = cuCtxSetCurrent(context);
    results[n++] = cuMemAlloc_v2(&address, SIZE);
    results[n++] = cuMemFree_v2(memory);
    results[n++] = cuMemAllocAsync(&address, 4096, NULL);
    results[n++] = cuMemFreeAsync(memory, NULL);
    results[n++] = cuMemcpyDtoH_v2(bytes, memory, sizeof bytes);
    results[n++] = cuMemsetD32Async(memory, 1, 1, NULL);
    results[n++] = cuPointerGetAttribute(&address, 2, memory);
    results[n++] = cuMemGetInfo_v2(&unused, &total);
    results[n++] = cuIpcOpenMemHandle_v2(&address, handle, 1);
    results[n++] = cuIpcGetMemHandle(&handle, memory);
    results[n++] = cuIpcCloseMemHandle(memory);
    results[n++] = cuMemAddressReserve(&address, SIZE, 0, 0, 0);
    results[n++] = cuThreadExchangeStreamCaptureMode(&mode);
    results[n++] = cuStreamCreate(&stream, 1);
    results[n++] = cuCtxSynchronize();
    results[n++] = cuDevicePrimaryCtxRelease_v2(0);
    results[n++] = cuCtxCreate_v2(&other, 0, 0);
    results[n++] = cuInit(0);
    must(n == CALLS, "the number of calls");
}

static void be_child(int to)
{
    int results[CALLS];
    alarm(PATIENCE_S);
    look_at_descriptors();
    call_driver(results);
    _exit(write(to, results, sizeof results) == sizeof results ? 0 : 2);
}

static void fork_child(void)
{
    static int last[CALLS];
    int results[CALLS], ends[2], status;
    must(pipe(ends) == 0, "a pipe");
    pid_t child = fork();
    if (child == 0)
        be_child(ends[1]);
    close(ends[1]);
    must(child > 0 && read(ends[0], results, sizeof results) == sizeof results,
         "a child hangs or crashes");
    close(ends[0]);
    must(waitpid(child, &status, 0) == child && status == 0, "a child that ends well");
    if (memcmp(results, last, sizeof last) != 0) {
        fputs("child", stdout);
        for (int i = 0; i < CALLS; i++)
            printf(" %d", results[i]);
        puts("");
        fflush(stdout);
    }
    memcpy(last, results, sizeof last);
}

static void *allocate(void *argument)
{
    unsigned seed = (unsigned)(size_t)argument;
    must(cuCtxSetCurrent(context) == 0, "a context");
    while (!over) {
        CUdeviceptr address, ordered;
        size_t size = (size_t)1 << (9 + rand_r(&seed) % 14);
        must(cuMemAlloc_v2(&address, size) == 0, "allocating");
        must(cuMemsetD32Async(address, 7, size / 4, NULL) == 0, "filling");
        must(cuMemAllocAsync(&ordered, size, NULL) == 0 && cuMemFreeAsync(ordered, NULL) == 0,
             "allocating in order");
        must(cuMemFree_v2(address) == 0, "freeing");
    }
    return NULL;
}

static void *make_contexts(void *unused)
{
    int cards;
    (void)unused;
    must(cuDeviceGetCount(&cards) == 0, "counting cards");
    while (!over) {
        CUcontext other;
        CUdeviceptr address;
        must(cuCtxCreate_v2(&other, 0, 0) == 0 && cuMemAlloc_v2(&address, 1 << 20) == 0
             && cuCtxDestroy_v2(other) == 0, "a context of its own");
        must(cards == 1
             || (cuDevicePrimaryCtxRetain(&other, 1) == 0 && cuCtxSetCurrent(other) == 0
                 && cuMemAlloc_v2(&address, 1 << 20) == 0 && cuDevicePrimaryCtxRelease_v2(1) == 0),
             "another card's context");
    }
    return NULL;
}

static void *capture(void *unused)
{
    (void)unused;
    must(cuCtxSetCurrent(context) == 0, "a context");
    while (!over) {
        CUstream stream;
        CUgraph graph;
        must(cuStreamCreate(&stream, 1) == 0 && cuStreamBeginCapture_v2(stream, 2) == 0
             && cuStreamEndCapture(stream, &graph) == 0, "capturing");
    }
    return NULL;
}

/* Repeats a call while another thread's capture forbids the call. */
#define UNLESS_CAPTURING(call, what)                        \
    do {                                                    \
        int result;                                         \
        while ((result = call) == STREAM_CAPTURE_UNSUPPORTED) \
            sched_yield();                                  \
        must(result == 0, what);                            \
    } while (0)

static int handles[2];

static void *share(void *unused)
{
    (void)unused;
    must(cuCtxSetCurrent(context) == 0, "a context");
    while (!over) {
        CUipcMemHandle handle;
        CUdeviceptr address;
        char done;
        must(cuMemAlloc_v2(&address, 3 << 20) == 0, "allocating to share");
        UNLESS_CAPTURING(cuIpcGetMemHandle(&handle, address), "sharing");
        must(write(handles[1], &handle, sizeof handle) == sizeof handle
             && read(handles[0], &done, 1) == 1 && cuMemFree_v2(address) == 0, "being opened");
        opened |= done;
    }
    close(handles[1]);
    return NULL;
}

/* Imports memory in the other process, which forks as well. */
static void *import(void *unused)
{
    CUipcMemHandle handle;
    (void)unused;
    must(cuCtxSetCurrent(context) == 0, "a context");
    while (read(handles[0], &handle, sizeof handle) == sizeof handle) {
        CUdeviceptr address;
        handle_of_other = handle;
        /* The owner may be unable to share while its captures follow each other closely. */
        char done = cuIpcOpenMemHandle_v2(&address, handle, 1) == 0;
        if (done)
            UNLESS_CAPTURING(cuIpcCloseMemHandle(address), "closing");
        must(write(handles[1], &done, 1) == 1, "answering");
    }
    return NULL;
}

int main(int count, char **arguments)
{
    must(count == 2, "one argument: seconds");
    int seconds = atoi(arguments[1]), there[2], back[2];
    must(pipe(there) == 0 && pipe(back) == 0, "pipes");
    pid_t other = fork();
    handles[0] = other == 0 ? there[0] : back[0];
    handles[1] = other == 0 ? back[1] : there[1];
    close(other == 0 ? there[1] : there[0]);
    close(other == 0 ? back[0] : back[1]);
    begin();
    void *(*const work[])(void *) = { allocate, allocate, make_contexts, capture,
                                      other == 0 ? import : share };
    pthread_t threads[5];
    time_t end = time(NULL) + seconds;
    for (size_t i = 0; i < 5; i++)
        must(pthread_create(&threads[i], NULL, work[i], (void *)i) == 0, "a thread");
    int forks = 0;
    for (; time(NULL) < end || (other != 0 && !opened); forks++)
        fork_child();
    over = 1;
    for (size_t i = 0; i < 5; i++)
        must(pthread_join(threads[i], NULL) == 0, "joining");
    check();
    int status;
    must(other == 0 || (waitpid(other, &status, 0) == other && status == 0), "the other process");
    printf("%d forks\n", forks);
    return 0;
}

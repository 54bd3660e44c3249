/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls cuLaunchKernel of a driver that does nothing, in four alternating ways:
 *
 *   direct     the driver's function itself
 *   gate       the function as a preloaded program finds it, its gate open
 *   copy       cuMemcpyDtoDAsync of a large allocation to a small one, found in the same way: the
 *              library also looks up the bounds of both
 *   mutex      the predecessor's steps before each launch: lock a mutex, check
 *              that the program holds the GPU, record the activity, wake the
 *              thread that detects idleness by a broadcast, unlock
 *
 * each in a tight loop and paced, one launch every 50 us, on several threads.
 * Prints one JSON line per batch:
 *
 *   {"way": ..., "pace_us": 0 or 50, "threads": N, "ns": nanoseconds a launch}
 *
 * Tight: time of the whole batch, times the processors that worked on it, over
 * the number of launches: the processor time of a launch, with the waits of
 * threads for each other. Paced: the median over the launches of one batch,
 * each timed by two readings of the clock in all four ways.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../../libhook/src/driver/driver.h"

#define TIGHT_LAUNCHES 200000
#define PACED_LAUNCHES 400
#define PACE_NS 50000
#define MOST_THREADS 64

#define LARGE ((size_t)64 << 20)
#define SMALL ((size_t)3000)

typedef CUresult (*launch_function)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                                    unsigned, unsigned, CUstream, void **, void **);
typedef CUresult (*copy_function)(CUdeviceptr, CUdeviceptr, size_t, CUstream);

static struct {
    launch_function direct, hooked;
    copy_function copy;
    CUdeviceptr large, small;
    pthread_mutex_t lock;                /* protects the two flags, as in the predecessor */
    pthread_cond_t changed;
    bool own_gpu, did_work;
} state = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .own_gpu = true };

struct batch {
    const char *way;
    bool paced;
    pthread_barrier_t *start;
    double elapsed_ns;                   /* duration of this thread's batch */
    double paced_ns[PACED_LAUNCHES];
};

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static CUresult launch_mutex(CUfunction function, unsigned gx, unsigned gy, unsigned gz,
                             unsigned bx, unsigned by, unsigned bz, unsigned shared,
                             CUstream stream, void **parameters, void **extra)
{
    pthread_mutex_lock(&state.lock);
    while (!state.own_gpu)
        pthread_cond_wait(&state.changed, &state.lock);
    state.did_work = true;
    pthread_cond_broadcast(&state.changed);
    pthread_mutex_unlock(&state.lock);
    return state.direct(function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra);
}

/* The parameters of a launch are ignored. */
static CUresult launch_copy(CUfunction function, unsigned gx, unsigned gy, unsigned gz,
                            unsigned bx, unsigned by, unsigned bz, unsigned shared,
                            CUstream stream, void **parameters, void **extra)
{
    (void)function, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared;
    (void)parameters, (void)extra;
    return state.copy(state.small, state.large + LARGE / 2, SMALL, stream);
}

/* The predecessor's thread, which releases the GPU after five idle seconds. */
static void *watch_idleness(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&state.lock);
    for (;;) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 5;
        state.did_work = false;
        while (!state.did_work
               && pthread_cond_timedwait(&state.changed, &state.lock, &until) == 0)
            continue;
    }
    return NULL;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void *run_thread(void *argument)
{
    struct batch *batch = argument;
    launch_function launch = strcmp(batch->way, "direct") == 0 ? state.direct
        : strcmp(batch->way, "gate") == 0 ? state.hooked
        : strcmp(batch->way, "copy") == 0 ? launch_copy : launch_mutex;
    pthread_barrier_wait(batch->start);
    double began = now_ns();
    if (!batch->paced) {
        for (int i = 0; i < TIGHT_LAUNCHES; i++)
            launch(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    } else {
        for (int i = 0; i < PACED_LAUNCHES; i++) {
            double before;
            while ((before = now_ns()) < began + (double)i * PACE_NS)
                continue;                /* spins like a program that computes on the CPU */
            launch(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
            batch->paced_ns[i] = now_ns() - before;
        }
    }
    batch->elapsed_ns = now_ns() - began;
    return NULL;
}

static void run_batch(const char *way, bool paced, int threads)
{
    static struct batch batches[MOST_THREADS];
    static double all[MOST_THREADS * PACED_LAUNCHES];
    pthread_t ids[MOST_THREADS];
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, (unsigned)threads);
    for (int i = 0; i < threads; i++) {
        batches[i].way = way;
        batches[i].paced = paced;
        batches[i].start = &start;
        if (pthread_create(&ids[i], NULL, run_thread, &batches[i]) != 0) {
            fprintf(stderr, "launch: the system refused thread %d of %d\n", i + 1, threads);
            exit(1);
        }
    }
    double longest = 0;
    for (int i = 0; i < threads; i++) {
        pthread_join(ids[i], NULL);
        longest = batches[i].elapsed_ns > longest ? batches[i].elapsed_ns : longest;
        memcpy(&all[i * PACED_LAUNCHES], batches[i].paced_ns, sizeof batches[i].paced_ns);
    }
    pthread_barrier_destroy(&start);
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    double ns = longest * (double)(threads < cpus ? threads : cpus) / TIGHT_LAUNCHES / threads;
    if (paced) {
        size_t count = (size_t)threads * PACED_LAUNCHES;
        qsort(all, count, sizeof *all, ascending);
        ns = 0;
        for (size_t i = count / 4; i < count - count / 4; i++)
            ns += all[i] / (double)(count - 2 * (count / 4));
    }
    printf("{\"way\": \"%s\", \"pace_us\": %d, \"threads\": %d, \"ns\": %.2f}\n", way,
           paced ? PACE_NS / 1000 : 0, threads, ns);
}

static void *symbol(void *driver, const char *name)
{
    void *found = dlsym(driver, name);
    if (found == NULL) {
        fprintf(stderr, "launch: %s\n", dlerror());
        exit(1);
    }
    return found;
}

int main(int count, char **arguments)
{
    int rounds = count == 2 ? atoi(arguments[1]) : 0;
    if (rounds < 1) {
        fprintf(stderr, "usage: launch ROUNDS\n");
        return 2;
    }
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL) {
        fprintf(stderr, "launch: %s\n", dlerror());
        return 1;
    }
    CUcontext context;
    CUresult (*init)(unsigned) = (CUresult (*)(unsigned))symbol(driver, "cuInit");
    CUresult (*retain)(CUcontext *, CUdevice) =
        (CUresult (*)(CUcontext *, CUdevice))symbol(driver, "cuDevicePrimaryCtxRetain");
    CUresult (*set)(CUcontext) = (CUresult (*)(CUcontext))symbol(driver, "cuCtxSetCurrent");
    state.direct = (launch_function)symbol(driver, "null_launch");
    state.hooked = (launch_function)symbol(driver, "cuLaunchKernel");
    if (state.hooked == state.direct) {
        fprintf(stderr, "launch: cuLaunchKernel is the driver's own; preload libnvshare.so\n");
        return 1;
    }
    init(0);
    retain(&context, 0);
    set(context);
    /* Waits at the gate until the daemon opens the gate, which then stays open. */
    state.hooked(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    CUresult (*allocate)(CUdeviceptr *, size_t) =
        (CUresult (*)(CUdeviceptr *, size_t))symbol(driver, "cuMemAlloc_v2");
    state.copy = (copy_function)symbol(driver, "cuMemcpyDtoDAsync_v2");
    if (allocate(&state.large, LARGE) != CUDA_SUCCESS
        || allocate(&state.small, SMALL) != CUDA_SUCCESS
        || state.copy(state.small, state.large, SMALL, NULL) != CUDA_SUCCESS
        || state.copy(state.small, state.large, SMALL + 1, NULL) == CUDA_SUCCESS) {
        fprintf(stderr, "launch: the library allocates no memory, or copies beyond its end\n");
        return 1;
    }
    pthread_t watcher;
    if (pthread_create(&watcher, NULL, watch_idleness, NULL) != 0)
        return 1;
    static const char *const ways[] = {"direct", "gate", "copy", "mutex"};
    for (int round = 0; round < rounds; round++)
        for (int threads = 1; threads <= 4; threads += 3)
            for (int paced = 0; paced < 2; paced++)
                for (int i = 0; i < 4; i++)
                    run_batch(ways[(round + i) % 4], paced != 0, threads);
    return 0;
}

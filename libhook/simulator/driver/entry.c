/* SPDX-License-Identifier: Apache-2.0 */
/* Starts and ends the driver in a process, and checks each call. */
#define _GNU_SOURCE
#include "driver/entry.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "driver/captures.h"
#include "driver/context.h"
#include "driver/failure.h"
#include "shared/shared_state.h"

enum { BEFORE, RUNNING, ENDED, FORKED };

static _Atomic int life = BEFORE;
static __thread bool in_callback;
static __thread unsigned depth;        /* nested calls of entry points in this thread */
static __thread int cancel_before;     /* state of cancellation before the outermost call */
static _Atomic int inside;             /* threads inside an entry point */
static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;  /* held by cuInit */

/* In a forked child the driver has no threads and no connection to the GPU. */
static void forked(void)
{
    if (atomic_load(&life) != BEFORE)
        atomic_store(&life, FORKED);
}

/* At exit: later calls fail; threads of the driver may still run. */
static void ended(void)
{
    int running = RUNNING;
    atomic_compare_exchange_strong(&life, &running, ENDED);
}

/* Runs after ended(). The real driver frees its data then, and a thread inside a call crashes. */
__attribute__((destructor)) static void taken_apart(void)
{
    if (driver_ended() && atomic_load(&inside) > 0)
        raise(SIGSEGV);
}

pthread_t driver_thread(void *(*run)(void *), void *argument)
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);     /* signals go to the program */
    if (pthread_create(&thread, NULL, run, argument) != 0)
        abort();
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return thread;
}

static CUresult start(void)
{
    CUresult result = CUDA_SUCCESS;
    LOCKED(starting);
    if (atomic_load(&life) == BEFORE) {
        result = devices_start();
        if (result == CUDA_SUCCESS) {
            pthread_atfork(NULL, NULL, forked);
            atexit(ended);
            atomic_store(&life, RUNNING);
        }
    }
    return result;
}

bool driver_running(void)
{
    return atomic_load(&life) == RUNNING;
}

bool driver_ended(void)
{
    return atomic_load(&life) == ENDED;
}

/* Adds a line with the bytes of a part of a copy to the file that NVSHARE_SIM_COPIES names. */
static void log_copy(size_t size)
{
    const char *path = secure_getenv("NVSHARE_SIM_COPIES");
    int file = path == NULL ? -1 : open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0)
        return;
    dprintf(file, "%zu\n", size);
    close(file);
}

void wait_for_copy(int gpu, enum shared_direction direction, size_t size)
{
    uint64_t ends = shared_copy_ends(gpu, direction, size);
    struct timespec until = {.tv_sec = (time_t)(ends / 1000000000u),
                             .tv_nsec = (long)(ends % 1000000000u)};
    while (ends != 0 && driver_running()
           && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) != 0)
        continue;
    log_copy(size);
}

static CUresult not_running(int now, unsigned needs)
{
    FAIL_IF(now == ENDED, CUDA_ERROR_DEINITIALIZED);
    FAIL_IF(now == FORKED, CUDA_ERROR_NOT_INITIALIZED);
    return (needs & ENTRY_ANY) != 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

void entry_in_callback(bool running)
{
    in_callback = running;
}

static CUresult refusal(const char *name, unsigned needs)
{
    int now = atomic_load(&life);
    if (now != RUNNING) {
        CUresult result = not_running(now, needs);
        return result != CUDA_SUCCESS ? result : injected_failure(name);
    }
    FAIL_IF(in_callback && (needs & ENTRY_CALLBACK) == 0, CUDA_ERROR_NOT_PERMITTED);
    TRY(injected_failure(name));
    if ((needs & ENTRY_CONTEXT) != 0) {
        TRY(context_check(context_current()));
    }
    return (needs & ENTRY_UNSAFE) != 0 ? capture_prohibits() : CUDA_SUCCESS;
}

static void (*_Atomic subscribed)(const char *name);
static _Atomic unsigned subscriber_calls;   /* threads inside the subscriber, or about to call it */

/* Returns when no thread is inside the previous subscriber any more. */
void simulator_subscribe(void (*subscriber)(const char *name))
{
    atomic_store(&subscribed, subscriber);
    while (atomic_load(&subscriber_calls) > 0)
        nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
}

static void call_subscriber(const char *name)
{
    static __thread bool inside_subscriber;
    if (inside_subscriber || atomic_load(&subscribed) == NULL)
        return;
    inside_subscriber = true;
    atomic_fetch_add(&subscriber_calls, 1);
    void (*subscriber)(const char *name) = atomic_load(&subscribed);
    if (subscriber != NULL)
        subscriber(name);
    atomic_fetch_sub(&subscriber_calls, 1);
    inside_subscriber = false;
}

/* With driver 580 on an H100, queries of events and streams take no lock of the driver. */
static bool takes_lock(const char *name)
{
    return strncmp(name, "cuStreamQuery", strlen("cuStreamQuery")) != 0
        && strcmp(name, "cuEventQuery") != 0;
}

CUresult entry(const char *name, unsigned needs)
{
    if (depth == 0) {
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_before);
        if (driver_running())
            shared_call_begins(takes_lock(name));
    }
    depth++;
    atomic_fetch_add(&inside, 1);
    CUresult result = refusal(name, needs);
    if (result == CUDA_SUCCESS)
        call_subscriber(name);
    return result;
}

void entry_left(const CUresult *entered)
{
    (void)entered;
    atomic_fetch_sub(&inside, 1);
    if (--depth == 0) {
        shared_call_ends();
        pthread_setcancelstate(cancel_before, NULL);
    }
}

/* Whether a signal handler may run in this thread, as in all but the library's and the driver's. */
static bool takes_signals(void)
{
    sigset_t blocked;
    return pthread_sigmask(SIG_SETMASK, NULL, &blocked) == 0 && !sigismember(&blocked, SIGALRM);
}

unsigned entry_sleeps(void)
{
    unsigned before = takes_signals() ? depth : 0;
    if (before > 0) {
        atomic_fetch_sub(&inside, before);
        shared_call_ends();
        depth = 0;
        pthread_setcancelstate(cancel_before, NULL);
    }
    return before;
}

void entry_wakes(unsigned before)
{
    if (before == 0)
        return;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_before);
    if (driver_running())
        shared_call_begins(true);
    atomic_fetch_add(&inside, before);
    depth = before;
}

API(cuInit, unsigned int flags)
{
    ENTER(ENTRY_ANY);
    FAIL_IF(flags != 0, CUDA_ERROR_INVALID_VALUE);
    return start();
}

API(cuDriverGetVersion, int *version)
{
    FAIL_IF(version == NULL, CUDA_ERROR_INVALID_VALUE);
    *version = driver_cuda_version();
    return CUDA_SUCCESS;
}

API(cuGetErrorName, CUresult error, const char **name)
{
    FAIL_IF(driver_ended(), CUDA_ERROR_DEINITIALIZED);
    FAIL_IF(name == NULL, CUDA_ERROR_INVALID_VALUE);
    switch ((int)error) {
#define ERROR(code, text) case code: *name = #code; return CUDA_SUCCESS;
#include "driver/errors.def"
#undef ERROR
    }
    *name = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

API(cuGetErrorString, CUresult error, const char **string)
{
    FAIL_IF(driver_ended(), CUDA_ERROR_DEINITIALIZED);
    FAIL_IF(string == NULL, CUDA_ERROR_INVALID_VALUE);
    switch ((int)error) {
#define ERROR(code, text) case code: *string = text; return CUDA_SUCCESS;
#include "driver/errors.def"
#undef ERROR
    }
    *string = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

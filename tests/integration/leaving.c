/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leaving CASE jump|throw|cancel: a thread leaves a call while it waits in the library, by
 * siglongjmp() or an exception out of a signal handler (throwing.cc), or by cancellation. Then all
 * goes on: no lock stays held, the gate opens, the memory is as before. Prints what it did; "away"
 * and "over" are pauses, in which the test has the program's memory evicted and looks at its
 * descriptors. Exit code 0: all was right.
 *
 * The cases are those that driver/waits.def names, and copies, during which a thread is inside the
 * gate. The environment has the numbers of the processes that a case stops (DAEMON, OWNER).
 *
 * The program defines the C library's functions with which the library and the simulated driver
 * wait. So a wait lasts until the thread has left, whatever the load. Before a thread waits, the
 * test is told from where ("waits CASE ADDRESSES"), and says whether that is the wait in question.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>

#include "holder.h"

static const CUmemAccessDesc ACCESS = {
    { CU_MEM_LOCATION_TYPE_DEVICE, 0 }, CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
};

#define MIB ((size_t)1 << 20)
#define MUCH ((size_t)1 << 34)    /* more than the card has */
#define CALL(call) must((call) == 0, #call)

static int jumps, throws;            /* else the thread is cancelled */
_Bool leave_by_exception(void (*call)(void));
void throw_in_handler(int number);
static sem_t obstacle;               /* work in flight waits for it */
static _Atomic int left, returned, may_end, running;

/* A direct system call. No cancellation point. */
static long kernel(long number, long a, long b, long c, long d, long e, long f)
{
#if defined(__x86_64__)
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    __asm__ volatile("syscall" : "+a"(number) : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return number;
#else
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c, x3 __asm__("x3") = d, x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                     : "memory");
    return x0;
#endif
}

static long with_errno(long result)
{
    if (result >= 0 || result < -4095)
        return result;
    errno = (int)-result;
    return -1;
}

static void doze(void)
{
    const struct timespec time = { 0, 1000000 };
    kernel(SYS_nanosleep, (long)&time, 0, 0, 0, 0, 0);
}

#define FRAMES_MOST 40
enum answer { NONE, GO_ON, STAY, STAY_CANCELLED };

/* A thread whose waits the test is told of. */
struct watched {
    const char *name;                /* the case whose wait is meant */
    char addresses[FRAMES_MOST * 20];
    _Atomic int asks, answer, stays, released;
};

static struct watched leaver_watched, helper_watched, service_watched;
static __thread struct watched *watched;
static _Atomic int copies_stay, copy_stays;

/* 'l' for an address in the library, 'd' in the simulated driver, else 0. */
static char place_of(void *address, Dl_info *info)
{
    if (dladdr(address, info) == 0 || info->dli_fname == NULL)
        return 0;
    return strstr(info->dli_fname, "libnvshare") != NULL ? 'l'
        : strstr(info->dli_fname, "libcuda") != NULL ? 'd' : 0;
}

static void note_addresses(char *to)
{
    void *frames[FRAMES_MOST];
    Dl_info info;
    int count = backtrace(frames, FRAMES_MOST);
    *to = '\0';
    for (int i = 0; i < count; i++) {
        char place = place_of(frames[i], &info);
        if (place != 0)
            to += sprintf(to, " %c%zx", place, (size_t)((char *)frames[i] - (char *)info.dli_fbase));
    }
}

static enum answer ask(struct watched *self)
{
    note_addresses(self->addresses);
    self->answer = NONE;
    self->asks = 1;
    while (self->answer == NONE)
        doze();
    self->stays = self->answer != GO_ON;
    return self->answer;
}

/* Called before a wait: a watched thread stays here if the test says so. False: it is not to sleep,
 * as the copy for which it waits may have been released. */
static int before_wait(void *caller)
{
    struct watched *self = watched;
    sigset_t mask;
    Dl_info info;
    char place = self != NULL || copies_stay ? place_of(caller, &info) : 0;
    if (self == NULL && place == 'd')
        self = &service_watched;     /* the only other thread that then waits in the driver */
    if (place == 0 || self == NULL || self->released)
        return 1;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    if (self != &service_watched && sigismember(&mask, SIGUSR1))
        return 1;                    /* a short section of the library's */
    int error = errno;
    if (ask(self) != GO_ON)
        while (!self->released)
            doze();
    errno = error;
    return self != &service_watched;
}

long syscall(long number, ...)
{
    long given[6];
    va_list rest;
    va_start(rest, number);
    for (int i = 0; i < 6; i++)
        given[i] = va_arg(rest, long);
    va_end(rest);
    int wait = (int)given[1] & ~(FUTEX_PRIVATE_FLAG | FUTEX_CLOCK_REALTIME);
    if ((number == SYS_nanosleep || (number == SYS_futex && (given[1] & FUTEX_PRIVATE_FLAG) != 0
                                     && (wait == FUTEX_WAIT || wait == FUTEX_WAIT_BITSET)))
        && !before_wait(__builtin_return_address(0)))
        return 0;
    return with_errno(kernel(number, given[0], given[1], given[2], given[3], given[4], given[5]));
}

/* The clock of a watched thread stands still: no wait's patience ends while the test answers. */
int clock_gettime(clockid_t clock, struct timespec *time)
{
    static __thread struct timespec still;
    int result = (int)with_errno(kernel(SYS_clock_gettime, clock, (long)time, 0, 0, 0, 0));
    if (watched == NULL || watched->released || clock != CLOCK_MONOTONIC)
        return result;
    if (still.tv_sec == 0)
        still = *time;
    *time = still;
    return result;
}

int nanosleep(const struct timespec *time, struct timespec *rest)
{
    before_wait(__builtin_return_address(0));
    pthread_testcancel();
    return (int)with_errno(kernel(SYS_nanosleep, (long)time, (long)rest, 0, 0, 0, 0));
}

int poll(struct pollfd *files, nfds_t count, int ms)
{
    struct timespec time = { ms / 1000, ms % 1000 * 1000000L };
    before_wait(__builtin_return_address(0));
    pthread_testcancel();
    return (int)with_errno(kernel(SYS_ppoll, (long)files, (long)count, ms < 0 ? 0 : (long)&time, 0,
                                  0, 0));
}

int connect(int file, const struct sockaddr *address, socklen_t size)
{
    before_wait(__builtin_return_address(0));
    pthread_testcancel();
    return (int)with_errno(kernel(SYS_connect, file, (long)address, size, 0, 0, 0));
}

/* With NVSHARE_SIM_COPY_RATE the simulated bus takes its time so: one copy at a time stays. */
int clock_nanosleep(clockid_t clock, int flags, const struct timespec *time, struct timespec *rest)
{
    copy_stays = copies_stay;
    while (copies_stay && copy_stays)
        doze();
    return (int)-kernel(SYS_clock_nanosleep, clock, flags, (long)time, (long)rest, 0, 0);
}

static void release_copies(void)
{
    copies_stay = 0;
    service_watched.released = 1;
}

static void watch(struct watched *thread, const char *name)
{
    thread->name = name;
    thread->asks = thread->stays = thread->released = 0;
    thread->answer = NONE;
}

/* Until the thread is in the wait in question. */
static void until_it_stays(struct watched *thread)
{
    char line[40] = "";
    while (!thread->stays) {
        if (thread->asks) {
            thread->asks = 0;
            printf("waits %s%s\n", thread->name, thread->addresses);
            fflush(stdout);
            must(fgets(line, sizeof line, stdin) != NULL, "an answer");
            thread->answer = strcmp(line, "stay\n") == 0 ? STAY
                : strcmp(line, "cancelled\n") == 0 ? STAY_CANCELLED : GO_ON;
            if (thread->answer == GO_ON)
                copy_stays = 0;      /* another copy of the library's than that of a block */
        }
        must(!returned || thread != &leaver_watched, "the thread did not wait");
        usleep(500);
    }
}

static void wait_in_stream(void *unused)
{
    (void)unused;
    running = 1;
    sem_wait(&obstacle);
}

/* Puts work into the NULL stream that lasts until remove_obstacle(). */
static void put_obstacle(void)
{
    running = 0;
    CALL(cuLaunchHostFunc(NULL, wait_in_stream, NULL));
    while (!running)
        usleep(1000);
}

static void remove_obstacle(void)
{
    sem_post(&obstacle);
}

/* Whether each thread of a process has stopped. */
static int has_stopped(int process)
{
    char path[600], state;
    int stopped = 1;
    snprintf(path, sizeof path, "/proc/%d/task", process);
    DIR *folder = opendir(path);
    must(folder != NULL, "a process's threads");
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        snprintf(path, sizeof path, "/proc/%d/task/%s/stat", process, entry->d_name);
        FILE *file = entry->d_name[0] == '.' ? NULL : fopen(path, "r");
        if (file == NULL)
            continue;
        stopped = stopped && fscanf(file, "%*d (%*[^)]) %c", &state) == 1 && state == 'T';
        fclose(file);
    }
    closedir(folder);
    return stopped;
}

static void stop_process(const char *variable, int number)
{
    int process = getenv(variable) == NULL ? 0 : atoi(getenv(variable));
    must(process > 0 && kill(process, number) == 0, variable);
    while (number == SIGSTOP && !has_stopped(process))
        usleep(1000);
}

static sigjmp_buf before_the_call;

static void jump(int number)
{
    (void)number;
    siglongjmp(before_the_call, 1);
}

/* The thread is as it was before the call. */
static void check_thread(void)
{
    int state;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED, changed;
    sigset_t mask;
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state);
    must(state == PTHREAD_CANCEL_ENABLE, "cancellation stays disabled");
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    must(!sigismember(&mask, SIGTERM), "signals stay blocked");
    CALL(cuThreadExchangeStreamCaptureMode(&mode));
    changed = mode;
    CALL(cuThreadExchangeStreamCaptureMode(&mode));
    must(changed == 0, "the capture mode of the thread has changed");
}

static void copy_at_gate(void)
{
    static char word;                /* the driver may write to it after the thread has left */
    CALL(cuMemcpyDtoH_v2(&word, memory, 1));
}

struct leaver {
    void (*call)(void);
    int in_context, goes_on;
};

/* What a thread does next, in the same frame, lets the library notice an exception. */
static void go_on_after_exception(void)
{
    static CUdeviceptr address;
    if (cuMemAlloc_v2(&address, 2 * MIB) == 0 && cuMemsetD32_v2(address, 1, 1) == 0)
        cuMemFree_v2(address);
}

static void (*current_call)(void);

/* The signal may come late, but not outside of this call. */
static void call_and_block(void)
{
    sigset_t handled;
    current_call();
    sigemptyset(&handled);
    sigaddset(&handled, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &handled, NULL);
}

static _Atomic int gone;

static void *leave_call(void *argument)
{
    const struct leaver *what = argument;
    if (what->in_context)
        CALL(cuCtxSetCurrent(context));
    volatile int thrown = 0;
    if (sigsetjmp(before_the_call, 1) == 0) {
        watched = &leaver_watched;
        current_call = what->call;
        if (throws)
            thrown = leave_by_exception(call_and_block);
        else
            call_and_block();
        returned = !thrown;
    }
    watched = NULL;
    if (returned) {
        while (!jumps && !may_end)   /* cancelled after the call */
            usleep(1000);
        pthread_testcancel();
        must(0, "the thread did not leave");
    }
    left = 1;
    if (throws && what->goes_on)
        leave_by_exception(go_on_after_exception);
    if (what->in_context)
        check_thread();
    while (!may_end)
        usleep(1000);
    pthread_testcancel();
    return NULL;
}

static void note_gone(void *unused)
{
    (void)unused;
    gone = 1;
}

static void *leaver(void *argument)
{
    void *result;
    pthread_cleanup_push(note_gone, NULL);
    result = leave_call(argument);
    pthread_cleanup_pop(1);
    return result;
}

/* A thread that has jumped stays, and calls the driver no more, until the rival has had its turn. */
static pthread_t staying;
static int stays;

static void end_staying(void)
{
    may_end = 1;
    must(!stays || pthread_join(staying, NULL) == 0, "joining");
    stays = 0;
}

static const char *current_case;

static pthread_t start(void (*call)(void), int in_context)
{
    static struct leaver what;
    pthread_t thread;
    end_staying();
    what = (struct leaver){ call, in_context, in_context && call != copy_at_gate };
    left = returned = may_end = gone = 0;
    watch(&leaver_watched, current_case);
    must(pthread_create(&thread, NULL, leaver, &what) == 0, "a thread");
    until_it_stays(&leaver_watched);
    return thread;
}

/* A thread that is in a wait of the case `name` until the leaving thread has left. */
static pthread_t start_helper(void *(*run)(void *), const char *name)
{
    pthread_t thread;
    watch(&helper_watched, name);
    must(pthread_create(&thread, NULL, run, NULL) == 0, "a thread");
    until_it_stays(&helper_watched);
    return thread;
}

/* `removes`: ends what the call waits for, after the thread has left or is to be cancelled later. */
static void leave(pthread_t thread, void (*removes)(void))
{
    void *result;
    if (jumps) {
        must(pthread_kill(thread, SIGUSR1) == 0, "a signal");
        while (!left)
            usleep(1000);
    } else {
        must(pthread_cancel(thread) == 0, "cancelling");
        leaver_watched.released = 1;
        while (leaver_watched.answer == STAY_CANCELLED && !gone)
            usleep(1000);
    }
    helper_watched.released = 1;
    if (removes != NULL)
        removes();
    puts("gone");
    fflush(stdout);
    if (jumps && !throws) {
        staying = thread;
        stays = 1;
        return;
    }
    may_end = 1;
    must(pthread_join(thread, &result) == 0, "joining");
    must(jumps || result == PTHREAD_CANCELED, "the thread was not cancelled");
}

static void run(void (*call)(void), int in_context, void (*removes)(void))
{
    leave(start(call, in_context), removes);
}

static size_t used(void)
{
    size_t free_bytes, total;
    CALL(cuMemGetInfo_v2(&free_bytes, &total));
    return total - free_bytes;
}

static uint64_t reserved(void)
{
    CUmemoryPool pool;
    uint64_t bytes = 0;
    CALL(cuDeviceGetDefaultMemPool(&pool, 0));
    CALL(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes));
    return bytes;
}

/* What any program does: all of it returns, and gives the bytes that are right. */
static void work(void)
{
    CUdeviceptr address, pooled;
    CUstream stream;
    CUgraph graph;
    CUcontext again;
    CALL(cuCtxSetCurrent(context));
    check();
    CALL(cuMemAlloc_v2(&address, 8 * MIB));
    CALL(cuMemsetD32_v2(address, 7, 1000));
    CALL(cuStreamCreate(&stream, 1));
    CALL(cuMemAllocAsync(&pooled, MIB, stream));
    CALL(cuMemFreeAsync(pooled, stream));
    CALL(cuCtxSynchronize());
    CALL(cuStreamBeginCapture_v2(stream, 0));
    CALL(cuStreamEndCapture(stream, &graph));
    CALL(cuGraphDestroy(graph));
    CALL(cuStreamDestroy_v2(stream));
    CALL(cuMemFree_v2(address));
    CALL(cuDevicePrimaryCtxRetain(&again, 0));
    CALL(cuDevicePrimaryCtxRelease_v2(0));
}

static size_t used_before, reserved_before;

static void begin_work(void)
{
    begin();
    work();
    used_before = used();
    reserved_before = reserved();
}

/* `lost`: bytes that may be missing, as those of a context that its thread did not destroy. */
static void end_work(size_t lost)
{
    work();
    /* A block that is being written back counts until that ends. */
    for (int looks = 0; used() > used_before + lost || reserved() > reserved_before; looks++) {
        if (looks == 30000)
            printf("%zu MiB instead of %zu, reserved %zu instead of %zu\n", used() / MIB,
                   used_before / MIB, (size_t)reserved() / MIB, reserved_before / MIB);
        must(looks < 30000, "memory stays counted");
        usleep(1000);
    }
    pause_here("away");
    work();
    end_staying();
    pause_here("over");
}

static CUdeviceptr more;
static CUcontext other_context;

static void copy(void)
{
    copy_at_gate();
}

/* Another thread waits at the gate, too, and goes on waiting. */
static void leave_gate(void)
{
    pthread_t other;
    begin_work();
    pause_here("gate");
    must(pthread_create(&other, NULL, check_in_thread, NULL) == 0, "a thread");
    run(copy_at_gate, 1, NULL);
    pause_here("left");
    must(pthread_join(other, NULL) == 0, "joining");
    end_work(0);
}

static void leave_copy(void)
{
    begin_work();
    put_obstacle();
    run(copy, 1, remove_obstacle);
    end_work(0);
}

static void go_on(void)
{
    stop_process("DAEMON", SIGCONT);
}

static void allocate(void)
{
    must(cuMemAlloc_v2(&more, MUCH) == 2, "there is no such memory");
}

static void allocate_async(void)
{
    must(cuMemAllocAsync(&more, MUCH, NULL) == 2, "there is no such memory");
}

static void leave_commit(void)
{
    begin_work();
    stop_process("DAEMON", SIGSTOP);
    run(allocate, 1, go_on);
    stop_process("DAEMON", SIGSTOP);
    run(allocate_async, 1, go_on);
    end_work(0);
}

static CUipcMemHandle handle;

static void export(void)
{
    CALL(cuIpcGetMemHandle(&handle, more));
}

static void leave_export(void)
{
    begin_work();
    CALL(cuMemAlloc_v2(&more, 64 * MIB));
    put_obstacle();
    run(export, 1, remove_obstacle);
    CALL(cuCtxSynchronize());
    CALL(cuMemFree_v2(more));
    end_work(0);
}

static CUstream capturing_stream;

static void end_capture(void)
{
    CUgraph graph;
    CALL(cuStreamEndCapture(capturing_stream, &graph));
    CALL(cuGraphDestroy(graph));
}

static CUdeviceptr map(size_t size, int handles, CUdeviceptr *created)
{
    const CUmemAllocationProp properties = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED, .requestedHandleTypes = handles,
        .location = ACCESS.location,
    };
    CUdeviceptr address;
    CALL(cuMemAddressReserve(&address, size, 0, 0, 0));
    CALL(cuMemCreate(created, size, &properties, 0));
    CALL(cuMemMap(address, size, 0, *created, 0));
    CALL(cuMemSetAccess(address, size, &ACCESS, 1));
    return address;
}

/* The memory may be unmapped already. */
static void drop_map(CUdeviceptr address, size_t size, CUdeviceptr handle_of)
{
    cuMemUnmap(address, size);
    CALL(cuMemRelease(handle_of));
    CALL(cuMemAddressFree(address, size));
}

static CUdeviceptr created, there;

static void pin(void)
{
    int file;
    /* close() is a cancellation point: it would leave the file open, and its memory on the card. */
    if (cuMemExportToShareableHandle(&file, created, 1, 0) == 0)
        kernel(SYS_close, file, 0, 0, 0, 0, 0);
}

static void leave_captured(void)
{
    begin_work();
    CALL(cuStreamCreate(&capturing_stream, 1));
    there = map(300 * MIB, 1, &created);
    CALL(cuStreamBeginCapture_v2(capturing_stream, 2));
    run(pin, 1, end_capture);
    drop_map(there, 300 * MIB, created);
    end_work(0);
}

static void *pin_in_thread(void *unused)
{
    watched = &helper_watched;
    CALL(cuCtxSetCurrent(context));
    pin();
    return unused;
}

static void unmap(void)
{
    CALL(cuMemUnmap(more, 2 * MIB));
}

/* One thread pins memory, and drains; `call` waits for that. */
static void leave_beside_pin(void (*call)(void))
{
    pthread_t thread;
    CUdeviceptr small;
    begin_work();
    there = map(300 * MIB, 1, &created);
    more = map(2 * MIB, 0, &small);
    put_obstacle();
    thread = start_helper(pin_in_thread, "draining");
    run(call, 1, remove_obstacle);
    must(pthread_join(thread, NULL) == 0, "joining");
    drop_map(there, 300 * MIB, created);
    drop_map(more, 2 * MIB, small);
    end_work(0);
}

static void free_more(void)
{
    CALL(cuMemFree_v2(more));
}

static void leave_free(void)
{
    begin_work();
    CALL(cuMemAlloc_v2(&more, 64 * MIB));
    put_obstacle();
    run(free_more, 1, remove_obstacle);
    CALL(cuCtxSynchronize());
    must(cuMemFree_v2(more) != 0, "memory may be freed twice");
    /* What waits for work is released before anything is refused. */
    CALL(cuMemAlloc_v2(&more, 740 * MIB));
    CALL(cuMemFree_v2(more));
    end_work(0);
}

/* The test has memory evicted, and the copy of the first block lasts until release_copies(). */
static void pause_until_moving(void)
{
    watch(&service_watched, "service");
    copies_stay = 1;
    pause_here("moving");
    until_it_stays(&service_watched);
}

static void leave_managed(void)
{
    begin_work();
    CALL(cuMemAllocManaged(&more, 64 * MIB, 1));
    CALL(cuMemsetD32_v2(more, 1, 16 * MIB));
    pause_until_moving();
    run(free_more, 1, release_copies);
    pause_here("left");
    cuMemFree_v2(more);              /* fails if the first call has freed it */
    end_work(0);
}

static void destroy_other(void)
{
    cuCtxDestroy_v2(other_context);
}

static void leave_moving(void)
{
    begin_work();
    CALL(cuCtxCreate_v2(&other_context, 0, 0));
    CALL(cuMemAlloc_v2(&more, 64 * MIB));
    CALL(cuMemsetD32_v2(more, 1, 16 * MIB));
    CALL(cuCtxSetCurrent(context));
    pause_until_moving();
    run(destroy_other, 1, release_copies);
    pause_here("left");
    end_work(80 * MIB);
}

static void leave_destroy(void)
{
    begin_work();
    CALL(cuCtxCreate_v2(&other_context, 0, 0));
    put_obstacle();
    CALL(cuCtxSetCurrent(context));
    run(destroy_other, 1, remove_obstacle);
    end_work(16 * MIB);
}

static void release_first(void)
{
    cuDevicePrimaryCtxRelease_v2(0);
}

static void retain(void)
{
    CUcontext again;
    CALL(cuDevicePrimaryCtxRetain(&again, 0));
    CALL(cuDevicePrimaryCtxRelease_v2(0));
}

static void *release_in_thread(void *unused)
{
    watched = &helper_watched;
    release_first();
    return unused;
}

/* A thread gives up the last reference, and waits for work; another one waits for that thread. */
static void leave_retain(void)
{
    pthread_t thread;
    begin();
    put_obstacle();
    thread = start_helper(release_in_thread, "release");
    run(retain, 0, remove_obstacle);
    must(pthread_join(thread, NULL) == 0, "joining");
    begin_work();
    end_work(0);
}

static void leave_release(void)
{
    begin();
    put_obstacle();
    run(release_first, 1, remove_obstacle);
    CALL(cuDevicePrimaryCtxRetain(&context, 0));
    CALL(cuCtxSetCurrent(context));
    CALL(cuCtxSynchronize());
    begin_work();
    end_work(0);
}

static void attach(void)
{
    CUcontext one;
    CALL(cuDevicePrimaryCtxRetain(&one, 0));
}

static void finish_attach(void)
{
    begin_work();
    end_work(0);
}

static void leave_attach(void)
{
    CALL(cuInit(0));
    stop_process("DAEMON", SIGSTOP);
    run(attach, 0, go_on);
    finish_attach();
}

static void *attach_in_thread(void *unused)
{
    watched = &helper_watched;
    attach();
    return unused;
}

static void leave_attaching(void)
{
    pthread_t thread;
    CALL(cuInit(0));
    stop_process("DAEMON", SIGSTOP);
    thread = start_helper(attach_in_thread, "attach");
    run(attach, 0, go_on);
    must(pthread_join(thread, NULL) == 0, "joining");
    finish_attach();
}

/* The test has made the obstacle, and ends it. */
static void leave_attach_alone(void)
{
    CALL(cuInit(0));
    run(attach, 0, NULL);
    pause_here("left");
    finish_attach();
}

static void create_other(void)
{
    CALL(cuCtxCreate_v2(&other_context, 0, 0));
}

static void leave_room(void)
{
    begin_work();
    pause_here("full");
    run(create_other, 1, NULL);
    pause_here("left");
    end_work(0);
}

static void open_handle(void)
{
    CALL(cuIpcOpenMemHandle_v2(&more, handle, 1));
}

static void read_handle(void)
{
    char digits[3] = "";
    for (size_t i = 0; i < sizeof handle; i++) {
        digits[0] = (char)getchar();
        digits[1] = (char)getchar();
        handle.reserved[i] = (char)strtol(digits, NULL, 16);
    }
    must(getchar() == '\n', "a handle");
}

static void owner_goes_on(void)
{
    stop_process("OWNER", SIGCONT);
}

static void leave_open(void)
{
    begin_work();
    read_handle();
    stop_process("OWNER", SIGSTOP);
    run(open_handle, 1, owner_goes_on);
    open_handle();
    CALL(cuMemsetD32_v2(more, 1, 16));
    CALL(cuIpcCloseMemHandle(more));
    pause_here("left");
    end_work(0);
}

static void close_handle(void)
{
    cuIpcCloseMemHandle(more);
}

static void leave_close(void)
{
    begin_work();
    read_handle();
    open_handle();
    put_obstacle();
    run(close_handle, 1, remove_obstacle);
    CALL(cuCtxSynchronize());
    cuIpcCloseMemHandle(more);
    pause_here("left");
    end_work(0);
}

/* Another process gets the handle; this one ends with its standard input. */
static void own(void)
{
    begin();
    CALL(cuMemAlloc_v2(&more, 8 * MIB));
    export();
    for (size_t i = 0; i < sizeof handle; i++)
        printf("%02x", (unsigned char)handle.reserved[i]);
    puts("");
    fflush(stdout);
    while (getchar() != EOF)
        continue;
}

static void allocate_all(void)
{
    CUdeviceptr all;
    if (cuMemAlloc_v2(&all, 750 * MIB) == 0)
        CALL(cuMemFree_v2(all));
}

/* Memory freed during a capture waits for work; an allocation that lacks it waits, too. */
static void leave_deferred(void)
{
    begin_work();
    CALL(cuStreamCreate(&capturing_stream, 1));
    CALL(cuMemAlloc_v2(&more, 512 * MIB));
    CALL(cuStreamBeginCapture_v2(capturing_stream, 2));
    CALL(cuMemFree_v2(more));
    put_obstacle();
    end_capture();
    run(allocate_all, 1, remove_obstacle);
    CALL(cuCtxSynchronize());
    end_work(0);
}

static void copy_batch(void)
{
    CUmemcpyAttributes attributes = {
        .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL,
    };
    size_t size = 4 * MIB, first = 0, failed;
    CALL(cuMemcpyBatchAsync(&there, &memory, &size, 1, &attributes, &first, 1, &failed,
                            capturing_stream));
}

static void leave_batch(void)
{
    CUcontext second;
    begin_work();
    CALL(cuDevicePrimaryCtxRetain(&second, 1));
    CALL(cuCtxSetCurrent(second));
    CALL(cuMemAlloc_v2(&there, 4 * MIB));
    CALL(cuCtxSetCurrent(context));
    CALL(cuStreamCreate(&capturing_stream, 1));
    running = 0;
    CALL(cuLaunchHostFunc(capturing_stream, wait_in_stream, NULL));
    while (!running)
        usleep(1000);
    run(copy_batch, 1, remove_obstacle);
    CALL(cuCtxSynchronize());
    end_work(0);
}

static void wait_to_trim(void)
{
    int (*wait)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "nvshare_trim_wait");
    must(wait != NULL, "the library is not preloaded");
    wait();
}

static void leave_trim(void)
{
    begin_work();
    if (!jumps) {                    /* no end of that wait is in sight, and it cannot be cancelled */
        end_work(0);
        return;
    }
    run(wait_to_trim, 1, NULL);
    end_work(0);
}

static void enter_context(void)
{
    CALL(cuCtxSetCurrent(context));
}

static void leave_parked(void)
{
    begin_work();
    pause_here("park");
    run(enter_context, 0, NULL);
    pause_here("left");
    end_work(0);
}

int main(int count, char **arguments)
{
    const char *what = current_case = count > 1 ? arguments[1] : "";
    void *frame;
    struct sigaction action = { .sa_handler = jump };
    throws = count > 2 && strcmp(arguments[2], "throw") == 0;
    jumps = throws || (count > 2 && strcmp(arguments[2], "jump") == 0);
    action.sa_handler = throws ? throw_in_handler : jump;
    sem_init(&obstacle, 0, 0);
    backtrace(&frame, 1);            /* loads what it needs */
    must(sigaction(SIGUSR1, &action, NULL) == 0, "a handler");
    WHEN("gate", leave_gate());
    WHEN("copy", leave_copy());
    WHEN("commit", leave_commit());
    WHEN("export", leave_export());
    WHEN("captured", leave_captured());
    WHEN("remapping", leave_beside_pin(unmap));
    WHEN("pins", leave_beside_pin(pin));
    WHEN("free", leave_free());
    WHEN("managed", leave_managed());
    WHEN("moving", leave_moving());
    WHEN("destroy", leave_destroy());
    WHEN("retain", leave_retain());
    WHEN("release", leave_release());
    WHEN("attach", leave_attach());
    WHEN("attaching", leave_attaching());
    WHEN("busy", leave_attach_alone());
    WHEN("required", leave_attach_alone());
    WHEN("room", leave_room());
    WHEN("open", leave_open());
    WHEN("close", leave_close());
    WHEN("own", own());
    WHEN("deferred", leave_deferred());
    WHEN("batch", leave_batch());
    WHEN("trim", leave_trim());
    WHEN("parked", leave_parked());
    must(0, "what is this to do");
    return 0;
}

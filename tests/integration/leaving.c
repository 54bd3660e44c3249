/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leaving CASE jump|cancel: a thread leaves a call while it waits in the library, by siglongjmp() out
 * of a signal handler or by cancellation. Then all goes on: no lock stays held, the gate opens, the
 * memory is as before. Prints what it did; "away" and "over" are pauses, in which the test has the
 * program's memory evicted and looks at its descriptors. Exit code 0: all was right.
 *
 * The cases are those that driver/waits.def names, and copies, during which a thread is inside the
 * gate. The environment has the numbers of the processes that a case stops (DAEMON, OWNER).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <sys/syscall.h>

#include "holder.h"

typedef unsigned long long address_type;
int cuCtxCreate_v2(void **, unsigned, int), cuCtxDestroy_v2(void *), cuCtxPopCurrent_v2(void **);
int cuCtxEnablePeerAccess(void *, unsigned), cuCtxGetCurrent(void **), cuCtxSynchronize(void);
int cuDevicePrimaryCtxRelease_v2(int), cuLaunchHostFunc(void *, void (*)(void *), void *);
int cuMemGetInfo_v2(size_t *, size_t *), cuMemAllocManaged(address_type *, size_t, unsigned);
int cuMemAllocAsync(address_type *, size_t, void *), cuMemFreeAsync(address_type, void *);
int cuDeviceGetDefaultMemPool(void **, int), cuMemPoolGetAttribute(void *, int, void *);
int cuMemAddressReserve(address_type *, size_t, size_t, address_type, unsigned long long);
int cuMemCreate(address_type *, size_t, const void *, unsigned long long);
int cuMemMap(address_type, size_t, size_t, address_type, unsigned long long);
int cuMemSetAccess(address_type, size_t, const void *, size_t), cuMemUnmap(address_type, size_t);
int cuMemRelease(address_type), cuMemAddressFree(address_type, size_t);
int cuMemExportToShareableHandle(void *, address_type, int, unsigned long long);
int cuMemcpyHtoD_v2(address_type, const void *, size_t);
int cuMemcpyBatchAsync(address_type *, address_type *, size_t *, size_t, void *, size_t *, size_t,
                       size_t *, void *);
int cuIpcGetMemHandle(void *, address_type), cuIpcCloseMemHandle(address_type);
int cuStreamCreate(void **, unsigned), cuStreamDestroy_v2(void *);
int cuStreamBeginCapture_v2(void *, int), cuStreamEndCapture(void *, void **);
int cuGraphDestroy(void *), cuThreadExchangeStreamCaptureMode(int *);

struct handle { char bytes[64]; };
int cuIpcOpenMemHandle_v2(address_type *, struct handle, unsigned);

struct access { int type, id, flags; };
struct properties { int type, handles, location, id; void *none; unsigned char flags[8]; };
static const struct access ACCESS = { 1, 0, 3 };

#define MIB ((size_t)1 << 20)
#define MUCH ((size_t)1 << 34)    /* more than the card has */
#define CALL(call) must((call) == 0, #call)
#define BYTES_RESERVED 5             /* CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT */

static int jumps;                    /* else the thread is cancelled */
static sem_t obstacle;               /* work in flight waits for it */
static _Atomic int tid, left, returned, may_end, running;
static int may_return;               /* no test can be sure to come while one block is copied */

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

static void stop_process(const char *variable, int number)
{
    must(getenv(variable) != NULL && kill(atoi(getenv(variable)), number) == 0, variable);
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
    int state, mode = 2, relaxed;
    sigset_t mask;
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state);
    must(state == PTHREAD_CANCEL_ENABLE, "cancellation stays disabled");
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    must(!sigismember(&mask, SIGUSR1) && !sigismember(&mask, SIGTERM), "signals stay blocked");
    CALL(cuThreadExchangeStreamCaptureMode(&mode));
    relaxed = mode;
    CALL(cuThreadExchangeStreamCaptureMode(&mode));
    must(relaxed == 0, "the capture mode of the thread has changed");
}

struct leaver {
    void (*call)(void);
    int in_context;
};

static void *leaver(void *argument)
{
    const struct leaver *what = argument;
    if (what->in_context)
        CALL(cuCtxSetCurrent(context));
    if (sigsetjmp(before_the_call, 1) == 0) {
        tid = (int)syscall(SYS_gettid);
        what->call();
        returned = 1;
        while (!jumps && !may_end)   /* cancelled after the call */
            usleep(1000);
        pthread_testcancel();
        must(may_return, "the thread did not leave");
    }
    if (what->in_context)
        check_thread();
    left = 1;
    while (!may_end)
        usleep(1000);
    pthread_testcancel();
    return NULL;
}

/* Whether the thread sleeps in the kernel, as at the last two looks. */
static int sleeps(int thread)
{
    char path[64], text[256];
    static char before[256];
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", thread);
    FILE *file = fopen(path, "r");
    size_t size = file == NULL ? 0 : fread(text, 1, sizeof text - 1, file);
    if (file != NULL)
        fclose(file);
    text[size] = '\0';
    int same = size > 0 && strncmp(text, "running", 7) != 0 && strcmp(text, before) == 0;
    strcpy(before, text);
    return same;
}

static pthread_t start(void (*call)(void), int in_context)
{
    static struct leaver what;
    pthread_t thread;
    what = (struct leaver){ call, in_context };
    tid = left = returned = may_end = 0;
    must(pthread_create(&thread, NULL, leaver, &what) == 0, "a thread");
    while (tid == 0)
        usleep(1000);
    for (int looks = 0; looks < 3 && !returned; usleep(20000))
        looks = sleeps(tid) ? looks + 1 : 0;
    return thread;
}

/* `removes`: ends what the call waits for, after the thread has left, or before it is cancelled. */
static void leave(pthread_t thread, void (*removes)(void))
{
    void *result;
    if (jumps) {
        must(pthread_kill(thread, SIGUSR1) == 0, "a signal");
        while (!left && !returned)
            usleep(1000);
    } else {
        must(pthread_cancel(thread) == 0, "cancelling");
    }
    if (removes != NULL && jumps)
        removes();
    /* A wait that is no cancellation point ends only when its reason does. */
    for (int i = 0; !jumps && i < 20 && pthread_kill(thread, 0) == 0; i++)
        usleep(20000);
    if (removes != NULL && !jumps)
        removes();
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
    void *pool;
    uint64_t bytes = 0;
    CALL(cuDeviceGetDefaultMemPool(&pool, 0));
    CALL(cuMemPoolGetAttribute(pool, BYTES_RESERVED, &bytes));
    return bytes;
}

/* What any program does: all of it returns, and gives the bytes that are right. */
static void work(void)
{
    address_type address, pooled;
    void *stream, *graph, *again;
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

#define OTHERS (16 * MIB)            /* what the daemon may count for contexts and others meanwhile */

/* `lost`: bytes that may be missing, as those of a context that its thread did not destroy. */
static void end_work(size_t lost)
{
    lost += OTHERS;
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
    pause_here("over");
}

static address_type more;
static void *other_context;

static void copy(void)
{
    static char word;                /* the driver may write to it after the thread has left */
    CALL(cuMemcpyDtoH_v2(&word, memory, 1));
}

static void leave_gate(void)
{
    begin_work();
    pause_here("gate");
    run(copy, 1, NULL);
    pause_here("left");
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

static struct handle handle;

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

static void *capturing_stream;

static void end_capture(void)
{
    void *graph;
    CALL(cuStreamEndCapture(capturing_stream, &graph));
    CALL(cuGraphDestroy(graph));
}

static address_type map(size_t size, int handles, address_type *created)
{
    const struct properties properties = { 1, handles, 1, 0, NULL, { 0 } };
    address_type address;
    CALL(cuMemAddressReserve(&address, size, 0, 0, 0));
    CALL(cuMemCreate(created, size, &properties, 0));
    CALL(cuMemMap(address, size, 0, *created, 0));
    CALL(cuMemSetAccess(address, size, &ACCESS, 1));
    return address;
}

/* The memory may be unmapped already. */
static void drop_map(address_type address, size_t size, address_type handle_of)
{
    cuMemUnmap(address, size);
    CALL(cuMemRelease(handle_of));
    CALL(cuMemAddressFree(address, size));
}

static address_type created, there;

static void pin(void)
{
    int file;
    if (cuMemExportToShareableHandle(&file, created, 1, 0) == 0)
        close(file);
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
    (void)unused;
    CALL(cuCtxSetCurrent(context));
    pin();
    return NULL;
}

static void unmap(void)
{
    CALL(cuMemUnmap(more, 2 * MIB));
}

/* One thread pins memory, and drains; `call` waits for that. */
static void leave_beside_pin(void (*call)(void))
{
    pthread_t thread;
    address_type small;
    begin_work();
    there = map(300 * MIB, 1, &created);
    more = map(2 * MIB, 0, &small);
    put_obstacle();
    must(pthread_create(&thread, NULL, pin_in_thread, NULL) == 0, "a thread");
    usleep(100000);
    run(call, 1, remove_obstacle);
    must(pthread_join(thread, NULL) == 0, "joining");
    drop_map(there, 300 * MIB, created);
    drop_map(more, 2 * MIB, small);
    end_work(0);
}

static void free_more(void)
{
    must(cuMemFree_v2(more) == 0 || may_return, "freeing");
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
    CALL(cuMemAlloc_v2(&more, 900 * MIB));
    CALL(cuMemFree_v2(more));
    end_work(0);
}

static void leave_managed(void)
{
    may_return = 1;
    begin_work();
    CALL(cuMemAllocManaged(&more, 64 * MIB, 1));
    CALL(cuMemsetD32_v2(more, 1, 16 * MIB));
    pause_here("moving");
    usleep(200000);
    run(free_more, 1, NULL);
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
    may_return = 1;
    begin_work();
    CALL(cuCtxCreate_v2(&other_context, 0, 0));
    CALL(cuMemAlloc_v2(&more, 64 * MIB));
    CALL(cuMemsetD32_v2(more, 1, 16 * MIB));
    CALL(cuCtxSetCurrent(context));
    pause_here("moving");
    run(destroy_other, 1, NULL);
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
    void *again;
    CALL(cuDevicePrimaryCtxRetain(&again, 0));
    CALL(cuDevicePrimaryCtxRelease_v2(0));
}

static void *release_in_thread(void *unused)
{
    release_first();
    return unused;
}

/* A thread gives up the last reference, and waits for work; another one waits for that thread. */
static void leave_retain(void)
{
    pthread_t thread;
    begin();
    put_obstacle();
    must(pthread_create(&thread, NULL, release_in_thread, NULL) == 0, "a thread");
    usleep(100000);
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
    void *one;
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
    attach();
    return unused;
}

static void leave_attaching(void)
{
    pthread_t thread;
    CALL(cuInit(0));
    stop_process("DAEMON", SIGSTOP);
    must(pthread_create(&thread, NULL, attach_in_thread, NULL) == 0, "a thread");
    usleep(200000);
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
        handle.bytes[i] = (char)strtol(digits, NULL, 16);
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
        printf("%02x", (unsigned char)handle.bytes[i]);
    puts("");
    fflush(stdout);
    while (getchar() != EOF)
        continue;
}

static void allocate_all(void)
{
    address_type all;
    if (cuMemAlloc_v2(&all, 950 * MIB) == 0)
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
    struct { int order, source[2], target[2]; unsigned flags; } attributes = { .order = 2 };
    size_t size = 4 * MIB, first = 0, failed;
    CALL(cuMemcpyBatchAsync(&there, &memory, &size, 1, &attributes, &first, 1, &failed,
                            capturing_stream));
}

static void leave_batch(void)
{
    void *second;
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
    const char *what = count > 1 ? arguments[1] : "";
    struct sigaction action = { .sa_handler = jump };
    jumps = count > 2 && strcmp(arguments[2], "jump") == 0;
    sem_init(&obstacle, 0, 0);
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

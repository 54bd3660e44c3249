/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that the program fills with a number, and compares with that number later: whatever the
 * daemon orders, no byte may change.
 */
#include <dlfcn.h>
#include <pthread.h>

#include "driver/driver.h"
#include "fuzz.h"
#include "driver/real.h"

#define PIECES 8
#define QUEUE 32
#define PIECE_MAX (12 * MIB)         /* PIECES pieces of this size are MOST bytes */

static struct async_allocation {
    CUdeviceptr address;             /* 0: none */
    size_t size;
    unsigned value;
} pieces[PIECES];

static struct {
    pthread_mutex_t lock;            /* protects the following fields; its holder calls nothing */
    pthread_cond_t changed;
    struct call { uint8_t what, with; void (*act)(void); } calls[QUEUE];
    unsigned first, count;
    bool busy;
} queue = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

static void allocate(struct async_allocation *piece, uint8_t with)
{
    static const size_t sizes[] = { 512, 4096, 100000, MIB, 2 * MIB, 3 * MIB, 7 * MIB, PIECE_MAX };
    CUdeviceptr address = 0;
    if (piece->address != 0)
        return;
    if (with >= 0xf8) {              /* more than the GPU has; a daemon may grant it */
        size_t far = with == 0xff ? SIZE_MAX : (size_t)1 << (with - 0xf8 + 32);
        CUresult result = cuMemAlloc_v2(&address, far);
        if (result == CUDA_SUCCESS && far != SIZE_MAX)
            succeed(cuMemFree_v2(address), "freeing what there cannot be");
        else
            MUST(result == CUDA_ERROR_OUT_OF_MEMORY, "%zu bytes: error %d", far, (int)result);
        return;
    }
    size_t size = sizes[with % 8];
    CUresult result = with & 0x40 ? cuMemAllocManaged(&address, size, 1)
                                  : cuMemAlloc_v2(&address, size);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return;                      /* the daemon has refused; nothing was allocated */
    succeed(result, "allocating");
    piece->size = size;
    piece->value = with * 0x01010101u;
    succeed(cuMemsetD32Async(address, piece->value, size / 4, CU_STREAM_PER_THREAD), "filling");
    piece->address = address;
}

void compare_words(CUdeviceptr address, size_t size, unsigned value)
{
    static unsigned words[PIECE_MAX / 4];
    succeed(cuMemcpyDtoHAsync_v2(words, address, size, CU_STREAM_PER_THREAD), "copying");
    succeed(REAL(cuStreamSynchronize)(CU_STREAM_PER_THREAD), "waiting");
    for (size_t i = 0; i < size / 4; i++)
        MUST(words[i] == value, "word %zu of %zu bytes is %#x, not %#x", i, size, words[i], value);
}

static void compare(const struct async_allocation *piece)
{
    if (piece->address != 0)
        compare_words(piece->address, piece->size, piece->value);
}

static void release(struct async_allocation *piece)
{
    if (piece->address != 0)
        succeed(cuMemFree_v2(piece->address), "freeing");
    piece->address = 0;
}

static void ask(const struct async_allocation *piece)
{
    size_t free_bytes, total, size;
    CUdeviceptr base;
    succeed(cuMemGetInfo_v2(&free_bytes, &total), "asking for free memory");
    if (piece->address == 0)
        return;
    succeed(cuMemGetAddressRange_v2(&base, &size, piece->address + 8), "asking for a range");
    MUST(base == piece->address && size == piece->size, "a range of %zu bytes, not %zu", size,
         piece->size);
}

static void call(uint8_t what, uint8_t with)
{
    struct async_allocation *piece = &pieces[what / 8 % PIECES];
    switch (what % 8) {
    case 0: case 1: case 2:
        allocate(piece, with);
        break;
    case 3: case 4:
        compare(piece);
        break;
    case 5:
        release(piece);
        break;
    case 6:
        ask(piece);
        break;
    case 7:
        for (struct async_allocation *each = pieces; each < pieces + PIECES; each++) {
            compare(each);
            if (with & 1)
                release(each);
        }
    }
}

void program_enter(CUresult (*retain)(CUcontext *, CUdevice))
{
    CUcontext context;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    MUST(driver != NULL, "no simulated driver: %s", dlerror());
    succeed(((CUresult (*)(unsigned int))dlsym(driver, "cuInit"))(0), "cuInit");
    succeed(retain(&context, 0), "making a context");
    succeed(REAL(cuCtxSetCurrent)(context), "entering the context");
}

size_t card_in_use(void)
{
    size_t free_bytes, total;
    succeed(REAL(cuMemGetInfo_v2)(&free_bytes, &total), "asking for free memory");
    return total - free_bytes;
}

static void *run(void *argument)
{
    (void)argument;
    program_enter(cuDevicePrimaryCtxRetain);
    pthread_mutex_lock(&queue.lock);
    for (;;) {
        while (queue.count == 0) {
            queue.busy = false;
            pthread_cond_wait(&queue.changed, &queue.lock);
        }
        const struct call next = queue.calls[queue.first];
        queue.first = (queue.first + 1) % QUEUE;
        queue.count--;
        queue.busy = true;
        pthread_mutex_unlock(&queue.lock);
        if (next.act != NULL)
            next.act();
        else
            call(next.what, next.with);
        pthread_mutex_lock(&queue.lock);
    }
    return NULL;
}

static void add(struct call call)
{
    pthread_mutex_lock(&queue.lock);
    if (queue.count < QUEUE) {
        queue.calls[(queue.first + queue.count++) % QUEUE] = call;
        queue.busy = true;
        pthread_cond_signal(&queue.changed);
    }
    pthread_mutex_unlock(&queue.lock);
}

void program_call(uint8_t what, uint8_t with)
{
    add((struct call){ what, with, NULL });
}

void program_run(void (*act)(void))
{
    add((struct call){ .act = act });
}

static bool is_done(void)
{
    pthread_mutex_lock(&queue.lock);
    bool done = queue.count == 0 && !queue.busy;
    pthread_mutex_unlock(&queue.lock);
    return done;
}

void program_finish(void)
{
    for (int waited = 0; !is_done(); waited += 10) {
        MUST(waited < PATIENCE_MS, "the program hangs, though it has room and may run");
        peer_accept();
        peer_read(true, 10);
    }
}

void program_start(void)
{
    pthread_t thread;
    queue.busy = true;
    MUST(pthread_create(&thread, NULL, run, NULL) == 0, "no thread");
    pthread_detach(thread);
}

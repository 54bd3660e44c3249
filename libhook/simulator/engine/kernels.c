/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/kernels.h"

#include <string.h>
#include <time.h>

#include "driver/entry.h"
#include "space/space.h"

/* Not checked by TSan, which does not know how a program orders its kernels, as by a flag in
 * device memory. */
#define DEVICE_CODE __attribute__((no_sanitize("thread")))
#define PIECE ((size_t)128 << 10)    /* bytes per step; between two steps mappings may change */

#define UNUSED __attribute__((unused))
#define STEP(name)                                                                       \
    DEVICE_CODE static void name##_step(const struct span *span,                         \
                                        const uint64_t *arguments UNUSED, uint64_t *sum UNUSED)
#define RUN(name)                                                                        \
    static CUresult run_##name(struct device *device UNUSED, const uint64_t *arguments,  \
                               const _Atomic bool *doomed UNUSED)

typedef uint64_t word __attribute__((may_alias));

/* The part of the arrays that one step processes: `count` words from index `first`. */
struct span {
    word *words[3];
    uint64_t first, count;
};

/* Calls `step` for consecutive parts of up to three arrays of the same length. */
static CUresult for_each_span(struct device *device, const CUdeviceptr *arrays,
                              const enum access *accesses, int number, uint64_t count,
                              const _Atomic bool *doomed,
                              void (*step)(const struct span *, const uint64_t *, uint64_t *),
                              const uint64_t *arguments, uint64_t *sum)
{
    for (int i = 0; i < number; i++)
        FAIL_IF(arrays[i] % 8 != 0, CUDA_ERROR_MISALIGNED_ADDRESS);
    /* Stops when the process exits, which a call that waits for the kernel would delay. */
    for (uint64_t done = 0; done < count && !driver_ended();) {
        struct span span = {.first = done};
        size_t size = (count - done) * 8 < PIECE ? (count - done) * 8 : PIECE;
        space_lock_to_read();
        for (int i = 0; i < number && size != 0; i++) {
            span.words[i] = (word *)space_resolve(device, arrays[i] + done * 8, accesses[i],
                                                  false, &size);
            if (span.words[i] == NULL)
                size = 0;
        }
        span.count = size / 8;
        if (span.count != 0)
            step(&span, arguments, sum);
        space_unlock();
        FAIL_IF(span.count == 0 || atomic_load(doomed), CUDA_ERROR_ILLEGAL_ADDRESS);
        done += span.count;
    }
    return CUDA_SUCCESS;
}

STEP(fill)
{
    for (uint64_t i = 0; i < span->count; i++)
        span->words[0][i] = arguments[2] + (span->first + i) * 0x9E3779B97F4A7C15ull;
}

STEP(step)
{
    for (uint64_t i = 0; i < span->count; i++) {
        uint64_t x = span->words[0][i];
        span->words[0][i] = (x ^ x >> 29) * 0xBF58476D1CE4E5B9ull + arguments[2]
            + (span->first + i);
    }
}

STEP(advance)
{
    uint64_t factor = 1, offset = 0;     /* all rounds combined into one multiplication and one
                                            addition */
    for (uint64_t round = 0; round < arguments[2]; round++) {
        factor *= 0x5851F42D4C957F2Dull;
        offset = offset * 0x5851F42D4C957F2Dull + 0x14057B7EF767814Full;
    }
    for (uint64_t i = 0; i < span->count; i++)
        span->words[0][i] = span->words[0][i] * factor + offset;
}

STEP(add)
{
    for (uint64_t i = 0; i < span->count; i++)
        span->words[0][i] = span->words[1][i] + span->words[2][i];
}

STEP(checksum)
{
    uint64_t total = 0;
    for (uint64_t i = 0; i < span->count; i++)
        total += span->words[0][i] * (2 * (span->first + i) + 1);
    *sum += total;
}

static uint64_t examine_key(uint64_t seed, uint64_t i)
{
    uint64_t z = seed + i * 0x9E3779B97F4A7C15ull;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return z ^ z >> 31;
}

/* arguments[2] is the seed. Of each 4 * arguments[3] words only the first 4 are examined. */
STEP(examine)
{
    uint64_t group = 4 * arguments[3], keys[7], found[5] = {0};
    for (uint64_t i = 0; i < span->count;) {
        uint64_t here = span->first + i, place = here % group, left = span->count - i;
        if (place >= 4) {
            i += group - place;
            continue;
        }
        for (int k = 0; k < 7; k++)
            keys[k] = examine_key(arguments[2], here + k);
        const uint64_t *key = keys, *words = span->words[0] + i;
        uint64_t number = left < 4 - place ? left : 4 - place;
        for (uint64_t j = 0; j < number; j++, key++) {
            for (int pass = 0; pass < 4; pass++)
                found[pass] += (uint64_t)((uint32_t)words[j] + (uint32_t)key[pass])
                    * ((uint32_t)(words[j] >> 32) + (uint32_t)(key[pass] >> 32));
            found[4] |= words[j];
        }
        i += number;
    }
    for (int pass = 0; pass < 4; pass++)
        sum[pass] += found[pass];
    sum[4] |= found[4];
}

#define RUN_IN_PLACE(name)                                                               \
    RUN(name)                                                                            \
    {                                                                                    \
        return for_each_span(device, (CUdeviceptr[]){arguments[0]},                      \
                             (enum access[]){ACCESS_WRITE}, 1, arguments[1], doomed,     \
                             name##_step, arguments, NULL);                              \
    }

RUN_IN_PLACE(fill)
RUN_IN_PLACE(step)
RUN_IN_PLACE(advance)

RUN(add)
{
    return for_each_span(device, (CUdeviceptr[]){arguments[0], arguments[1], arguments[2]},
                         (enum access[]){ACCESS_WRITE, ACCESS_READ, ACCESS_READ}, 3,
                         arguments[3], doomed, add_step, arguments, NULL);
}

/* The host address of `bytes` bytes; NULL: a fault. The address space is locked for reading. */
static void *reach(struct device *device, CUdeviceptr address, enum access access, size_t bytes)
{
    size_t size = bytes;
    void *memory = space_resolve(device, address, access, false, &size);
    return size == bytes ? memory : NULL;
}

RUN(checksum)
{
    uint64_t sum = 0;
    CUresult result = for_each_span(device, (CUdeviceptr[]){arguments[0]},
                                    (enum access[]){ACCESS_READ}, 1, arguments[1], doomed,
                                    checksum_step, arguments, &sum);
    TRY(result);
    FAIL_IF(arguments[2] % 8 != 0, CUDA_ERROR_MISALIGNED_ADDRESS);
    SPACE_LOCKED(read);
    FIND(uint64_t, out, reach(device, arguments[2], ACCESS_WRITE, 8), CUDA_ERROR_ILLEGAL_ADDRESS);
    __atomic_fetch_add(out, sum, __ATOMIC_RELAXED);
    return CUDA_SUCCESS;
}

static CUresult read_words(struct device *device, CUdeviceptr address, uint64_t *words, size_t size)
{
    SPACE_LOCKED(read);
    FIND(void, memory, reach(device, address, ACCESS_READ, size), CUDA_ERROR_ILLEGAL_ADDRESS);
    memcpy(words, memory, size);
    return CUDA_SUCCESS;
}

static CUresult add_up(struct device *device, CUdeviceptr address, const uint64_t *sum)
{
    SPACE_LOCKED(read);
    FIND(uint64_t, out, reach(device, address, ACCESS_WRITE, 5 * sizeof *sum),
         CUDA_ERROR_ILLEGAL_ADDRESS);
    for (int pass = 0; pass < 4; pass++)
        __atomic_fetch_add(&out[pass], sum[pass], __ATOMIC_RELAXED);
    __atomic_fetch_or(&out[4], sum[4], __ATOMIC_RELAXED);
    return CUDA_SUCCESS;
}

RUN(examine)
{
    FAIL_IF(arguments[0] % 8 != 0 || arguments[4] % 8 != 0, CUDA_ERROR_MISALIGNED_ADDRESS);
    CUresult result = CUDA_SUCCESS;
    for (uint64_t i = 0; i < arguments[1] && result == CUDA_SUCCESS; i++) {
        uint64_t target[4], sum[5] = {0};    /* address, words, seed, every */
        TRY(read_words(device, arguments[0] + i * 16, target, 16));
        memcpy(&target[2], &arguments[2], 16);
        result = for_each_span(device, (CUdeviceptr[]){target[0]}, (enum access[]){ACCESS_READ}, 1,
                               target[1], doomed, examine_step, target, sum);
        if (result == CUDA_SUCCESS)
            result = add_up(device, arguments[4] + i * 40, sum);
    }
    return result;
}

static void pause_microseconds(long microseconds)
{
    nanosleep(&(struct timespec){.tv_nsec = microseconds * 1000}, NULL);
}

RUN(spin)
{
    uint64_t end = monotonic_nanoseconds() + arguments[0] * 1000;
    for (uint64_t now; driver_running() && (now = monotonic_nanoseconds()) < end;) {
        uint64_t left = (end - now) / 1000;
        pause_microseconds(left > 1000 ? 1000 : (long)left + 1);
    }
    return CUDA_SUCCESS;
}

/* Adds `more` to a word, then waits until it equals, or with `at_least` reaches, the awaited
 * value. */
static CUresult await_word(struct device *device, const uint64_t *arguments,
                           const _Atomic bool *doomed, uint32_t more, bool at_least)
{
    FAIL_IF(arguments[0] % 4 != 0, CUDA_ERROR_MISALIGNED_ADDRESS);
    for (long nap = 1; driver_running(); nap = nap < 500 ? nap * 2 : 500) {
        size_t size = sizeof(uint32_t);
        uint32_t value = 0;
        space_lock_to_read();
        uint32_t *flag = (uint32_t *)space_resolve(
            device, arguments[0], more != 0 ? ACCESS_WRITE : ACCESS_READ, false, &size);
        if (flag != NULL && more != 0)
            value = __atomic_add_fetch(flag, more, __ATOMIC_ACQ_REL);
        else if (flag != NULL)
            value = __atomic_load_n(flag, __ATOMIC_ACQUIRE);
        more = 0;
        space_unlock();
        FAIL_IF(flag == NULL || atomic_load(doomed), CUDA_ERROR_ILLEGAL_ADDRESS);
        uint32_t awaited = (uint32_t)arguments[1];
        if (at_least ? value >= awaited : value == awaited)
            return CUDA_SUCCESS;
        pause_microseconds(nap);
    }
    return CUDA_SUCCESS;
}

RUN(wait_flag)
{
    return await_word(device, arguments, doomed, 0, false);
}

RUN(meet)
{
    return await_word(device, arguments, doomed, 1, true);
}

static const struct kernel kernels[] = {
    {"nvshare_fill", 3, run_fill, {[0] = {1, 8}}},
    {"nvshare_step", 3, run_step, {[0] = {1, 8}}},
    {"nvshare_advance", 3, run_advance, {[0] = {1, 8}}},
    {"nvshare_add", 4, run_add, {{3, 8}, {3, 8}, {3, 8}}},
    {"nvshare_checksum", 3, run_checksum, {[0] = {1, 8}, [2] = {-1, 8}}},
    {"nvshare_examine", 5, run_examine, {[0] = {1, 16}, [4] = {1, 40}}},
    {"nvshare_spin", 1, run_spin, {{0, 0}}},
    {"nvshare_wait_flag", 2, run_wait_flag, {[0] = {-1, 4}}},
    {"nvshare_meet", 2, run_meet, {[0] = {-1, 4}}},
};

size_t kernel_reach(const struct kernel *kernel, const uint64_t *arguments, int index)
{
    int count = kernel->reach[index].count;
    return kernel->reach[index].bytes * (count < 0 ? 1 : arguments[count]);
}

const struct kernel *kernel_named(const char *name, size_t length)
{
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (strlen(kernels[i].name) == length && memcmp(kernels[i].name, name, length) == 0)
            return &kernels[i];
    return NULL;
}

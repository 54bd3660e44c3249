/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures the bus with two processes that copy at once, one off the card and one onto it:
 *
 *     crossing BYTES BLOCK ROUNDS
 *
 * Each has BYTES of the card's memory, in blocks of BLOCK bytes that are created and mapped one
 * by one, and as much pinned host memory; a few copies are in flight at any time. Each of ROUNDS
 * rounds copies in four ways, with one line of JSON for each way:
 *
 *     copies    only copies
 *     freed     each block is unmapped and released after it has been copied off the card
 *     mapped    each block is created and mapped before it is copied onto the card
 *     both      freed and mapped, as in a hand-over
 *
 * out_gbps and in_gbps are 10^9 bytes per second, until the first of the two processes has
 * finished. All words are compared at their destination after the measured time; a wrong word ends
 * the program with status 1. No library should be preloaded.
 *
 * The driver clears released memory in the background. So the card is idle for a second before
 * each way.
 */
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define IN_FLIGHT 4
#define BLOCKS_MAX 1024
#define HUGE_PAGE ((size_t)2 << 20)
#define REST_US 1000000

/* Structures of the driver, as far as they are used. */
struct location { int type, id; };
struct property { int type, handle_types; struct location location; void *windows; char flags[8]; };
struct access { struct location location; int flags; };
enum { PINNED = 1, DEVICE = 1, READ_WRITE = 3, NON_BLOCKING = 1, BLOCKING_WITHOUT_TIME = 3 };

/* The driver's functions used besides DRIVER_START. */
#define DRIVER(X)                                                                                  \
    X(pin, cuMemHostRegister_v2, (void *, size_t, unsigned))                                       \
    X(reserve, cuMemAddressReserve, (address *, size_t, size_t, address, unsigned long long))      \
    X(create, cuMemCreate, (address *, size_t, const struct property *, unsigned long long))       \
    X(map, cuMemMap, (address, size_t, size_t, address, unsigned long long))                       \
    X(permit, cuMemSetAccess, (address, size_t, const struct access *, size_t))                    \
    X(release, cuMemRelease, (address))                                                            \
    X(unmap, cuMemUnmap, (address, size_t))                                                        \
    X(make_stream, cuStreamCreate, (void **, unsigned))                                            \
    X(make_event, cuEventCreate, (void **, unsigned))                                              \
    X(record, cuEventRecord, (void *, void *))                                                     \
    X(wait, cuEventSynchronize, (void *))                                                          \
    X(set, cuMemsetD32_v2, (address, unsigned, size_t))                                            \
    X(copy_in, cuMemcpyHtoDAsync_v2, (address, const void *, size_t, void *))                      \
    X(copy_out, cuMemcpyDtoHAsync_v2, (void *, address, size_t, void *))

#include "driver.h"

enum role { OUT, IN };
static const struct way {
    const char *name;
    bool busy[2];                    /* whether it releases blocks, and maps blocks */
} ways[] = {
    { "copies", { false, false } }, { "freed", { true, false } },
    { "mapped", { false, true } }, { "both", { true, true } },
};
#define WAYS (sizeof ways / sizeof ways[0])

/* Memory shared by both processes and their parent. */
static struct shared {
    pthread_barrier_t barrier;
    double begin[2], done[2][BLOCKS_MAX];
} *shared;

static enum role role;
static size_t block, count;
static address base, handles[BLOCKS_MAX];
static char *host;
static void *stream, *events[IN_FLIGHT];

static void take(size_t i)
{
    const struct location here = { DEVICE, 0 };
    const struct property property = { .type = PINNED, .location = here };
    const struct access access = { here, READ_WRITE };
    expect(driver.create(&handles[i], block, &property, 0), "creating memory");
    expect(driver.map(base + i * block, block, 0, handles[i], 0), "mapping memory");
    expect(driver.permit(base + i * block, block, &access, 1), "giving access to memory");
}

static void give(size_t i)
{
    expect(driver.release(handles[i]), "releasing memory");
    expect(driver.unmap(base + i * block, block), "unmapping memory");
}

static void start(void)
{
    start_driver();
    expect(driver.make_stream(&stream, NON_BLOCKING), "making a stream");
    for (size_t i = 0; i < IN_FLIGHT; i++)
        expect(driver.make_event(&events[i], BLOCKING_WITHOUT_TIME), "making an event");
    expect(driver.reserve(&base, count * block, 0, 0, 0), "reserving addresses");
    host = mmap(NULL, count * block + HUGE_PAGE, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    expect(host == MAP_FAILED, "finding host memory");
    host = (char *)(((uintptr_t)host + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
    /* Without huge pages the copies are slower, but the results right. */
    madvise(host, count * block, MADV_HUGEPAGE);
    memset(host, 1, count * block);
    expect(driver.pin(host, count * block, 0), "pinning host memory");
}

static uint32_t word_of(size_t round, size_t i)
{
    return (uint32_t)(round * BLOCKS_MAX + i) * 0x10001u + 1;
}

static void fill_host(size_t round)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t word = word_of(round, i), *words = (uint32_t *)(host + i * block);
        for (size_t k = 0; k < block / sizeof word; k++)
            words[k] = word;
    }
}

static void look_at_host(size_t round)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t word = word_of(round, i);
        const char *bytes = host + i * block;
        if (memcmp(bytes, &word, sizeof word) != 0
            || memcmp(bytes, bytes + sizeof word, block - sizeof word) != 0) {
            fprintf(stderr, "WRONG RESULT: block %zu is not what was copied %s\n", i,
                    role == OUT ? "out" : "in");
            exit(1);
        }
    }
}

static void copy(size_t i)
{
    address there = base + i * block;
    char *here = host + i * block;
    expect(role == OUT ? driver.copy_out(here, there, block, stream)
                       : driver.copy_in(there, here, block, stream), "copying");
    expect(driver.record(events[i % IN_FLIGHT], stream), "recording an event");
}

/* The measured part. */
static void cross(bool busy)
{
    shared->begin[role] = now();
    for (size_t i = 0, done = 0; done < count;) {
        if (i < count && i - done < IN_FLIGHT) {
            if (role == IN && busy)
                take(i);
            copy(i++);
            continue;
        }
        expect(driver.wait(events[done % IN_FLIGHT]), "waiting for a copy");
        shared->done[role][done] = now();
        if (role == OUT && busy)
            give(done);
        done++;
    }
}

static void prepare(size_t round, bool busy)
{
    for (size_t i = 0; i < count; i++)
        if (role == OUT || !busy)
            take(i);
    for (size_t i = 0; i < count && role == OUT; i++)
        expect(driver.set(base + i * block, word_of(round, i), block / 4), "setting memory");
    expect(driver.synchronize(), "setting memory");
    if (role == IN)
        fill_host(round);
    usleep(REST_US);
}

static void conclude(size_t round, bool busy)
{
    if (role == IN) {
        memset(host, 0, count * block);
        for (size_t i = 0; i < count; i++)
            expect(driver.copy_out(host + i * block, base + i * block, block, stream), "copying");
        expect(driver.synchronize(), "copying");
    }
    look_at_host(round);
    for (size_t i = 0; i < count; i++)
        if (role == IN || !busy)
            give(i);
}

/* The speed until the first of the two processes has finished. */
static double speed(enum role of, double begin, double end)
{
    size_t crossed = 0;
    while (crossed < count && shared->done[of][crossed] <= end)
        crossed++;
    return (double)(crossed * block) / (end - begin) / 1e3;
}

static void say(const struct way *way)
{
    double *begin = shared->begin, ends[2] = { shared->done[OUT][count - 1],
                                               shared->done[IN][count - 1] };
    double since = begin[OUT] > begin[IN] ? begin[OUT] : begin[IN];
    double end = ends[OUT] < ends[IN] ? ends[OUT] : ends[IN];
    printf("{\"way\": \"%s\", \"out_gbps\": %.3f, \"in_gbps\": %.3f}\n", way->name,
           speed(OUT, since, end), speed(IN, since, end));
    fflush(stdout);
}

static void perform(size_t rounds)
{
    start();
    for (size_t round = 0; round < rounds * WAYS; round++) {
        const struct way *way = &ways[round % WAYS];
        prepare(round, way->busy[role]);
        pthread_barrier_wait(&shared->barrier);
        cross(way->busy[role]);
        pthread_barrier_wait(&shared->barrier);
        if (role == OUT)
            say(way);
        conclude(round, way->busy[role]);
        pthread_barrier_wait(&shared->barrier);
    }
    exit(0);
}

int main(int argc, char **argv)
{
    size_t bytes = argc == 4 ? strtoull(argv[1], NULL, 10) : 0;
    size_t rounds = argc == 4 ? strtoull(argv[3], NULL, 10) : 0;
    block = argc == 4 ? strtoull(argv[2], NULL, 10) : 0;
    count = block == 0 ? 0 : bytes / block;
    if (count == 0 || count > BLOCKS_MAX || rounds == 0) {
        fprintf(stderr, "crossing: bytes, those of a block and rounds are needed, at most %d "
                "blocks\n", BLOCKS_MAX);
        return 2;
    }
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    expect(shared == MAP_FAILED, "finding shared memory");
    pthread_barrierattr_t attributes;
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    expect(pthread_barrier_init(&shared->barrier, &attributes, 2), "making a barrier");
    for (role = OUT; role <= IN; role++) {
        pid_t child = fork();
        expect(child < 0, "starting a process");
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            perform(rounds);
        }
    }
    /* If one process fails, the other would wait for it: the other ends with this process. */
    int status = 0;
    for (int left = 2; left > 0 && status == 0; left--)
        expect(wait(&status) < 0, "waiting for the processes");
    return status != 0;
}

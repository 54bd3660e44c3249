/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One of two engines that use a GPU alternately, a trainer or a rollout engine:
 *
 *     engine BYTES CHUNK SEED
 *
 * It has BYTES of the GPU's memory in allocations of CHUNK bytes, and prints {"ready": true}. Then
 * it reads lines, MICROSECONDS MOVED RELEASES. For each line it computes for MICROSECONDS, changing
 * every word of its memory in each pass, and answers:
 *
 *     {"first": 81723645, "ended": 82723651, "pass": 41022}
 *
 * `first` and `ended` are the ends of the first and the last pass in microseconds of
 * CLOCK_MONOTONIC, `pass` is the duration of the last pass. Before it answers, it moves MOVED bytes
 * to pinned host memory and frees them on the GPU, as engines do that share without the library;
 * the next line first moves them back. If RELEASES is 1 it calls nvshare_release().
 *
 * At the end of the lines it prints {"right": true} if each allocation equals the CPU's result.
 */
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "chunks.h"
#include "device.h"
#include "expectation.h"

static struct device device;
static struct options options = {.rounds = 1, .used_share = 1, .changed_share = 1};
static struct chunks chunks;
static CUstream stream;
static CUresult (*give_back)(CUdeviceptr);
static void **host;                      /* by chunk; NULL: the chunk was never moved */
static uint64_t moved;                   /* number of first chunks that are in host memory */

static uint64_t microseconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000 + (uint64_t)time.tv_nsec / 1000;
}

static uint64_t number(const char *text)
{
    char *end;
    uint64_t value = strtoull(text, &end, 10);
    if (end == text || *end != '\0' || text[0] == '-')
        device_die(EXIT_USAGE, "'%s' is no number", text);
    return value;
}

static void finish(const char *doing)
{
    device_expect(&device, device.stream_synchronize(stream), doing);
}

static void pass(void)
{
    for (uint64_t i = 0; i < chunks.count; i++) {
        struct chunk *chunk = &chunks.chunk[i];
        void *parameters[] = {&chunk->address, &chunk->words, &options.rounds};
        device_launch(&device, device.advance, chunk->words, stream, parameters, "computing");
        chunk->steps++;
    }
    finish("computing");
}

static void move_out(uint64_t bytes)
{
    for (; moved < chunks.count && moved * options.chunk < bytes; moved++) {
        struct chunk *chunk = &chunks.chunk[moved];
        uint64_t size = chunk->words * sizeof(uint64_t);
        if (host[moved] == NULL)
            device_expect(&device, device.host_allocate(&host[moved], size, 0), "pinning memory");
        device_expect(&device, device.copy_to_host(host[moved], chunk->address, size),
                      "copying out");
        device_expect(&device, give_back(chunk->address), "freeing");
    }
}

static void bring_in(void)
{
    for (uint64_t i = 0; i < moved; i++) {
        struct chunk *chunk = &chunks.chunk[i];
        uint64_t size = chunk->words * sizeof(uint64_t);
        device_expect(&device, device.allocate(&chunk->address, size), "allocating");
        device_expect(&device, device.copy_to_device(chunk->address, host[i], size, stream),
                      "copying in");
    }
    finish("copying in");
    moved = 0;
}

static void perform(uint64_t lasts, uint64_t bytes, bool releases)
{
    bring_in();
    pass();
    uint64_t first = microseconds(), began, ended = first;
    do {
        began = ended;
        pass();
        ended = microseconds();
    } while (ended - first < lasts);
    if (releases) {
        int (*release)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "nvshare_release");
        if (release == NULL || release() != 1)
            device_die(EXIT_FAILED, "the turn cannot be released");
    }
    move_out(bytes);
    printf("{\"first\": %" PRIu64 ", \"ended\": %" PRIu64 ", \"pass\": %" PRIu64 "}\n", first,
           ended, ended - began);
    fflush(stdout);
}

static bool right(void)
{
    uint64_t bytes = chunks.count * sizeof(uint64_t), wrong;
    uint64_t *found = chunks_array(chunks.count, sizeof *found);
    CUdeviceptr sums;
    bring_in();
    device_expect(&device, device.allocate(&sums, bytes), "allocating");
    device_expect(&device, device.set(sums, 0, bytes), "clearing");
    device_expect(&device, device.context_synchronize(), "clearing");
    for (uint64_t i = 0; i < chunks.count; i++) {
        CUdeviceptr sum = sums + i * sizeof sum;
        void *parameters[] = {&chunks.chunk[i].address, &chunks.chunk[i].words, &sum};
        device_launch(&device, device.checksum, chunks.chunk[i].words, stream, parameters,
                      "summing up");
    }
    finish("summing up");
    device_expect(&device, device.copy_to_host(found, sums, bytes), "reading sums");
    for (uint64_t i = 0; i < chunks.count; i++)
        chunks.chunk[i].sum = found[i];
    free(found);
    return chunks_wrong(&chunks, &options, &wrong) == 0;
}

int main(int given, char **text)
{
    if (given != 4)
        device_die(EXIT_USAGE, "engine BYTES CHUNK SEED");
    options.memory = number(text[1]);
    options.chunk = number(text[2]);
    options.seed = number(text[3]);
    if (options.memory == 0 || options.chunk == 0 || options.memory % 8 || options.chunk % 8)
        device_die(EXIT_USAGE, "sizes are whole words, and not nothing");
    device_open(&device, 0);
    give_back = (CUresult (*)(CUdeviceptr))dlsym(dlopen("libcuda.so.1", RTLD_NOW),
                                                 "cuMemFree_v2");
    if (give_back == NULL)
        device_die(EXIT_NO_DRIVER, "the CUDA driver has no cuMemFree_v2");
    device_expect(&device, device.stream_create(&stream, CU_STREAM_NON_BLOCKING), "a stream");
    chunks = chunks_allocate(&device, &options);
    host = chunks_array(chunks.count, sizeof *host);
    for (uint64_t i = 0; i < chunks.count; i++) {
        uint64_t value = expectation_fill_value(options.seed, i);
        void *parameters[] = {&chunks.chunk[i].address, &chunks.chunk[i].words, &value};
        device_launch(&device, device.fill, chunks.chunk[i].words, stream, parameters, "filling");
    }
    finish("filling");
    puts("{\"ready\": true}");
    fflush(stdout);
    uint64_t lasts, bytes, releases;
    while (scanf("%" SCNu64 " %" SCNu64 " %" SCNu64, &lasts, &bytes, &releases) == 3)
        perform(lasts, bytes, releases != 0);
    printf("{\"right\": %s}\n", right() ? "true" : "false");
    return EXIT_RIGHT;
}

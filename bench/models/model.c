/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Models that answer requests, and the bus over which their weights are loaded:
 *
 *     model serve BYTES CHUNK SEED COUNT RESIDENT [FILE]
 *     model write BYTES CHUNK FILE
 *     model speed CHUNK
 *
 * `serve` has COUNT models of BYTES each, in allocations of CHUNK bytes. RESIDENT of them are on the
 * card, the others in pinned host memory. Weights are made on the card from SEED, or read from FILE,
 * which `write` has made; then SEED is 0. The program prints {"ready": true}. Then it reads lines,
 * MODEL DUE, waits until DUE, in microseconds of CLOCK_MONOTONIC, and answers:
 *
 *     {"model": 0, "due": 81723645, "began": 81723650, "ended": 81731022, "right": true}
 *
 * A request reads all weights of its model. `right`: their sum is right; each word has an odd
 * factor that depends on its place, so one wrong word always changes the sum. A model that is not
 * on the card first replaces, allocation by allocation, the least recently used model there: a copy
 * off the card, then one onto it, as in programs that move weights by hand. At the end of the lines
 * all words on the card are compared: {"same": true}.
 *
 * `speed` measures the bus in one direction at a time, 10^9 bytes per second:
 * {"in_gbps": 55.1, "out_gbps": 54}.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "device.h"

#define GOLDEN 0x9E3779B97F4A7C15u       /* as in nvshare_fill */
#define MIX 0xD1B54A32D192ED03u
#define PERIOD 16                        /* number of different allocations, all in FILE */
#define MODELS 64
#define COPIES 32                        /* copies that `speed` measures */
#define ROUNDS 3

struct model {
    CUdeviceptr *card;                   /* by chunk; NULL: the model is not on the card */
    void **host;
    uint64_t seed, asked;
};

static struct device device;
static CUstream stream;
static CUdeviceptr sum;
static uint64_t bytes, chunk, chunks, before;
static struct model models[MODELS];

static uint64_t microseconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000 + (uint64_t)time.tv_nsec / 1000;
}

static void until(uint64_t when)
{
    struct timespec time = {.tv_sec = (time_t)(when / 1000000),
                            .tv_nsec = (long)(when % 1000000) * 1000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL) == EINTR)
        ;
}

static uint64_t number(const char *text)
{
    char *end;
    uint64_t value = strtoull(text, &end, 10);
    if (end == text || *end != '\0' || text[0] == '-')
        device_die(EXIT_USAGE, "'%s' is no number", text);
    return value;
}

static void *found(void *memory)
{
    if (memory == NULL)
        device_die(EXIT_NO_MEMORY, "no host memory");
    return memory;
}

static uint64_t size_of(uint64_t i)
{
    return i + 1 < chunks ? chunk : bytes - i * chunk;
}

static uint64_t first_word(uint64_t seed, uint64_t i)
{
    return (seed * PERIOD + i % PERIOD + 1) * MIX;
}

/* The result of nvshare_checksum for `count` words filled by nvshare_fill. */
static uint64_t sum_of(uint64_t value, uint64_t count)
{
    unsigned __int128 n = count, ramp = (n - 1) * n * (2 * n - 1) / 3 + (n - 1) * n / 2;
    return value * count * count + GOLDEN * (uint64_t)ramp;
}

static void finish(const char *doing)
{
    device_expect(&device, device.stream_synchronize(stream), doing);
}

static void *pinned(uint64_t size)
{
    void *memory;
    device_expect(&device, device.host_allocate(&memory, size, 0), "pinning host memory");
    return memory;
}

static void copy_in(CUdeviceptr to, const void *from, uint64_t size)
{
    device_expect(&device, device.copy_to_device(to, from, size, stream), "copying in");
}

static void copy_out(void *to, CUdeviceptr from, uint64_t size)
{
    device_expect(&device, device.copy_to_host(to, from, size), "copying out");
}

static void fill(CUdeviceptr to, uint64_t seed, uint64_t i)
{
    uint64_t count = size_of(i) / sizeof(uint64_t), value = first_word(seed, i);
    void *parameters[] = {&to, &count, &value};
    device_launch(&device, device.fill, count, stream, parameters, "making weights");
}

static void fill_host(uint64_t *to, uint64_t seed, uint64_t i)
{
    uint64_t value = first_word(seed, i);
    for (uint64_t k = 0; k < size_of(i) / sizeof *to; k++)
        to[k] = value + k * GOLDEN;
}

/* Reads a chunk while the one before it is copied to the card. */
static void load(struct model *model, const char *path)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        device_die(EXIT_FAILED, "%s cannot be read: %s", path, strerror(errno));
    char *stages[2] = {pinned(chunk), pinned(chunk)};
    for (uint64_t i = 0; i < chunks; i++) {
        uint64_t size = size_of(i);
        for (uint64_t had = 0; had < size;) {
            ssize_t got = pread(file, stages[i % 2] + had, size - had,
                                (off_t)(i % PERIOD * chunk + had));
            if (got <= 0)
                device_die(EXIT_FAILED, "%s is too short", path);
            had += (uint64_t)got;
        }
        finish("loading weights");
        copy_in(model->card[i], stages[i % 2], size);
    }
    finish("loading weights");
    close(file);
}

static void make(struct model *model, bool resident, const char *path)
{
    if (resident) {
        model->card = found(calloc(chunks, sizeof *model->card));
        for (uint64_t i = 0; i < chunks; i++)
            device_expect(&device, device.allocate(&model->card[i], size_of(i)), "allocating");
        for (uint64_t i = 0; i < chunks && path == NULL; i++)
            fill(model->card[i], model->seed, i);
        if (path != NULL)
            load(model, path);
        finish("making weights");
        return;
    }
    model->host = found(calloc(chunks, sizeof *model->host));
    for (uint64_t i = 0; i < chunks; i++)
        fill_host(model->host[i] = pinned(size_of(i)), model->seed, i);
}

static void exchange(struct model *coming, struct model *leaving)
{
    static void *spare, *last;
    if (spare == NULL) {
        spare = pinned(chunk);
        last = pinned(size_of(chunks - 1));
    }
    for (uint64_t i = 0; i < chunks; i++) {
        void **free_one = i + 1 < chunks ? &spare : &last, *from = coming->host[i];
        copy_out(*free_one, leaving->card[i], size_of(i));
        copy_in(leaving->card[i], from, size_of(i));
        finish("copying in");
        coming->host[i] = *free_one;
        *free_one = from;
    }
    leaving->host = coming->host;
    coming->card = leaving->card;
    leaving->card = NULL;
    coming->host = NULL;
}

static void bring_in(struct model *coming, uint64_t count)
{
    struct model *oldest = NULL;
    for (struct model *one = models; one < models + count; one++)
        if (one->card != NULL && (oldest == NULL || one->asked < oldest->asked))
            oldest = one;
    exchange(coming, oldest);
}

/* A pass over all weights. */
static bool answer(const struct model *model)
{
    uint64_t expected = before, sums;
    for (uint64_t i = 0; i < chunks; i++) {
        uint64_t count = size_of(i) / sizeof(uint64_t);
        void *parameters[] = {(void *)&model->card[i], &count, &sum};
        device_launch(&device, device.checksum, count, stream, parameters, "reading weights");
        expected += sum_of(first_word(model->seed, i), count);
    }
    finish("reading weights");
    copy_out(&sums, sum, sizeof sums);
    before = sums;
    return sums == expected;
}

static bool same(const struct model *model)
{
    static uint64_t *stage;
    if (stage == NULL)
        stage = pinned(chunk);
    uint64_t difference = 0;
    for (uint64_t i = 0; i < chunks; i++) {
        uint64_t value = first_word(model->seed, i);
        copy_out(stage, model->card[i], size_of(i));
        for (uint64_t k = 0; k < size_of(i) / sizeof *stage; k++)
            difference |= stage[k] ^ (value + k * GOLDEN);
    }
    return difference == 0;
}

static void say(const char *what, bool so)
{
    printf("{\"%s\": %s}\n", what, so ? "true" : "false");
    fflush(stdout);
}

static int serve(uint64_t seed, uint64_t count, uint64_t resident, const char *path)
{
    if (count == 0 || count > MODELS || resident == 0 || resident > count)
        device_die(EXIT_USAGE, "at most %d models, and one at least on the card", MODELS);
    device_expect(&device, device.allocate(&sum, sizeof before), "allocating");
    device_expect(&device, device.set(sum, 0, sizeof before), "clearing");
    device_expect(&device, device.context_synchronize(), "clearing");
    for (uint64_t i = 0; i < count; i++) {
        models[i].seed = seed + i;
        make(&models[i], i < resident, path);
    }
    say("ready", true);
    uint64_t which, due;
    while (scanf("%" SCNu64 " %" SCNu64, &which, &due) == 2) {
        if (which >= count)
            device_die(EXIT_USAGE, "there is no model %" PRIu64, which);
        struct model *model = &models[which];
        until(due);
        uint64_t began = microseconds();
        if (model->card == NULL)
            bring_in(model, count);
        bool right = answer(model);
        model->asked = microseconds();
        printf("{\"model\": %" PRIu64 ", \"due\": %" PRIu64 ", \"began\": %" PRIu64
               ", \"ended\": %" PRIu64 ", \"right\": %s}\n",
               which, due, began, model->asked, right ? "true" : "false");
        fflush(stdout);
    }
    bool right = true;
    for (uint64_t i = 0; i < count; i++)
        right = (models[i].card == NULL || same(&models[i])) && right;
    say("same", right);
    return EXIT_RIGHT;
}

static int write_file(const char *path)
{
    FILE *file = fopen(path, "we");
    if (file == NULL)
        device_die(EXIT_FAILED, "%s cannot be written: %s", path, strerror(errno));
    uint64_t *words = found(malloc(chunk));
    for (uint64_t i = 0; i < PERIOD && i < chunks; i++) {
        fill_host(words, 0, i);
        if (fwrite(words, size_of(i), 1, file) != 1)
            device_die(EXIT_FAILED, "%s cannot be written: %s", path, strerror(errno));
    }
    if (fclose(file) != 0)
        device_die(EXIT_FAILED, "%s cannot be written: %s", path, strerror(errno));
    return EXIT_RIGHT;
}

static int speed(void)
{
    double best[2] = {0, 0};
    CUdeviceptr card;
    void *host = pinned(chunk);
    device_expect(&device, device.allocate(&card, chunk), "allocating");
    for (int round = 0; round < ROUNDS; round++)
        for (int way = 0; way < 2; way++) {
            uint64_t began = microseconds();
            for (int i = 0; i < COPIES; i++)
                if (way == 0)
                    copy_in(card, host, chunk);
                else
                    copy_out(host, card, chunk);
            finish("copying");
            double gbps = (double)(COPIES * chunk) / (double)(microseconds() - began) / 1e3;
            best[way] = gbps > best[way] ? gbps : best[way];
        }
    printf("{\"in_gbps\": %.3f, \"out_gbps\": %.3f}\n", best[0], best[1]);
    return EXIT_RIGHT;
}

int main(int given, char **text)
{
    const char *mode = given > 1 ? text[1] : "";
    bool serves = strcmp(mode, "serve") == 0 && (given == 7 || given == 8);
    bool writes = strcmp(mode, "write") == 0 && given == 5;
    bool measures = strcmp(mode, "speed") == 0 && given == 3;
    if (!serves && !writes && !measures)
        device_die(EXIT_USAGE, "serve BYTES CHUNK SEED COUNT RESIDENT [FILE], "
                               "write BYTES CHUNK FILE, or speed CHUNK");
    bytes = measures ? 0 : number(text[2]);
    chunk = number(text[measures ? 2 : 3]);
    if (chunk == 0 || chunk % sizeof(uint64_t) != 0 || bytes % sizeof(uint64_t) != 0
        || (bytes == 0 && !measures))
        device_die(EXIT_USAGE, "sizes are whole words, and not nothing");
    chunks = (bytes + chunk - 1) / chunk;
    if (writes)
        return write_file(text[4]);
    device_open(&device, 0);
    device_expect(&device, device.stream_create(&stream, CU_STREAM_NON_BLOCKING), "a stream");
    if (measures)
        return speed();
    return serve(number(text[4]), number(text[5]), number(text[6]), given == 8 ? text[7] : NULL);
}

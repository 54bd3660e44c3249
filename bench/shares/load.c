/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that repeats a unit of work, and prints the number of units done in each interval:
 * load KERNELS MICROSECONDS PASSES PERIOD GRAPH WORDS RATE MEMORY CHUNK HOST.
 *
 * A unit is PASSES passes over MEMORY words, allocated in chunks of CHUNK words, then KERNELS kernels
 * of MICROSECONDS each, which compute on WORDS words, then a synchronisation. A unit begins every
 * PERIOD microseconds, like requests; with PERIOD 0 at the end of the last unit. GRAPH 1: a unit is
 * launched as one graph. HOST: before each kernel the program computes on the CPU for HOST
 * microseconds, as an interpreter does between two operations on small tensors. RATE is the number
 * of a kernel's rounds in a microsecond; 0: it is measured, on a free card. The program prints it:
 *
 *     {"rate": ROUNDS IN A MICROSECOND}
 *
 * Then it reads a line, START SECONDS. It works from START (by CLOCK_MONOTONIC) for SECONDS, and
 * prints the units done in each tenth of a second (a unit in several tenths counts in each by the
 * part of its time there), with a PERIOD the duration of each unit, and whether all words are right
 * and all chunks equal, as each chunk had the same operations:
 *
 *     {"done": [...], "milliseconds": [...], "right": true}
 */
#include <dlfcn.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "device.h"

#define A 0x5851F42D4C957F2Du            /* as in nvshare_advance */
#define C 0x14057B7EF767814Fu
#define ODD 0x9E3779B97F4A7C15u          /* as in nvshare_fill */
#define SEED 12345u
#define TENTH 0.1
#define BINS 36000                       /* tenths of a second: an hour */
#define LATENCIES 100000

static struct device device;
static CUstream stream;
static CUdeviceptr words, *passed;
static uint64_t count, rounds, total, steps, chunks, chunk;
static double host;                      /* seconds of CPU work before each kernel */
static double done[BINS];
static double latencies[LATENCIES];

static CUresult (*begin_capture)(CUstream, int);
static CUresult (*end_capture)(CUstream, CUgraph *);
static CUresult (*instantiate)(CUgraphExec *, CUgraph, unsigned long long);
static CUresult (*launch_graph)(CUgraphExec, CUstream);

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void until(double when)
{
    struct timespec time = {.tv_sec = (time_t)when,
                            .tv_nsec = (long)((when - floor(when)) * 1e9)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL) != 0)
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

static void finish(void)
{
    device_expect(&device, device.stream_synchronize(stream), "computing on the GPU");
}

static void compute_on_the_host(void)
{
    for (double end = host > 0 ? now() + host : 0; host > 0 && now() < end;)
        ;
}

static void advance(uint64_t times, uint64_t each)
{
    for (uint64_t i = 0; i < times; i++) {
        compute_on_the_host();
        void *parameters[] = {&words, &count, &each};
        device_launch(&device, device.advance, count, stream, parameters, "launching a kernel");
    }
}

static void pass(uint64_t passes)
{
    for (uint64_t i = 0; i < passes * chunks; i++) {
        void *parameters[] = {&passed[i % chunks], &chunk, &steps};
        device_launch(&device, device.step, chunk, stream, parameters, "launching a pass");
    }
}

static void fill(CUdeviceptr to, uint64_t number)
{
    uint64_t seed = SEED;
    void *parameters[] = {&to, &number, &seed};
    device_launch(&device, device.fill, number, stream, parameters, "filling");
}

static void allocate(CUdeviceptr *to, uint64_t number)
{
    device_expect(&device, device.allocate(to, number * sizeof(uint64_t)), "allocating");
    fill(*to, number);
}

static uint64_t first_word(void)
{
    uint64_t word;
    device_expect(&device, device.copy_to_host(&word, words, sizeof word), "copying");
    return word;
}

/* The sum is added to the first of `words`: the pass has read all of these. */
static uint64_t sum_of(CUdeviceptr of)
{
    uint64_t before = first_word();
    void *parameters[] = {&of, &chunk, &words};
    device_launch(&device, device.checksum, chunk, stream, parameters, "adding up");
    finish();
    return first_word() - before;
}

static bool alike(void)
{
    for (uint64_t i = 1; i < chunks; i++)
        if (sum_of(passed[i]) != sum_of(passed[0]))
            return false;
    return true;
}

/* Measures rounds per microsecond, by the difference between kernels and kernels twice as long. */
static double measured(void)
{
    uint64_t long_one = 1000;
    for (;; long_one *= 2) {
        double took[2];
        for (int twice = 0; twice < 2; twice++) {
            advance(1, 1);
            finish();
            double began = now();
            advance(1, long_one << twice);
            finish();
            took[twice] = now() - began;
        }
        if (took[1] - took[0] > 0.02)
            return (double)long_one / (took[1] - took[0]) / 1e6;
    }
}

/* Returns x after `times` rounds x = A * x + C, computed together as a * x + c. */
static uint64_t after(uint64_t x, uint64_t times)
{
    uint64_t a = 1, c = 0, power = A, sum = C;
    for (; times > 0; times >>= 1) {
        if (times & 1) {
            a *= power;
            c = c * power + sum;
        }
        sum *= power + 1;
        power *= power;
    }
    return a * x + c;
}

static bool right(void)
{
    uint64_t *found = calloc(count, sizeof *found);
    if (found == NULL)
        device_die(EXIT_FAILED, "no host memory for the words");
    device_expect(&device, device.copy_to_host(found, words, count * sizeof *found), "copying");
    bool same = true;
    for (uint64_t i = 0; i < count; i++)
        same = same && found[i] == after(i * ODD + SEED, total);
    free(found);
    return same;
}

static void credit(double from, double to)
{
    double length = to - from;
    for (double at = from; at < to;) {
        double next = (floor(at / TENTH + 1e-9) + 1) * TENTH;
        double end = next < to ? next : to;
        uint64_t bin = (uint64_t)(at / TENTH + 1e-9);
        if (bin < BINS)
            done[bin] += (end - at) / length;
        at = end;
    }
}

int main(int given, char **text)
{
    if (given != 11)
        device_die(EXIT_USAGE,
                   "load KERNELS MICROSECONDS PASSES PERIOD GRAPH WORDS RATE MEMORY CHUNK HOST");
    uint64_t kernels = number(text[1]), passes = number(text[3]);
    double microseconds = (double)number(text[2]), period = (double)number(text[4]) / 1e6;
    bool graph = number(text[5]) != 0;
    count = number(text[6]);
    double rate = atof(text[7]);
    chunk = number(text[9]);
    chunks = chunk == 0 ? 0 : number(text[8]) / chunk;
    device_open(&device, 0);
    device_expect(&device, device.stream_create(&stream, CU_STREAM_NON_BLOCKING), "a stream");
    allocate(&words, count);
    passed = calloc(chunks + 1, sizeof *passed);
    if (passed == NULL)
        device_die(EXIT_FAILED, "no host memory for the list of chunks");
    for (uint64_t i = 0; i < chunks; i++)
        allocate(&passed[i], chunk);
    if (rate <= 0)
        rate = measured();
    rounds = (uint64_t)fmax(1, microseconds * rate);
    host = (double)number(text[10]) / 1e6;
    fill(words, count);
    finish();
    CUgraphExec whole = NULL;
    if (graph) {
        void *driver = dlopen("libcuda.so.1", RTLD_NOW);
        CUgraph made;
        *(void **)&begin_capture = dlsym(driver, "cuStreamBeginCapture_v2");
        *(void **)&end_capture = dlsym(driver, "cuStreamEndCapture");
        *(void **)&instantiate = dlsym(driver, "cuGraphInstantiateWithFlags");
        *(void **)&launch_graph = dlsym(driver, "cuGraphLaunch");
        if (!begin_capture || !end_capture || !instantiate || !launch_graph)
            device_die(EXIT_NO_DRIVER, "the CUDA driver has no graphs; it is too old");
        device_expect(&device, begin_capture(stream, 0), "capturing");
        pass(passes);
        advance(kernels, rounds);
        device_expect(&device, end_capture(stream, &made), "capturing");
        device_expect(&device, instantiate(&whole, made, 0), "making a graph");
    }
    printf("{\"rate\": %.6f}\n", rate);
    fflush(stdout);
    double start, seconds;
    if (scanf("%lf %lf", &start, &seconds) != 2)
        return EXIT_RIGHT;
    until(start);
    uint64_t units = 0;
    for (double due = start; now() < start + seconds; units++) {
        if (period > 0) {
            until(due);
            if (due < now() - period)
                due = now();
        }
        double asked = period > 0 ? due : now();
        due += period;
        if (graph) {
            device_expect(&device, launch_graph(whole, stream), "launching a graph");
        } else {
            pass(passes);
            advance(1, rounds);
        }
        double began = now();
        if (!graph)
            advance(kernels - 1, rounds);
        total += kernels * rounds;
        finish();
        double ended = now();
        credit(began - start, ended - start);
        if (period > 0 && units < LATENCIES)
            latencies[units] = 1000 * (ended - asked);
    }
    printf("{\"done\": [");
    uint64_t bins = (uint64_t)(seconds / TENTH);
    for (uint64_t i = 0; i < bins && i < BINS; i++)
        printf("%s%.4f", i > 0 ? ", " : "", done[i]);
    printf("], \"milliseconds\": [");
    for (uint64_t i = 0; period > 0 && i < units && i < LATENCIES; i++)
        printf("%s%.3f", i > 0 ? ", " : "", latencies[i]);
    printf("], \"right\": %s}\n", right() && alike() ? "true" : "false");
    return EXIT_RIGHT;
}

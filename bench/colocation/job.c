/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that does fixed amounts of work on the CPU and on a GPU: job BYTES SEED.
 *
 * It allocates BYTES on the GPU, prints a line, and then carries out the commands
 * on its standard input until that ends. It answers each command, when all of its
 * work has finished, with a line of JSON: the seconds of work on the CPU and on
 * the GPU, and the digest.
 *
 *   fill                    fills the memory from the seed
 *   work CPU STEPS BURSTS   does CPU units of work on the CPU and STEPS steps on
 *                           the GPU, divided into BURSTS alternations that begin
 *                           with the CPU
 *
 * The digest is of all that was computed since the last fill. A step reads and
 * writes every word of the memory, and the program waits for its end before it
 * begins the next step, as a training reads its loss. A word's new value depends
 * on its old value, so one lost or misplaced byte changes the digest. A unit on
 * the CPU is a chain of multiplications, each of which needs the result of the
 * last; its result is part of the digest. The digest does not depend on BURSTS.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device.h"

#define CHUNK ((uint64_t)256 << 20)      /* bytes of each allocation */
#define UNIT 1000000                     /* multiplications of a unit, one or two milliseconds */
#define ODD 0x9E3779B97F4A7C15u

struct job {
    struct device device;
    CUstream stream;
    uint64_t seed, chunks;
    CUdeviceptr *addresses;              /* by chunk; so are the next two */
    uint64_t *words;
    uint64_t *sums;
    CUdeviceptr device_sums;
    uint64_t step, chain;                /* since fill: number of GPU steps, CPU result */
};

static uint64_t number(const char *name, const char *text, uint64_t least)
{
    char *end;
    uint64_t value = strtoull(text, &end, 10);
    if (end == text || *end != '\0' || text[0] == '-' || value < least)
        device_die(EXIT_USAGE, "%s: '%s' is not a number from %" PRIu64 " on", name, text, least);
    return value;
}

static void *array(uint64_t count, size_t size)
{
    void *memory = calloc(count, size);
    if (memory == NULL)
        device_die(EXIT_FAILED, "no host memory for %" PRIu64 " chunks", count);
    return memory;
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void allocate(struct job *job, uint64_t bytes)
{
    const struct device *device = &job->device;
    job->chunks = (bytes + CHUNK - 1) / CHUNK;
    job->addresses = array(job->chunks, sizeof *job->addresses);
    job->words = array(job->chunks, sizeof *job->words);
    job->sums = array(job->chunks, sizeof *job->sums);
    for (uint64_t i = 0; i < job->chunks; i++) {
        uint64_t size = bytes - i * CHUNK < CHUNK ? bytes - i * CHUNK : CHUNK;
        device_expect(device, device->allocate(&job->addresses[i], size), "allocating memory");
        job->words[i] = size / sizeof(uint64_t);
    }
    device_expect(device, device->allocate(&job->device_sums, job->chunks * sizeof(uint64_t)),
                  "allocating the checksums");
    device_expect(device, device->stream_create(&job->stream, CU_STREAM_NON_BLOCKING),
                  "making a stream");
}

static void finish(const struct job *job)
{
    device_expect(&job->device, job->device.stream_synchronize(job->stream),
                  "computing on the GPU");
}

/* Launches one kernel over each chunk. The third parameter is `value` for the first chunk, and for
 * each later chunk larger by `each`. */
static void launch(const struct job *job, CUfunction kernel, uint64_t value, uint64_t each,
                   const char *doing)
{
    for (uint64_t i = 0; i < job->chunks; i++) {
        uint64_t third = value + i * each;
        void *parameters[] = {&job->addresses[i], &job->words[i], &third};
        device_launch(&job->device, kernel, job->words[i], job->stream, parameters, doing);
    }
}

static void fill(struct job *job)
{
    launch(job, job->device.fill, job->seed * ODD, ODD << 32 | 1, "launching nvshare_fill");
    finish(job);
    job->step = 0;
    job->chain = job->seed;
}

static void compute_on_gpu(struct job *job, uint64_t steps)
{
    for (uint64_t i = 0; i < steps; i++) {
        launch(job, job->device.step, ++job->step, 0, "launching nvshare_step");
        finish(job);
    }
}

static void compute_on_cpu(struct job *job, uint64_t units)
{
    uint64_t x = job->chain;
    for (uint64_t i = 0; i < units * UNIT; i++)
        x = (x ^ (x >> 29)) * ODD + 1;
    job->chain = x;
}

static uint64_t digest(struct job *job)
{
    const struct device *device = &job->device;
    uint64_t bytes = job->chunks * sizeof(uint64_t), sum = job->chain;
    device_expect(device, device->set(job->device_sums, 0, bytes), "clearing the checksums");
    device_expect(device, device->context_synchronize(), "clearing the checksums");
    launch(job, device->checksum, job->device_sums, sizeof(uint64_t),
           "launching nvshare_checksum");
    finish(job);
    device_expect(device, device->copy_to_host(job->sums, job->device_sums, bytes),
                  "reading the checksums");
    for (uint64_t i = 0; i < job->chunks; i++)
        sum = (sum ^ (sum >> 29)) * ODD + job->sums[i];
    return sum;
}

/* Does the work. Returns the seconds of CPU work. */
static double work(struct job *job, uint64_t units, uint64_t steps, uint64_t bursts)
{
    double on_cpu = 0;
    for (uint64_t i = 0; i < bursts; i++) {
        double began = seconds();
        compute_on_cpu(job, units * (i + 1) / bursts - units * i / bursts);
        on_cpu += seconds() - began;
        compute_on_gpu(job, steps * (i + 1) / bursts - steps * i / bursts);
    }
    return on_cpu;
}

static void obey(struct job *job, const char *line)
{
    uint64_t units, steps, bursts, result = 0;
    double began = seconds(), on_cpu = 0, worked = 0;
    if (strcmp(line, "fill\n") == 0) {
        fill(job);
    } else if (sscanf(line, "work %" SCNu64 " %" SCNu64 " %" SCNu64, &units, &steps, &bursts) == 3
               && bursts > 0) {
        on_cpu = work(job, units, steps, bursts);
        worked = seconds() - began;
        result = digest(job);
    } else {
        device_die(EXIT_USAGE, "'%.*s' is neither fill nor work CPU STEPS BURSTS",
                   (int)strcspn(line, "\n"), line);
    }
    printf("{\"cpu\": %.6f, \"gpu\": %.6f, \"digest\": \"%016" PRIx64 "\"}\n", on_cpu,
           worked - on_cpu, result);
}

int main(int count, char **arguments)
{
    static struct job job;
    char line[256];
    if (count != 3)
        device_die(EXIT_USAGE, "give the bytes to allocate and a seed: job BYTES SEED");
    uint64_t bytes = number("BYTES", arguments[1], sizeof(uint64_t));
    job.seed = number("SEED", arguments[2], 1);
    setvbuf(stdout, NULL, _IOLBF, 0);
    device_open(&job.device, 0);
    allocate(&job, bytes);
    printf("{\"bytes\": %" PRIu64 "}\n", bytes);
    while (fgets(line, sizeof line, stdin) != NULL)
        obey(&job, line);
    return EXIT_RIGHT;
}

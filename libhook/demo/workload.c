/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that uses a GPU as a training does: it fills as much memory as it
 * is told, computes on all of it again and again with some work on the CPU in
 * between, and in the end knows whether every single word is right. It links
 * with nothing but libc, finds the driver at run time, and runs on a real GPU
 * and on the simulated one alike, with or without libnvshare.so.
 *
 * Right or wrong is decided per chunk: the GPU sums up each chunk, each word
 * weighted by its place, and the CPU computes the same sum from the seed
 * alone. Chunks hold different numbers, so a chunk that came back in another's
 * place is as wrong as one with a flipped bit. The kernels that change memory
 * map different words to different words, so no later step hides an error.
 * Chunks that do not change are summed up in each step, and all sums count.
 */
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "chunks.h"
#include "device.h"
#include "expectation.h"
#include "options.h"

struct work {
    struct device device;
    struct options options;
    struct chunks chunks;
    CUdeviceptr sums;                    /* on the GPU, one per chunk */
    void *source;                        /* page-locked, copied before each step */
    CUdeviceptr target;                  /* destination of that copy, on the GPU */
    double start;
};

struct worker {
    struct work *work;
    uint64_t number;                     /* works on chunks number, number + threads, ... */
    pthread_t thread;
};

static double seconds_on(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void print_name(const char *name)
{
    for (; *name != '\0'; name++)
        if (*name != '"' && *name != '\\' && (unsigned char)*name >= ' ')
            putchar(*name);
}

static void report_memory(const struct work *work)
{
    const struct device *device = &work->device;
    unsigned long long bytes = work->chunks.bytes, chunks = work->chunks.count;
    if (work->options.json) {
        fputs("{\"event\": \"allocated\", \"gpu\": \"", stdout);
        print_name(device->name);
        printf("\", \"bytes\": %llu, \"chunks\": %llu, \"total\": %zu, \"free\": %zu}\n", bytes,
               chunks, device->total, device->free);
    } else {
        printf("%s: %.1f MiB in %llu chunks\n", device->name, (double)bytes / 0x1p20, chunks);
    }
}

/* Takes as much CPU time as a data loader would, however busy the machine is. */
static void compute_on_cpu(uint64_t milliseconds)
{
    uint64_t x = 1;
    double end = seconds_on(CLOCK_THREAD_CPUTIME_ID) + (double)milliseconds / 1e3;
    while (seconds_on(CLOCK_THREAD_CPUTIME_ID) < end) {
        for (int i = 0; i < 10000; i++)
            x = x * 6364136223846793005u + 1442695040888963407u;
        __asm__ volatile("" : "+r"(x));  /* else the compiler would remove the loop */
    }
}

/* `at` is in microseconds of CLOCK_MONOTONIC, as in the daemon's trace. */
static void report_step(const struct work *work, uint64_t step)
{
    unsigned long long number = step, all = work->options.steps;
    if (work->options.json)
        printf("{\"event\": \"step\", \"step\": %llu, \"steps\": %llu, \"at\": %.0f}\n", number, all,
               seconds_on(CLOCK_MONOTONIC) * 1e6);
    else if (all == 0)
        printf("step %llu\n", number);
    else
        printf("step %llu of %llu\n", number, all);
}

static void sum_up(const struct work *work, uint64_t number, CUstream stream)
{
    const struct device *device = &work->device;
    struct chunk *chunk = &work->chunks.chunk[number];
    CUdeviceptr sum = work->sums + number * sizeof(uint64_t);
    void *parameters[] = {&chunk->address, &chunk->words, &sum};
    device_launch(device, device->checksum, chunk->words, stream, parameters,
                  "launching nvshare_checksum");
}

static void step_chunk(struct work *work, uint64_t number, uint64_t step, CUstream stream)
{
    const struct device *device = &work->device;
    struct chunk *chunk = &work->chunks.chunk[number];
    uint64_t rounds = work->options.rounds, spin = work->options.kernel_us;
    void *parameters[] = {&chunk->address, &chunk->words, rounds != 0 ? &rounds : &step};
    if (!chunk->changes)
        sum_up(work, number, stream);
    else if (rounds != 0)
        device_launch(device, device->advance, chunk->words, stream, parameters,
                      "launching nvshare_advance");
    else
        device_launch(device, device->step, chunk->words, stream, parameters,
                      "launching nvshare_step");
    chunk->steps++;
    void *spin_parameters[] = {&spin};
    if (spin != 0)
        device_launch(device, device->spin, 1, stream, spin_parameters, "launching nvshare_spin");
}

/* Whether standard input has ended. It stays ended, so each thread may ask by itself. */
static bool told(void)
{
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    char ignored[4096];
    while (poll(&input, 1, 0) == 1)
        if (read(STDIN_FILENO, ignored, sizeof ignored) <= 0)
            return true;
    return false;
}

static bool another(const struct work *work, uint64_t step)
{
    const struct options *options = &work->options;
    if (options->until_told)
        return step == 1 || !told();
    if (options->seconds == 0)
        return step <= options->steps;
    return step == 1 || seconds_on(CLOCK_MONOTONIC) - work->start < (double)options->seconds;
}

static void *run_worker(void *argument)
{
    struct worker *worker = argument;
    struct work *work = worker->work;
    const struct device *device = &work->device;
    const struct options *options = &work->options;
    struct chunk *chunk = work->chunks.chunk;
    uint64_t count = work->chunks.count;
    CUstream stream;
    device_expect(device, device->context_set(device->context), "using the context");
    device_expect(device, device->stream_create(&stream, CU_STREAM_NON_BLOCKING), "making a stream");
    for (uint64_t i = worker->number; i < count; i += options->threads) {
        uint64_t value = expectation_fill_value(options->seed, i);
        void *parameters[] = {&chunk[i].address, &chunk[i].words, &value};
        if (chunk[i].words != 0)
            device_launch(device, device->fill, chunk[i].words, stream, parameters,
                          "launching nvshare_fill");
    }
    for (uint64_t step = 1; another(work, step); step++) {
        if (options->copied != 0 && worker->number == 0)
            device_expect(device, device->copy_to_device(work->target, work->source,
                                                         options->copied, stream),
                          "copying to the GPU");
        for (uint64_t i = worker->number; i < count; i += options->threads)
            if (chunk[i].words != 0)
                step_chunk(work, i, step, stream);
        device_expect(device, device->stream_synchronize(stream), "computing on the GPU");
        compute_on_cpu(options->cpu_ms);
        if (worker->number == 0)
            report_step(work, step);
    }
    for (uint64_t i = worker->number; i < count; i += options->threads)
        if (chunk[i].words != 0)
            sum_up(work, i, stream);
    device_expect(device, device->stream_synchronize(stream), "summing up on the GPU");
    return NULL;
}

static void run(struct work *work)
{
    const struct device *device = &work->device;
    uint64_t threads = work->options.threads, count = work->chunks.count;
    uint64_t bytes = count * sizeof(uint64_t), *sums = chunks_array(count, sizeof *sums);
    device_expect(device, device->allocate(&work->sums, bytes), "allocating the checksums");
    device_expect(device, device->set(work->sums, 0, bytes), "clearing the checksums");
    device_expect(device, device->context_synchronize(), "clearing the checksums");
    if (work->options.copied != 0) {
        device_expect(device, device->host_allocate(&work->source, work->options.copied, 0),
                      "allocating page-locked memory");
        device_expect(device, device->allocate(&work->target, work->options.copied),
                      "allocating memory to copy to");
    }
    struct worker *workers = chunks_array(threads, sizeof *workers);
    for (uint64_t i = 0; i < threads; i++) {
        workers[i] = (struct worker){.work = work, .number = i};
        if (i > 0 && pthread_create(&workers[i].thread, NULL, run_worker, &workers[i]) != 0)
            device_die(EXIT_FAILED, "--threads %llu: the system refused thread %llu",
                       (unsigned long long)threads, (unsigned long long)i);
    }
    run_worker(&workers[0]);
    for (uint64_t i = 1; i < threads; i++)
        pthread_join(workers[i].thread, NULL);
    free(workers);
    device_expect(device, device->copy_to_host(sums, work->sums, bytes), "reading the checksums");
    for (uint64_t i = 0; i < count; i++)
        work->chunks.chunk[i].sum = sums[i];
    free(sums);
}

/* True if every chunk's checksum is what the CPU computes. */
static bool check(const struct work *work)
{
    uint64_t first = 0, wrong = chunks_wrong(&work->chunks, &work->options, &first);
    unsigned long long chunks = work->chunks.count;
    if (work->options.json)
        printf("{\"event\": \"checked\", \"right\": %s, \"chunks\": %llu, \"wrong\": %llu}\n",
               wrong == 0 ? "true" : "false", chunks, (unsigned long long)wrong);
    else if (wrong == 0)
        printf("right: all %llu chunks hold what the CPU computes\n", chunks);
    else
        printf("WRONG: %llu of %llu chunks differ from what the CPU computes, number %llu first\n",
               (unsigned long long)wrong, chunks, (unsigned long long)first);
    return wrong == 0;
}

int main(int count, char **arguments)
{
    static struct work work;
    setvbuf(stdout, NULL, _IOLBF, 0);
    work.options = options_parse(count, arguments);
    work.start = seconds_on(CLOCK_MONOTONIC);
    device_open(&work.device, work.options.device);
    work.chunks = chunks_allocate(&work.device, &work.options);
    report_memory(&work);
    if (work.options.hold) {
        char ignored;
        while (read(STDIN_FILENO, &ignored, 1) > 0)
            continue;
        return EXIT_RIGHT;
    }
    run(&work);
    uint64_t checksum = 0;
    for (uint64_t i = 0; i < work.chunks.count; i++)
        checksum += work.chunks.chunk[i].sum * (2 * i + 1);
    printf(work.options.json
               ? "{\"event\": \"finished\", \"checksum\": \"%016llx\", \"seconds\": %.6f}\n"
               : "checksum %016llx after %.2f s\n",
           (unsigned long long)checksum, seconds_on(CLOCK_MONOTONIC) - work.start);
    return !work.options.check || check(&work) ? EXIT_RIGHT : EXIT_FAILED;
}

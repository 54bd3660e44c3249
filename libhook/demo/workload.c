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
 * alone. Chunks hold different numbers, so one that came back in another's
 * place is as wrong as one with a flipped bit.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "device.h"
#include "expectation.h"
#include "options.h"

struct work {
    struct device device;
    struct options options;
    uint64_t chunks, bytes;
    CUdeviceptr *addresses;              /* one per chunk, as are the next two */
    uint64_t *words;
    uint64_t *sums;
    CUdeviceptr device_sums;
};

struct worker {
    struct work *work;
    uint64_t number;                     /* has chunks number, number + threads, ... */
    pthread_t thread;
};

static double seconds_on(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void *array(uint64_t count, size_t size)
{
    void *memory = calloc(count, size);
    if (memory == NULL)
        device_die(EXIT_FAILED, "no host memory for %llu chunks", (unsigned long long)count);
    return memory;
}

static void print_name(const char *name)
{
    for (; *name != '\0'; name++)
        if (*name != '"' && *name != '\\' && (unsigned char)*name >= ' ')
            putchar(*name);
}

static void allocate(struct work *work)
{
    const struct options *options = &work->options;
    const struct device *device = &work->device;
    work->bytes = options->memory;
    if (work->bytes == 0)
        work->bytes = (uint64_t)(options->share * (double)device->free) / 8 * 8;
    if (work->bytes == 0)
        device_die(EXIT_NO_MEMORY, "out of memory: %s has none free", device->name);
    work->chunks = (work->bytes + options->chunk - 1) / options->chunk;
    work->addresses = array(work->chunks, sizeof *work->addresses);
    work->words = array(work->chunks, sizeof *work->words);
    work->sums = array(work->chunks, sizeof *work->sums);
    for (uint64_t i = 0, left = work->bytes; i < work->chunks; i++) {
        uint64_t size = left < options->chunk ? left : options->chunk;
        CUresult result = device->allocate(&work->addresses[i], size);
        if (result == CUDA_ERROR_OUT_OF_MEMORY)
            device_die(EXIT_NO_MEMORY,
                       "out of memory: %s gave %.1f of the %.1f MiB asked for, and no %.1f MiB more",
                       device->name, (double)(work->bytes - left) / 0x1p20,
                       (double)work->bytes / 0x1p20, (double)size / 0x1p20);
        device_expect(device, result, "allocating memory on the GPU");
        work->words[i] = size / 8;
        left -= size;
    }
    if (options->json) {
        fputs("{\"event\": \"allocated\", \"gpu\": \"", stdout);
        print_name(device->name);
        printf("\", \"bytes\": %llu, \"chunks\": %llu, \"total\": %zu, \"free\": %zu}\n",
               (unsigned long long)work->bytes, (unsigned long long)work->chunks, device->total,
               device->free);
    } else {
        printf("%s: %.1f MiB in %llu chunks\n", device->name, (double)work->bytes / 0x1p20,
               (unsigned long long)work->chunks);
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
        __asm__ volatile("" : "+r"(x));  /* or the compiler would leave the loop out */
    }
}

static void report_step(const struct work *work, uint64_t step)
{
    printf(work->options.json ? "{\"event\": \"step\", \"step\": %llu, \"steps\": %llu}\n"
                              : "step %llu of %llu\n",
           (unsigned long long)step, (unsigned long long)work->options.steps);
}

static void step_chunk(struct work *work, uint64_t chunk, uint64_t step, CUstream stream)
{
    const struct device *device = &work->device;
    uint64_t words = work->words[chunk], spin = work->options.kernel_us;
    void *parameters[] = {&work->addresses[chunk], &words, &step};
    device_launch(device, device->step, words, stream, parameters, "launching nvshare_step");
    void *spin_parameters[] = {&spin};
    if (spin != 0)
        device_launch(device, device->spin, 1, stream, spin_parameters, "launching nvshare_spin");
}

static void *run_worker(void *argument)
{
    struct worker *worker = argument;
    struct work *work = worker->work;
    const struct device *device = &work->device;
    const struct options *options = &work->options;
    CUstream stream;
    device_expect(device, device->context_set(device->context), "using the context");
    device_expect(device, device->stream_create(&stream, CU_STREAM_NON_BLOCKING), "making a stream");
    for (uint64_t i = worker->number; i < work->chunks; i += options->threads) {
        uint64_t words = work->words[i], value = expectation_fill_value(options->seed, i);
        void *parameters[] = {&work->addresses[i], &words, &value};
        device_launch(device, device->fill, words, stream, parameters, "launching nvshare_fill");
    }
    for (uint64_t step = 1; step <= options->steps; step++) {
        for (uint64_t i = worker->number; i < work->chunks; i += options->threads)
            step_chunk(work, i, step, stream);
        device_expect(device, device->stream_synchronize(stream), "computing on the GPU");
        compute_on_cpu(options->cpu_ms);
        if (worker->number == 0)
            report_step(work, step);
    }
    for (uint64_t i = worker->number; i < work->chunks; i += options->threads) {
        uint64_t words = work->words[i];
        CUdeviceptr sum = work->device_sums + i * sizeof(uint64_t);
        void *parameters[] = {&work->addresses[i], &words, &sum};
        device_launch(device, device->checksum, words, stream, parameters,
                      "launching nvshare_checksum");
    }
    device_expect(device, device->stream_synchronize(stream), "summing up on the GPU");
    return NULL;
}

static void run(struct work *work)
{
    const struct device *device = &work->device;
    uint64_t threads = work->options.threads, bytes = work->chunks * sizeof(uint64_t);
    device_expect(device, device->allocate(&work->device_sums, bytes), "allocating the checksums");
    device_expect(device, device->set(work->device_sums, 0, bytes), "clearing the checksums");
    device_expect(device, device->context_synchronize(), "clearing the checksums");
    struct worker *workers = array(threads, sizeof *workers);
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
    device_expect(device, device->copy_to_host(work->sums, work->device_sums, bytes),
                  "reading the checksums");
}

/* True if every chunk's checksum is what the CPU computes. */
static bool check(const struct work *work)
{
    uint64_t *expected = array(work->chunks, sizeof *expected), wrong = 0, first = 0;
    expectation_checksums(work->options.seed, work->chunks, work->words, work->options.steps,
                          expected);
    for (uint64_t i = work->chunks; i-- > 0;)
        if (work->sums[i] != expected[i]) {
            wrong++;
            first = i;
        }
    free(expected);
    if (work->options.json)
        printf("{\"event\": \"checked\", \"right\": %s, \"chunks\": %llu, \"wrong\": %llu}\n",
               wrong == 0 ? "true" : "false", (unsigned long long)work->chunks,
               (unsigned long long)wrong);
    else if (wrong == 0)
        printf("right: all %llu chunks hold what the CPU computes\n",
               (unsigned long long)work->chunks);
    else
        printf("WRONG: %llu of %llu chunks differ from what the CPU computes, number %llu first\n",
               (unsigned long long)wrong, (unsigned long long)work->chunks,
               (unsigned long long)first);
    return wrong == 0;
}

int main(int count, char **arguments)
{
    static struct work work;
    setvbuf(stdout, NULL, _IOLBF, 0);
    work.options = options_parse(count, arguments);
    double start = seconds_on(CLOCK_MONOTONIC);
    device_open(&work.device, work.options.device);
    allocate(&work);
    if (work.options.hold) {
        char ignored;
        while (read(STDIN_FILENO, &ignored, 1) > 0)
            continue;
        return EXIT_RIGHT;
    }
    run(&work);
    uint64_t checksum = 0;
    for (uint64_t i = 0; i < work.chunks; i++)
        checksum += work.sums[i] * (2 * i + 1);
    printf(work.options.json
               ? "{\"event\": \"finished\", \"checksum\": \"%016llx\", \"seconds\": %.6f}\n"
               : "checksum %016llx after %.2f s\n",
           (unsigned long long)checksum, seconds_on(CLOCK_MONOTONIC) - start);
    return !work.options.check || check(&work) ? EXIT_RIGHT : EXIT_FAILED;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "expectation.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "device.h"

#define BATCH 2048                       /* words worked on at a time: they stay in the first cache */
#define PIECE ((uint64_t)1 << 20)        /* words a thread takes at a time */

struct job {
    uint64_t seed, chunks, steps;
    const uint64_t *words;
    _Atomic uint64_t *sums;
    _Atomic uint64_t next;               /* the next piece of all chunks' pieces, in order */
};

uint64_t expectation_fill_value(uint64_t seed, uint64_t chunk)
{
    uint64_t x = seed * 0xD1B54A32D192ED03u + (chunk + 1) * 0x8CB92BA72F3D8DD7u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static uint64_t sum_of_piece(const struct job *job, uint64_t chunk, uint64_t first, uint64_t end)
{
    uint64_t value = expectation_fill_value(job->seed, chunk), sum = 0, batch[BATCH];
    for (uint64_t at = first; at < end; at += BATCH) {
        uint64_t count = end - at < BATCH ? end - at : BATCH;
        for (uint64_t i = 0; i < count; i++)
            batch[i] = value + (at + i) * 0x9E3779B97F4A7C15u;
        for (uint64_t step = 1; step <= job->steps; step++)
            for (uint64_t i = 0; i < count; i++)
                batch[i] = (batch[i] ^ (batch[i] >> 29)) * 0xBF58476D1CE4E5B9u + step + at + i;
        for (uint64_t i = 0; i < count; i++)
            sum += batch[i] * (2 * (at + i) + 1);
    }
    return sum;
}

static void *take_pieces(void *argument)
{
    struct job *job = argument;
    for (;;) {
        uint64_t piece = atomic_fetch_add(&job->next, 1), chunk = 0;
        for (; chunk < job->chunks; chunk++) {
            uint64_t pieces = (job->words[chunk] + PIECE - 1) / PIECE;
            if (piece < pieces)
                break;
            piece -= pieces;
        }
        if (chunk == job->chunks)
            return NULL;
        uint64_t first = piece * PIECE, end = first + PIECE;
        if (end > job->words[chunk])
            end = job->words[chunk];
        atomic_fetch_add(&job->sums[chunk], sum_of_piece(job, chunk, first, end));
    }
}

void expectation_checksums(uint64_t seed, uint64_t chunks, const uint64_t *words, uint64_t steps,
                           uint64_t *sums)
{
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    long helpers = cpus > 1 ? cpus - 1 : 0, started = 0;
    _Atomic uint64_t *shared = calloc(chunks, sizeof *shared);
    pthread_t *threads = calloc((size_t)helpers + 1, sizeof *threads);
    if (shared == NULL || threads == NULL)
        device_die(EXIT_FAILED, "no host memory to check %llu chunks", (unsigned long long)chunks);
    struct job job = {
        .seed = seed, .chunks = chunks, .steps = steps, .words = words, .sums = shared,
    };
    while (started < helpers && pthread_create(&threads[started], NULL, take_pieces, &job) == 0)
        started++;                       /* with fewer threads it only takes longer */
    take_pieces(&job);
    for (long i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    for (uint64_t chunk = 0; chunk < chunks; chunk++)
        sums[chunk] = shared[chunk];
    free(threads);
    free(shared);
}

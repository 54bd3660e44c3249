/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Formulas
 * ========
 *
 * nvshare_fill makes word i of a chunk value + i * GOLDEN, which is of the form
 * A + B * i. Advancing a word x to x * FACTOR + OFFSET keeps that form,
 * with A * FACTOR + OFFSET and B * FACTOR. The checksum of n words is then
 *
 *     sum of (A + B * i) * (2 * i + 1)  =  A * n^2 + B * sum of (2 * i^2 + i)
 *     sum of (2 * i^2 + i)              =  n * (n - 1) * (2 * n - 1) / 3 + n * (n - 1) / 2
 *
 * modulo 2^64. n is less than 2^37 on any card, so n^3 fits 128 bits.
 */
#include "expectation.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "device.h"

#define BATCH 2048                       /* words worked on at a time: they stay in the first cache */
#define PIECE ((uint64_t)1 << 20)        /* words a thread takes at a time */
#define GOLDEN 0x9E3779B97F4A7C15u       /* this and the next three as in kernels.ptx */
#define MIXER 0xBF58476D1CE4E5B9u
#define FACTOR 0x5851F42D4C957F2Du
#define OFFSET 0x14057B7EF767814Fu

struct job {
    uint64_t seed;
    const struct chunks *chunks;
    _Atomic uint64_t *sums;
    _Atomic uint64_t next;               /* number of the next piece, over all chunks */
};

uint64_t expectation_fill_value(uint64_t seed, uint64_t chunk)
{
    uint64_t x = seed * 0xD1B54A32D192ED03u + (chunk + 1) * 0x8CB92BA72F3D8DD7u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* The checksum of a chunk that is filled and then advanced `advances` times. */
static uint64_t sum_by_formula(uint64_t seed, uint64_t chunk, uint64_t words, uint64_t advances)
{
    uint64_t a = expectation_fill_value(seed, chunk), b = GOLDEN;
    /* The factor and offset of 1, 2, 4, ... advances at once. */
    for (uint64_t factor = FACTOR, offset = OFFSET; advances != 0; advances >>= 1) {
        if (advances & 1) {
            a = a * factor + offset;
            b *= factor;
        }
        offset += offset * factor;
        factor *= factor;
    }
    unsigned __int128 n = words, pairs = n * (n - 1) / 2;
    return a * words * words + b * (uint64_t)(pairs * 2 * (2 * n - 1) / 3 + pairs);
}

/* The checksum of a part of a chunk that is filled and then stepped `steps` times. */
static uint64_t sum_of_piece(uint64_t value, uint64_t first, uint64_t end, uint64_t steps)
{
    uint64_t sum = 0, batch[BATCH];
    for (uint64_t at = first; at < end; at += BATCH) {
        uint64_t count = end - at < BATCH ? end - at : BATCH;
        for (uint64_t i = 0; i < count; i++)
            batch[i] = value + (at + i) * GOLDEN;
        for (uint64_t step = 1; step <= steps; step++)
            for (uint64_t i = 0; i < count; i++)
                batch[i] = (batch[i] ^ (batch[i] >> 29)) * MIXER + step + at + i;
        for (uint64_t i = 0; i < count; i++)
            sum += batch[i] * (2 * (at + i) + 1);
    }
    return sum;
}

static void *take_pieces(void *argument)
{
    struct job *job = argument;
    const struct chunks *chunks = job->chunks;
    for (;;) {
        uint64_t piece = atomic_fetch_add(&job->next, 1), number = 0;
        for (; number < chunks->count; number++) {
            uint64_t pieces = (chunks->chunk[number].words + PIECE - 1) / PIECE;
            if (piece < pieces)
                break;
            piece -= pieces;
        }
        if (number == chunks->count)
            return NULL;
        const struct chunk *chunk = &chunks->chunk[number];
        uint64_t first = piece * PIECE, end = first + PIECE;
        if (end > chunk->words)
            end = chunk->words;
        if (chunk->changes)
            atomic_fetch_add(&job->sums[number],
                             sum_of_piece(expectation_fill_value(job->seed, number), first, end,
                                          chunk->steps));
    }
}

static void step_on_all_processors(uint64_t seed, const struct chunks *chunks, uint64_t *sums)
{
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    long helpers = cpus > 1 ? cpus - 1 : 0, started = 0;
    _Atomic uint64_t *shared = chunks_array(chunks->count, sizeof *shared);
    pthread_t *threads = chunks_array((uint64_t)helpers + 1, sizeof *threads);
    struct job job = {.seed = seed, .chunks = chunks, .sums = shared};
    while (started < helpers && pthread_create(&threads[started], NULL, take_pieces, &job) == 0)
        started++;                       /* with fewer threads it only takes longer */
    take_pieces(&job);
    for (long i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    for (uint64_t number = 0; number < chunks->count; number++)
        sums[number] = shared[number];
    free(threads);
    free(shared);
}

void expectation_sums(uint64_t seed, uint64_t rounds, const struct chunks *chunks, uint64_t *sums)
{
    if (rounds == 0)
        step_on_all_processors(seed, chunks, sums);
    for (uint64_t number = 0; number < chunks->count; number++) {
        const struct chunk *chunk = &chunks->chunk[number];
        if (!chunk->changes)
            sums[number] = (chunk->steps + 1) * sum_by_formula(seed, number, chunk->words, 0);
        else if (rounds != 0)
            sums[number] = sum_by_formula(seed, number, chunk->words, chunk->steps * rounds);
    }
}

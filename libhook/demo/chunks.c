/* SPDX-License-Identifier: Apache-2.0 */
#include "chunks.h"

#include <stdlib.h>

#include "expectation.h"

void *chunks_array(uint64_t count, size_t size)
{
    void *memory = calloc(count, size);
    if (memory == NULL)
        device_die(EXIT_FAILED, "no host memory for %llu chunks", (unsigned long long)count);
    return memory;
}

/* The bytes that an option requests: `bytes`, or if that is 0 a share of `whole`. */
static uint64_t amount(uint64_t bytes, double share, uint64_t whole)
{
    return bytes != 0 ? bytes : (uint64_t)(share * (double)whole) / 8 * 8;
}

static void allocate(const struct device *device, const struct chunks *chunks, uint64_t number,
                     uint64_t size, uint64_t left)
{
    CUresult result = device->allocate(&chunks->chunk[number].address, size);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        device_die(EXIT_NO_MEMORY,
                   "out of memory: %s gave %.1f of the %.1f MiB asked for, and no %.1f MiB more",
                   device->name, (double)(chunks->bytes - left) / 0x1p20,
                   (double)chunks->bytes / 0x1p20, (double)size / 0x1p20);
    device_expect(device, result, "allocating memory on the GPU");
}

struct chunks chunks_allocate(const struct device *device, const struct options *options)
{
    struct chunks chunks = {.bytes = amount(options->memory, options->share, device->free)};
    if (chunks.bytes == 0)
        device_die(EXIT_NO_MEMORY, "out of memory: %s has none free", device->name);
    uint64_t used = amount(options->used, options->used_share, chunks.bytes);
    uint64_t changed = amount(options->changed, options->changed_share, used);
    chunks.count = (chunks.bytes + options->chunk - 1) / options->chunk;
    chunks.chunk = chunks_array(chunks.count, sizeof *chunks.chunk);
    for (uint64_t i = 0, left = chunks.bytes; i < chunks.count; i++) {
        struct chunk *chunk = &chunks.chunk[i];
        uint64_t size = left < options->chunk ? left : options->chunk;
        allocate(device, &chunks, i, size, left);
        /* Of the `left` bytes from this chunk on, the last `used` bytes are used. */
        uint64_t skipped = left > used ? left - used : 0;
        if (skipped > size)
            skipped = size;
        chunk->address += skipped;
        chunk->words = (size - skipped) / 8;
        left -= size;
        chunk->changes = left < changed;
    }
    return chunks;
}

uint64_t chunks_wrong(const struct chunks *chunks, const struct options *options, uint64_t *first)
{
    uint64_t *expected = chunks_array(chunks->count, sizeof *expected), wrong = 0;
    expectation_sums(options->seed, options->rounds, chunks, expected);
    for (uint64_t i = chunks->count; i-- > 0;)
        if (chunks->chunk[i].sum != expected[i]) {
            wrong++;
            *first = i;
        }
    free(expected);
    return wrong;
}

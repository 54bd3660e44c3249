/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The workload's memory: allocations of one size, the last one perhaps smaller,
 * and which part of each is used, and how.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "device.h"
#include "options.h"

struct chunk {
    CUdeviceptr address;                 /* of the part of the allocation that is used */
    uint64_t words;                      /* words of 8 bytes in that part; 0: never touched */
    bool changes;                        /* a step changes the part; else a step sums it up */
    uint64_t steps;                      /* number of steps done */
    uint64_t sum;                        /* sum of the checksums of its steps and at the end */
};

struct chunks {
    uint64_t count, bytes;
    struct chunk *chunk;
};

/* Ends the program with one line if there is not enough memory. */
struct chunks chunks_allocate(const struct device *device, const struct options *options);

/* How many chunks have another sum than the CPU computes; *first is the number of the first. */
uint64_t chunks_wrong(const struct chunks *chunks, const struct options *options, uint64_t *first);

/* Zeroed host memory; ends the program with one line on stderr if there is none. */
void *chunks_array(uint64_t count, size_t size);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The workload's memory: allocations of one size, the last one perhaps smaller,
 * and what of each is used and how.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "device.h"
#include "options.h"

struct chunk {
    CUdeviceptr address;                 /* of its used part */
    uint64_t words;                      /* of 8 bytes that are used; 0: it is never touched */
    bool changes;                        /* each step changes it; else each step sums it up */
    uint64_t steps;                      /* so many have */
    uint64_t sum;                        /* all its sums, the last step's result included */
};

struct chunks {
    uint64_t count, bytes;
    struct chunk *chunk;
};

/* Ends the program with one line if there is not enough memory. */
struct chunks chunks_allocate(const struct device *device, const struct options *options);

/* How many chunks hold another result than the CPU computes; *first is the first of them. */
uint64_t chunks_wrong(const struct chunks *chunks, const struct options *options, uint64_t *first);

/* Zeroed host memory; ends the program with one line if there is none. */
void *chunks_array(uint64_t count, size_t size);

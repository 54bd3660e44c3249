/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernels must have computed, found out on the CPU.
 */
#ifndef NVSHARE_DEMO_EXPECTATION_H
#define NVSHARE_DEMO_EXPECTATION_H

#include <stddef.h>
#include <stdint.h>

/* What nvshare_fill gets for a chunk; no two chunks hold the same. */
uint64_t expectation_fill_value(uint64_t seed, uint64_t chunk);

/* The checksum of each chunk of `words[i]` words after nvshare_fill and steps 1 to `steps`,
 * each word computed, on all CPUs; no chunk is ever held in memory as a whole. */
void expectation_checksums(uint64_t seed, uint64_t chunks, const uint64_t *words, uint64_t steps,
                           uint64_t *sums);

#endif

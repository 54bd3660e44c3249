/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Computes on the CPU what the kernels must have computed.
 */
#pragma once

#include <stdint.h>

#include "chunks.h"

/* The parameter `value` of nvshare_fill for a chunk, another one for each chunk. */
uint64_t expectation_fill_value(uint64_t seed, uint64_t chunk);

/*
 * Computes for each chunk the sum that nvshare_checksum must have added up. The kernel ran once
 * at the end and, for a chunk that steps do not change, once in each step.
 *
 * With `rounds` 0 nvshare_step has changed the other chunks: each word is computed, on all CPUs,
 * and no chunk is ever held in memory as a whole. Else nvshare_advance has changed them, and the
 * sums follow from formulas, however large the memory.
 */
void expectation_sums(uint64_t seed, uint64_t rounds, const struct chunks *chunks, uint64_t *sums);

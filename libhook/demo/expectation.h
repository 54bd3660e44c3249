/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernels must have computed, found out on the CPU.
 */
#pragma once

#include <stdint.h>

#include "chunks.h"

/* What nvshare_fill gets for a chunk; no two chunks hold the same. */
uint64_t expectation_fill_value(uint64_t seed, uint64_t chunk);

/*
 * For each chunk what nvshare_checksum must have added up. It ran once in the end and,
 * where nothing changes, once in each step.
 *
 * With `rounds` 0 those that change have been through nvshare_step: each word is computed, on
 * all CPUs, and no chunk is ever held in memory as a whole. Else they have been through
 * nvshare_advance, and the sums follow from formulas, however large the memory.
 */
void expectation_sums(uint64_t seed, uint64_t rounds, const struct chunks *chunks, uint64_t *sums);

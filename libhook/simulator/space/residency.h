/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Location of the pages of managed memory, and the program's advice about them.
 *
 * A page is on one GPU or on the host. It moves to a GPU when work there accesses it, unless its
 * preferred location is the host, and to the destination of a prefetch. On the GPU it counts
 * against the GPU's memory. If the GPU is full, other managed pages of the process move to the
 * host, as long as there are any; then the work accesses the page over the bus. Accesses by the
 * host are not noticed, so the counted memory is at least that of a real GPU.
 *
 * The bytes never move: there is one copy, in host memory.
 */
#pragma once

#include <stdbool.h>

#include "driver/context.h"

#define RESIDENCY_PAGE ((size_t)4096)
#define RESIDENCY_HOST (-1)                  /* in place of a GPU's index */

struct residency;

/* NULL: out of memory. `base` is aligned to a page. */
struct residency *residency_new(CUdeviceptr base, size_t size);
void residency_drop(struct residency *residency);

/* The following functions act on all pages that overlap the range, which lies in the memory. */

/* Work of the GPU accesses the range. */
void residency_touch(struct residency *residency, int gpu, CUdeviceptr address, size_t size);
/* Prefetches the range; returns the bytes that moved. Pages advised as mostly read stay at their
 * location as well. */
size_t residency_move(struct residency *residency, int gpu, CUdeviceptr address, size_t size);

/* Advice and location have been validated by the caller. */
void residency_advise(struct residency *residency, CUdeviceptr address, size_t size,
                      CUmem_advise advice, CUmemLocation place);
void residency_prefetched(struct residency *residency, CUdeviceptr address, size_t size,
                          CUmemLocation place);

/* Stores the value of cuMemRangeGetAttribute, an int. False: no such attribute. */
bool residency_attribute(const struct residency *residency, CUdeviceptr address, size_t size,
                         CUmem_range_attribute attribute, void *data);

/* SPDX-License-Identifier: Apache-2.0 */
/* Location of the pages of managed memory, and the program's advice. A page is on one GPU,
 * counted there, or on the host. The page moves to a GPU when work of that GPU accesses the page,
 * unless its preferred location is the host, and to the destination of a prefetch. If the GPU is
 * full, other managed pages of the process move to the host; if no page can move, the work accesses
 * the page over the bus. An access by the host moves no page, so a page counts for a GPU longer
 * than on a real machine. The bytes never move: there is one copy, in host memory. */
#pragma once

#include <stdbool.h>

#include "driver/context.h"

#define RESIDENCY_PAGE ((size_t)4096)
#define RESIDENCY_HOST (-1)                  /* in place of a GPU's index */

struct residency;

/* `base` is aligned to a page. */
struct residency *residency_new(CUdeviceptr base, size_t size);
void residency_drop(struct residency *residency);

/* The following functions act on all pages that overlap the range; the range lies in the memory. */

/* Work of the GPU accesses the range. */
void residency_touch(struct residency *residency, int gpu, CUdeviceptr address, size_t size);
/* Returns the bytes that moved. Pages with the advice "read mostly" do not leave a GPU. */
size_t residency_move(struct residency *residency, int gpu, CUdeviceptr address, size_t size);

/* Advice and location have been validated by the caller. */
void residency_advise(struct residency *residency, CUdeviceptr address, size_t size,
                      CUmem_advise advice, CUmemLocation place);
void residency_prefetched(struct residency *residency, CUdeviceptr address, size_t size,
                          CUmemLocation place);

/* Stores the value of cuMemRangeGetAttribute, an int. False: no such attribute. */
bool residency_attribute(const struct residency *residency, CUdeviceptr address, size_t size,
                         CUmem_range_attribute attribute, void *data);

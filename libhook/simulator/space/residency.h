/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the pages of managed memory lie, and what the program has said of them.
 *
 * A page lies on one card or on none: then the host has it. It moves to the
 * card whose work touches it, unless its preferred place is the host, and where
 * a prefetch sends it; on the card it counts against the card's memory. A card
 * that is full loses other managed pages of the process, as long as there are
 * any; then the work reaches over the bus. Nobody notices the processor's touch,
 * so that what counts is never less than what a card would hold.
 *
 * The bytes never move: there is one copy of them, that of the host.
 */
#pragma once

#include <stdbool.h>

#include "driver/context.h"

#define RESIDENCY_PAGE ((size_t)4096)
#define RESIDENCY_HOST (-1)                  /* instead of a card's number */

struct residency;

/* NULL: no memory. `base` lies on a page. */
struct residency *residency_new(CUdeviceptr base, size_t size);
void residency_drop(struct residency *residency);

/* All below take whole pages around a range that lies in the memory. */

/* Work of the card reads or writes it. */
void residency_touch(struct residency *residency, int gpu, CUdeviceptr address, size_t size);
/* A prefetch. Returns bytes that moved. What is mostly read stays where it is, too. */
size_t residency_move(struct residency *residency, int gpu, CUdeviceptr address, size_t size);

/* As checked before: the advice is one, and the place is one of this process's. */
void residency_advise(struct residency *residency, CUdeviceptr address, size_t size,
                      CUmem_advise advice, CUmemLocation place);
void residency_prefetched(struct residency *residency, CUdeviceptr address, size_t size,
                          CUmemLocation place);

/* What cuMemRangeGetAttribute stores at `data`, an int; false: there is no such attribute here. */
bool residency_attribute(const struct residency *residency, CUdeviceptr address, size_t size,
                         CUmem_range_attribute attribute, void *data);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The location to which the program itself last prefetched each page of an allocation. The driver
 * would report the location of the library's own prefetches.
 *
 * All functions are called with memory_lock held.
 */
#pragma once

#include "driver/driver.h"

/* Ranges of adjacent pages, sorted by address, each prefetched to one location. Pages in no range
 * were never prefetched. */
struct prefetches {
    struct prefetch {
        CUdeviceptr begin, end;
        CUmemLocation place;
    } *runs;
    size_t count, room;
};

/* Without memory to record it, the range counts as never prefetched. */
void prefetches_note(struct prefetches *prefetches, CUdeviceptr address, size_t size,
                     CUmemLocation place);
/* The location of the whole range; one of type INVALID if there is no single one. */
CUmemLocation prefetches_last(const struct prefetches *prefetches, CUdeviceptr address,
                              size_t size);
void prefetches_forget(struct prefetches *prefetches);

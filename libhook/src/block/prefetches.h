/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the program itself has last prefetched each page of an allocation to.
 * The driver would name the place to which the library has sent it.
 *
 * All functions are called with memory_lock held.
 */
#pragma once

#include "driver/driver.h"

/* Runs of pages that lie side by side, by address, of which each was
 * prefetched to one place. What no run contains never was. */
struct prefetches {
    struct prefetch {
        CUdeviceptr begin, end;
        CUmemLocation place;
    } *runs;
    size_t count, room;
};

/* Without memory to remember it in, the range counts as never prefetched. */
void prefetches_note(struct prefetches *prefetches, CUdeviceptr address, size_t size,
                     CUmemLocation place);
/* The place of the whole range; one of type INVALID if there is none. */
CUmemLocation prefetches_last(const struct prefetches *prefetches, CUdeviceptr address,
                              size_t size);
void prefetches_forget(struct prefetches *prefetches);

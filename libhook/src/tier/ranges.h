/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranges of addresses that do not overlap, in an array sorted by address: lookup is a binary
 * search, and insertion, usually at rising addresses, is an append. Called with memory_lock held.
 */
#pragma once

#include "driver/driver.h"

/* The first member of each structure in the array. */
struct range {
    CUdeviceptr address;
    size_t size;                     /* bytes */
};

struct ranges {
    struct range **sorted;
    size_t count, room;              /* number of ranges; number of entries allocated */
    size_t reserved;                 /* entries kept for ranges that will be inserted */
};

static inline CUdeviceptr range_end(const struct range *range)
{
    return range->address + range->size;
}

/* The first range that overlaps [address, end), or NULL. */
struct range *ranges_between(const struct ranges *ranges, CUdeviceptr address, CUdeviceptr end);
struct range *ranges_at(const struct ranges *ranges, CUdeviceptr address);

/* Reserves an entry for ranges_insert(). False: out of host memory. */
bool ranges_reserve(struct ranges *ranges);
void ranges_insert(struct ranges *ranges, struct range *range);
void ranges_remove(struct ranges *ranges, const struct range *range);

/* Takes the first `size` bytes free in one piece. False: no such bytes, or they pass `end`. */
bool ranges_take(struct ranges *space, size_t size, CUdeviceptr end, CUdeviceptr *address);
/* Gives a range back, joined with adjacent free ranges within [low, high). False: no memory to
 * record the range, which is lost. */
bool ranges_give(struct ranges *space, CUdeviceptr address, size_t size, CUdeviceptr low,
                 CUdeviceptr high);
void ranges_clear(struct ranges *space);

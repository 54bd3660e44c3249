/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Address ranges that do not overlap, in an array sorted by address: lookup is a binary search, and
 * because programs usually map at rising addresses, insertion is usually an append.
 *
 * All functions are called with memory_lock held.
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
    size_t count, room;              /* ranges, and entries allocated */
    size_t reserved;                 /* entries kept for ranges that will be inserted */
};

/* The index of the first range that ends after `address`. */
size_t ranges_search(const struct ranges *ranges, CUdeviceptr address);
/* The range that contains `address`, or NULL. */
struct range *ranges_at(const struct ranges *ranges, CUdeviceptr address);

/* Reserves an entry. False: out of host memory. */
bool ranges_reserve(struct ranges *ranges);
/* Inserts the range into a reserved entry. */
void ranges_insert(struct ranges *ranges, struct range *range);
/* Removes the range and its entry. */
void ranges_remove(struct ranges *ranges, const struct range *range);

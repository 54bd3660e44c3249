/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that the program has freed and that is kept nevertheless: for its next use, or until
 * work has been waited for. Before anything is refused for want of memory it is given back.
 *
 * All functions are called with memory_lock held.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct client;

#define RECLAIM_ALL UINT64_MAX

/* One of those who keep such memory of a client gives back `bytes`, or all. With `wait` also what
 * has to be waited for, or what the program has asked to be kept; the lock may be released
 * meanwhile. False: there is none. */
typedef bool reclaimer(struct client *client, uint64_t bytes, bool wait);

/* All who do, in the order in which they are asked; ends with NULL. Before there is a client. */
void reclaim_from(reclaimer *const *all);
/* True: one of them has given some back. */
bool reclaim(struct client *client, uint64_t bytes, bool wait);

/* SPDX-License-Identifier: Apache-2.0 */
/* All functions are called with memory_lock held. */
#pragma once

#include "block/block.h"

/* The next block to leave, or with `unready` to be copied before it can. `rank` is 0 at
 * first, and kept between calls. NULL: there is none. */
struct block *victim_next(const struct client *client, unsigned *rank, bool unready);

/* Finds out what is zero, if that may save copies of the `wanted` bytes that are to leave. Service
 * thread, as content_look(); may release and retake memory_lock. */
void victims_survey(struct client *client, uint64_t wanted);

/* A block was looked at. */
void victim_seen(struct block *block);

/* A block that was to leave does not. */
void victim_stays(struct block *block);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies under way between card and host, in the order of their completion.
 * All functions are called with memory_lock held.
 */
#ifndef NVSHARE_PIPELINE_H
#define NVSHARE_PIPELINE_H

#include "block.h"

/* What one order has done so far. */
struct progress {
    uint64_t bytes;
    unsigned copies;                 /* in flight */
    bool failed;
};

struct pipeline {
    struct move {
        struct block *block;
        struct progress *progress;
        unsigned event;
    } moves[COPIES_IN_FLIGHT];       /* a ring; one event each */
    unsigned first, count;
};

/* Starts a copy of a block that is LEAVING or COMING. Releases the lock
 * meanwhile if it is managed memory. */
bool pipeline_start(struct client *client, struct pipeline *line, struct block *block,
                    struct progress *progress);

/* Waits for the oldest copy, with the lock released, and completes its block's move. */
void pipeline_complete(struct client *client, struct pipeline *line);

#endif

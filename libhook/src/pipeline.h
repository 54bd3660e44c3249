/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies under way between card and host, in the order of their completion.
 * All functions are called with memory_lock held.
 */
#ifndef NVSHARE_PIPELINE_H
#define NVSHARE_PIPELINE_H

#include "block.h"

/* One that is copied and one behind it: all that goes on when nothing more is
 * started, a millisecond or two. */
#define COPIES_AHEAD 2

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
    uint64_t since, bytes;           /* when it last was empty, and copied since */
};

/* How many copies an order may have in flight. */
static inline unsigned pipeline_depth(const struct nvshare_record *order)
{
    return (order->flags & NVSHARE_AHEAD) != 0 ? COPIES_AHEAD : COPIES_IN_FLIGHT;
}

/* Starts a copy of a block that is LEAVING or COMING. Releases the lock
 * meanwhile if it is managed memory. */
bool pipeline_start(struct client *client, struct pipeline *line, struct block *block,
                    struct progress *progress);

/* Waits for the oldest copy, with the lock released, and completes its block's move. */
void pipeline_complete(struct client *client, struct pipeline *line);

#endif

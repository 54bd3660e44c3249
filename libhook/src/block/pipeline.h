/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies under way between card and host, in the order of their completion.
 * All functions are called with memory_lock held.
 */
#pragma once

#include "block/block.h"

/* What is moved ahead of time may have to leave the bus at once to a program that
 * copies. So it goes in pieces, one that is copied and one behind it: all that goes on
 * when nothing more is started, for less than a millisecond. */
#define COPIES_IN_FLIGHT 4
#define COPIES_AHEAD 2
#define PIECE_AHEAD ((size_t)16 << 20)

/* This order, which is being carried out, is to end now (YIELD). Service thread. */
bool order_yields(struct client *client, const struct nvshare_order *order);
/* In a long loop with memory_lock held: now and then, lets others have it. `held_since`: 0 at
 * first, and kept between calls. */
void memory_lock_yields(uint64_t *held_since);

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
        size_t bytes;
        bool last;                   /* of its block */
    } moves[COPIES_IN_FLIGHT];       /* a ring; one event each */
    unsigned first, count;
    uint64_t since, bytes;           /* when it last was empty, and copied since */
};

/* How many copies an order may have in flight. */
static inline unsigned pipeline_depth(const struct nvshare_order *order)
{
    return (order->flags & NVSHARE_AHEAD) != 0 ? COPIES_AHEAD : COPIES_IN_FLIGHT;
}

enum start {
    STARTED,
    NOT_STARTED,                     /* the driver refuses */
    YIELDED,                         /* cut short: nothing is in flight, and it has not moved */
};

/* Starts to copy a block that is LEAVING or COMING. May release the lock meanwhile,
 * and wait for others before it. */
enum start pipeline_start(struct client *client, struct pipeline *line, struct block *block,
                          struct progress *progress, const struct nvshare_order *order);

/* Waits for the oldest copy, with the lock released, and completes its block's move if it
 * was the last of that. */
void pipeline_complete(struct client *client, struct pipeline *line);

/* Makes the context current in which copies run, with stream and events. Service thread, without
 * memory_lock. False: there is none, and nothing that could be copied. */
bool swap_enter_context(struct client *client);
/* What was made for that lives in `context`, which is about to go; nothing is in flight there if
 * it is `drained`. May release and retake memory_lock. */
void swap_leave_context(struct client *client, CUcontext context, bool drained);

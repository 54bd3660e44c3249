/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies in flight between card and tiers, in the order of their completion. All functions are
 * called with memory_lock held.
 */
#pragma once

#include "block/block.h"

/* A speculative move must free the bus at once when a program begins to copy. It therefore copies
 * in pieces and has at most two in flight, which end in less than a millisecond. */
#define COPIES_IN_FLIGHT 4
#define COPIES_AHEAD 2
#define PIECE_AHEAD ((size_t)16 << 20)

/* Whether the daemon has sent a YIELD for the order being carried out. Service thread. */
bool order_yields(struct client *client, const struct nvshare_order *order);
/* For long loops with memory_lock held: regularly releases and retakes the lock. `held_since`: the
 * caller sets it to 0 before the loop and keeps it between calls. */
void memory_lock_yields(uint64_t *held_since);

/* The progress of one order. */
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
        bool last;                   /* the last copy of its block */
    } moves[COPIES_IN_FLIGHT];       /* a ring; each entry has one event */
    unsigned first, count;
    uint64_t since, bytes;           /* us: when it was last empty; bytes copied since */
};

/* How many copies an order may have in flight. */
static inline unsigned pipeline_depth(const struct nvshare_order *order)
{
    return (order->flags & NVSHARE_AHEAD) != 0 ? COPIES_AHEAD : COPIES_IN_FLIGHT;
}

enum start {
    STARTED,
    NOT_STARTED,                     /* the driver refuses */
    YIELDED,                         /* interrupted: the block has not moved */
};

/* Starts to copy a block that is EVICTING or LOADING. May release the lock meanwhile, and wait for
 * earlier copies. */
enum start pipeline_start(struct client *client, struct pipeline *line, struct block *block,
                          struct progress *progress, const struct nvshare_order *order);

/* Waits for the oldest copy, with the lock released, and completes its block's move if it was the
 * last copy of that block. */
void pipeline_complete(struct client *client, struct pipeline *line);

/* Makes the copy context current, with its stream and events. Service thread, without memory_lock.
 * False: there is none, so nothing can be copied. */
bool swap_enter_context(struct client *client);
/* `context` is about to end; drops the objects in it if it is the copy context. `drained`: nothing
 * is in flight there. May release and retake memory_lock. */
void swap_leave_context(struct client *client, CUcontext context, bool drained);

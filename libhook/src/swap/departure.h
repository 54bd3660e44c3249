/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks on their way to the host: what leaving (swap.c) and saving (presave.c) have in
 * common. All functions are called on the service thread with memory_lock held.
 */
#pragma once

#include "swap/content.h"
#include "swap/pipeline.h"

/* One order under way. */
struct departure {
    struct client *client;
    const struct nvshare_order *order;
    bool stays;                      /* what is copied stays on the card: KEEP */
    unsigned flags;                  /* of the answer */
    struct pipeline line;
    struct progress progress;

    /* Blocks that were looked at together, and how many of them are through. */
    struct block *blocks[WHOLES_MAX];
    bool looked;
    size_t limit, count, taken;
    unsigned rank;                   /* of the victims so far */
};

struct departure departure(struct client *client, const struct nvshare_order *order, bool stays);

/* What is known of a block by a look. */
enum verdict { CHANGED, UNCHANGED, EMPTY };

/* The next block, which is LEAVING from now on and was looked at, of those that are
 * to leave to make `wanted` bytes of room, or ready for it. NULL: there is none. The
 * lock may be released meanwhile. */
struct block *departure_next(struct departure *departure, uint64_t wanted);
enum verdict departure_judge(struct departure *departure, struct block *block);
/* Starts to copy the block that came last. False: no more can go now. May release
 * the lock meanwhile. */
bool departure_copy(struct departure *departure, struct block *block);
/* Nothing more is to go: all that was begun is brought to its end. */
void departure_end(struct departure *departure);

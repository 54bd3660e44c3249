/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a program has work in flight at all times; busyness.c. On the service thread with
 * service_lock held.
 */
#pragma once

#include "flight/drain.h"

struct client;

struct busyness {
    uint64_t turn;                   /* of the client, counted as it does */
    enum { BUSY_UNKNOWN, BUSY_ALWAYS, BUSY_GAPS } told;     /* the daemon, in this turn */
    bool looks;                      /* `looked` is of this turn, and not before a rest */
    uint64_t looked, rests_until;
    uint64_t open, gaps;             /* us of the present window */
    struct drain marker;
    enum { UNMARKED, MARKED, MARK_DONE } state;
    uint64_t passes;                 /* through the gate when it was recorded */
    uint64_t empty_since;            /* nothing was in flight; since then at least */
};

/* To be called every few milliseconds while the daemon wants to know; tells it what is new. */
void busyness_look(struct client *client, struct busyness *busy);
/* The gate is shut: time does not count until the next look. */
void busyness_pause(struct busyness *busy);
/* Nobody wants to know any more. */
void busyness_forget(struct busyness *busy);
/* Milliseconds until the next look; -1: none is due. */
int busyness_due(const struct busyness *busy);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tells a program when to release its frameworks' caches; caches.c.
 */
#pragma once

#include <stdint.h>

struct client;

/* Occasions, each at most once in a turn. */
enum caches_occasion {
    CACHES_TURN,                     /* it runs, and others wait */
    CACHES_IDLE,                     /* it has been idle for a while */
    CACHES_OCCASIONS,
};

/* For programs. Waits until frameworks should release their caches, and returns CACHES_OCCASIONS *
 * device + occasion. Any thread; from then on that thread never disturbs a capture. */
__attribute__((visibility("protected"))) int nvshare_trim_wait(void);

/* The following functions are for service threads. */

/* This client competes, and this is an occasion; may be called repeatedly. */
void caches_ask(struct client *client, enum caches_occasion occasion);
/* This client does not compete (any more). */
void caches_rest(struct client *client);

/* With memory_lock held: the turn is over and nothing is in flight. */
void caches_turn_ended(struct client *client);
/* With memory_lock held: `room` is what the client may keep. Called before anything is evicted. */
void caches_room_ordered(struct client *client, uint64_t room);

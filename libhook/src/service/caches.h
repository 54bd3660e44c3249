/* SPDX-License-Identifier: Apache-2.0 */
/* Tells a program when to release its frameworks' caches. */
#pragma once

#include <stdint.h>

struct client;

/* Reasons to ask a program to release its caches, each at most once in a turn. */
enum caches_occasion {
    CACHES_TURN,                     /* the program runs while other clients wait */
    CACHES_IDLE,                     /* the program has been idle for a while */
    CACHES_OCCASIONS,
};

/* For programs. Waits until frameworks should release their caches; returns CACHES_OCCASIONS *
 * device + occasion. The thread's capture mode becomes relaxed, so it disturbs no capture
 * afterwards. */
__attribute__((visibility("protected"))) int nvshare_trim_wait(void);

/* The functions below are for service threads. */

/* Asks the program, unless it was asked for this reason since the last caches_rest(). Called
 * repeatedly while other clients wait for the card. */
void caches_ask(struct client *client, enum caches_occasion occasion);
/* Called while no other client waits: caches_ask() may then ask again. */
void caches_rest(struct client *client);

/* With memory_lock held: the turn has ended, and no work is in flight. */
void caches_turn_ended(struct client *client);
/* With memory_lock held: an EVICT has set the client's room, and no block is evicted yet. */
void caches_room_ordered(struct client *client, uint64_t room);

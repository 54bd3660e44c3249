/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When a program should give back what its frameworks have cached; caches.c.
 */
#pragma once

#include <stdint.h>

struct client;

/* When a program is asked, once a turn each. */
enum caches_occasion {
    CACHES_TURN,                     /* it runs, and others wait */
    CACHES_IDLE,                     /* it has had nothing to do for a while */
    CACHES_OCCASIONS,
};

/* For programs. Waits until frameworks should give back
 * what they have cached, and returns CACHES_OCCASIONS * device + occasion. Any thread, which
 * never disturbs a capture of the others from then on. */
__attribute__((visibility("protected"))) int nvshare_trim_wait(void);

/* The following by service threads. */

/* This client competes and there is occasion; as often as one likes. */
void caches_ask(struct client *client, enum caches_occasion occasion);
/* It does not compete, or not any more. */
void caches_rest(struct client *client);

/* With memory_lock held: the turn is over and nothing is in flight; */
void caches_turn_ended(struct client *client);
/* then `room` is all that is left to it. Before anything leaves. */
void caches_room_ordered(struct client *client, uint64_t room);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asks frameworks to give back what they have cached, before it would leave the
 * card; caches.c.
 */
#ifndef NVSHARE_CACHES_H
#define NVSHARE_CACHES_H

#include <stdbool.h>
#include <stdint.h>

struct client;

/* When a program is asked, once a turn each. */
enum caches_occasion {
    CACHES_TURN,                     /* it runs, and others wait */
    CACHES_IDLE,                     /* it has had nothing to do for a while */
    CACHES_OCCASIONS,
};

/* One in each client. Protected by memory_lock. */
struct caches {
    /* Its last turn ended without anybody needing the room: nothing would leave. */
    bool needless;
    bool asked;                      /* CPython has not come to it yet */
    enum caches_occasion occasion;   /* for which it was asked last */
    struct caches_release {
        bool unjudged;               /* it is not known whether it was any good */
        enum caches_occasion occasion;
        uint64_t bytes, allocated;   /* that came back, and that were left then */
    } last;
    uint64_t spared;                 /* bytes that need not leave after this turn for that */
    struct caches_try {
        bool past;                   /* in this turn */
        unsigned pause, left;        /* turns to let pass since the last was not, and how many yet */
    } tries[CACHES_OCCASIONS];
};

/* A thread of the program, once, before there is a service thread. */
void caches_prepare(void);

/* The following by service threads. */

/* This client competes and there is occasion; as often as one likes. */
void caches_ask(struct client *client, enum caches_occasion occasion);
/* It does not compete, or not any more. */
void caches_rest(struct client *client);

/* With memory_lock held: the turn is over and nothing is in flight; */
void caches_turn_ended(struct client *client);
/* then `room` is all that is left to it. Before anything leaves. */
void caches_room_ordered(struct client *client, uint64_t room);

#endif

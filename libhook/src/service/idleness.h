/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Watching a holder for idleness. On the service thread with service_lock held.
 */
#pragma once

#include "flight/drain.h"

struct client;

struct idleness {
    bool watching;                   /* nothing was submitted since `since`, at count `passes` */
    bool draining;
    bool reported;
    uint64_t passes;
    uint64_t since;
    uint64_t counted;                /* until when the pause is added up */
    struct drain drain;
};

/* To be called every few milliseconds while others wait; tells the daemon, once,
 * when it is idle. */
void idleness_look(struct client *client, struct idleness *idle);
/* Begins afresh. */
void idleness_forget(struct idleness *idle);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of the service thread. All of it runs there.
 */
#ifndef NVSHARE_SERVICE_H
#define NVSHARE_SERVICE_H

#include "client/client_state.h"

/* orders.c: carries out one record of the daemon's. Takes service_lock. */
void service_obey(struct client *client, const struct nvshare_record *record);

/* service.c. The connection has ended, or is of no use: closes it. */
void service_disconnect(struct client *client);
/* Says everything that a daemon which knows nothing of us must know, in answer to
 * the question `number` (0: to none). memory_lock is held. */
void service_introduce(struct client *client, uint64_t number);

/* idleness.c: watching a contended holder for idleness. */
struct idleness {
    bool watching;                   /* nothing was submitted since `since`, at count `passes` */
    bool draining;
    bool told;
    uint64_t passes;
    uint64_t since;
    struct drain drain;
};

/* To be called every few milliseconds while others wait; tells the daemon, once,
 * when it is idle. service_lock is held. */
void idleness_look(struct client *client, struct idleness *idle);
/* Begins afresh. service_lock is held. */
void idleness_forget(struct idleness *idle);

#endif

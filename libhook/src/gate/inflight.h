/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Urgent programs publish whether they have work in flight, background programs watch; inflight.c.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct client;

/* Called by service threads, with service_lock. The caller closes the descriptor. */

/* The client publishes its counters in this page; -1: it stops. */
void inflight_publish(struct client *client, int descriptor);
/* The client watches the client `number`, by this page; -1: it stops. */
void inflight_watch(struct client *client, uint64_t number, int descriptor);
void inflight_forget(struct client *client);        /* stops all of both */
/* Whether this program watches any other, and so is in the background. */
bool inflight_is_watching(void);
/* Whether a watched program has work in flight. */
bool inflight_urgent(void);

/* Whether the client's counters say that it has work in flight. */
bool inflight_busy(const struct client *client);
/* More work is in flight than before: until inflight_clear(), threads need not count. */
void inflight_extend(struct client *client);
/* From now on threads count. True if the gate is empty and was passed `passes` times in all. */
bool inflight_arm(struct client *client, uint64_t passes);
/* The work submitted before inflight_arm() is done. False if a thread has counted since. */
bool inflight_clear(struct client *client);

/* Wakes waiting threads if they may go on. `stalled`: the program's own work in flight does not
 * end. Returns after how many us to poll again; 0: no thread waits. */
uint64_t inflight_poll(uint64_t now, bool stalled);

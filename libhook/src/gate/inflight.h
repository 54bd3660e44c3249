/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs of high priority publish whether they have work in flight, and background programs watch
 * that; see inflight.c.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct client;

/* Called by service threads, with service_lock. The caller closes the descriptor. */

/* Publishes the client's counters in the page of `descriptor`; -1: stops publishing. */
void inflight_publish(struct client *client, int descriptor);
/* Watches the client `number` through the page of `descriptor`; -1: stops watching that client. */
void inflight_watch(struct client *client, uint64_t number, int descriptor);
void inflight_forget(struct client *client);        /* stops publishing and all watching */
/* Whether this program watches another, which only background programs do. */
bool inflight_is_watching(void);
/* Whether a watched program has work in flight. */
bool inflight_urgent(void);

/* Whether the client's counters say that it has work in flight. */
bool inflight_busy(const struct client *client);
/* Counts new work as begun. Until the next inflight_arm(), passing threads need not count. */
void inflight_extend(struct client *client);
/* Makes passing threads count from now on. True if the gate is empty and gate_passes() is still
 * `passes`. */
bool inflight_arm(struct client *client, uint64_t passes);
/* The work submitted before inflight_arm() is done. False if a thread has counted since. */
bool inflight_clear(struct client *client);

/* Wakes threads that wait for urgent programs if they may go on. `stalled`: the program's own work
 * in flight does not end. Returns the us until the next call is due; 0: no thread waits. */
uint64_t inflight_poll(uint64_t now, bool stalled);

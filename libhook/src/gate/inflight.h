/* SPDX-License-Identifier: Apache-2.0 */
/* Programs of high priority publish whether they have work in flight; background programs watch. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct client;

/* Called by the gate while GATE_PUBLISHING is set. */

void inflight_count(void); /* counts a pass; called inside the gate, before inflight_may_pass() */
bool inflight_may_pass(void);        /* called inside the gate; may use up an allowed pass */
bool inflight_holds(void);           /* called outside the gate: whether a pass must wait */

/* Called by service threads, with service_lock. The caller closes the descriptor. */

/* Publishes the client's counters in the page of `descriptor`; -1: stops publishing. */
void inflight_publish(struct client *client, int descriptor);
/* Watches client `number` by the page of `descriptor`; -1: stops watching that client. */
void inflight_watch(struct client *client, uint64_t number, int descriptor);
void inflight_forget(struct client *client);        /* stops publishing and all watching */
bool inflight_is_watching(void);                    /* a page of an urgent program is watched */
bool inflight_urgent(void);                         /* a watched program has work in flight */

bool inflight_busy(const struct client *client);
/* Counts work as begun. Until inflight_arm(), passing threads need not count their passes. */
void inflight_extend(struct client *client);
/* Passing threads count passes again. True: no thread is inside, and gate_passes() is `passes`. */
bool inflight_arm(struct client *client, uint64_t passes);
/* Publishes that work before inflight_arm() is done. False: a thread has counted newer work. */
bool inflight_clear(struct client *client);

/* Wakes threads that wait for urgent programs if they may go on. `stalled`: this program's own work
 * does not end. Returns the us until the next call; 0: no thread waits. */
uint64_t inflight_poll(uint64_t now, bool stalled);

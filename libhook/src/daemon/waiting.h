/* SPDX-License-Identifier: Apache-2.0 */
/* Tells the user of a program, who asked for it, that the program waits and for what. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct client;
struct nvshare_order;

/* Between two steps of the service thread. Returns in how many us there is something to
 * tell. */
int64_t waiting_step(struct client *client);
/* The daemon says what for. */
void waiting_for(const struct client *client, const struct nvshare_order *order);
/* For gate_on_waiter. */
void waiting_begins(void);

/* There is no daemon for this program, because it `trouble`: "does not answer". True: wait for
 * it, for a while that has passed; false: run without one. */
bool waiting_for_daemon(const char *trouble);
/* There is one, and it is waited for, but it does not answer. */
void waiting_for_answer(void);
void waiting_for_daemon_ends(void);

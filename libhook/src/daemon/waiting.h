/* SPDX-License-Identifier: Apache-2.0 */
/* Tells the user, on request (NVSHARE_VERBOSE), that the program waits, and for what. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct client;
struct nvshare_order;

/* For the service thread. Returns the us until it must be called again. */
int64_t waiting_step(struct client *client);
/* The daemon's answer: the reason for the wait. */
void waiting_for(const struct client *client, const struct nvshare_order *order);
/* For gate_on_waiter. */
void waiting_begins(void);

/* There is no daemon for this program; `trouble` says why: "does not answer". True: try again, a
 * pause has passed; false: run without one. */
bool waiting_for_daemon(const char *trouble);
/* There is a daemon, but it does not answer yet. */
void waiting_for_answer(void);
void waiting_for_daemon_ends(void);

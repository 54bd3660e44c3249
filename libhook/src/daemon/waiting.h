/* SPDX-License-Identifier: Apache-2.0 */
/* With NVSHARE_VERBOSE, prints on stderr that the program waits, and the reason. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct client;
struct nvshare_order;

/* For the service thread. Returns the us until it must be called again. */
int64_t waiting_step(struct client *client);
/* Prints the reason for the wait, from the daemon's QUEUED. */
void waiting_for(const struct client *client, const struct nvshare_order *order);
bool waiting_is_printed(void);                    /* NVSHARE_VERBOSE=1 */

/* Called when the program has no daemon; `problem` is the printed reason, as "does not answer".
 * True: try again, after the pause made here; false: run without a daemon. */
bool waiting_for_daemon(const char *problem);
/* Called when a daemon is connected, but does not answer yet. */
void waiting_for_answer(void);
void waiting_for_daemon_ends(void);

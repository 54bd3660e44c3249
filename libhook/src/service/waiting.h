/* SPDX-License-Identifier: Apache-2.0 */
/* With NVSHARE_VERBOSE=1, prints on stderr that the program waits, and why. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct client;
struct nvshare_order;

/* Called by the service thread. Returns the us until the next call. */
int64_t waiting_step(struct client *client);
/* Prints the reason for the wait, from the daemon's QUEUED. */
void waiting_for(const struct client *client, const struct nvshare_order *order);

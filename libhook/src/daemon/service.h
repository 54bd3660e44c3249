/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>

struct client;

/* For programs: the turns of this process on all its GPUs are over when the work that it has
 * submitted is done, unless it submits more before that. Waits for nothing. Returns on how many GPUs
 * the process has a client: 0 also in a forked child. */
__attribute__((visibility("protected"))) int nvshare_release(void);

/* The service thread of a client. */
void *service_run(void *client);

/* Makes client->wake, or makes it anew. */
bool service_make_wake(struct client *client);

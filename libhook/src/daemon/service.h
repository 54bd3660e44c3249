/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>

struct client;

/* For programs: ends the turns of this process on all its GPUs when the work that it has submitted
 * is done, unless it submits more before that. Does not wait. Returns the number of GPUs on which
 * the process has a client: 0 also in a forked child. */
__attribute__((visibility("protected"))) int nvshare_release(void);

/* The service thread of a client. */
void *service_run(void *client);

/* Creates client->wake, or replaces it. */
bool service_make_wake(struct client *client);

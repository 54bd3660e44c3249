/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>

struct client;

/* For programs: ends the turns of this process on all its GPUs as soon as the work submitted so far
 * is done, unless the program submits more before that. Does not wait. Returns the number of GPUs
 * on which the process has a client; 0 in a forked child. */
__attribute__((visibility("protected"))) int nvshare_release(void);

/* The service thread of a client. */
void *service_run(void *client);

/* Creates the socket pair client->wakes and client->wake, or replaces it. False: not possible. */
bool service_make_wake(struct client *client);

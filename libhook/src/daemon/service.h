/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>

struct client;

/* The service thread of a client. */
void *service_run(void *client);

/* Makes client->wake, or makes it anew. */
bool service_make_wake(struct client *client);

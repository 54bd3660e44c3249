/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct client;

/* The service thread of a client. */
void *service_run(void *client);

/* Makes client->wake, or makes it anew. */
bool service_make_wake(struct client *client);

/* The following on that thread. */

/* For a drain of this client: waits about `us` microseconds, or for an order. One that moves nothing
 * it carries out, any other it postpones. Releases service_lock meanwhile. */
void service_rest(void *client, uint64_t us);
/* The connection has ended, or is of no use: closes it. */
void service_disconnect(struct client *client);
/* Says everything that a daemon which knows nothing of us must know, in answer to
 * the question `number` (0: to none). memory_lock is held. */
void service_introduce(struct client *client, uint64_t number);

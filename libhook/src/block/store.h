/* SPDX-License-Identifier: Apache-2.0 */
/* Carries out STORE: moves swapped blocks from host memory to the client's file. All functions are
 * called by the service thread with memory_lock held. */
#pragma once

#include "gate/client.h"

/* Carries out STORE. `descriptor`: sent with the order, or -1; the caller keeps it. May release and
 * retake the lock. */
void store_order(struct client *client, const struct nvshare_order *order, int descriptor);
/* Completes writes that have ended and begins others. Returns the us until the next call is due;
 * NEVER: no write is in flight. */
int64_t store_step(struct client *client);
/* Has each write end after its current disk request; store_step() later begins them again. */
void store_cancel(struct client *client);
/* Voids the last STORE, when a new daemon is connected that has not sent one yet. */
void store_forget_order(struct client *client);

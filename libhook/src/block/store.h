/* SPDX-License-Identifier: Apache-2.0 */
/* Moves swapped blocks on from host memory to the client's file: STORE. Service thread, with
 * memory_lock held. */
#pragma once

#include "gate/client.h"

/* Carries out STORE. `descriptor`: sent with the order, or -1; the caller keeps it. May release and
 * retake the lock. */
void store_order(struct client *client, const struct nvshare_order *order, int descriptor);
/* Completes writes that have ended and begins others. Returns the us until the next call is due;
 * NEVER: no write is in flight. */
int64_t store_step(struct client *client);
/* Cancels all writes at the end of their current disk request; store_step() begins them again. */
void store_cancel(struct client *client);
/* Voids the last STORE: a new daemon is connected, which has sent none yet. */
void store_forget_order(struct client *client);

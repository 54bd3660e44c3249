/* SPDX-License-Identifier: Apache-2.0 */
/* Moves swapped blocks on from host memory to the client's file: STORE. Service thread, with
 * memory_lock held. */
#pragma once

#include "gate/client.h"

/* Carries out STORE. `descriptor`: sent with the order, or -1; the caller keeps it. May release and
 * retake the lock. */
void store_order(struct client *client, const struct nvshare_order *order, int descriptor);
/* Completes blocks that are written and begins others. Returns the us until it must be called
 * again. */
int64_t store_step(struct client *client);
/* Ends what is under way with the requests that are; store_step() begins it anew. */
void store_cancel(struct client *client);
/* A new daemon has ordered nothing yet. */
void store_forget_order(struct client *client);

/* SPDX-License-Identifier: Apache-2.0 */
/* Carries out STORE: moves swapped blocks from host memory to the client's file. Service thread,
 * with memory_lock held. */
#pragma once

#include "gate/client.h"

/* Carries out STORE with the descriptor that came with the order, or -1; the caller keeps the
 * descriptor. May release the lock. */
void store_order(struct client *client, const struct nvshare_order *order, int descriptor);
/* Completes and begins writes. Returns the us until the next call is due; NEVER: no write is in
 * flight. */
int64_t store_step(struct client *client);
/* Ends each write after its current disk request; store_step() begins it again later. */
void store_cancel(struct client *client);
/* Voids the last STORE: a new daemon is connected that has not sent one. */
void store_forget_order(struct client *client);

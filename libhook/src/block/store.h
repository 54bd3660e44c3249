/* SPDX-License-Identifier: Apache-2.0 */
/* Carries out STORE: moves swapped blocks from host memory to the client's file. Service thread,
 * with memory_lock held. */
#pragma once

#include "gate/client.h"

/* Carries out STORE with the file's descriptor that came with the order (-1: none came), which the
 * caller closes. May release the lock. */
void store_order(struct client *client, const struct nvshare_order *order, int descriptor);
/* Completes and begins writes. Returns the us until the next call is due; NEVER: no write is in
 * flight. */
int64_t store_step(struct client *client);
/* Ends each write after its current disk request; store_step() begins it again later. */
void store_cancel(struct client *client);
/* Voids the last STORE: a new daemon is connected, and has sent no STORE yet. */
void store_forget_order(struct client *client);

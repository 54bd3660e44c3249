/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory of a client, for the other tiers. memory_lock is held. */
#pragma once

#include "gate/client.h"
#include "tier/tier.h"

/* Takes a place in a slab. False: no slab has that many free bytes in one piece. */
bool host_place(struct client *client, size_t size, struct place *place);
void host_unplace(struct client *client, size_t size, struct place *place);
/* Makes one slab, counted in memory.host from the start. False: it would exceed `allowance`, or
 * memory is exhausted. Releases the lock. */
bool host_grow(struct client *client, uint64_t block_size, uint64_t allowance);
/* Registers the place's slab again if necessary. Whether copies from and to it run directly over
 * the bus: if not, driver calls that start copies may take as long as the copies. May release the
 * lock. */
bool host_register(const struct place *place);
/* Whether threads make host memory for an eviction. */
bool host_is_made(const struct client *client);

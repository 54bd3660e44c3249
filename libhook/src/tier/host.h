/* SPDX-License-Identifier: Apache-2.0 */
/* A client's host memory for swapped blocks. memory_lock is held unless stated otherwise. */
#pragma once

#include "gate/client.h"
#include "tier/tier.h"

/* The NUMA node nearest to a GPU; -1: unknown. Without memory_lock. */
int host_nearest_node(CUdevice device);

/* Takes a place in a slab. False: no slab has that many free bytes in one piece. */
bool host_place(struct client *client, size_t size, struct place *place);
void host_unplace(struct client *client, size_t size, struct place *place);
/* Makes one slab, counted in memory.host from the start. False: it would exceed `allowance`, or
 * memory is exhausted. Releases the lock. */
bool host_grow(struct client *client, uint64_t block_size, uint64_t allowance);
/* Registers the slab again if necessary. Whether copies from and to it run directly over the bus:
 * if not, driver calls that start copies may take as long as the copies. May release the lock. */
bool host_slab_registered(struct host_slab *slab);
/* Announces that `bytes` are about to be evicted while a client waits, so that threads make
 * host memory for these bytes; 0: waits for these threads. Service thread; may release the lock. */
void host_expect(struct client *client, uint64_t bytes);
/* Called when a block announced with host_expect() has got a place, in any tier. */
void host_placed(struct client *client, uint64_t size);

/* Makes host memory while the program runs, up to the lesser of `most` and host_useful() bytes. */
void host_preallocate(struct client *client, uint64_t most);
/* Ends the preallocation. A slab begun is kept if memory.host is then at most `most` bytes. */
void host_preallocated(struct client *client, uint64_t most);

/* The upper bound of host memory that blocks of the client could use. */
uint64_t host_useful(const struct client *client);
/* Releases empty slabs while the client holds more than `allowance`. Service thread, in
 * client->copy_context if that is not NULL; releases memory_lock. */
void host_trim(struct client *client, uint64_t allowance);
/* Unregisters all slabs, because client->copy_context is about to end. `drained`: no work is in
 * flight in that context. service_lock is held, too; releases memory_lock. */
void host_leave_context(struct client *client, bool drained);

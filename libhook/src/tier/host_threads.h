/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that make host memory for blocks; host_threads.c. With memory_lock, unless stated
 * otherwise.
 */
#pragma once

#include "gate/client.h"

/* So many bytes are about to be evicted, and another client waits for that. */
void host_expect(struct client *client, uint64_t bytes);
/* The first of these blocks needs a place: starts threads that make memory for all of them, up to
 * `allowance` in all, unless there is enough. Does not wait for them. */
void host_allocate(struct client *client, uint64_t allowance);
/* One of the blocks has a place. */
void host_placed(struct client *client, uint64_t size);
/* The eviction is over: waits for these threads. Releases and retakes the lock. */
void host_allocated(struct client *client);

/* Makes memory while the program runs, before an eviction: until `most` is held in all, as far as
 * it may be used. */
void host_preallocate(struct client *client, uint64_t most);
/* Ends that. A slab in progress is kept if at most `most` is held when it is complete. */
void host_preallocated(struct client *client, uint64_t most);

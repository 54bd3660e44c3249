/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that make host memory for blocks; host_threads.c. With memory_lock, unless stated
 * otherwise.
 */
#pragma once

#include "gate/client.h"

/* Announces that `bytes` are about to be evicted, while another client waits. */
void host_expect(struct client *client, uint64_t bytes);
/* Called when the first of these blocks needs a place. Unless host memory suffices, starts threads
 * that make memory for all of them, until the client holds `allowance`. Does not wait for them. */
void host_allocate(struct client *client, uint64_t allowance);
/* Called when one of the blocks has got a place. */
void host_placed(struct client *client, uint64_t size);
/* Called at the end of the eviction: waits for these threads. Releases and retakes the lock. */
void host_allocated(struct client *client);

/* Preallocates: makes memory while the program runs, until the client holds `most` bytes, but no
 * more than its blocks could use. */
void host_preallocate(struct client *client, uint64_t most);
/* Ends the preallocation. A slab in progress is kept if at most `most` bytes are held then. */
void host_preallocated(struct client *client, uint64_t most);

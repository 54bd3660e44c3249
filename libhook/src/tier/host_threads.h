/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that make host memory for blocks; host_threads.c. With memory_lock, unless something else
 * is said.
 */
#pragma once

#include "gate/client.h"

/* So many bytes are about to leave, and somebody waits for that. */
void host_expect(struct client *client, uint64_t bytes);
/* The first of these blocks needs a place: threads make memory for all of them, up to `allowance` in
 * all, unless there is enough; while the caller goes on. */
void host_allocate(struct client *client, uint64_t allowance);
/* One of them has a place. */
void host_placed(struct client *client, uint64_t size);
/* No more are to leave: waits for these threads. Releases and retakes the lock. */
void host_allocated(struct client *client);

/* Makes memory while the program runs, before anything has to leave: until `most` is held in all, as
 * far as there may be use for it. */
void host_preallocate(struct client *client, uint64_t most);
/* Begins no more. What is being made is kept if no more than `most` is held when it is done. */
void host_preallocated(struct client *client, uint64_t most);

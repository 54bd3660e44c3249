/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that was freed while a stream was being captured. All functions are called with
 * memory_lock held.
 */
#pragma once

#include "driver/driver.h"

struct client;

/* A retired allocation of this context is to be released once its work has been waited for. */
void deferred_frees_add(CUdeviceptr address, CUcontext context);
uint64_t deferred_frees_so_far(void);             /* how many there ever were */
/* All work of the context from before is done: of what was freed in it those up to `number` are
 * released. What was freed later may be used by work that came later. */
void deferred_frees_waited(CUcontext context, uint64_t number);
void deferred_frees_context_end(CUcontext context); /* may release and retake the lock */

/* With `until`, waits for the oldest and releases it: gate/client.h. False: there is none, or
 * a capture goes on still. */
bool deferred_frees_reclaim(struct client *client, uint64_t bytes, uint64_t until);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Spares: memory that the program has freed and that is still mapped, for a
 * moment. See spare.c. All functions are called with memory_lock held.
 */
#pragma once

#include "driver/driver.h"

struct client;
struct large;

void spares_prepare(const struct client *client);   /* it has none yet */
uint64_t spares_bytes(const struct client *client); /* part of what counts as allocated and resident */

/* Instead of large_release() for what the program has freed and nothing uses
 * any more. False: it cannot stay, and is to be released. */
bool spare_keep(struct large *large);
/* Instead of allocating: one of this size in this context is the program's again. */
bool spare_take(struct client *client, CUcontext context, size_t bytes, CUdeviceptr *address);
/* One that is being released is none any more; nothing happens to any other memory. */
void spare_leave(struct large *large);

/* Releases the oldest until `bytes` bytes or all are gone: gate/client.h. */
bool spares_reclaim(struct client *client, uint64_t bytes, uint64_t until);
/* Service thread: releases those that are too old, or some of them if they are many. Returns us until
 * that is due again. */
int64_t spares_expire(struct client *client);

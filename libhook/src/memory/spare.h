/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Spares: memory that the program has freed and that stays mapped for a short time. See spare.c.
 * All functions are called with memory_lock held.
 */
#pragma once

#include "driver/driver.h"

struct client;
struct large;

void spares_prepare(const struct client *client);   /* for a new client */
uint64_t spares_bytes(const struct client *client); /* counted as allocated and resident */

/* Keeps an allocation that the program has freed and no work uses. False: it cannot be kept; the
 * caller calls large_release(). */
bool spare_keep(struct large *large);
/* Gives a spare of this size and context back to the program. False: there is none; allocate. */
bool spare_take(struct client *client, CUcontext context, size_t bytes, CUdeviceptr *address);
/* Removes an allocation that is being released from the spares; no-op for all other memory. */
void spare_leave(struct large *large);

/* A `reclaimer` (gate/client.h): releases the oldest spares until `bytes` bytes or all are
 * released. */
bool spares_reclaim(struct client *client, uint64_t bytes, uint64_t until);
/* For the service thread: releases spares that are too old, at most EXPIRED_AT_ONCE. Returns the us
 * until it must be called again. */
int64_t spares_expire(struct client *client);

/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct client;
struct nvshare_order;

/* This order, which is being carried out, is to end now (YIELD). Service thread. */
bool order_yields(struct client *client, const struct nvshare_order *order);

/* In a long loop with memory_lock held: now and then, lets others have it. `held_since`: 0 at
 * first, and kept between calls. */
void memory_lock_yields(uint64_t *held_since);

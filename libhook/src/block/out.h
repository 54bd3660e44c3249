/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdint.h>

#include "block/block.h"

struct client;
struct nvshare_order;

/* Carry out an EVICT; `*flags` gets what went wrong. Service thread, service_lock held, memory_lock
 * not. Without KEEP: returns bytes moved. */
uint64_t swap_out(struct client *client, const struct nvshare_order *order, unsigned *flags);
/* With KEEP: returns bytes that could leave without a copy now. */
uint64_t swap_write_back(struct client *client, const struct nvshare_order *order, unsigned *flags);

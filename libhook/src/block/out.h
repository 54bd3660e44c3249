/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdint.h>

#include "block/block.h"

struct client;
struct nvshare_order;

/* Copies on another GPU of blocks that are on the card are forgotten, as far as they exceed the order's
 * loan. With memory_lock held, at any time. Returns bytes that may lie there. */
uint64_t swap_forget_borrowed(struct client *client, const struct nvshare_order *order);
/* What lies on another GPU beyond the order's loan goes to host memory. As the next two. */
void swap_return(struct client *client, const struct nvshare_order *order, unsigned *flags);
/* Carry out an EVICT; `*flags` receives the errors. Service thread, service_lock held, memory_lock
 * not. Without KEEP: returns the bytes moved. */
uint64_t swap_out(struct client *client, const struct nvshare_order *order, unsigned *flags);
/* With KEEP: returns the bytes that could be evicted without a copy now. */
uint64_t swap_write_back(struct client *client, const struct nvshare_order *order, unsigned *flags);

/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdint.h>

#include "block/block.h"

struct client;
struct nvshare_order;

/* What lies on another GPU beyond the order's loan goes to host memory; what blocks on the card keep
 * there is forgotten. As the next two. */
void swap_return(struct client *client, const struct nvshare_order *order, unsigned *flags);
/* Carry out an EVICT; `*flags` receives the errors. Service thread, service_lock held, memory_lock
 * not. Without KEEP: returns the bytes moved. */
uint64_t swap_out(struct client *client, const struct nvshare_order *order, unsigned *flags);
/* With KEEP: returns the bytes that could be evicted without a copy now. */
uint64_t swap_write_back(struct client *client, const struct nvshare_order *order, unsigned *flags);

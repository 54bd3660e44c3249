/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdint.h>

#include "block/block.h"

struct client;
struct nvshare_order;

/* Frees places on another GPU beyond the order's loan, of resident blocks and of swapped blocks
 * that have a copy on the host. With memory_lock held. Returns the bytes that may stay there. */
uint64_t swap_forget_borrowed(struct client *client, const struct nvshare_order *order);
/* Copies swapped blocks beyond the order's loan from the other GPU to host memory. Called as
 * swap_out(). */
void swap_return(struct client *client, const struct nvshare_order *order, unsigned *flags);
/* Carries out an EVICT without KEEP; `*flags` receives the errors. Service thread, service_lock
 * held, memory_lock not. Returns the bytes copied. */
uint64_t swap_out(struct client *client, const struct nvshare_order *order, unsigned *flags);
/* Carries out an EVICT with KEEP, called as swap_out(). Returns the bytes that could be evicted
 * without a copy now. */
uint64_t swap_write_back(struct client *client, const struct nvshare_order *order, unsigned *flags);

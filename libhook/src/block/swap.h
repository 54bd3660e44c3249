/* SPDX-License-Identifier: Apache-2.0 */
/* EVICT and LOAD. Service thread, with service_lock held and memory_lock not, unless stated
 * otherwise. */
#pragma once

#include "driver/driver.h"

struct client;
struct nvshare_order;

/* Carries out this LOAD and the LOADs that arrive meanwhile, and answers each with MOVED. */
void swap_in(struct client *client, const struct nvshare_order *order);
/* Carries out an EVICT without KEEP; `*flags` receives the errors. Returns the bytes copied. */
uint64_t swap_out(struct client *client, const struct nvshare_order *order, unsigned *flags);
/* Carries out an EVICT with KEEP. Returns the bytes that could be evicted without a copy now. */
uint64_t swap_write_back(struct client *client, const struct nvshare_order *order, unsigned *flags);
/* While more bytes are on another GPU than the order's loan, gives up places there of resident
 * blocks and of swapped blocks that have a copy on the host. With memory_lock held. Returns the
 * bytes that may stay there. */
uint64_t swap_forget_borrowed(struct client *client, const struct nvshare_order *order);
/* Copies swapped blocks beyond the order's loan from the other GPU to host memory. */
void swap_return(struct client *client, const struct nvshare_order *order, unsigned *flags);

/* Makes the copy context current, and creates its stream and events if it is new. False: there is
 * no context, so nothing can be copied. */
bool swap_enter_context(struct client *client);
/* `context` is about to end; drops the objects in it if it is the copy context. `drained`: nothing
 * is in flight there. With memory_lock held, which may be released and retaken. */
void swap_leave_context(struct client *client, CUcontext context, bool drained);

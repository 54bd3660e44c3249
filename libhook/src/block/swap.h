/* SPDX-License-Identifier: Apache-2.0 */
/* Carries out EVICT and LOAD. For the service thread, with service_lock but without memory_lock
 * unless stated otherwise. */
#pragma once

#include "driver/driver.h"

struct client;
struct nvshare_order;
struct nvshare_report;

/* Carries out `order`, a LOAD, and LOADs that arrive meanwhile; answers each with MOVED. */
void swap_in(struct client *client, const struct nvshare_order *order);
/* Carries out EVICT without KEEP; *flags: flags of the answer. Returns the bytes copied. */
uint64_t swap_out(struct client *client, const struct nvshare_order *order, unsigned *flags);
/* Carries out EVICT with KEEP. Returns the bytes that can now be evicted without a copy. */
uint64_t swap_write_back(struct client *client, const struct nvshare_order *order, unsigned *flags);
/* Until at most order->loan bytes are in the lent tier, gives up the places there of resident blocks
 * and of swapped blocks with a copy behind it. memory_lock is held. Returns the bytes that may be
 * there. */
uint64_t swap_forget_borrowed(struct client *client, const struct nvshare_order *order);
/* Moves blocks from the lent tier to one behind it until at most order->loan bytes are there. */
void swap_return(struct client *client, const struct nvshare_order *order, unsigned *flags);

/* Makes the copy context current; sets up its stream and events if it is new. False: no context. */
bool swap_enter_context(struct client *client);
/* `context` is about to end. `drained`: no work is in flight in it. memory_lock is held, and may
 * be released meanwhile. */
void swap_leave_context(struct client *client, CUcontext context, bool drained);

/* Sets *report to BORROWED if its figures have changed since the last; else returns false.
 * memory_lock is held. */
bool swap_report(struct client *client, struct nvshare_report *report);
/* A HELLO follows: an earlier BORROWED may not have arrived. memory_lock is held. */
void swap_report_again(struct client *client);

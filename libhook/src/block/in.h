/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

struct client;
struct nvshare_order;

/* Carries out this LOAD and the LOADs that arrive meanwhile, and answers each with MOVED. Service
 * thread, service_lock held, memory_lock not. */
void swap_in(struct client *client, const struct nvshare_order *order);

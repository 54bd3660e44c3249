/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

struct client;
struct nvshare_order;

/* Carries out one order, on the service thread with service_lock held, which a drain releases
 * meanwhile. `descriptor`: what came with it, or -1; it stays the caller's. */
void service_obey(struct client *client, const struct nvshare_order *order, int descriptor);

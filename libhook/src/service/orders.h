/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

struct client;
struct nvshare_order;

/* Carries out one order, on the service thread. `descriptor`: what came with it, or -1; it stays
 * the caller's. Takes service_lock. */
void service_obey(struct client *client, const struct nvshare_order *order, int descriptor);

/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

struct client;
struct nvshare_order;

/* Carries out PARK, on the service thread with service_lock held, which is released meanwhile.
 * Returns when the client is not parked, or not any more. */
void park(struct client *client, const struct nvshare_order *order);

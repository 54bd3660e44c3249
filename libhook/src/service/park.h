/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

struct client;
struct nvshare_order;

/* Carries out PARK on the service thread with service_lock held, but released meanwhile. Returns
 * when the client could not be parked, or after UNPARK. */
void park(struct client *client, const struct nvshare_order *order);

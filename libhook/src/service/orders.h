/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NVSHARE_ORDERS_H
#define NVSHARE_ORDERS_H

struct client;
struct nvshare_order;

/* Carries out one order, on the service thread. Takes service_lock. */
void service_obey(struct client *client, const struct nvshare_order *order);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NVSHARE_ORDERS_H
#define NVSHARE_ORDERS_H

struct client;
struct nvshare_record;

/* Carries out one record of the daemon's, on the service thread. Takes service_lock. */
void service_obey(struct client *client, const struct nvshare_record *record);

#endif

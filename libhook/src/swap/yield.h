/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NVSHARE_YIELD_H
#define NVSHARE_YIELD_H

#include <stdbool.h>

struct client;
struct nvshare_order;

/* This order, which is being carried out, is to end now (YIELD). Service thread. */
bool order_yields(struct client *client, const struct nvshare_order *order);

#endif

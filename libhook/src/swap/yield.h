/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>

struct client;
struct nvshare_order;

/* This order, which is being carried out, is to end now (YIELD). Service thread. */
bool order_yields(struct client *client, const struct nvshare_order *order);

/* SPDX-License-Identifier: Apache-2.0 */
#include "swap/yield.h"

#include "client/client.h"
#include "client/connection.h"

/* An EVICT may be followed by another one before its YIELD; that one is kept for later. */
bool order_yields(struct client *client, const struct nvshare_order *order)
{
    struct nvshare_order yield;
    if ((order->flags & NVSHARE_AHEAD) == 0)
        return false;
    if (client->postponed.type == 0)
        connection_next(client->socket, NVSHARE_EVICT, &client->postponed);
    return connection_next(client->socket, NVSHARE_YIELD, &yield);
}

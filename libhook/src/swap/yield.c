/* SPDX-License-Identifier: Apache-2.0 */
#include "swap/yield.h"

#include <time.h>

#include "client/client.h"
#include "client/connection.h"

#define HELD_MOST_US 2000

/* An EVICT may be followed by another one before its YIELD; that one is kept for later. */
bool order_yields(struct client *client, const struct nvshare_order *order)
{
    struct nvshare_order yield, next;
    if ((order->flags & NVSHARE_AHEAD) == 0)
        return false;
    if (client->postponed_count == 0 && connection_next(client->socket, NVSHARE_EVICT, &next))
        client_postpone(client, &next);
    return connection_next(client->socket, NVSHARE_YIELD, &yield);
}

/* A mutex is not handed to who waits for it, but is whoever's comes first, and that is who has just
 * released it. So it stays free for as long as a thread takes to wake up, some 50 us. */
void memory_lock_yields(uint64_t *held_since)
{
    uint64_t now = now_microseconds();
    if (*held_since == 0)
        *held_since = now;
    if (now - *held_since < HELD_MOST_US)
        return;
    pthread_mutex_unlock(&memory_lock);
    nanosleep(&(struct timespec){ .tv_nsec = 1 }, NULL);
    pthread_mutex_lock(&memory_lock);
    *held_since = now_microseconds();
}

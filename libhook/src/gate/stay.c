/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs whose memory stays on the card. Some cannot be stopped, or only seem to be: their work
 * never ends, or goes past the gate, or a device works on their memory by itself.
 *
 * To move the memory of such a program would break it, and to wait for it would hold up all. So
 * from the moment that is known nothing of it leaves the card. It runs beside whoever has the turn,
 * and the others share what is left. What lies on the card is reported as pinned (client_send()),
 * and what the program allocates later the daemon grants as it grants pinned memory.
 *
 * There is no way back: nobody could tell when the reason ends.
 */
#include "gate/stay.h"

#include <stdatomic.h>

#include "driver/log.h"
#include "gate/client.h"

static const char *text(enum nvshare_stays reason)
{
    switch (reason) {
    case NVSHARE_STAYS_UNSEEN:
        return "it may submit work that libnvshare.so does not see";
    case NVSHARE_STAYS_GIVEN:
        return "it gave memory to a device or library that may use it at any time";
    default:
        return "its work does not end, or cannot be waited for";
    }
}

void client_stay(struct client *client, enum nvshare_stays reason)
{
    pthread_mutex_lock(&memory_lock);
    bool first = client->stays == NVSHARE_STAYS_NOT;
    if (first) {
        client->stays = reason;
        client_update(client);
    }
    pthread_mutex_unlock(&memory_lock);
    if (first)
        complain("this program stays on GPU %d from now on: %s. Other programs get what is left.",
                 (int)client->device, text(reason));
}

static _Atomic enum nvshare_stays all;

void clients_stay(enum nvshare_stays reason)
{
    enum nvshare_stays none = NVSHARE_STAYS_NOT;
    atomic_compare_exchange_strong(&all, &none, reason);
    for (unsigned i = 0; i < CLIENTS_MAX; i++) {
        struct client *client = __atomic_load_n(&clients[i], __ATOMIC_ACQUIRE);
        if (client != NULL)
            client_stay(client, reason);
    }
}

enum nvshare_stays clients_stays(void)
{
    return atomic_load(&all);
}

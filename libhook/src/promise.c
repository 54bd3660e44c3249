/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the daemon has promised: how much a program may have in all, on the card
 * and beyond it. Asking for more takes a message and its answer, so the daemon
 * promises ahead, and most allocations ask nobody.
 */
#include <pthread.h>

#include "bell.h"
#include "client_state.h"

bool client_commit(struct client *client, uint64_t bytes)
{
    return client_commit_pinned(client, bytes, 0);
}

/* True: client->answer is the answer to this very question. Lock held,
 * released while waiting for it. */
static bool ask(struct client *client, unsigned type, uint64_t bytes, uint64_t host)
{
    uint64_t question = ++client->question;
    unsigned introduced = client->introduced;
    client_question(client, type, question, bytes, host);
    while (client->socket >= 0 && client->introduced == introduced
           && client->answered < question) {
        uint32_t heard = atomic_load(&client->heard);
        pthread_mutex_unlock(&memory_lock);
        bell_sleep(&client->heard, heard, NULL);
        pthread_mutex_lock(&memory_lock);
    }
    return client->socket >= 0 && client->introduced == introduced
           && client->answered == question;
}

bool client_go_beyond(struct client *client, uint64_t bytes)
{
    int cancel;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    bool settled = false, granted = false;
    while (!settled && bytes <= client->limits.beyond
           && client->beyond <= client->limits.beyond - bytes) {
        /* It counts while it is asked for: what is sent meanwhile says so too. */
        uint64_t wanted = client->beyond += bytes;
        /* Without a daemon to ask, as far as it last said. */
        bool alone = client->socket < 0, answered = !alone && ask(client, NVSHARE_BEYOND, 0, wanted);
        settled = alone || answered;
        granted = alone || (answered && client->answer.beyond >= wanted);
        if (!granted)
            client->beyond -= bytes;
    }
    pthread_setcancelstate(cancel, NULL);
    return granted;
}

bool client_commit_pinned(struct client *client, uint64_t bytes, uint64_t pins)
{
    const struct nvshare_memory *memory = &client->memory;
    int cancel;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    bool granted, asked = pins == 0;
    for (;;) {
        uint64_t wanted = memory->allocated + memory->pinned + memory->pending + bytes;
        granted = asked && wanted <= client->limits.commit;
        if (granted)
            break;
        /* What the program has freed counts for nothing that it asks for. */
        uint64_t most = pins == 0 ? client->limits.commit : 0;
        if (wanted > most && spares_drop(client, wanted - most))
            continue;
        if (client->socket < 0) {
            /* No daemon to ask: as far as it last said we could go. */
            granted = wanted <= client->limits.most;
            if (!granted && pools_yield(client, true))
                continue;
            break;
        }
        bool ours = ask(client, NVSHARE_COMMIT, wanted, pins);
        /* Refused by the answer to this very question. Less than was granted
         * may apply again by now, and another thread's later question may have
         * been answered: then ask again. */
        if (ours && client->answer.commit < wanted && !spares_drop(client, SPARES_ALL)
            && !pools_yield(client, true))
            break;
        asked = pins == 0 || (ours && client->answer.commit >= wanted);
    }
    pthread_setcancelstate(cancel, NULL);
    return granted;
}
